"""What a loss does: before training, during it, and after it."""

from typing import TYPE_CHECKING

from noiseproof.core.lazy import lazily

# at run time each is imported on first use: the shell of a page does not need the training loop
if TYPE_CHECKING:
    from noiseproof.analysis.before.forecast import Forecast, forecast
    from noiseproof.analysis.before.untrained import Probe, probe
    from noiseproof.analysis.figures import Figure, Layer, MissingFigure, collect
    from noiseproof.analysis.page.drawing import to_matplotlib
    from noiseproof.analysis.page.files import save
    from noiseproof.analysis.page.html import make_page
    from noiseproof.analysis.runs import RunFolder, open_run, open_runs

_HOME = {
    "Figure": "figures",
    "Forecast": "before.forecast",
    "Layer": "figures",
    "MissingFigure": "figures",
    "Probe": "before.untrained",
    "RunFolder": "runs",
    "collect": "figures",
    "forecast": "before.forecast",
    "make_page": "page.html",
    "open_run": "runs",
    "open_runs": "runs",
    "probe": "before.untrained",
    "save": "page.files",
    "to_matplotlib": "page.drawing",
}
__all__ = [
    "Figure",
    "Forecast",
    "Layer",
    "MissingFigure",
    "Probe",
    "RunFolder",
    "collect",
    "forecast",
    "make_page",
    "open_run",
    "open_runs",
    "probe",
    "save",
    "to_matplotlib",
]
__getattr__, __dir__ = lazily(
    __name__, {name: f"noiseproof.analysis.{home}" for name, home in _HOME.items()}
)
