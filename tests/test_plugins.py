"""Names of one's own: from a file, on the command line, in workers."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from noiseproof.bench import Experiment, run_all
from noiseproof.core.registry import PLUGINS, Registry, import_module, load_plugins
from noiseproof.data import DATASETS
from noiseproof.losses import LOSSES, get_loss
from noiseproof.models import MODELS
from noiseproof.noise import NOISES
from noiseproof.strategies import STRATEGIES
from noiseproof.train import Settings
from noiseproof.train.methods import METHODS

LOSS = """
from noiseproof.core.margin import LabelProb
from noiseproof.losses import MarginLoss, register

@register("{name}")
class Taylor(MarginLoss):
    '''l = (1 − p) + (1 − p)²/2.'''

    formula, source = "(1 − p) + (1 − p)²/2", "Feng et al. 2020"

    def value(self, y: LabelProb):
        return y.miss + y.miss.square() / 2
"""


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(LOSSES, "_factories", dict(LOSSES._factories))
    monkeypatch.setattr(Registry, "foreign", dict(Registry.foreign))
    yield
    for name in [name for name in sys.modules if name.startswith(("own_", "late_"))]:
        del sys.modules[name]
    load_plugins.cache_clear()


def noiseproof(*words: str, plugins: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "noiseproof", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, PLUGINS: plugins})


def test_a_file_adds_names_to_the_command_line_and_its_workers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOSS.format(name="taylor2"))
    (tmp_path / "sweep.toml").write_text(
        '[[experiment]]\ndataset = "digits"\nmethod = "0.5*taylor2 + mae"\nepochs = 1\nmodel = "mlp:hidden=[8]"\n'
    )
    listed = noiseproof("losses", plugins="mine.py", cwd=tmp_path)
    assert listed.returncode == 0 and "taylor2" in listed.stdout
    ran = noiseproof("bench", "run", "sweep.toml", "--engine", "processes", plugins="mine.py", cwd=tmp_path)
    assert ran.returncode == 0 and "1 runs done, 0 failed" in ran.stdout


@pytest.mark.parametrize("name", ["gone.py", "no_such_module", "own/json.py"])
def test_what_cannot_be_imported_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "json.py").write_text("")  # a name that is taken
    ran = noiseproof("losses", plugins=name, cwd=tmp_path)
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1
    assert f"Expected modules or .py files in {PLUGINS}, got '{name}': " in ran.stderr


def test_workers_import_what_the_driver_did(tmp_path: Path) -> None:
    (tmp_path / "own_loss.py").write_text(LOSS.format(name="taylor3"))
    import_module("own_loss", str(tmp_path / "own_loss.py"))
    assert Registry.foreign["taylor3"] == "own_loss"
    mine = Experiment("digits", method="0.5*taylor3 + mae", settings=Settings("mlp:hidden=[8]", epochs=1))
    (result,) = run_all([mine], tmp_path / "results", engine="processes", workers=1).values()
    assert result["status"] == "done" and result["error"] is None


def test_code_of_ones_own_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own_changing.py"
    file.write_text(LOSS.format(name="taylor5"))
    monkeypatch.setenv(PLUGINS, str(file))
    load_plugins.cache_clear()
    mine, other = (Experiment("digits", method=method) for method in ("2*taylor5 + mae", "mae"))
    before = mine.key, other.key
    assert "taylor5" in Registry.foreign and mine.key == before[0]  # whoever asked first
    file.write_text(LOSS.format(name="taylor5").replace("/ 2", "/ 3  # mended"))
    assert mine.key != before[0] and other.key == before[1]


def test_modules_of_packages_and_partials_reach_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .losses import NAME")
    (package / "names.py").write_text("NAME = 'taylor6'")
    (package / "losses.py").write_text(
        "from functools import partial\nfrom noiseproof.losses import LOSSES, get_loss\nfrom .names import NAME\n"
        "LOSSES.register(NAME)(partial(get_loss, 'gce', q=0.5))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_package")
    assert Registry.foreign["taylor6"] == "own_package.losses"
    mine = Experiment("digits", method="taylor6", settings=Settings("mlp:hidden=[8]", epochs=1))
    (result,) = run_all([mine], tmp_path / "results", engine="processes", workers=1).values()
    assert result["status"] == "done" and result["error"] is None


def test_no_name_of_noiseproof_counts_as_anothers() -> None:
    own = {*MODELS, *DATASETS, *METHODS, *NOISES, *STRATEGIES}
    assert "resnet34" in own and not own & {*Registry.foreign}


def test_a_broken_package_is_named_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = EntryPoint("theirs", "no_such_module", "noiseproof")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [broken])
    load_plugins.cache_clear()
    with pytest.raises(ValueError, match="Unknown loss 'gcee'. Did you mean 'gce'"):
        get_loss("gcee")
    assert "the plugin theirs (no_such_module) could not be loaded" in caplog.text


def test_names_of_a_script_are_refused_before_any_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Registry.foreign, "gce", "__main__")
    mine = Experiment("digits", method="gce:q=0.5", settings=Settings("mlp:hidden=[8]", epochs=1))
    with pytest.raises(
        ValueError, match=r"Expected names that workers can import, got names of the script itself \('gce'\)"
    ):
        run_all([mine], tmp_path, engine="processes")


def test_plugins_are_loaded_once_and_before_a_name_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_loss.py").write_text(LOSS.format(name="taylor4"))
    monkeypatch.setenv(PLUGINS, str(tmp_path / "late_loss.py"))
    load_plugins.cache_clear()
    assert str(get_loss("taylor4")).startswith("taylor4")
    load_plugins()
    with pytest.raises(ValueError, match="Unknown loss 'taylor5'. Did you mean 'taylor4'"):
        get_loss("taylor5")
