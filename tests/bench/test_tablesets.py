"""The real tables, texts and pictures of benchmarks/tablesets.py: labels and columns, where the
packages are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import tablesets

# rows, columns beside the labels, classes: as the sources document them, less small classes
EXPECTED = {
    "vehicle": (846, 18, 4),
    "pima": (768, 8, 2),
    "dna": (3186, 180, 3),
    "ionosphere": (351, 34, 2),
    "spam": (4601, 57, 2),
    "musk": (476, 166, 2),
    "penguins": (344, 7, 3),
    "weather": (1461, 4, 5),
    "cars": (406, 7, 3),
    "diamonds": (5000, 9, 5),
    "titanic": (1316, 3, 2),
    "fortunes": (3000, 1, 10),
    "verbs": (3000, 1, 13),
    "phoneme": (5000, 5, 2),
    "adult": (5000, 14, 2),
    "german": (1000, 20, 2),
    "mammography": (5000, 6, 2),
    "breast_cancer": (569, 30, 2),
    "wine": (178, 13, 3),
    "digits": (1797, 64, 10),
    "satellite": (5000, 36, 6),
    "vowel": (990, 10, 11),
    "soybean": (675, 35, 18),
    "votes": (435, 16, 2),
    "cells": (2019, 58, 2),
    "mortgages": (2380, 13, 2),
    "election": (944, 10, 2),
    "sms": (5000, 1, 2),
    "rte": (800, 1, 2),
}


@pytest.fixture(autouse=True)
def from_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOISEPROOF_TABLES", raising=False)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_set_has_the_rows_columns_and_classes_of_its_source(name: str) -> None:
    try:
        data = tablesets.load(name)
    except tablesets.Missing as missing:
        pytest.skip(str(missing))
    counts = data.frame[data.label].value_counts()
    shape = len(data.frame), len(data.frame.columns) - 1 - len(data.human), len(counts)
    assert shape == EXPECTED[name]
    assert counts.min() >= tablesets.MIN_CLASS
    assert data.frame[data.label].map(type).eq(str).all()
    assert data.kind == ("table" if data.text is None else "text")


def test_constants_are_chosen_on_other_sets_than_reported() -> None:
    assert not tablesets.DEV.keys() & tablesets.REPORT.keys()
    kinds = [
        spec.text is None
        for name, spec in tablesets.REPORT.items()
        if name not in ("mnist", "cifar10n")
    ]
    assert sum(kinds) >= 12
    assert len(kinds) - sum(kinds) >= 3


def test_a_packed_folder_gives_the_same_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
    frame = pd.DataFrame(
        {"label": ["3", "8"], "aggregate": ["3", "3"], "random1": ["8", "8"], "worst": ["1", "8"]}
    )
    pictures = tablesets.LabelledSet(
        "cifar10n", "label", None, ("aggregate", "random1", "worst"), frame, pixels
    )
    spec = tablesets.DEV["penguins"]
    raw = pd.DataFrame(
        {
            "species": pd.Categorical(["10", "2", None, "2"]),
            "island": ["NA", "Dream", "Biscoe", None],  # a word that pandas takes for a gap
            "mass": pd.array([1, None, 3, 4], dtype="Int32"),
            "bill": [0.1 + 0.2, 1.5, 2.0, np.nan],
        }
    )
    monkeypatch.setattr(tablesets, "MIN_CLASS", 1)
    table = tablesets.LabelledSet("penguins", spec.label, None, (), tablesets.tidy(raw, spec))
    assert table.frame.species.tolist() == ["10", "2", "2"]
    assert table.frame.island.tolist()[:2] == ["NA", "Dream"]
    tablesets.pack(tmp_path, [table, pictures])
    monkeypatch.setenv("NOISEPROOF_TABLES", str(tmp_path))
    for data in (table, pictures):
        again = tablesets.load(data.name)
        pd.testing.assert_frame_equal(again.frame, data.frame, check_dtype=False)
        assert again.kind == data.kind
    assert np.array_equal(tablesets.load("cifar10n").images, pixels)


def test_what_is_not_here_names_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISEPROOF_SHARED", str(tmp_path))
    with pytest.raises(tablesets.Missing, match="NOISEPROOF_SHARED"):
        tablesets.load("phoneme")
    monkeypatch.setenv("NOISEPROOF_DEBS", str(tmp_path))
    with pytest.raises(tablesets.Missing, match="fortunes"):
        tablesets.load("fortunes")
