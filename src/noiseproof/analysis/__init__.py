"""See what a loss does: before training, during it, and after it."""

from typing import TYPE_CHECKING

from noiseproof.core.lazy import lazily

if TYPE_CHECKING:  # at run time each is imported when it is asked for: a page's shell must not wait for the loop
    from noiseproof.analysis.figure import Figure, Layer, Missing
    from noiseproof.analysis.figures import collect
    from noiseproof.analysis.page import make_page
    from noiseproof.analysis.plots import save, to_matplotlib, to_plotly
    from noiseproof.analysis.runs import RunFolder, open_run, open_runs
    from noiseproof.analysis.verdict import Verdict, probe

_HOME = {  # no name of a module: that would hide the module, or be hidden by it
    "collect": "figures", "Figure": "figure", "Layer": "figure", "Missing": "figure", "make_page": "page",
    "save": "plots", "to_matplotlib": "plots", "to_plotly": "plots", "RunFolder": "runs", "open_run": "runs",
    "open_runs": "runs", "Verdict": "verdict", "probe": "verdict",
}  # fmt: skip
__all__ = [
    "Figure", "Layer", "Missing", "RunFolder", "Verdict", "collect", "make_page", "open_run", "open_runs", "probe",
    "save", "to_matplotlib", "to_plotly",
]  # fmt: skip
__getattr__, __dir__ = lazily(__name__, {name: f"noiseproof.analysis.{home}" for name, home in _HOME.items()})
