"""Two real processes against one: the same weights, whatever the number of processes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
METHODS = ["ce", "sln-mo-lc:start=1"]


def run(out: Path, processes: int, model: str) -> dict[str, dict[str, torch.Tensor]]:
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "ddp_runs.py"), str(out), str(processes), model, *METHODS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return {method: load_file(out / f"{method}.safetensors") for method in METHODS}


@pytest.mark.parametrize("alone, together", [("mlp:hidden=[16]", "mlp:hidden=[16]"), ("halves", "bn-mlp")])
def test_two_processes_train_what_one_does(tmp_path: Path, alone: str, together: str) -> None:
    one, two = run(tmp_path / "one", 1, alone), run(tmp_path / "two", 2, together)
    for method in METHODS:
        for name, weights in one[method].items():
            torch.testing.assert_close(two[method][name], weights, rtol=0, atol=1e-8, msg=f"{method}: {name}")
        rows = [json.loads((tmp_path / folder / f"{method}.json").read_text()) for folder in ("one", "two")]
        for a, b in zip(*rows, strict=True):
            for key in a.keys() - {"seconds"}:
                assert math.isclose(a[key], b[key], rel_tol=1e-7), (method, key)
