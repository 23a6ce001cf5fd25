"""Checks of class probabilities, and the counts behind the confident joint."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from noiseproof.core import probs as module
from noiseproof.core.probs import check_probabilities, confident_counts, mean_label_probability


def test_probabilities_come_back_unchanged() -> None:
    values = [[0.25, 0.75], [1.0, 0.0]]
    assert check_probabilities("p", values).tolist() == values
    assert check_probabilities("p", values, 2, dtype=torch.float32).dtype is torch.float32


@pytest.mark.parametrize(
    ("values", "num_classes", "message"),
    [
        ([0.5, 0.5], None, r"`p` of shape \(N, K\) with at least two classes, got \(2,\)"),
        ([[1.0]], None, r"got \(1, 1\)\. For one probability p per row"),
        (torch.zeros(0, 2), None, r"got \(0, 2\)"),
        ([[0.5, 0.5]], 3, r"shape \(N, 3\), got \(1, 2\)"),
        (
            [[0.5, 0.5], [1.5, -0.5]],
            None,
            r"got other numbers in row 1 \(1 of 2 rows\)\. Apply softmax to logits",
        ),
        ([[0.5, 0.502], [torch.nan, 0.5]], None, r"got other numbers in row 0 \(2 of 2 rows\)"),
    ],
)
def test_other_values_are_refused(values: Any, num_classes: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_probabilities("p", values, num_classes)


def test_counts_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.tensor([0, 0, 0, 1, 1])
    p0 = torch.tensor([0.9, 0.8, 0.1, 0.2, 0.5])
    p = torch.stack([p0, 1 - p0, torch.zeros(5)], 1)
    means = mean_label_probability(labels, p)
    torch.testing.assert_close(means, torch.tensor([0.6, 0.65, torch.inf], dtype=torch.float64))
    # The last row reaches neither threshold; relative to them, 0.5/0.6 is the larger.
    for block in (module.BLOCK, 6):
        monkeypatch.setattr(module, "BLOCK", block)
        assert confident_counts(labels, p, means).tolist() == [[2, 0, 0], [1, 1, 0], [0, 0, 0]]
        assert confident_counts(labels, p, means, relative=True).tolist() == [
            [2, 1, 0],
            [1, 1, 0],
            [0, 0, 0],
        ]
