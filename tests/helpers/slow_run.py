"""``noiseproof`` with steps of ``sln`` that take their time, so that test_cli_train.py can
interrupt one of its runs.

python tests/helpers/slow_run.py train --method sln …
"""

from __future__ import annotations

import time

from noiseproof.cli import app
from noiseproof.strategies import Run
from noiseproof.strategies.perturb import StochasticLabelNoise


def wait(self: StochasticLabelNoise, run: Run) -> None:
    time.sleep(0.05)


if __name__ == "__main__":
    StochasticLabelNoise.after_step = wait  # type: ignore[method-assign]
    app()
