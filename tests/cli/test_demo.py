"""The demo: the whole story in order, each number of it true, and all of it by its seed alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from lightning_fabric import Fabric
from typer.testing import CliRunner

from noiseproof.audit import read_audit
from noiseproof.audit.decisions import read_answers, read_decisions
from noiseproof.audit.plan import plan_corrections
from noiseproof.audit.sample import read_population
from noiseproof.cli import app
from noiseproof.data import get_dataset
from noiseproof.demo import (
    DECISIONS,
    FIGURES,
    METHODS,
    NOISE,
    SETTINGS,
    Applied,
    Audited,
    DemoStep,
    Doubted,
    Mended,
    Reviewed,
    Trained,
    Written,
    demo,
)
from noiseproof.judge.measure.estimate import measure
from noiseproof.train import Settings, prepare, train

SHORT = Settings(model=SETTINGS.model, epochs=2, optimizer=SETTINGS.optimizer)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[DemoStep]]:
    folder = tmp_path_factory.mktemp("demo") / "here"
    before = torch.get_rng_state()
    steps = []
    for step in demo(folder, ["ce", "gce"], ["ce"], epochs=2, seed=2):
        steps.append(step)
        if isinstance(step, Audited):
            # before decisions recalibrate it
            shutil.copytree(step.folder, folder.parent / "audited")
    assert torch.equal(torch.get_rng_state(), before)
    return folder, steps


def test_the_story_in_its_order(story: tuple[Path, list[DemoStep]]) -> None:
    folder, steps = story
    assert [type(step) for step in steps] == [
        Trained,
        Trained,
        Audited,
        Reviewed,
        Written,
        Applied,
        Mended,
        Doubted,
    ]
    assert {path.name for path in folder.iterdir()} == {
        "analysis.html",
        "audit",
        "corrected.csv",
        "digits.csv",
        "originals",
        "originals.csv",
        "originals.html",
        "review.html",
        "runs",
    }


def test_the_audit_is_held_against_the_truth(story: tuple[Path, list[DemoStep]]) -> None:
    folder, steps = story
    audited, corrected = steps[2], steps[5]
    assert isinstance(audited, Audited) and isinstance(corrected, Applied)
    true = get_dataset("digits", seed=2).train.y.numpy()
    before, after = (pd.read_csv(folder / name) for name in ("digits.csv", "corrected.csv"))
    issues = pd.read_csv(folder.parent / "audited/issues.csv").query("is_label_issue")
    wrong = before["digit"].to_numpy() != true
    assert (audited.rows, audited.wrong) == (len(true), wrong.sum())
    assert (audited.issues, audited.found) == (len(issues), wrong[issues["row"]].sum())
    assert 0 <= audited.interval[0] <= audited.noise_rate <= audited.interval[1] <= 1
    assert (corrected.wrong_before, corrected.wrong_after) == (
        wrong.sum(),
        (after["digit"].to_numpy() != true).sum(),
    )
    assert corrected.changed == (before["digit"] != after["digit"]).sum()
    assert before.drop(columns="digit").equals(after.drop(columns="digit"))


def test_the_reviewer_answers_by_the_true_digits(story: tuple[Path, list[DemoStep]]) -> None:
    folder, steps = story
    measured, corrected = steps[3], steps[5]
    assert isinstance(measured, Reviewed) and isinstance(corrected, Applied)
    audit, true = read_audit(folder / "audit"), get_dataset("digits", seed=2).train.y.tolist()
    answers = read_answers(folder / "audit/decisions.csv")
    assert len(answers) == measured.decisions == DECISIONS
    assert all(
        answer.asked == "measure" and answer.label == str(true[answer.row]) for answer in answers
    )
    found = measure(read_population(audit), answers)
    assert found is not None and (measured.rate, measured.wrong_left) == (
        found.rate,
        found.wrong_left,
    )
    issues = audit.issues.query("is_label_issue")
    wrong = [
        given != str(true[row])
        for row, given in zip(issues["row"], issues["given_label"], strict=True)
    ]
    assert (measured.issues, measured.found) == (len(issues), sum(wrong))
    decided = read_decisions(folder / "audit/decisions.csv")
    plan = plan_corrections(audit, decided, answers, accept_all=True)
    if plan.gain is None or plan.gain.net.low <= 0:
        plan = plan_corrections(audit, decided, answers)
    assert (corrected.changed, corrected.expected) == (len(plan.changes), plan.expected())


def test_the_pages_hold_what_they_should(story: tuple[Path, list[DemoStep]]) -> None:
    written = story[1][4]
    assert isinstance(written, Written)
    assert "review" in written.review.read_text("utf-8").lower()
    page = written.analysis.read_text("utf-8")
    assert all(f'id="{name}"' in page for name in FIGURES)


def test_the_last_audit_is_of_the_labels_that_the_digits_have(
    story: tuple[Path, list[DemoStep]],
) -> None:
    folder, steps = story
    doubted, true = steps[7], get_dataset("digits", seed=2).train.y.tolist()
    assert isinstance(doubted, Doubted) and doubted.rows == len(true)
    assert pd.read_csv(folder / "originals.csv")["digit"].tolist() == true
    issues = read_audit(doubted.folder).issues
    assert doubted.issues == issues["is_label_issue"].sum() < 0.02 * len(true)
    assert [(row, given) for row, given, _ in doubted.worst] == [
        (row, str(true[row])) for row in issues["row"][:3]
    ]


def test_the_corrected_labels_are_what_is_trained_on(story: tuple[Path, list[DemoStep]]) -> None:
    folder, steps = story
    mended, first = steps[6], steps[0]
    assert isinstance(mended, Mended) and isinstance(first, Trained)
    assert mended.before == first.accuracy
    table = f"table:table={folder / 'corrected.csv'},label=digit"
    labels = get_dataset(table).train.y
    task = prepare(get_dataset("digits", seed=2), NOISE, seed=2)
    task = replace(task, train=replace(task.train, given=labels))
    last = train(task, "ce", SHORT, seed=2, fabric=Fabric(accelerator="cpu", devices=1)).last
    assert mended.after == last["test_accuracy"]


def test_it_depends_on_its_seed_alone(tmp_path: Path) -> None:
    def outcome(seed: int, name: str) -> list[float]:
        steps = demo(tmp_path / name, ["sln"], [], epochs=2, seed=seed)
        return [step.accuracy for step in (next(steps),) if isinstance(step, Trained)]

    first = outcome(0, "a")
    torch.rand(1)  # moves the global generator
    assert outcome(0, "b") == first != outcome(1, "c")


def test_the_command_tells_each_step_and_never_writes_over(
    story: tuple[Path, list[DemoStep]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs", "demo").mkdir(parents=True)
    Path("runs", "demo", "mine.txt").touch()
    refused = CliRunner().invoke(app, ["demo", "--out", "runs/demo"])
    assert refused.exit_code == 2 and "holds files" in refused.stderr
    few = CliRunner().invoke(app, ["demo", "--epochs", "1"])
    assert few.exit_code == 2 and "--epochs" in few.stderr
    asked = []

    def steps(folder: Path, *, epochs: int) -> list[DemoStep]:
        asked.append((folder, epochs))
        return story[1]

    monkeypatch.setattr("noiseproof.demo.demo", steps)
    told = CliRunner().invoke(app, ["demo", "--epochs", "2"])
    assert told.exit_code == 0, told.output
    assert asked == [(Path("runs", "demo-2"), 2)]
    titles = [
        line.partition(":")[0] for line in told.stdout.splitlines() if not line.startswith(" ")
    ]
    assert titles == [
        "train",
        "audit",
        "measure",
        "pages, to open in a browser",
        "correct",
        "train again",
        "real doubts",
        "next",
    ]
    assert "\x1b" not in told.stdout


@pytest.mark.slow
def test_it_shows_what_it_is_for(tmp_path: Path) -> None:
    steps = list(demo(tmp_path / "all"))
    rows = {step.method: step for step in steps if isinstance(step, Trained)}
    assert rows["ce"].accuracy < 0.75 and rows["ce"].memorised > 0.9
    assert all(rows[name].accuracy > rows["ce"].accuracy + 0.1 for name in METHODS[1:])
    assert rows["gce"].memorised < 0.15
    (audited,) = (step for step in steps if isinstance(step, Audited))
    assert audited.found > 0.9 * audited.issues and audited.found > 0.9 * audited.wrong
    assert audited.interval[0] <= audited.wrong / audited.rows <= audited.interval[1]
    (measured,) = (step for step in steps if isinstance(step, Reviewed))
    assert measured.rate.low <= audited.wrong / audited.rows <= measured.rate.high
    assert measured.found > 0.9 * measured.issues and measured.found > 0.9 * audited.wrong
    (corrected,) = (step for step in steps if isinstance(step, Applied))
    assert corrected.wrong_after < corrected.wrong_before / 5
    mended = {step.method: step for step in steps if isinstance(step, Mended)}
    assert mended["ce"].after > mended["ce"].before + 0.15
    assert mended["gce"].after > mended["gce"].before - 0.02
