"""The constants of noiseproof/judge/prior.py: how they are fitted, and against which rules.

    python benchmarks/real.py --only thorough --jobs 2 --evidence KEPT
    python benchmarks/real.py --only thorough --jobs 2 --evidence KEPT --controls dev
    python benchmarks/real.py --only thorough --jobs 2 --evidence KEPT --controls unseen
    python benchmarks/prior.py

Rows are made again in a minute from what was kept, after a change of the judge.

A rule says how many labels are wrong from what the judge sees of a set: the share e that it
explains by mistakes, the share h of that after many rounds, the balanced share c that predictions
contradict, the share u that the most certain of them contradict. Calling as many labels wrong has
an F1, which each row of results/real.json has for thirty shares. A rule is worth the mean of F1
over that of the best cut, half of it on families of real sets, a third on planted mistakes and a
sixth on clean sets (there one minus the share called wrong); inside each part, families count
alike.

Each family of real sets is left out in turn: constants are fitted on all others and the planted
sets of ``dev`` and ``unseen``, and judged on it. ``report`` has planted sets that no fit sees. The
constants in noiseproof/judge/prior.py are near those fitted to all of it but ``report``; the width
of their steps was chosen by hand, since a fit makes steps of no width between two sets. Rows made
before u was measured are left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np
import tablesets
from real import OUT, PEOPLE, SHARES
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression

from noiseproof.judge import prior

Row = dict[str, Any]
Fitted = Callable[[Row], float]  # the share of wrong labels
WEIGHTS = {"real": 1 / 2, "planted": 1 / 3, "clean": 1 / 6}
SMALL = prior.SMALL
RULES_OF_TEXTS = ("youtube", "trec", "chemprot")


def family_of(row: Row) -> tuple[str, str]:
    """The part of `WEIGHTS`, and the family."""
    name, _, noise = row["data"].partition(" ")
    if noise == "none":
        return "clean", "clean"
    if name in tablesets.SETS and noise not in PEOPLE.get(name, ()):
        return "planted", noise.partition("-")[0].partition(":")[0]
    if name in RULES_OF_TEXTS:
        return "real", "texts labelled by rules"
    return "real", name.partition("-")[0].partition("/")[0].removesuffix("0n").rstrip("0123456789")


def value(row: Row, share: float) -> float:
    """F1 over that of the best cut, if ``share`` of the labels are called wrong; of clean labels
    one minus it.
    """
    if "curve" not in row:
        return 1 - share
    return (
        float(np.interp(np.log(max(share, SHARES[0])), np.log(SHARES), row["curve"])) / row["best"]
    )


def worth(rows: Sequence[Row], rule: Fitted) -> dict[str, float]:
    """The mean value in each part, with families alike; and of all as weighted."""
    families: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        families[family_of(row)].append(value(row, rule(row)))
    parts: dict[str, list[float]] = defaultdict(list)
    for (part, _), values in families.items():
        parts[part].append(fmean(values))
    means = {part: fmean(values) for part, values in parts.items()}
    total = sum(WEIGHTS[part] for part in means)
    return means | {"all": sum(WEIGHTS[part] * mean for part, mean in means.items()) / total}


# --- rules --------------------------------------------------------------------


@dataclass(frozen=True)
class FittedRule:
    rule: Callable[..., float]
    constants: np.ndarray

    def __call__(self, row: Row) -> float:
        return self.rule(row, *self.constants)


def best_constants(
    rows: Sequence[Row], rule: Callable[..., float], start: Sequence[float]
) -> Fitted:
    """``rule(row, *constants)`` with the constants, 0.01 or more, that are worth most."""

    def loss(logs: np.ndarray) -> float:
        return -worth(rows, lambda row: rule(row, *np.exp(logs).clip(0.01)))["all"]

    simplex = np.log(start) + np.vstack([np.zeros(len(start)), 0.4 * np.eye(len(start))])
    found = minimize(
        loss, np.log(start), method="Nelder-Mead", options={"initial_simplex": simplex}
    )
    constants = np.exp(found.x).clip(0.01)
    return FittedRule(rule, constants)


def by_certain(row: Row, *constants: float) -> float:
    """The rule of judge/prior.py."""
    certain = row["certain"], row["certain_low"]
    return prior.likely_rate(row["explained"], certain, row["contradicted"], *constants)


def rate_of(row: Row, random: float, few_contradicted: float, few_explained: float) -> float:
    """c^(1 − w)·s^w as in judge/prior.py, where ``random`` says how much mistakes look so."""
    c, e = row["contradicted"] + SMALL, row["explained"] + SMALL / 2
    few = prior.step(few_contradicted / c) * prior.step(few_explained * c / e)
    weight = 1 - (1 - random) * (1 - few)
    floor = min(max(row["explained"], row["certain_low"]), row["contradicted"]) + SMALL / 10
    return (row["contradicted"] + SMALL / 10) ** (1 - weight) * floor**weight


def certain_share(row: Row) -> float:
    return row["certain"] / (row["contradicted"] + SMALL)


def explained_share(row: Row) -> float:
    return row["explained"] / (row["contradicted"] + SMALL)


def seen_share(row: Row) -> float:
    """e/u, one at most."""
    return min(1.0, row["explained"] / (row["certain"] + SMALL))


def by_certain_alone(row: Row, planted: float, *few: float) -> float:
    """The rule before: without e/u."""
    return rate_of(row, prior.step(certain_share(row) / planted), *few)


def by_seen(row: Row, planted: float, *few: float) -> float:
    """e/u without the root."""
    return rate_of(row, prior.step(certain_share(row) / planted) * seen_share(row), *few)


def by_explained(row: Row, planted: float, *few: float) -> float:
    """Half of what is contradicted must be explained."""
    explained = min(1.0, explained_share(row) / 0.5)
    return rate_of(row, prior.step(certain_share(row) / planted) * explained, *few)


def by_both(row: Row, planted: float, *few: float) -> float:
    """One step that u and e make together."""
    both = (certain_share(row) * min(1.0, explained_share(row))) ** 0.5
    return rate_of(row, prior.step(both / planted), *few)


def fit_prior(rule: Callable[..., float], start: float) -> Callable[[Sequence[Row]], Fitted]:
    return lambda rows: best_constants(
        rows, rule, (start, prior.FEW_CONTRADICTED, prior.FEW_EXPLAINED)
    )


def fit_multiple(rows: Sequence[Row]) -> Fitted:
    return best_constants(rows, lambda row, times: min(1.0, times * row["contradicted"]), [0.8])


def fit_power(rows: Sequence[Row]) -> Fitted:
    """c^(1 − w)·e^w with one w for all sets, times a constant."""

    def rule(row: Row, times: float, weight: float) -> float:
        return min(
            1.0,
            times
            * (row["contradicted"] + 1e-4) ** (1 - weight)
            * (row["explained"] + 1e-4) ** weight,
        )

    return best_constants(rows, rule, [1.0, 0.3])


def fit_isotonic(rows: Sequence[Row]) -> Fitted:
    """The share of wrong labels, increasing in c."""
    c, wrong = ([row[name] for row in rows] for name in ("contradicted", "wrong"))
    model = IsotonicRegression(out_of_bounds="clip").fit(c, wrong)
    return lambda row: float(model.predict([row["contradicted"]])[0])


RULES: dict[str, Callable[[Sequence[Row]], Fitted]] = {
    "u/c and √(e/u) (judge/prior.py)": fit_prior(by_certain, prior.AT_RANDOM),
    "u/c and e/u": fit_prior(by_seen, prior.AT_RANDOM),
    "u/c and e/c": fit_prior(by_explained, prior.AT_RANDOM),
    "u/c, the rule before": fit_prior(by_certain_alone, prior.AT_RANDOM),
    "u·e/c²": fit_prior(by_both, prior.AT_RANDOM),
    "e: the class-noise posterior": lambda rows: lambda row: row["explained"],
    "c: all that is contradicted": lambda rows: lambda row: row["contradicted"],
    "a constant times c": fit_multiple,
    "e and c with one weight": fit_power,
    "isotonic in c": fit_isotonic,
}


# --- the table ----------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """Rows to choose constants on, and planted and clean ones to report on."""

    chosen: list[Row]
    report: list[Row]

    @classmethod
    def read(cls) -> Parts:
        rows = [
            row
            for row in json.loads(OUT.read_text())["rows"]
            if "certain" in row and row["who"] != "fast"
        ]
        # of labels that are predictable
        rows = [row for row in rows if row["called"] or row["rate"] < 0.01]
        held = [
            row
            for row in rows
            if family_of(row)[0] != "real" and row["data"].split()[0] in tablesets.REPORT
        ]
        return cls([row for row in rows if row not in held], held)


def left_out(rows: Sequence[Row], fit: Callable[[Sequence[Row]], Fitted]) -> tuple[float, float]:
    """The value of real sets by constants that were fitted without their family: the mean of
    families, and of sets.
    """
    values: dict[tuple[str, str], list[float]] = {}
    for family in sorted({family_of(row) for row in rows if family_of(row)[0] == "real"}):
        rule = fit([row for row in rows if family_of(row) != family])
        values[family] = [value(row, rule(row)) for row in rows if family_of(row) == family]
    return fmean(map(fmean, values.values())), fmean(chain(*values.values()))


def main() -> None:
    parts = Parts.read()
    print(f"{len(parts.chosen)} sets to choose on, {len(parts.report)} to report on")
    print(
        f"{'rule':32} {'left out: families':>18} {'sets':>6} {'report: planted':>16} {'clean':>6}"
        f" {'chosen: all':>12}"
    )
    for name, fit in RULES.items():
        rule = fit(parts.chosen)
        held, chosen = worth(parts.report, rule), worth(parts.chosen, rule)
        families, sets = left_out(parts.chosen, fit)
        print(
            f"{name:32} {families:18.3f} {sets:6.3f} {held['planted']:16.3f}"
            f" {1 - held['clean']:6.3f} {chosen['all']:12.3f}"
        )
        if (constants := getattr(rule, "constants", None)) is not None:
            print(f"{'':32} constants {', '.join(f'{constant:.3g}' for constant in constants)}")
    for part, rows in (("chosen", parts.chosen), ("report", parts.report)):
        now = worth(rows, by_certain)
        shown = {name: round(mean, 3) for name, mean in now.items()}
        print(f"constants as in judge/prior.py, {part}: {shown}")


if __name__ == "__main__":
    main()
