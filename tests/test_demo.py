"""The demo: what it shows, in which order, and that it depends on its seed alone."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from typer.testing import CliRunner

from noiseproof.cli import app
from noiseproof.data import get_dataset
from noiseproof.demo import METHODS, NOISES, SETTINGS, Row, demo
from noiseproof.train import Settings, prepare, train


def test_every_method_under_every_noise_in_order() -> None:
    methods, noises = ["gce", "ce", "sln"], ["symmetric:rate=0.4", "none"]
    rows = list(demo(methods, noises, epochs=2))
    assert [(row.noise, row.method) for row in rows] == list(product(noises, methods))
    assert all(0 <= row.accuracy <= 1 and row.seconds > 0 for row in rows)
    assert all(0 <= row.memorised <= 1 for row in rows[:3])


def test_a_row_is_the_last_epoch_of_a_run() -> None:
    (row,) = demo(["gce"], ["asymmetric-mnist:rate=0.4"], epochs=3, seed=2)
    task = prepare(get_dataset("digits", seed=2), "asymmetric-mnist:rate=0.4", seed=2)
    settings = Settings(model=SETTINGS.model, epochs=3, optimizer=SETTINGS.optimizer)
    last = train(task, "gce", settings, seed=2, fabric=Fabric(accelerator="cpu", devices=1)).last
    assert (row.accuracy, row.memorised) == (last["test_accuracy"], last["false_label_accuracy"])


def test_a_dozen_methods_and_both_kinds_of_noise() -> None:
    """Losses, strategies, heads, and two models."""
    assert NOISES == ("symmetric:rate=0.4", "asymmetric-mnist:rate=0.4")
    assert len(set(METHODS)) >= 12
    assert {"ce", "gce", "sln-mo-lc", "ln", "nal", "co-teaching", "dividemix"} <= set(METHODS)


def test_it_depends_on_its_seed_alone() -> None:
    def outcome(seed: int) -> list[tuple[float, float]]:
        return [(row.accuracy, row.memorised) for row in demo(["ce", "sln"], NOISES[:1], epochs=3, seed=seed)]

    before = torch.get_rng_state()
    first = outcome(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)  # moves the global generator
    assert outcome(0) == first != outcome(1)


@pytest.fixture(scope="module")
def shown() -> tuple[list[dict[str, Any]], str]:
    """The same demo, for programs and for people."""
    found = [CliRunner().invoke(app, ["demo", "--epochs", "2", *more]) for more in (["--json"], [])]
    assert [result.exit_code for result in found] == [0, 0]
    return json.loads(found[0].stdout), found[1].stdout


def test_json_has_every_row(shown: tuple[list[dict[str, Any]], str]) -> None:
    rows, _ = shown
    assert [(row["noise"], row["method"]) for row in rows] == list(product(NOISES, METHODS))
    assert all(set(row) == set(Row.__dataclass_fields__) for row in rows)


def test_the_table_ranks_the_methods_of_each_noise(shown: tuple[list[dict[str, Any]], str]) -> None:
    rows, text = shown
    assert "\x1b" not in text
    for noise, block in zip(NOISES, text.strip().split("\n\n"), strict=True):
        title, header, *lines = block.splitlines()
        assert title == noise
        assert header.split("  ")[0] == "method" and "wrong labels repeated" in header
        cells = [line.split() for line in lines]
        found = [(method, float(accuracy), float(memorised)) for method, accuracy, memorised, _ in cells]
        own = [row for row in rows if row["noise"] == noise]
        expected = [(row["method"], round(row["accuracy"], 3), round(row["memorised"], 3)) for row in own]
        assert sorted(found) == sorted(expected)
        assert [accuracy for _, accuracy, _ in found] == sorted((e[1] for e in expected), reverse=True)


def test_one_epoch_is_too_few() -> None:
    """Forward correction takes one to estimate the noise, and one to train."""
    result = CliRunner().invoke(app, ["demo", "--epochs", "1"])
    assert result.exit_code == 2 and "--epochs" in result.stderr


@pytest.mark.slow
def test_it_shows_what_it_is_for() -> None:
    rows = {(row.noise, row.method): row for row in demo(["ce", "gce", "sln-mo-lc"])}
    symmetric = NOISES[0]
    assert rows[symmetric, "ce"].accuracy < 0.75 and rows[symmetric, "ce"].memorised > 0.9
    assert rows[symmetric, "gce"].accuracy > 0.9 and rows[symmetric, "gce"].memorised < 0.15
    for noise in NOISES:
        assert rows[noise, "sln-mo-lc"].accuracy > rows[noise, "ce"].accuracy + 0.03
