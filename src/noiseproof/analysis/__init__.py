"""See what a loss does: before training, during it, and after it."""

from importlib import import_module
from typing import TYPE_CHECKING

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


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"noiseproof.analysis.{_HOME[name]}"), name)
    globals()[name] = found  # found directly from now on
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
