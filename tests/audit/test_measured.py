"""`noiseproof measure`: what it prints and writes, from decisions by someone who knows the true
labels.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta
from test_corrections import run, write_population

from noiseproof.audit import read_audit
from noiseproof.audit.decisions import (
    Decision,
    DecisionLog,
    find_decisions,
    read_answers,
    read_decisions,
)
from noiseproof.audit.files import check_decisions
from noiseproof.audit.measured import NotMeasured, reliability, weighted_share, write_measured
from noiseproof.audit.sample import read_population
from noiseproof.demo import review_by
from noiseproof.judge.measure.calibrate import recalibrate
from noiseproof.judge.measure.estimate import measure

ROWS, DECISIONS = 900, 80


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit whose designed sample a perfect reviewer answered."""
    folder = tmp_path_factory.mktemp("answered") / "audit"
    true = write_population(folder, ROWS)
    np.save(folder.parent / "true.npy", true)
    review_by(read_audit(folder), true.tolist(), DECISIONS)
    return folder


@pytest.fixture
def folder(answered: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(answered.parent, tmp_path / "all")) / "audit"


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def cells(folder: Path) -> dict[str, dict[str, str]]:
    """The cells of issues.csv as text, by row."""
    with open(folder / "issues.csv", newline="", encoding="utf-8") as file:
        return {line["row"]: line for line in csv.DictReader(file)}


def test_issues_are_recalibrated_and_everything_else_stays(folder: Path) -> None:
    before, audit, answers = (
        cells(folder),
        read_audit(folder),
        read_answers(find_decisions(folder)),
    )
    run("measure", folder)
    after = read_audit(folder)
    expected = recalibrate(audit, read_population(audit), answers)
    by_row = after.issues.set_index("row").loc[audit.issues["row"]]
    np.testing.assert_allclose(by_row["label_quality"], 1 - expected.wrong, atol=1e-6)
    np.testing.assert_allclose(by_row["suggestion_quality"], expected.suggestion, atol=1e-6)
    assert (by_row["is_label_issue"].to_numpy() == expected.is_issue).all()
    moved = ("is_label_issue", "label_quality", "suggestion_quality", "why")
    changed = cells(folder)
    assert changed.keys() == before.keys()
    for row, line in before.items():
        assert {k: v for k, v in line.items() if k not in moved} == {
            k: v for k, v in changed[row].items() if k not in moved
        }
    by = {"is_label_issue": False, "label_quality": True, "model_quality": True, "row": True}
    assert (
        after.issues["row"].tolist()
        == after.issues.sort_values(list(by), ascending=list(by.values()))["row"].tolist()
    )
    table = pd.read_parquet(folder / "issues.parquet")
    assert table.to_csv(index=False) == (folder / "issues.csv").read_text("utf-8")


def test_the_summary_has_what_was_measured(folder: Path) -> None:
    answers = read_answers(find_decisions(folder))
    shown = json.loads(run("measure", folder, "--json"))
    audit = read_audit(folder)
    measurement = measure(read_population(audit), answers)
    assert measurement is not None
    measured = json.loads(json.dumps(measurement.as_dict()))
    assert (
        audit.summary["measured"] == measured == shown["measured"]
        and audit.summary["goal"] == shown["goal"] == "f1"
    )
    issues = audit.issues[audit.issues["is_label_issue"]]
    assert audit.summary["issues"] == shown["issues"] == len(issues)
    counts = issues["given_label"].value_counts()
    assert {part["name"]: part["issues"] for part in audit.summary["classes"]} == {
        name: counts.get(name, 0) for name in audit.classes
    }
    pairs = issues.groupby(["given_label", "suggested_label"]).size().to_dict()
    assert {
        (p["given"], p["suggested"]): p["issues"] for p in audit.summary["worst_pairs"]
    } == pairs
    rate = measurement.rate
    assert (
        f"{rate.value:.1%} of the labels are wrong by {DECISIONS} measured decisions"
        in audit.summary["verdict"]
    )
    true = np.load(folder.parent / "true.npy")
    assert rate.low <= (np.load(folder.parent / "given.npy") != true).mean() <= rate.high


def test_a_second_time_changes_nothing(folder: Path) -> None:
    key = read_audit(folder).key
    run("measure", folder)
    before = digests(folder)
    assert read_audit(folder).summary["labels_look_fine"] is False
    assert {
        "reliability.png",
        "issues.csv",
        "issues.parquet",
        "summary.json",
        "decisions.csv",
    } <= before.keys()
    run("measure", folder)
    assert digests(folder) == before
    audit = read_audit(folder)
    assert audit.key == key  # a page that is open, and decisions in a browser, belong to it still
    check_decisions(read_decisions(find_decisions(folder)).values(), audit)


def test_a_goal_moves_the_cut_and_is_kept(folder: Path) -> None:
    run("measure", folder)
    first = read_audit(folder).issues.set_index("row").sort_index()
    assert json.loads(run("measure", folder, "--goal", "budget=17", "--json"))["issues"] == 17
    audit = read_audit(folder)
    assert audit.issues["is_label_issue"].to_numpy()[:17].all() and audit.summary["issues"] == 17
    now = audit.issues.set_index("row").sort_index()
    assert (now["label_quality"] == first["label_quality"]).all()
    assert json.loads(run("measure", folder, "--json"))["goal"] == "budget=17"
    run("measure", folder, "--goal", "f1")
    again = read_audit(folder).issues.set_index("row").sort_index()
    assert again[["is_label_issue", "label_quality"]].equals(
        first[["is_label_issue", "label_quality"]]
    )
    assert "Expected" in run("measure", folder, "--goal", "speed", code=2)


def test_every_sentence_fits_its_label(folder: Path) -> None:
    run("measure", folder, "--goal", "budget=600")  # far beyond what the models call wrong
    many = read_audit(folder).issues
    general = (
        "The evidence agrees with the label.",
        "Another label is likelier, but not by enough",
        "The model prefers",
    )
    assert not many.loc[many["is_label_issue"], "why"].str.startswith(general).any()
    assert many.loc[~many["is_label_issue"], "why"].str.startswith(general).all()
    measured = many["why"].str.startswith("Of labels ranked like this one")
    assert measured.any() and measured[many["is_label_issue"]].sum() == measured.sum()
    run("measure", folder, "--goal", "budget=5")
    few = read_audit(folder).issues
    assert not few["why"].str.startswith("Of labels ranked like this one").any()


def test_without_measured_decisions_it_says_what_to_run(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    write_population(folder, 300)
    before = digests(folder)
    assert f"Run `noiseproof review {folder} --measure 50` first" in run("measure", folder, code=2)
    audit = read_audit(folder)
    row, id, given, suggested = audit.issues.iloc[0][
        ["row", "id", "given_label", "suggested_label"]
    ]
    log = DecisionLog(folder / "decisions.csv")
    log.add(Decision(int(row), id, given, "accept", suggested))
    log.close()
    with pytest.raises(NotMeasured, match="Expected measured decisions"):
        write_measured(audit, read_answers(find_decisions(folder)))
    for path in folder.glob("decisions.*"):
        path.unlink()
    assert digests(folder) == before
    assert "found none" in run("measure", folder, "--decisions", tmp_path / "none.csv", code=2)


def test_reliability_is_of_the_decisions(folder: Path) -> None:
    audit, answers = read_audit(folder), read_answers(find_decisions(folder))
    table = reliability(audit, answers)
    assert set(table["probabilities"]) == {"models", "recalibrated"}
    assert table.groupby("probabilities")["decisions"].sum().tolist() == [DECISIONS, DECISIONS]
    assert ((table["low"] <= table["measured"]) & (table["measured"] <= table["high"])).all()
    assert table[["predicted", "measured", "low", "high"]].stack().between(0, 1).all()
    for _, part in table.groupby("probabilities"):
        assert part["predicted"].is_monotonic_increasing
    assert write_measured(audit, answers).diagram.read_bytes().startswith(b"\x89PNG")


def test_a_weighted_share_by_hand() -> None:
    share = weighted_share(np.array([True, False, False]), np.array([2.0, 1.0, 1.0]))
    draws = 16 / 6  # (Σw)²/Σw²
    assert share.value == pytest.approx(0.5)
    assert share.low == pytest.approx(beta.ppf(0.025, draws / 2, draws / 2 + 1))
    assert share.high == pytest.approx(beta.ppf(0.975, draws / 2 + 1, draws / 2))
    equal = weighted_share(np.array([True, False, False, False]), np.full(4, 0.25))
    assert (equal.low, equal.high) == pytest.approx((beta.ppf(0.025, 1, 4), beta.ppf(0.975, 2, 3)))


def test_the_order_of_the_list_has_no_influence(folder: Path) -> None:
    audit, answers = read_audit(folder), read_answers(find_decisions(folder))
    shuffled = replace(audit, issues=audit.issues.sample(frac=1, random_state=0))
    for goal in ("f1", "budget=100"):
        one, other = (
            recalibrate(each, read_population(each), answers, goal) for each in (audit, shuffled)
        )
        rows = {row: n for n, row in enumerate(audit.issues["row"])}
        place = [rows[row] for row in shuffled.issues["row"]]
        assert (one.wrong[place] == other.wrong).all() and (
            one.is_issue[place] == other.is_issue
        ).all()
        assert (one.suggestion[place] == other.suggestion).all()


def test_labels_look_fine_once_a_sample_shows_it(tmp_path: Path) -> None:
    """Whatever the models said: the reviewer keeps every label, and few rows are left unasked."""
    folder = tmp_path / "audit"
    write_population(folder, 300)
    review_by(read_audit(folder), np.load(tmp_path / "given.npy").tolist(), 299)
    run("measure", folder)
    audit = read_audit(folder)
    assert (
        audit.summary["labels_look_fine"] is True
        and audit.summary["measured"]["noise_rate"]["value"] == 0
    )
    assert "0.0% of the labels are wrong by 299 measured decisions" in audit.summary["verdict"]
