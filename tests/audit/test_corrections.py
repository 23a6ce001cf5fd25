"""Labels that no one decided on: what changing them is expected to do, and when that is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from handmade_audit import write_table_audit
from typer.testing import CliRunner

from noiseproof.audit import audit as audit_rows
from noiseproof.audit import corrected, corrections, read_audit, read_rows
from noiseproof.audit.decisions import Decision, DecisionLog
from noiseproof.audit.plan import Plan, Refused, expected_gain, plan_corrections, read_reviewed
from noiseproof.audit.sample import read_population
from noiseproof.cli import app
from noiseproof.demo import review_by
from noiseproof.judge.measure.calibrate import Calibrated, recalibrate
from noiseproof.judge.measure.estimate import Gain, gain
from noiseproof.judge.measure.interval import Bounded

CLASSES = ("ant", "bee", "cow")


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def write_population(
    folder: Path, rows: int = 900, rate: float = 0.2, trusted: int = 0
) -> np.ndarray:
    """An audit by the predictions of a good model, of labels of which ``rate`` are wrong; returns
    the true ones.
    """
    random = np.random.default_rng(0)
    true = random.integers(0, 3, rows)
    given = np.where(random.random(rows) < rate, (true + random.integers(1, 3, rows)) % 3, true)
    given[:trusted] = true[:trusted]
    seen = np.where(random.random(rows) < 0.1, random.integers(0, 3, rows), true)
    share = random.uniform(0.4, 0.9, (rows, 1))  # of certainty
    probs = np.eye(3)[seen] * share + (1 - share) / 3
    names, path = np.array(CLASSES), folder.parent / "given.npy"
    np.save(path, names[given])
    audit_rows(
        read_rows(labels=path, pred_probs=probs, trusted=np.arange(trusted) if trusted else None)
    ).save(folder)
    return names[true]


# --- refusals -------------------------------------------------------------------------------------


def some_gain(net: Bounded, needed: int) -> Gain:
    return Gain(Bounded(12, 3, 25), Bounded(10, 2, 30), net, decisions=40, needed=needed)


def plan(net: Bounded, needed: int, basis: str = "measured") -> Plan:
    return Plan({1: "a", 2: "b"}, {2: "b"}, some_gain(net, needed), basis, measured=60)  # type: ignore[arg-type]


def test_a_gain_that_is_clearly_positive_is_not_refused() -> None:
    plan(Bounded(8, 1, 15), 0).check("audit")
    Plan({1: "a"}, {}, None, "assumed").check("audit")  # decisions alone


def test_a_refusal_names_the_rows_to_review_first() -> None:
    with pytest.raises(Refused) as refused:
        plan(Bounded(2, -20, 20), 120).check("my audit", "--accept-all", "--yes")
    assert (
        str(refused.value)
        == "Expected --accept-all to mend clearly more labels than it spoils, got a gain of 2 (-20"
        " to 20): of 1 label that no one decided on, 12 (3 to 25) mended, 10 (2 to 30) spoiled,"
        " by 40 measured decisions among them. Measure 120 more rows first, `noiseproof review"
        " my audit --measure 180`, or override this with --yes."
    )
    with pytest.raises(
        Refused,
        match="decide row by row, `noiseproof review audit`, or override this with yes=True",
    ):
        plan(Bounded(-5, -20, 0), -1).check("audit")
    with pytest.raises(
        Refused, match="Measure 50 more rows first, `noiseproof review audit --measure 110`"
    ):
        plan(Bounded(5, 0, 20), 50, "known labels").check("audit")  # clearly positive: above zero


def test_without_measured_decisions_nothing_is_written(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path, rows=12, issues=6)
    said = run("apply", folder, "--accept-all", "--out", tmp_path / "new.csv", code=2)
    assert "Expected measured decisions for --accept-all, got none" in said
    assert (
        "which nothing has measured yet" in said
        and f"`noiseproof review {folder} --measure 50`" in said
    )
    assert "--yes" in said and not (tmp_path / "new.csv").exists()
    with pytest.raises(
        Refused, match=r"for accept_all=True, got none.*override this with yes=True"
    ):
        corrections(read_audit(folder), {}, accept_all=True)
    shown = run("apply", folder, "--accept-all", "--yes", "--out", tmp_path / "new.csv")
    assert shown.startswith("expected: of 5 labels that no one decided on, ")
    assert (tmp_path / "new.csv").exists()


def test_in_memory_it_is_refused_alike(tmp_path: Path) -> None:
    write_population(tmp_path / "audit")
    given = np.load(tmp_path / "given.npy")
    with pytest.raises(Refused, match="yes=True"):
        corrected(tmp_path / "audit", given, accept_all=True)
    assert (corrected(tmp_path / "audit", given, accept_all=True, yes=True) != given).sum() > 50


def test_trusted_rows_count_as_knowledge(tmp_path: Path) -> None:
    true = write_population(tmp_path / "audit", trusted=300)
    given = np.load(tmp_path / "given.npy")
    audit = read_audit(tmp_path / "audit")
    assert audit.summary["known"] == {"trusted": 300, "annotators": 0}
    found = plan_corrections(audit, {}, accept_all=True)
    assert found.basis == "known labels" and found.gain is not None and found.gain.net.low > 0
    after = corrected(tmp_path / "audit", given, accept_all=True)
    assert (after != true)[300:].sum() < (given != true)[300:].sum()
    assert (after == given)[:300].all()


# --- the expected numbers -------------------------------------------------------------------------


def test_the_gain_of_right_probabilities_by_hand() -> None:
    calibrated = Calibrated(
        np.array([0.9, 0.8, 0.5]), np.array([0.8, 0.6, 0.4]), np.array([True, True, False])
    )
    found = expected_gain(calibrated, np.array([True, True, False]))
    assert found.mended.value == pytest.approx(1.4) and found.spoiled.value == pytest.approx(0.3)
    assert found.net.value == pytest.approx(1.1)
    # a row mends with 0.8 and spoils with 0.1: E = 0.7, E² = 0.9 − 0.49; the other 0.6 and 0.2: 0.8
    # − 0.16
    spread = 1.96 * math.sqrt(0.9 - 0.49 + 0.8 - 0.16)
    assert (found.net.low, found.net.high) == pytest.approx(
        (max(-2, 1.1 - spread), min(2, 1.1 + spread))
    )
    assert found.mended.high == 2.0  # no more than there are


def test_unmeasured_changes_are_the_issues_whose_suggestion_is_likelier(tmp_path: Path) -> None:
    write_population(tmp_path / "audit")
    audit = read_audit(tmp_path / "audit")
    issues = audit.issues
    better = issues["is_label_issue"] & (issues["suggestion_quality"] > issues["label_quality"])
    found = plan_corrections(audit, {}, accept_all=True)
    assert found.basis == "assumed" and found.gain is not None
    assert found.changes == dict(
        sorted(issues[better][["row", "suggested_label"]].itertuples(index=False))
    )
    assert found.gain.mended.value == pytest.approx(
        issues[better]["suggestion_quality"].sum(), abs=1e-3
    )
    assert found.gain.spoiled.value == pytest.approx(
        issues[better]["label_quality"].sum(), abs=1e-3
    )
    shown = json.loads(
        run("apply", audit.folder, "--accept-all", "--yes", "--json", "--out", tmp_path / "new.npy")
    )
    assert (
        shown["gain"]["basis"] == "assumed"
        and shown["gain"]["labels"] == shown["changed"] == better.sum()
    )
    assert shown["gain"]["mended"]["value"] == pytest.approx(found.gain.mended.value)


def test_measured_decisions_allow_what_they_show_to_mend(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    true = write_population(folder)
    given = np.load(tmp_path / "given.npy")
    audit = read_audit(folder)
    answers = review_by(audit, true.tolist(), 120)
    assert len(answers) == 120 and all(
        answer.asked == "measure" and answer.probability for answer in answers
    )
    reviewed = read_reviewed(folder, None)
    decided = reviewed.decisions
    found = plan_corrections(audit, decided, reviewed.answers(), accept_all=True)
    assert found.basis == "measured" and found.gain is not None
    assert found.gain == gain(
        read_population(audit),
        answers,
        recalibrate(audit, read_population(audit), answers).accepted,
    )
    calibrated = recalibrate(audit, read_population(audit), answers)
    better = audit.issues["row"][calibrated.suggestion > 1 - calibrated.wrong]
    assert set(found.accepted) == set(better) - set(decided)
    rows = np.array(list(found.accepted))
    suggested = np.array(list(found.accepted.values()))
    mended = int(((given[rows] != true[rows]) & (suggested == true[rows])).sum())
    spoiled = int((given[rows] == true[rows]).sum())
    assert found.gain.mended.low <= mended <= found.gain.mended.high
    assert found.gain.spoiled.low <= spoiled <= found.gain.spoiled.high
    assert found.gain.net.low <= mended - spoiled <= found.gain.net.high and found.gain.net.low > 0
    shown = run("apply", folder, "--accept-all", "--out", tmp_path / "new.npy")
    assert shown.startswith(f"expected: {found.expected()}\n")
    after = np.load(tmp_path / "new.npy")
    assert (after != true).sum() < (given != true).sum() / 2
    for row, decision in decided.items():
        assert after[row] == decision.label == true[row]
    again = json.loads(
        run("apply", folder, "--accept-all", "--out", tmp_path / "newer.npy", "--json")
    )
    assert again["gain"]["basis"] == "measured"
    assert again["gain"]["net"] == {
        "value": found.gain.net.value,
        "low": found.gain.net.low,
        "high": found.gain.net.high,
    }


def test_suggestions_that_measured_decisions_refute_are_not_taken(tmp_path: Path) -> None:
    """Every label is right, and the model is wrong about a fifth of the rows."""
    folder = tmp_path / "audit"
    write_population(folder)
    given = np.load(tmp_path / "given.npy")
    audit = read_audit(folder)
    would_change = len(plan_corrections(audit, {}, accept_all=True).changes)
    review_by(audit, given.tolist(), 60)
    reviewed = read_reviewed(folder, None)
    decided, answers = reviewed.decisions, reviewed.answers()
    assert all(decision.decision == "keep" for decision in decided.values())
    found = plan_corrections(audit, decided, answers, accept_all=True)
    assert would_change > 100
    if found.changes:  # where a few dozen decisions leave it open, it is refused
        run("apply", folder, "--accept-all", "--out", tmp_path / "new.npy", code=2)
        assert not (tmp_path / "new.npy").exists()
    else:
        run("apply", folder, "--accept-all", "--out", tmp_path / "new.npy")
        assert (np.load(tmp_path / "new.npy") == given).all()


def test_decisions_from_the_list_are_no_measurement(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    write_population(folder)
    audit = read_audit(folder)
    log = DecisionLog(folder / "decisions.csv")
    for row, id, given, suggested in audit.issues.head(60)[
        ["row", "id", "given_label", "suggested_label"]
    ].itertuples(index=False):
        log.add(Decision(row, id, given, "accept", suggested))
    log.close()
    assert "got none" in run("apply", folder, "--accept-all", "--out", tmp_path / "new.npy", code=2)
    # without --accept-all, decisions are applied
    shown = run("apply", folder, "--out", tmp_path / "new.npy")
    assert (
        shown.startswith("expected: 60 labels mended by decisions\n")
        and "changed: 60 of 900 labels" in shown
    )


def test_second_opinions_say_how_often_an_answer_is_wrong(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path, rows=12, issues=6)
    log = DecisionLog(folder / "decisions.csv")
    log.add(Decision(0, "0", "cat", "accept", "dog"))
    for row, given in enumerate(("cat", "dog", "fox", "owl")):
        log.add(
            Decision(
                row, str(row), given, "accept" if row == 0 else "keep", "dog" if row == 0 else given
            )
        )
        log.add(Decision(row, str(row), given, "keep", given, "bob", "repeat"))
    log.close()
    shown = run("apply", folder, "--out", tmp_path / "new.csv")
    # of four classes, from one of four rows that differs
    e = 3 / 4 * (1 - math.sqrt(1 - 0.25 * 4 / 3))
    assert shown.startswith(
        f"expected: 1 label mended by decisions (single answers are wrong in {e:.1%} ("
    )


def test_decided_changes_that_are_likelier_slips_are_held_back(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    true = write_population(folder)
    audit = read_audit(folder)
    measured = review_by(audit, true.tolist(), 80)
    log = DecisionLog(folder / "decisions.csv")
    # a second person disagrees in three of twelve rows
    for number, answer in enumerate(measured[:12]):
        other = next(name for name in CLASSES if name != answer.label)
        label = other if number < 3 else answer.label
        log.add(Decision(*answer[:3], "other", label, "bob", "repeat"))
    best = audit.issues[~audit.issues["row"].isin([answer.row for answer in measured])]
    row, id, given = best.sort_values("model_quality").iloc[-1][["row", "id", "given_label"]]
    slip = next(name for name in CLASSES if name != given)
    log.add(Decision(int(row), id, given, "other", slip))
    log.close()
    reviewed = read_reviewed(folder, None)
    decided, answers = reviewed.decisions, reviewed.answers()
    held = plan_corrections(audit, decided, answers)
    assert row in held.slips and not held.changes.keys() & set(held.slips)
    as_decided = plan_corrections(audit, decided, answers, yes=True)
    assert as_decided.slips == () and as_decided.changes[row] == slip
    assert as_decided.changes.keys() - held.changes.keys() == set(held.slips)
    shown = run("apply", folder, "--out", tmp_path / "new.npy")
    assert f"held back: {len(held.slips)} decided changes, such as of row {held.slips[0]}" in shown
    assert f"`noiseproof review {folder} --measure 80 --repeats 1` asks again" in shown
    assert "held back" not in run("apply", folder, "--yes", "--out", tmp_path / "newer.npy")
    assert np.load(tmp_path / "newer.npy")[row] == slip
