"""What a model says of each row, as a table and as CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from noiseproof.analysis import open_run
from noiseproof.analysis.after.predictions import row_table
from noiseproof.cli import app
from noiseproof.core.margin import margin
from noiseproof.data import get_dataset
from noiseproof.train import Result, Settings, Task, prepare, train


def trained(method: str, folder: Path) -> tuple[Task, Result]:
    task = prepare(get_dataset("two-moons:n=80,n_test=20"), "symmetric:rate=0.3", validation=0.2)
    return task, train(
        task, method, Settings(epochs=4, model="mlp:hidden=[8]", batch_size=16), out=folder
    )


def test_trust_and_targets_of_nal_are_written_for_each_row(tmp_path: Path) -> None:
    task, result = trained("nal:start=1", tmp_path / "nal")
    out = tmp_path / "deep" / "rows.csv"
    shown = CliRunner().invoke(app, ["analyze", "rows", str(tmp_path / "nal"), "--out", str(out)])
    assert shown.exit_code == 0 and str(out) in shown.stdout, shown.output
    table = pd.read_csv(out)
    names = np.array(task.train.classes)
    assert list(table.columns) == [
        "row",
        "given_label",
        "clean_label",
        "predicted_label",
        "confidence",
        "margin",
        "trust",
        "target_label",
        "target_upper",
        "target_lower",
    ]
    assert (
        task.train.clean is not None
        and task.normalise is not None
        and isinstance(task.train.x, torch.Tensor)
    )
    assert table["row"].tolist() == task.train.index.tolist()
    assert table["given_label"].tolist() == names[task.train.given].tolist()
    assert table["clean_label"].tolist() == names[task.train.clean].tolist()
    with torch.no_grad():
        said = result.models[0].eval()(task.normalise(task.train.x))
    np.testing.assert_allclose(table["trust"], said.attention.sigmoid().numpy(), rtol=1e-5)
    np.testing.assert_allclose(
        table["margin"], margin(said.logits, task.train.given).numpy(), rtol=1e-4, atol=1e-6
    )
    p = said.logits.softmax(1).numpy()
    np.testing.assert_allclose(table["confidence"], p.max(1), rtol=1e-5)
    assert table["predicted_label"].tolist() == names[p.argmax(1)].tolist()
    targets = result.strategies[0].table[:, 0].numpy()  # type: ignore[attr-defined]
    np.testing.assert_allclose(
        table[["target_upper", "target_lower"]], targets, rtol=1e-5, atol=1e-7
    )
    assert table["target_label"].tolist() == names[targets.argmax(1)].tolist()


def test_the_variance_of_ln_is_in_the_table_of_any_part(tmp_path: Path) -> None:
    task, result = trained("ln:lam=1", tmp_path / "ln")
    run = open_run(tmp_path / "ln")
    assert task.test is not None and task.validation is not None and task.normalise is not None
    for part, data in (("train", task.train), ("validation", task.validation), ("test", task.test)):
        table = row_table(run, part)  # type: ignore[arg-type]
        assert isinstance(data.x, torch.Tensor)
        with torch.no_grad():
            c = result.models[0].eval()(task.normalise(data.x)).root
        roots = c[:, :, None] * c[:, None, :] + torch.eye(2)
        expected = (roots @ roots).diagonal(dim1=1, dim2=2).mean(1)
        np.testing.assert_allclose(table["variance"], expected, rtol=1e-4)
        assert ("clean_label" in table) == (part != "test") and "trust" not in table


def test_corrected_labels_are_in_the_table_and_other_parts_are_refused(tmp_path: Path) -> None:
    trained("sln-mo-lc:start=1,alpha=0.5", tmp_path / "lc")
    table = row_table(open_run(tmp_path / "lc"))
    assert set(table["target_label"]) <= {"upper", "lower"} and not any(
        "target_u" in name for name in table
    )
    with pytest.raises(
        ValueError, match="Expected `part` to be one of train, validation, test, got 'all'"
    ):
        row_table(open_run(tmp_path / "lc"), "all")  # type: ignore[arg-type]
