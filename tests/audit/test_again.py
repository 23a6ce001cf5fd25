"""An audit again: decisions train models of other folds, and never judge their own row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from noiseproof.audit import audit, audit_again, files, read_audit, read_rows
from noiseproof.audit.decisions import FILE, Decision, DecisionLog, read_answers, read_decisions
from noiseproof.audit.measured import write_measured
from noiseproof.audit.report import LabelReport
from noiseproof.audit.sample import open_design, read_population
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.messages import counted
from noiseproof.judge.evidence import gather
from noiseproof.judge.evidence.neighbours import Neighbours, neighbour_votes
from noiseproof.judge.measure.calibrate import recalibrate

Array = NDArray[Any]


def planted(
    n: int = 240, K: int = 3, rate: float = 0.2, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Inputs in K overlapping clusters, true labels, and given ones of which some are the next
    class.
    """
    rng = np.random.default_rng(seed)
    true = rng.integers(K, size=n)
    x = (2 * np.eye(K, 5)[true] + rng.normal(size=(n, 5))).astype(np.float32)
    return x, true, np.where(rng.random(n) < rate, (true + 1) % K, true)


def decide(
    folder: Path, truth: dict[int, str], rows: list[int], skipped: tuple[int, ...] = ()
) -> None:
    """A review of ``rows`` by somebody who knows the truth; on ``skipped`` ones they can't tell."""
    issues = read_audit(folder).issues.set_index("row")
    log = DecisionLog(folder / FILE)
    for row in [*rows, *skipped]:
        id, given, suggested = issues.loc[row, ["id", "given_label", "suggested_label"]]
        label = truth[row]
        choice = "keep" if label == given else "accept" if label == suggested else "other"
        if row in skipped:
            choice, label = "skip", ""
        log.add(Decision(row, id, given, choice, label))  # type: ignore[arg-type]
    log.close()


def with_decision(data: AuditData, rows: Array, labels: Array) -> AuditData:
    decided = np.full(len(data), -1)
    decided[rows] = labels
    return replace(data, decided=decided)


def quick(data: AuditData, **options: Any) -> LabelReport:
    return audit(data, device="cpu", epochs=3, folds=3, **options)


MODELS: list[dict[str, Any]] = [
    {"model": "network"},  # all folds in one training
    {"model": "network", "method": "co-teaching"},  # a training for each fold
    {"model": "trees"},
    {"model": "both"},
    {"mode": "fast", "model": "network"},
    {"estimator": LogisticRegression()},
]


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_the_decision_on_a_row_has_no_influence_on_its_own_model_quality(
    options: dict[str, Any],
) -> None:
    x, true, given = planted()
    data = read_rows(x, labels=given)
    rows = np.random.default_rng(1).permutation(len(x))[:60]
    row = int(rows[0])
    first = quick(with_decision(data, rows, true[rows]), **options).label_issues
    changed = true[rows].copy()
    changed[0] = (changed[0] + 1) % 3
    second = quick(with_decision(data, rows, changed), **options).label_issues
    alone = quick(with_decision(data, rows[1:], true[rows[1:]]), **options).label_issues
    for name in ("quality", "suggested", "suggestion_quality", "predicted", "margin", "confidence"):
        values = [getattr(labels, name)[row] for labels in (first, second, alone)]
        assert values[0] == values[1] == values[2], name
    assert (first.quality != second.quality).sum() > 20


def test_annotators_and_trusted_rows_carry_no_decision_back_either() -> None:
    x, true, given = planted()
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(x).add_prefix("x").assign(y=given, checked=np.arange(240) % 6 == 0)
    for name in "ab":
        frame[name] = np.where(rng.random(240) < 0.2, (true + 1) % 3, true)
    for options in ({"annotators": ["a", "b"]}, {"trusted": "checked", "ignore": ["a", "b"]}):
        data = read_rows(frame, label="y", **options)
        rows = np.setdiff1d(np.arange(60), np.arange(0, 60, 6))
        labels = true[rows]
        first = quick(with_decision(data, rows, labels)).label_issues.quality
        labels[0] = (labels[0] + 1) % 3
        second = quick(with_decision(data, rows, labels)).label_issues.quality
        assert first[rows[0]] == second[rows[0]] and (first != second).any()


def test_models_that_learned_decisions_rank_the_others_better() -> None:
    x, true, given = planted(n=400, rate=0.35)
    data, wrong = read_rows(x, labels=given), given != true
    before = quick(data).label_issues
    rows, others = np.arange(100, 400), np.arange(100)
    report = quick(with_decision(data, rows, true[rows]))
    after = report.label_issues
    assert (report.data.given == given).all()
    assert average_precision(-after.quality[others], wrong[others]) > 0.03 + average_precision(
        -before.quality[others], wrong[others]
    )
    # The noise rate counts what is known, and estimates the rest.
    known = (wrong[rows].sum() + (1 - after.quality[others].astype(float)).sum()) / 400
    assert after.noise_rate == pytest.approx(known, abs=1e-6)
    assert after.noise_interval[0] <= after.noise_rate <= after.noise_interval[1]


def average_precision(score: Array, wrong: Array) -> float:
    hit = wrong[np.argsort(-score, kind="stable")]
    return float((np.cumsum(hit) / np.arange(1, len(hit) + 1))[hit].mean())


def test_models_are_fitted_to_the_decided_labels_of_other_folds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reference: scikit-learn's own fit on corrected labels, without the fold of the row."""
    x, true, given = planted()
    data = read_rows(x, labels=given)
    rows = np.flatnonzero(given != true)[:30]
    seen: list[tuple[Array, Array]] = []
    cross_fit = gather.cross_fit

    def spy(estimator: Any, x: Any, labels: Any, K: int, folds: Any, **options: Any) -> Any:
        probs = cross_fit(estimator, x, labels, K, folds, **options)
        for fold in np.unique(folds):
            model = LogisticRegression(random_state=0).fit(x[folds != fold], labels[folds != fold])
            np.testing.assert_allclose(
                probs[folds == fold], model.predict_proba(x[folds == fold]), atol=1e-5
            )
        seen.append((np.array(labels), np.array(folds)))
        return probs

    monkeypatch.setattr(gather.ModelFitter, "fit_estimator", staticmethod(spy))
    quick(with_decision(data, rows, true[rows]), estimator=LogisticRegression())
    (first, folds), (second, again) = seen
    assert (first == given).all() and (folds == again).all()
    expected = given.copy()
    expected[rows] = true[rows]
    assert (second == expected).all()


def test_neighbours_vote_by_the_taught_labels_and_agree_with_the_given_one() -> None:
    near = Neighbours(
        np.array([[1, 2], [0, 2], [0, 1]], np.int32), np.ones((3, 2), np.float32), 1.0
    )
    votes, agreement = neighbour_votes([0, 1, 1], near, 2, given=[0, 0, 1])
    prior = np.array([2, 1]) / 3
    np.testing.assert_allclose(votes, (np.array([[0, 2], [1, 1], [1, 1]]) + prior) / 3, rtol=1e-6)
    np.testing.assert_allclose(agreement, [0, 0.5, 0.5])
    soft, _ = neighbour_votes(np.eye(2)[[0, 1, 1]], near, 2, given=[0, 0, 1])
    np.testing.assert_allclose(soft, votes, rtol=1e-6)


@pytest.fixture
def digits(tmp_path: Path) -> tuple[Path, dict[int, str]]:
    """A table of 300 digits whose labels are wrong in one of six rows, and the truth."""
    images, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = rng.random(300) < 1 / 6
    given = np.where(wrong, (y[:300] + rng.integers(1, 10, 300)) % 10, y[:300])
    table = pd.DataFrame(images[:300]).add_prefix("pixel").assign(digit=[f"a {k}" for k in given])
    table.to_csv(tmp_path / "digits.csv", index=False)
    return tmp_path / "digits.csv", {row: f"a {k}" for row, k in enumerate(y[:300])}


def test_again_renews_the_files_and_keeps_decisions_and_design(
    digits: tuple[Path, dict[int, str]],
) -> None:
    path, truth = digits
    folder = path.parent / "audit"
    audit(path, label="digit", device="cpu", epochs=3, folds=2, model="network", seed=5).save(
        folder
    )
    old = read_audit(folder)
    rows = old.issues["row"].tolist()[:40]
    decide(folder, truth, rows, skipped=(299,))
    decisions = (folder / FILE).read_bytes()
    for name in ("measure.json", "strata.npy"):
        (folder / name).write_bytes(b"the design")
    predictions = np.load(folder / "out_of_sample.npy")

    report = audit_again(folder, device="cpu")
    new = read_audit(folder)
    assert (folder / FILE).read_bytes() == decisions
    assert all(
        (folder / name).read_bytes() == b"the design" for name in ("measure.json", "strata.npy")
    )
    columns = ["row", "id", "given_label"]
    pd.testing.assert_frame_equal(
        new.issues[columns].sort_values("row", ignore_index=True),
        old.issues[columns].sort_values("row", ignore_index=True),
    )
    assert new.config == {**old.config, "again": 1, "models": new.config["models"]}
    assert not np.array_equal(np.load(folder / "out_of_sample.npy"), predictions)
    assert new.issues["label_quality"].equals(new.issues["model_quality"])
    table = new.issues.set_index("row")
    wrong = [row for row in rows if truth[row] != str(table["given_label"][row])]
    assert len(wrong) > 20
    assert (
        f"Audited again with 40 decisions, {counted(40 - len(wrong), 'label')} kept and"
        f" {len(wrong)} corrected" in (report.summary()["notes"][-1])
    )

    # The decisions remain valid, and a second round starts from the data, not from the first.
    assert len(read_decisions(folder / FILE)) == 41
    audit_again(folder, device="cpu")
    second = read_audit(folder)
    assert second.config["again"] == 2
    pd.testing.assert_frame_equal(second.issues, new.issues)


def test_excluded_rows_and_new_classes_are_named_and_not_learned(
    digits: tuple[Path, dict[int, str]],
) -> None:
    path, truth = digits
    folder = path.parent / "audit"
    audit(path, label="digit", device="cpu", epochs=2, folds=2, model="network").save(folder)
    rows = read_audit(folder).issues["row"].tolist()
    decide(folder, truth, rows[:20])
    plain = audit_again(folder, device="cpu").table()
    issues = read_audit(folder).issues.set_index("row")
    log = DecisionLog(folder / FILE)
    for row, choice, label in (
        (rows[30], "exclude", ""),
        (rows[31], "unclear", ""),
        (rows[32], "other", "a 10"),
    ):
        log.add(Decision(row, issues["id"][row], issues["given_label"][row], choice, label))  # type: ignore[arg-type]
    log.close()
    report = audit_again(folder, device="cpu")
    assert any(
        note.startswith("2 decisions to exclude a row or name a new class")
        for note in report.data.notes
    )
    pd.testing.assert_frame_equal(report.table(), plain)  # they change nothing


def test_measured_decisions_recalibrate_the_new_ranking(
    digits: tuple[Path, dict[int, str]],
) -> None:
    path, truth = digits
    folder = path.parent / "audit"
    audit(path, label="digit", device="cpu", epochs=3, folds=2, model="network").save(folder)
    saved = read_audit(folder)
    issues = saved.issues.set_index("row")
    log = DecisionLog(folder / FILE)
    for question in open_design(saved).questions([], 30):
        row, given = question.row, str(issues["given_label"][question.row])
        choice = "keep" if truth[row] == given else "other"
        log.add(
            Decision(row, str(row), given, choice, truth[row], "", "measure", question.probability)
        )  # type: ignore[arg-type]
    log.close()
    answers = read_answers(folder / FILE)
    before = write_measured(saved, answers, "budget=20")
    audit_again(folder, device="cpu")
    after = read_audit(folder)
    assert after.config["again"] == 1 and after.summary["goal"] == "budget=20"
    assert after.issues["is_label_issue"].sum() == 20
    assert not after.issues["label_quality"].equals(after.issues["model_quality"])
    expected = recalibrate(after, read_population(after), answers, "budget=20")
    np.testing.assert_allclose(after.issues["label_quality"], 1 - expected.wrong, atol=1e-6)
    # The rate is that of the design, which the ranking does not change.
    assert after.summary["measured"]["noise_rate"] == before.measurement.as_dict()["noise_rate"]


def test_an_interrupted_audit_changes_nothing(
    digits: tuple[Path, dict[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, truth = digits
    folder = path.parent / "audit"
    audit(path, label="digit", device="cpu", epochs=2, folds=2, model="network").save(folder)
    decide(folder, truth, list(range(10)))
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "training" and done > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit_again(folder, device="cpu", progress=stop)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(files, "_plain", full)
        audit_again(folder, device="cpu")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    audit_again(folder, device="cpu")
    assert read_audit(folder).config["again"] == 1


def test_texts_pictures_and_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    moods = np.array(["good", "bad"])[rng.integers(2, size=80)]
    words = {"good": ["sun", "warm", "fine", "happy"], "bad": ["rain", "cold", "wind", "sad"]}
    texts = [" ".join(rng.choice(words[mood], 3)) + f" {i % 7}" for i, mood in enumerate(moods)]
    given = np.where(rng.random(80) < 0.1, np.where(moods == "good", "bad", "good"), moods)
    pd.DataFrame({"text": texts, "mood": given}).to_csv(tmp_path / "texts.csv", index=False)
    pixels = rng.random((80, 8, 8)) * 128 + 120 * (moods == "good")[:, None, None]
    for i, (image, label) in enumerate(zip(pixels, given, strict=True)):
        file = tmp_path / "photos" / label / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype(np.uint8)).save(file)
    np.save(tmp_path / "x.npy", pixels.reshape(80, -1).astype(np.float32))
    np.save(tmp_path / "y.npy", (given == "good").astype(int))
    sources: dict[str, dict[str, Any]] = {
        "texts.csv": {"label": "mood", "text": "text", "features": "tfidf"},
        "photos": {"features": "pixels"},
        "x.npy": {"labels": tmp_path / "y.npy", "mode": "fast"},
    }
    for name, options in sources.items():
        folder = tmp_path / f"audit-{name}"
        audit(tmp_path / name, **options, epochs=2, folds=2, device="cpu").save(folder)
        issues = read_audit(folder).issues
        truth = dict(zip(issues["row"], issues["suggested_label"], strict=True))
        decide(folder, truth, issues["row"].tolist()[:5])
        assert audit_again(folder, device="cpu").config["again"] == 1
        table = read_audit(folder).issues
        assert sorted(table["row"]) == sorted(issues["row"])
        assert not table.set_index("row")["model_quality"].equals(
            issues.set_index("row")["model_quality"]
        )


def test_refusals(digits: tuple[Path, dict[int, str]]) -> None:
    path, truth = digits
    folder = path.parent / "audit"
    with pytest.raises(FileNotFoundError, match="Expected an audit in"):
        audit_again(folder)
    y = load_digits().target
    audit(labels=y[:50], pred_probs=np.eye(10)[y[:50]]).save(path.parent / "predictions")
    with pytest.raises(
        ValueError, match="an audit that trained models, got one of another model's predictions"
    ):
        audit_again(path.parent / "predictions")
    audit(
        path,
        label="digit",
        device="cpu",
        epochs=2,
        folds=2,
        estimator=LogisticRegression(max_iter=20),
    ).save(folder)
    with pytest.raises(
        ValueError,
        match=r"Expected decisions to learn from .* got none\. Make some with `noiseproof",
    ):
        audit_again(folder)
    decide(folder, truth, [], skipped=(0,))
    with pytest.raises(ValueError, match="Expected decisions to learn from"):
        audit_again(folder)
    decide(folder, truth, [3])
    with pytest.raises(
        ValueError, match=r"got LogisticRegression\(max_iter=20\), which was an object in Python"
    ):
        audit_again(folder)
    assert (
        audit_again(folder, estimator=LogisticRegression(max_iter=20), device="cpu").config["again"]
        == 1
    )
    table = pd.read_csv(path)
    table.loc[7, "digit"] = "a 1" if table.loc[7, "digit"] != "a 1" else "a 2"
    table.to_csv(path, index=False)
    with pytest.raises(
        ValueError, match=r"it has changed: row 7 is another one\. Audit it without --again"
    ):
        audit_again(folder, estimator=LogisticRegression())
    with pytest.raises(FileNotFoundError, match="a file or a folder to audit"):
        path.unlink()
        audit_again(folder, estimator=LogisticRegression())


def test_data_in_memory_is_passed_in(tmp_path: Path) -> None:
    x, true, given = planted()
    data = read_rows(x, labels=given)
    quick(data).save(tmp_path / "audit")
    decide(tmp_path / "audit", {row: str(k) for row, k in enumerate(true)}, list(range(20)))
    with pytest.raises(ValueError, match="data to audit, or both `labels` and"):
        audit_again(tmp_path / "audit")
    assert audit_again(tmp_path / "audit", data, device="cpu").config["again"] == 1
