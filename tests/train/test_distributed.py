"""Two real processes against one: the same weights and the same record, whatever the number of
processes.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import fsdp_run
import pytest
from ddp_runs import DRAW_FOR_THEMSELVES, NORMALISED, PEERS, RUNS, Normalised, results, weights
from lightning_fabric import Fabric
from safetensors.torch import load_file

from noiseproof.models import MODELS
from noiseproof.strategies import STRATEGIES
from noiseproof.train import METHODS
from noiseproof.train.checkpoint import BadCheckpoint

HELPERS = Path(__file__).parents[1] / "helpers"


def test_two_processes_train_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To 1e-8 in float64; co-teaching, sigua and small-loss select over all processes, or they
    would not be equal.
    """
    monkeypatch.setitem(MODELS._factories, NORMALISED, Normalised)
    environment = {
        **os.environ,
        "PYTHONPATH": str(HELPERS.parents[1] / "src"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HELPERS / "ddp_runs.py"), str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as two:
        alone = list(results(1))  # meanwhile
        _, said = two.communicate(timeout=300)
    assert two.returncode == 0 and "FutureWarning" not in said, said[-3000:]
    tensors = load_file(tmp_path / "weights.safetensors")
    rows = json.loads((tmp_path / "rows.json").read_text())

    used, wrong = set(), []
    for i, ((model, spec), one) in enumerate(zip(RUNS, alone, strict=True)):
        used |= {strategy.name for strategy in one.strategies}
        apart = [
            float((tensors[f"{i}/{name}"] - value).abs().max())
            for name, value in weights(one).items()
        ]
        for a, b in zip(one.metrics, rows[i], strict=True):
            apart += [abs(a[key] - b[key]) for key in a if key != "seconds"]
        if spec == PEERS:  # drawn among other rows
            assert (
                math.isfinite(sum(apart))
                and rows[i][1]["train_accuracy"] > rows[i][0]["train_accuracy"]
            )
        elif not max(apart) < 1e-8:  # nor NaN
            wrong.append(f"{spec} with {model}: {max(apart):.1e} apart")
    assert not wrong
    # so that a new one can't be forgotten
    assert used >= set(STRATEGIES) - {"early-stopping", "freeze"}
    assert set(METHODS) >= DRAW_FOR_THEMSELVES


@pytest.mark.slow
def test_weights_that_two_processes_share_train_as_those_of_one_and_are_resumed(
    tmp_path: Path,
) -> None:
    """FSDP, in which some processes have no share of a weight; each writes its share."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(HELPERS.parents[1] / "src"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HELPERS / "fsdp_run.py"), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = json.loads(ended.stdout.splitlines()[-1])
    alone = fsdp_run.run(Fabric(accelerator="cpu", devices=1)).metrics
    for shared, whole in zip(said["whole"], alone, strict=True):
        for name in whole.keys() - {"seconds"}:
            assert shared[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name
    timeless = {name: [{**row, "seconds": 0} for row in rows] for name, rows in said.items()}
    assert timeless["stopped"] == timeless["damaged"] == timeless["whole"]
    assert "is damaged and left out: a share of another process is damaged" in ended.stderr
    files = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert files == [
        f"step-00000000{n}{part}.safetensors" for n in (5, 6) for part in ("", ".share-1")
    ]
    with pytest.raises(BadCheckpoint, match="Expected processes=2 to resume"):
        fsdp_run.run(Fabric(accelerator="cpu", devices=1), out=tmp_path / "whole", resume=True)
