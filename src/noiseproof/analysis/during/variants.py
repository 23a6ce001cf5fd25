"""Runs that differ in one thing: where SGD noise is added, how labels are corrected, the
schedule.
"""

from typing import Any

import numpy as np
import pandas as pd

from noiseproof.analysis.during.curves import curve, curves
from noiseproof.analysis.during.samples import BINS
from noiseproof.analysis.figures import (
    Layer,
    Needs,
    Subjects,
    all_runs,
    each,
    figure,
    first_seeds,
    histogram,
    stack,
)
from noiseproof.analysis.runs import OF_A_SEED, NotARun, RunFolder, Runs, seeds_of
from noiseproof.core.grammar import parse_call
from noiseproof.heads import HEADS
from noiseproof.strategies.correction import LabelCorrection

TESTED = "a dataset with test rows"
CORRECTION = "label-correction"
SGD_NOISE = {
    "sln": "noise on labels (z_y)",
    "noise-f": "noise on ∇ in logits (z_f)",
    "noise-theta": "noise on ∇ in weights (z_θ)",
}
TARGETS = {  # by whether label correction inverts ω; None: no correction
    None: "label",
    False: "ω·label + (1 − ω)·prediction",
    True: "(1 − ω)·label + ω·prediction",
}


def _strategies(run: RunFolder) -> dict[str, dict[str, Any]]:
    calls = (parse_call(part) for part in str(run.config["method"]).split(" × ")[1:])
    return {name: params for name, params in calls if name not in HEADS}


def _differences(runs: Runs, *but: str) -> dict[str, str]:
    """Return for each run the settings, other than its method and ``but``, in which the runs
    differ: ``, key=value …``.
    """
    ignored = (*OF_A_SEED, "method", "name", "classes", "rows", *but)
    keys = dict.fromkeys(key for run in runs.values() for key in run.config if key not in ignored)
    differing = [
        key for key in keys if len({repr(run.config.get(key)) for run in runs.values()}) > 1
    ]
    return {
        name: "".join(f", {key}={run.config.get(key)}" for key in differing)
        for name, run in runs.items()
    }


# Noise in SGD


def noise_variants(runs: Runs) -> pd.DataFrame:
    """Test accuracy by epoch of runs with one kind of SGD noise and no other strategy, with σ = 0
    for each kind.

    Returns the columns of ``curves``, ``variant`` (which part of a step the noise is added to),
    ``sigma`` and ``size``, σ as text; no rows without such runs.
    """
    table = curves(runs, ["test_accuracy"]).assign(variant="", sigma=0.0)
    groups = {name: group[0] for name, group in seeds_of(runs).items()}
    plain = {_without_strategies(run): name for name, run in groups.items() if not _strategies(run)}
    noisy = {name: run for name, run in groups.items() if _is_noisy(run)}
    differences = _differences(noisy)
    tables = [table.iloc[:0]]
    for name, run in noisy.items():
        ((kind, params),) = _strategies(run).items()
        sigmas = {plain.get(_without_strategies(run)): 0.0, name: float(params["sigma"])}
        for method, sigma in sigmas.items():
            rows = table[table["method"] == method]
            tables.append(rows.assign(variant=SGD_NOISE[kind] + differences[name], sigma=sigma))
    both = pd.concat(tables).drop_duplicates(["variant", "method", "epoch"], ignore_index=True)
    ordered = [f"σ = {sigma:g}" for sigma in sorted(both["sigma"].unique())]
    sizes = pd.Categorical(both["sigma"].map("σ = {:g}".format), ordered, ordered=True)
    return both.assign(size=sizes)


def _without_strategies(run: RunFolder) -> str:
    """Return a key that is the same for runs that differ only in their strategies and seed."""
    return str(run.config["method"]).split(" × ")[0] + run.alike("method", "name")


def _is_noisy(run: RunFolder) -> bool:
    """Return whether SGD noise of one kind is the only strategy of a run."""
    strategies = _strategies(run)
    return len(strategies) == 1 and strategies.keys() <= SGD_NOISE.keys()


@figure(
    "sgd-noise",
    "Noise in SGD, by where it is added",
    curve("size"),
    subject=all_runs,
    reading=(
        "Look for a σ between plain cross entropy (σ = 0), which learns wrong labels, and one that"
        " learns nothing; the SLN paper finds a wide range of them only for noise on the labels."
    ),
    paper="SLN paper, Fig. 5",
    axes=("epoch", "test accuracy"),
    panel="variant",
)
def noise_figure(runs: Runs) -> pd.DataFrame:
    table = noise_variants(runs)
    if not len(table):
        raise Needs(
            "runs of `sln`, `noise-f` and `noise-theta`, and of `ce`: noiseproof train --method"
            " sln:sigma=0.5 …"
        )
    return table


# Label correction


def corrected_runs(runs: Runs) -> Subjects[RunFolder]:
    """Return runs that correct labels, and those that differ from them only in that."""
    strategies = {name: frozenset(_strategies(run)) for name, run in runs.items()}
    corrected = {names for names in strategies.values() if CORRECTION in names}
    if not corrected:
        raise Needs("runs of `sln-mo-lc`, with `invert=true` and without")
    comparable = corrected | {names - {CORRECTION} for names in corrected}
    chosen = {name: run for name, run in runs.items() if strategies[name] in comparable}
    return Subjects(chosen, f" Targets are mixed from epoch {_first_correction(chosen)} on.")


def _first_correction(runs: Runs) -> int:
    calls = (_strategies(run).get(CORRECTION) for run in runs.values())
    return min(int(call["start"]) + 1 for call in calls if call)


@figure(
    "label-correction",
    "Label correction: ω or 1 − ω",
    curve(dash="target"),
    subject=corrected_runs,
    reading=(
        "Whether a label that keeps more weight the larger its loss (ω) protects the model from its"
        " own mistakes better than 1 − ω does, as the SLN paper finds."
    ),
    paper="SLN paper, Fig. 10",
    axes=("epoch", "test accuracy"),
)
def correction_figure(runs: Runs) -> pd.DataFrame:
    table = curves(runs, ["test_accuracy"])
    if not len(table):
        raise Needs(TESTED)
    first = _first_correction(runs)
    last = int(table["epoch"].max())
    if last < first:
        raise Needs(f"a run that reaches epoch {first}, where its correction begins")
    targets = {}
    for name, group in seeds_of(runs).items():
        call = _strategies(group[0]).get(CORRECTION)
        targets[name] = TARGETS[bool(call["invert"]) if call else None]
    table = table[table["epoch"] >= first - max(1, (last - first) // 2)]
    return table.assign(target=table["method"].map(targets)).reset_index(drop=True)


def kept_shares(run: RunFolder) -> pd.DataFrame:
    """Return the share of each given label in the targets of the last epoch, as histograms of right
    and wrong labels.
    """
    strategies = run.result().strategies
    kept = next(
        (s.kept for s in strategies if isinstance(s, LabelCorrection) and s.kept is not None), None
    )
    if kept is None:
        raise NotARun(
            f"Expected a run of {run.folder} that corrects labels, got none. Use `sln-mo-lc`."
        )
    edges = np.linspace(0, 1, BINS + 1)
    return histogram(kept.double().cpu().numpy(), run.label_groups, edges, "kept")


@figure(
    "kept-labels",
    "How much of a label its correction keeps",
    Layer("area", "kept", "density", color="labels"),
    subject=first_seeds,
    reading="The share of the given label in the last targets; the rest is the model's prediction.",
    paper="SLN paper, section 3.3",
    axes=("share of the given label", "density"),
    panel="method",
    share_y=False,
)
def kept_figure(runs: Runs) -> pd.DataFrame:
    corrected = {name: run for name, run in runs.items() if CORRECTION in _strategies(run)}
    return stack(
        each(corrected, kept_shares, needs="a run of `sln-mo-lc` that has reached its correction")
    )


# Schedules


@figure(
    "schedules",
    "The effect of the schedule",
    curve("schedule"),
    subject=all_runs,
    reading=(
        "Whether a bounded loss learns wrong labels when it is trained for long, and whether a"
        " larger or a smaller learning rate keeps cross entropy from them, as the curriculum paper"
        " finds."
    ),
    paper="curriculum paper, Fig. 4",
    axes=("epoch", "accuracy"),
    panel="panel",
)
def schedule_figure(runs: Runs) -> pd.DataFrame:
    groups = {name: group[0] for name, group in seeds_of(runs).items()}
    schedules = {name: _schedule(run) for name, run in groups.items()}
    differences = _differences(groups, "optimizer", "schedule", "epochs")
    kind = {name: run.name + differences[name] for name, run in groups.items()}
    several = {
        k for k in kind.values() if len({schedules[name] for name in groups if kind[name] == k}) > 1
    }
    if not several:
        raise Needs("runs of one method that differ in --optimizer, --schedule or --epochs")
    table = curves(runs, ["test_accuracy", "false_label_accuracy"])
    table = table[[kind[name] in several for name in table["method"]]]
    if not len(table):
        raise Needs(TESTED)
    table = table.assign(kind=table["method"].map(kind), schedule=table["method"].map(schedules))
    words = {
        "test_accuracy": "test rows: true class",
        "false_label_accuracy": "mislabelled rows: their wrong label",
    }
    table["panel"] = table["kind"] + ": " + table["quantity"].map(words)
    return table.sort_values("kind", kind="stable", ignore_index=True)


def _schedule(run: RunFolder) -> str:
    name, params = parse_call(str(run.config["optimizer"]))
    return (
        f"{name}, lr={params.get('lr', '?')}, {run.config['schedule']}, {run.config['epochs']}"
        " epochs"
    )
