"""Settings of the whole test session."""

from __future__ import annotations

import torch
from hypothesis import settings

# Two workers on two cores: a second thread in each only makes them wait for one another.
torch.set_num_threads(1)

# The same examples on every run, and no verdict from a clock.
settings.register_profile("noiseproof", derandomize=True, deadline=None)
settings.load_profile("noiseproof")
