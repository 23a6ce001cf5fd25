"""The verdict on small real tables whose wrong labels overlap or a rare class hides."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_wine

from noiseproof.audit import audit, read_rows


def audited(x: np.ndarray, given: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
    """The summary of a default audit."""
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    frame["y"] = [names[k] for k in given]
    return audit(read_rows(frame, label="y"), device="cpu").summary()


def estimate_in(verdict: str) -> float:
    found = re.search(r"about (\d+\.\d)% ", verdict, re.IGNORECASE)
    assert found is not None
    return float(found[1]) / 100


def test_duplicates_and_overlap_do_not_make_eight_percent_look_fine() -> None:
    """Wines by alcohol, ash and hue, 30 of them twice: overlap may explain the wrong labels, and
    does not.
    """
    random = np.random.default_rng(102)
    x, true = load_wine(return_X_y=True)
    x = x[:, [0, 2, 10]]
    wrong = random.permutation(len(true))[: round(0.08 * len(true))]
    given = true.copy()
    given[wrong] = (true[wrong] + random.integers(1, 3, len(wrong))) % 3
    twice = random.permutation(len(true))[:30]
    x, true, given = (np.concatenate([a, a[twice]]) for a in (x, true, given))
    summary = audited(x, given, ("barolo", "grignolino", "barbera"))
    rate = summary["noise_rate"]
    assert summary["near_duplicates"]["rows"] >= 60
    assert rate["low"] < 0.01 < 0.03 < rate["estimate"]  # so that labels were once called fine
    assert rate["low"] <= (true != given).mean() <= rate["high"]
    assert summary["labels_look_fine"] is False and "fine" not in summary["verdict"]
    assert estimate_in(summary["verdict"]) == pytest.approx(rate["estimate"], abs=6e-4)
    assert "predictions alone can't show it" in summary["verdict"]
    assert f"at least {rate['low']:.1%}, at most {rate['high']:.1%}" in summary["verdict"]


def test_a_rare_class_with_a_fifth_of_its_labels_wrong_is_named() -> None:
    """Tumours, 40 of 397 malignant, beside 10 benign ones that are called so."""
    random = np.random.default_rng(0)
    x, y = load_breast_cancer(return_X_y=True)
    true = 1 - y
    keep = np.sort(
        np.concatenate(
            [np.flatnonzero(true == 0), random.permutation(np.flatnonzero(true == 1))[:40]]
        )
    )
    x, true = x[keep], true[keep]
    given = true.copy()
    given[random.permutation(np.flatnonzero(true == 0))[:10]] = 1
    summary = audited(x, given, ("benign", "malignant"))
    benign, malignant = (entry["noise_rate"] for entry in summary["classes"])
    assert benign < 0.01 and 0.12 < malignant < 0.3  # 0.2 in truth
    assert summary["labels_look_fine"] is False
    assert (
        f"Of the 50 rows labelled 'malignant', about {malignant:.1%} look wrong"
        in summary["verdict"]
    )
    assert estimate_in(summary["verdict"]) == pytest.approx(
        summary["noise_rate"]["estimate"], abs=6e-4
    )
    assert summary["noise_rate"]["estimate"] < 0.05
