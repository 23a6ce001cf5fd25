"""The demo on bundled data: what wrong labels do, which ones they are, and the gain from correcting
them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from noiseproof.audit import audit, read_audit, read_rows, write_corrected
from noiseproof.audit.decisions import FILE, Choice, Decision, DecisionLog, read_answers
from noiseproof.audit.files import Audit, check_folder
from noiseproof.audit.measured import write_measured
from noiseproof.audit.plan import plan_corrections, read_reviewed
from noiseproof.audit.sample import open_design
from noiseproof.core.messages import counted
from noiseproof.data import get_dataset
from noiseproof.judge.measure.interval import Bounded
from noiseproof.review.page import file_page
from noiseproof.train import Settings, Task, prepare, train

NOISE = "symmetric:rate=0.4"
# a loss, another, strategies, a head, two models
METHODS = ("ce", "gce", "sln-mo-lc", "ln", "co-teaching")
DECISIONS = 60  # of the scripted reviewer
MENDED = ("ce", "gce")  # methods that train on the corrected labels, too
FIGURES = (
    "loss-weights",
    "accuracy-curves",
    "false-labels",
    "margins",
    "dissection",
    "label-probability",
    "confusion",
)
SETTINGS = Settings(
    model="mlp:hidden=[256,256]", epochs=60, optimizer="sgd:lr=0.05,momentum=0.9,nesterov=true"
)


class DemoStep:
    """A step of the demo: what to say about it, below a title."""

    title: ClassVar[str]

    def lines(self) -> list[str]:
        raise NotImplementedError


@dataclass(frozen=True)
class Trained(DemoStep):
    """One method in its last epoch; accuracy is on test digits, whose labels are right."""

    title = "train: digits, 40 % of the training labels wrong; accuracy on clean test labels"
    method: str
    accuracy: float
    memorised: float  # share of the wrong training labels that the model repeats

    def lines(self) -> list[str]:
        repeats = f"repeats {self.memorised:4.0%} of the wrong labels"
        return [f"{self.method:<12} {self.accuracy:.3f}, {repeats}"]


@dataclass(frozen=True)
class Audited(DemoStep):
    """Result of the audit of the training labels, next to the truth, which it did not see."""

    title = "audit: which labels are wrong?"
    folder: Path
    rows: int
    wrong: int  # labels that are wrong
    issues: int  # labels that the audit calls wrong
    found: int  # issues that are wrong
    noise_rate: float
    interval: tuple[float, float]

    def lines(self) -> list[str]:
        low, high = self.interval
        rate = f"rate {self.noise_rate:.1%} ({low:.1%} to {high:.1%})"
        return [
            f"{self.issues} of {self.rows} called wrong, {rate}",
            f"{self.found} of these are wrong, of {self.wrong} wrong labels in all",
            str(self.folder),
        ]


@dataclass(frozen=True)
class Reviewed(DemoStep):
    """What a reviewer who knows the digits measured on a designed sample of the training labels."""

    title = "measure: a reviewer who knows the truth decides on a random sample of digits"
    decisions: int
    rate: Bounded
    precision: Bounded | None  # of the labels called wrong
    wrong_left: Bounded  # once the decisions are applied
    issues: int  # labels called wrong after the recalibration
    found: int  # issues that are wrong

    def lines(self) -> list[str]:
        return [
            f"{self.rate.as_share()} of the labels are wrong by {self.decisions} answers: an"
            " interval that holds for any kind of errors",
            f"{self.issues} called wrong now, {self.found} of these are wrong",
        ]


@dataclass(frozen=True)
class Written(DemoStep):
    """Pages to open in a browser: the analysis of the methods, and the issues to review."""

    title = "pages, to open in a browser"
    analysis: Path
    review: Path

    def lines(self) -> list[str]:
        return [
            f"{self.analysis}: what the methods did",
            f"{self.review}: the issues, to decide on with the keyboard",
        ]


@dataclass(frozen=True)
class Applied(DemoStep):
    """The table with the decisions, and with suggestions that are more likely right than the other
    labels.
    """

    title = (
        "correct: apply the decisions, and suggestions that are more likely right than the given"
        " label"
    )
    path: Path
    changed: int
    expected: str  # numbers of labels mended and spoiled, before the table was written
    wrong_before: int
    wrong_after: int

    def lines(self) -> list[str]:
        return [
            *(f"expected: {part}" for part in self.expected.split("; ")),
            f"{counted(self.changed, 'label')} changed: {self.wrong_before} wrong before,"
            f" {self.wrong_after} now",
            str(self.path),
        ]


@dataclass(frozen=True)
class Mended(DemoStep):
    """Test accuracy of one method, trained on the labels as given and as corrected."""

    title = "train again: accuracy before and after the correction"
    method: str
    before: float
    after: float

    def lines(self) -> list[str]:
        return [f"{self.method:<12} {self.before:.3f} → {self.after:.3f}"]


@dataclass(frozen=True)
class Doubted(DemoStep):
    """The digits whose own labels, with which scikit-learn has them, are the most doubtful."""

    title = "real doubts: the same digits with their original labels"
    folder: Path
    page: Path
    rows: int
    issues: int
    worst: tuple[tuple[int, str, str], ...]  # row, its label, what it looks like

    def lines(self) -> list[str]:
        looks = (
            f"row {row} is labelled {y} and looks like {other}" for row, y, other in self.worst
        )
        return [f"{self.issues} of {self.rows} called wrong", *looks, str(self.page)]


def demo(
    out: str | Path,
    methods: Sequence[str] = METHODS,
    mended: Sequence[str] = MENDED,
    *,
    noise: str = NOISE,
    epochs: int = SETTINGS.epochs,
    seed: int = 0,
) -> Iterator[DemoStep]:
    """Train on scikit-learn's digits with wrong labels, audit and measure them, write pages,
    correct and train again.

    Every fifth digit is a test, which neither the methods nor the audit see. Each method gets the
    same wrong labels, initial weights and batches, and its defaults. Some defaults were chosen with
    results on digits in view, so this shows what methods do and is not a fair comparison.

    Args:
        out: a new or empty folder for the table, the runs, the audit, the pages and the corrected
            table.
        mended: methods among ``methods`` that train on the corrected labels, too.
    """
    folder = check_folder(out)
    task = prepare(get_dataset("digits", seed=seed), noise, seed=seed)
    settings = replace(SETTINGS, epochs=epochs)
    accuracy = {}
    for method in methods:
        out_run = folder / "runs" / method
        last = train(task, method, settings, seed=seed, out=out_run, samples=True).last
        accuracy[method] = last["test_accuracy"]
        yield Trained(method, accuracy[method], last["false_label_accuracy"])
    # None: the default of the audit
    yield _audit(task, folder, epochs if epochs < SETTINGS.epochs else None, seed)
    yield _measure(task, folder)
    yield _write_pages(folder, methods)
    corrected, task = _correct(task, folder)
    yield corrected
    for method in mended:
        after = train(task, method, settings, seed=seed).last["test_accuracy"]
        yield Mended(method, accuracy[method], after)
    yield _doubt(task, folder, seed)


def _write_table(task: Task, labels: torch.Tensor, path: Path) -> Path:
    import pandas as pd

    assert isinstance(task.train.x, torch.Tensor)
    pixels = pd.DataFrame(task.train.x.flatten(1).numpy()).add_prefix("pixel")
    pixels.assign(digit=labels.numpy()).to_csv(path, index=False)
    return path


def _audit(task: Task, folder: Path, epochs: int | None, seed: int) -> Audited:
    assert task.train.is_flipped is not None
    wrong = task.train.is_flipped.numpy()
    table = _write_table(task, task.train.given, folder / "digits.csv")
    report = audit(read_rows(table, label="digit"), epochs=epochs, seed=seed)
    report.save(folder / "audit")
    labels = report.label_issues
    return Audited(
        folder / "audit",
        rows=len(wrong),
        wrong=int(wrong.sum()),
        issues=int(labels.is_issue.sum()),
        found=int((labels.is_issue & wrong).sum()),
        noise_rate=labels.noise_rate,
        interval=labels.noise_interval,
    )


def review_by(audit: Audit, truth: Sequence[str], count: int) -> list[Decision]:
    """Answer the questions of a designed sample, up to ``count`` rows in all, by the labels
    ``truth`` of the source.
    """
    path = audit.folder / FILE
    design = open_design(audit)
    columns = audit.issues[["row", "id", "given_label", "suggested_label"]]
    rows = {row: cells for row, *cells in columns.values.tolist()}
    log = DecisionLog(path)
    # a pilot, then where it showed most to learn
    while questions := design.questions(read_answers(path), count):
        for question in questions:
            true = truth[question.row]
            id, given, suggested = rows[question.row]
            choice: Choice = "other"
            if true == given:
                choice = "keep"
            elif true == suggested:
                choice = "accept"
            decided = (question.row, id, given, choice, true, "")
            log.add(Decision(*decided, question.asked, question.probability))
    log.close()
    return read_answers(path)


def _measure(task: Task, folder: Path) -> Reviewed:
    """Answer the questions of a designed sample by the true digits, and recalibrate the audit by
    the answers.
    """
    data = task.train
    assert data.clean is not None and data.is_flipped is not None
    saved = read_audit(folder / "audit")
    answers = review_by(saved, [data.classes[k] for k in data.clean.tolist()], DECISIONS)
    measured = write_measured(saved, answers)
    issues = measured.audit.issues.query("is_label_issue")["row"].to_numpy(copy=True)
    result = measured.measurement
    return Reviewed(
        decisions=result.decisions,
        rate=result.rate,
        precision=result.precision,
        wrong_left=result.wrong_left,
        issues=len(issues),
        found=int(data.is_flipped[torch.from_numpy(issues)].sum()),
    )


def _write_pages(folder: Path, methods: Sequence[str]) -> Written:
    from noiseproof.analysis import collect, open_runs, save
    from noiseproof.analysis.runs import page_title, runs_table

    analysis = folder / "analysis.html"
    runs = open_runs([folder / "runs" / method for method in methods])
    save(collect(runs, only=FIGURES), analysis, title=page_title(runs), runs=runs_table(runs))
    review = _write_review(folder / "audit", folder / "review.html")
    return Written(analysis, review)


def _write_review(folder: Path, page: Path) -> Path:
    page.write_text(file_page(read_audit(folder)), "utf-8")
    return page


def _correct(task: Task, folder: Path) -> tuple[Applied, Task]:
    import pandas as pd

    saved = read_audit(folder / "audit")
    data = task.train
    reviewed = read_reviewed(saved.folder, None)
    decided = (reviewed.decisions, reviewed.answers())
    plan = plan_corrections(saved, *decided, accept_all=True)
    # as `noiseproof apply` does: what may spoil labels is not done
    if plan.gain is None or plan.gain.net.low <= 0:
        plan = plan_corrections(saved, *decided)
    path = write_corrected(saved, plan.changes, folder / "corrected.csv")
    labels = torch.from_numpy(pd.read_csv(path)["digit"].to_numpy(copy=True))
    mended = replace(data, given=labels)
    assert data.is_flipped is not None and mended.is_flipped is not None
    applied = Applied(
        path,
        changed=len(plan.changes),
        expected=plan.expected(),
        wrong_before=int(data.is_flipped.sum()),
        wrong_after=int(mended.is_flipped.sum()),
    )
    return applied, replace(task, train=mended)


def _doubt(task: Task, folder: Path, seed: int) -> Doubted:
    """Audit the labels that the digits come with, none of them planted."""
    assert task.train.clean is not None
    table = _write_table(task, task.train.clean, folder / "originals.csv")
    report = audit(read_rows(table, label="digit"), mode="fast", seed=seed)
    report.save(folder / "originals")
    worst = report.table()[["row", "given_label", "suggested_label"]].head(3)
    return Doubted(
        folder / "originals",
        _write_review(folder / "originals", folder / "originals.html"),
        rows=len(task.train),
        issues=int(report.label_issues.is_issue.sum()),
        worst=tuple(worst.itertuples(index=False, name=None)),
    )
