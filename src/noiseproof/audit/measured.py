"""What decisions measured, written into the folder of an audit: recalibrated issues, a summary,
reliability.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from noiseproof.audit.decisions import Decision
from noiseproof.audit.figures import new_axes
from noiseproof.audit.files import FILES, PARQUET, Audit, check_decisions, read_audit, write_json
from noiseproof.audit.plan import FIRST
from noiseproof.audit.sample import read_design, read_population
from noiseproof.core.arrays import Bools, Floats, Ints
from noiseproof.core.files import replacing, replacing_all
from noiseproof.core.messages import Json, counted
from noiseproof.data.frames import write_csv
from noiseproof.judge.interval import NEGLIGIBLE
from noiseproof.judge.issues.label import GENERAL, general_sentences, worst_pairs
from noiseproof.judge.measure.calibrate import Calibrated, recalibrate
from noiseproof.judge.measure.design import is_wrong, measured_answers
from noiseproof.judge.measure.estimate import Measurement, measure
from noiseproof.judge.measure.interval import Bounded, exact_share

DIAGRAM = "reliability.png"
CHANGED = ("is_label_issue", "label_quality", "suggestion_quality", "why")  # columns of issues.csv
MEASURED_WHY = "Of labels ranked like this one"
PER_BIN = 10  # decisions of a bin of the diagram
MOST_BINS = 8
FOLDS = 5  # of decisions


class NotMeasured(ValueError):
    """An audit without measured decisions."""


@dataclass(frozen=True, eq=False)
class Measured:
    """An audit after its decisions were measured."""

    audit: Audit  # with recalibrated issues
    measurement: Measurement
    goal: str
    reliability: pd.DataFrame
    diagram: Path


def write_measured(audit: Audit, answers: Sequence[Decision], goal: str = "f1") -> Measured:
    """Recalibrate an audit by the measured ones of ``answers``, and write that into its folder.

    issues.csv (and issues.parquet) get new ``label_quality``, ``suggestion_quality`` and
    ``is_label_issue``, and are sorted again; ``model_quality`` stays, from which all of them are
    computed, so that a second call changes nothing. summary.json gets ``measured``, ``goal`` and
    ``reliability``; reliability.png shows the last.
    """
    measured = _decided(answers)
    if not measured or read_design(audit) is None:
        raise NotMeasured(
            f"Expected measured decisions on {audit.folder}, got none. Run `noiseproof review"
            f" {audit.folder} --measure {FIRST}` first: rows chosen by hand or from the top of the"
            " list do not represent the others."
        )
    check_decisions(measured.values(), audit)
    calibrated = recalibrate(audit, read_population(audit), answers, goal)
    _write_issues(audit.folder, _recalibrated(audit, calibrated, len(measured)))
    audit = read_audit(audit.folder)
    measurement = measure(read_population(audit), answers)  # with the precision of the new cut
    assert measurement is not None
    table = reliability(audit, answers)
    summary = {
        **audit.summary,
        **_counts(audit),
        "labels_look_fine": measurement.rate.high <= NEGLIGIBLE,
        "verdict": _verdict(audit, measurement),
        "measured": measurement.as_dict(),
        "goal": goal,
        "reliability": table.to_dict("records"),
    }
    write_json(audit.folder / FILES[1], summary)
    diagram = _draw(table, audit.folder / DIAGRAM)
    return Measured(replace(audit, summary=summary), measurement, goal, table, diagram)


def _decided(answers: Sequence[Decision]) -> dict[int, Decision]:
    """Return the answers to questions of the designed sample by row; skipped ones are left out."""
    return {row: answer for row, answer in measured_answers(answers).items() if answer.names_label}


# issues.csv and summary.json


def _recalibrated(audit: Audit, calibrated: Calibrated, decisions: int) -> pd.DataFrame:
    """Return the columns that decisions change, from the worst label to the best."""
    issues = audit.issues[["row", "why", "given_label", "predicted_label", "model_quality"]].assign(
        is_label_issue=calibrated.is_issue,
        label_quality=np.round(1 - calibrated.wrong, 6),
        suggestion_quality=np.round(calibrated.suggestion, 6),
    )
    # of labels that the models did not call wrong
    by_models = general_sentences(
        audit.issues["model_quality"].to_numpy(),
        audit.issues["model_suggestion_quality"].to_numpy(),
        (issues["predicted_label"] == issues["given_label"]).to_numpy(),
    )
    rewritten = issues["why"].str.startswith(MEASURED_WHY)
    issues.loc[rewritten, "why"] = by_models[rewritten]
    general = issues["is_label_issue"] & issues["why"].isin(GENERAL)
    shares = (100 * (1 - issues.loc[general, "label_quality"])).round().astype(int)
    issues.loc[general, "why"] = [
        f"{MEASURED_WHY} {share} % are wrong by {counted(decisions, 'measured decision')}."
        for share in shares
    ]
    keys = ["is_label_issue", "label_quality", "model_quality", "row"]
    return issues.sort_values(keys, ascending=[False, True, True, True])


def _write_issues(folder: Path, changed: pd.DataFrame) -> None:
    """Replace columns of issues.csv and issues.parquet and sort their rows; every other cell stays
    as it is.
    """
    changed = changed.set_index("row")[list(CHANGED)]
    path = folder / FILES[0]
    with open(path, "rb") as file:
        end = "\r\n" if file.readline().endswith(b"\r\n") else "\n"
    # as text, so that no digit changes
    cells = pd.read_csv(path, dtype=str, keep_default_na=False, na_filter=False)
    cells = cells.set_index(cells["row"].astype("int64")).loc[changed.index]
    for name in CHANGED:
        cells[name] = [str(value) for value in changed[name].tolist()]
    with replacing_all(folder) as part:
        write_csv(cells, part(path.name), end)
        if (folder / PARQUET).exists():
            table = pd.read_parquet(folder / PARQUET)
            table = table.set_index("row", drop=False).loc[changed.index]
            table = table.assign(**{name: changed[name] for name in CHANGED})
            table.to_parquet(part(PARQUET), index=False, engine="pyarrow")


def _counts(audit: Audit) -> Json:
    issues = audit.issues[audit.issues["is_label_issue"]]
    others = audit.issues[~audit.issues["is_label_issue"]]
    by_class = Counter(issues["given_label"])
    cuts = others.groupby("given_label")["label_quality"].min()
    classes = []
    for part in audit.summary["classes"]:
        cut = float(cuts.get(part["name"], 1.0))
        classes.append({**part, "issues": by_class[part["name"]], "cut": cut})
    called = replace(audit, issues=issues)
    pairs = worst_pairs(
        audit.classes,
        called.class_numbers("given_label"),
        called.class_numbers("suggested_label"),
        audit.summary.get("transition"),
    )
    return {"issues": len(issues), "classes": classes, "worst_pairs": pairs}


def _verdict(audit: Audit, measurement: Measurement) -> str:
    rate = measurement.rate
    issues = int(audit.issues["is_label_issue"].sum())
    return (
        f"{rate.value:.1%} of the labels are wrong by {measurement.decisions} measured decisions"
        f" (95 % confidence interval {rate.low:.1%} to {rate.high:.1%}): {issues} of"
        f" {len(audit.issues)} are issues."
    )


# Reliability


def reliability(audit: Audit, answers: Sequence[Decision]) -> pd.DataFrame:
    """Return the predicted P(wrong) and the measured share of wrong labels with its 95 % interval,
    in bins of equal size.

    Twice: by the models alone, and recalibrated, cross-fitted in five folds. Each row counts as the
    rows of its stratum over the decisions there; the interval is exact for the effective number of
    decisions (Korn & Graubard 1998).
    """
    measured = _decided(answers)
    rows = np.array(list(measured))
    wrong = np.array([is_wrong(answer) for answer in measured.values()])
    place = pd.Index(audit.issues["row"]).get_indexer(rows)
    predicted = {"models": 1 - audit.issues["model_quality"].to_numpy()[place]}
    predicted["recalibrated"] = _cross_fitted(audit, answers, rows, place)
    weight = _weights(audit, rows)
    tables = [
        pd.DataFrame(bins).assign(probabilities=name)
        for name, values in predicted.items()
        if (bins := _bins(values, wrong, weight))
    ]
    return pd.concat(tables, ignore_index=True)


def _cross_fitted(audit: Audit, answers: Sequence[Decision], rows: Ints, place: Ints) -> Floats:
    """P(wrong) of the measured rows (n,), recalibrated by the decisions of the other folds."""
    population = read_population(audit)
    fold = np.random.default_rng(0).permutation(len(rows)) % FOLDS
    predicted = np.empty(len(rows))
    for k in range(min(FOLDS, len(rows))):
        held = set(rows[fold == k].tolist())
        others = [answer for answer in answers if answer.row not in held]
        predicted[fold == k] = recalibrate(audit, population, others).wrong[place[fold == k]]
    return predicted


def _weights(audit: Audit, rows: Ints) -> Floats:
    """Return how many rows each measured one stands for, (n,): the rows of its stratum over the
    measured ones there.
    """
    design = read_design(audit)
    assert design is not None
    strata = design.strata[rows]
    return np.asarray(design.sizes[strata] / np.bincount(strata)[strata])


def _bins(predicted: Floats, wrong: Bools, weight: Floats) -> list[Json]:
    """Means of the predictions and of what was measured, in bins of about as many decisions."""
    count = max(1, min(MOST_BINS, len(predicted) // PER_BIN))
    shares = np.linspace(0, 1, count + 1)[1:-1]
    edges = np.unique(np.quantile(predicted, shares))
    bins = []
    bin_of = np.searchsorted(edges, predicted, side="right")
    for number in np.unique(bin_of):
        inside = bin_of == number
        share = weighted_share(wrong[inside], weight[inside])
        row = {
            "predicted": float(np.average(predicted[inside], weights=weight[inside])),
            "measured": share.value,
            "low": share.low,
            "high": share.high,
        }
        rounded = {name: round(value, 6) for name, value in row.items()}
        bins.append({**rounded, "decisions": int(inside.sum())})
    return bins


def weighted_share(hits: Bools, weight: Floats) -> Bounded:
    """Return the weighted share of ``hits`` (n,), with the exact interval of 1/Σw² draws (Korn &
    Graubard 1998).
    """
    weight = weight / weight.sum()
    draws = 1 / float(weight @ weight)
    return exact_share(min(float(weight @ hits), 1.0) * draws, draws)


def _draw(table: pd.DataFrame, path: Path) -> Path:
    axes = new_axes(
        "Reliability of P(wrong)", "predicted P(wrong)", "measured share of wrong labels"
    )
    axes.plot([0, 1], [0, 1], "k:", label="as many wrong as predicted")
    for name, bins in table.groupby("probabilities", sort=False):
        below = bins["measured"] - bins["low"]
        above = bins["high"] - bins["measured"]
        widths = np.maximum([below, above], 0)
        axes.errorbar(bins["predicted"], bins["measured"], widths, fmt="o", label=name)
    axes.legend()
    with replacing(path) as part:
        axes.figure.savefig(part, format="png", dpi=200, metadata={"Software": None})
    return path
