"""Names of one's own: from a file, on the command line, in workers."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from noiseproof.bench import Experiment, run_all
from noiseproof.bench.engines import _modules
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
METHOD = """
from noiseproof.losses import get_loss
from noiseproof.train.methods import METHODS, Method

@METHODS.register("{name}")
def mine(setting, /):
    '''One's own.'''
    return Method(get_loss("{loss}"))
"""
STRATEGY = """
from noiseproof.strategies import Strategy, register

@register("{name}")
class Idle(Strategy):
    '''Does nothing.'''
"""
DATASET = """
from noiseproof.data import DATASETS

@DATASETS.register("{name}")
def mine(file="default.npz", files=(), word="train", n=3):
    '''One's own.'''
"""
OWN = (LOSSES, METHODS, STRATEGIES, DATASETS)


def leave() -> None:
    """As if no module of one's own had been imported."""
    for name in [name for name in sys.modules if name.startswith(("own_", "late_"))]:
        del sys.modules[name]
    load_plugins.cache_clear()


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for registry in OWN:
        monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(Registry, "foreign", dict(Registry.foreign))
    monkeypatch.setattr(Registry, "code", dict(Registry.code))
    yield
    leave()


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Takes plugins as a new process does, from files own_NAME.py with these texts."""
    before = [(registry, dict(registry._factories)) for registry in OWN]

    def begin(**texts: str) -> None:
        leave()
        for registry, factories in before:
            monkeypatch.setattr(registry, "_factories", dict(factories))
        monkeypatch.setattr(Registry, "foreign", {})
        monkeypatch.setattr(Registry, "code", {})
        for name, text in texts.items():
            (tmp_path / f"own_{name}.py").write_text(text)
        monkeypatch.setenv(PLUGINS, ",".join(str(tmp_path / f"own_{name}.py") for name in texts))
        load_plugins()

    return begin


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
    assert Registry.foreign["taylor3"] == {"loss": "own_loss"}
    mine = Experiment("digits", method="0.5*taylor3 + mae", settings=Settings("mlp:hidden=[8]", epochs=1))
    (result,) = run_all([mine], tmp_path / "results", engine="processes", workers=1).values()
    assert result["status"] == "done" and result["error"] is None


@pytest.mark.parametrize(
    "method, texts, changed",
    [
        ("2*taylor5 + mae", {"loss": LOSS.format(name="taylor5")}, "loss"),
        ("my+meth", {"method": METHOD.format(name="my+meth", loss="ce")}, "method"),
        ("my*", {"method": METHOD.format(name="my*", loss="ce")}, "method"),
        (  # a loss that the method takes
            "mymeth",
            {"loss": LOSS.format(name="polyx"), "method": METHOD.format(name="mymeth", loss="polyx")},
            "loss",
        ),
        *(  # one name of two things
            ("foo", {"loss": LOSS.format(name="foo"), "strategy": STRATEGY.format(name="foo")}, changed)
            for changed in ("loss", "strategy")
        ),
    ],
)
def test_code_of_ones_own_is_in_the_key(
    method: str, texts: dict[str, str], changed: str, begin: Callable[..., None]
) -> None:
    mine, own = (Experiment("digits", method=method) for method in (method, "mae"))
    begin()
    without = own.key
    begin(**texts)
    before = mine.key
    assert own.key == without
    begin(**texts)
    assert mine.key == before
    begin(**texts | {changed: texts[changed] + "# mended\n"})
    assert mine.key != before and own.key == without


def test_the_code_that_counts_is_what_was_imported(begin: Callable[..., None], tmp_path: Path) -> None:
    begin(loss=LOSS.format(name="taylor7"))
    mine = Experiment("digits", method="taylor7")
    before = mine.key
    (tmp_path / "own_loss.py").write_text("# edited while a sweep is at it")
    assert mine.key == before


def test_what_a_name_of_ones_own_is_like_is_none(begin: Callable[..., None]) -> None:
    own = Experiment("digits", method="nfl+mae & momentum:alpha=0.9")
    begin()
    without = own.key
    for name in ("clip", "alpha", "ma", "nfl+m", "mae*", "digit"):  # settings, parameters, parts of names
        begin(loss=LOSS.format(name=name))
        assert own.key == without, name


@pytest.mark.parametrize("field", ["dataset", "foreign"])
def test_files_of_ones_own_dataset_are_in_the_key(
    field: str, begin: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin(data=DATASET.format(name="mynpy"))
    specs = {"d.npz": "mynpy:file=d.npz,n=4", "default.npz": "mynpy", "e.npz": 'mynpy:files=["d.npz","e.npz"]'}
    for name, spec in specs.items():
        mine = replace(Experiment("digits"), **{field: spec})
        keys = {mine.key}
        for text in ("1", "two"):
            Path(name).write_text(text)
            keys.add(mine.key)
        assert len(keys) == 3, spec
    own = Experiment("digits", noise="symmetric:rate=0.4")
    before = own.key
    Path("digits").write_text("a file of this name is nothing to noiseproof's own")
    Path("symmetric").write_text("")
    assert own.key == before


def test_workers_get_every_module_with_names_of_its_own(begin: Callable[..., None], tmp_path: Path) -> None:
    begin(loss=LOSS.format(name="polyy"), method=METHOD.format(name="mymeth2", loss="polyy"))
    files = {f"own_{name}": str(tmp_path / f"own_{name}.py") for name in ("loss", "method")}
    assert _modules([Experiment("digits", method="mymeth2")]) == files
    assert _modules([Experiment("digits", method="gce")]) == {}
    begin(loss=LOSS.format(name="both"), strategy=STRATEGY.format(name="both"))
    assert Registry.foreign["both"] == {"loss": "own_loss", "strategy": "own_strategy"}
    assert _modules([Experiment("digits", method="both & both")]).keys() == {"own_loss", "own_strategy"}


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
    assert Registry.foreign["taylor6"] == {"loss": "own_package.losses"}
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


@pytest.mark.parametrize("name", ["gce", "nce+agce"])
def test_names_of_a_script_are_refused_before_any_worker_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Registry.foreign, name, {"method": "__main__"})
    monkeypatch.setitem(Registry.foreign, "unused", {"loss": "__main__"})
    mine = Experiment("digits", method=name, settings=Settings("mlp:hidden=[8]", epochs=1))
    with pytest.raises(ValueError) as refused:
        run_all([mine], tmp_path, engine="processes")
    assert f"Expected names that workers can import, got names of the script itself ({name!r})." in str(refused.value)


def test_plugins_are_loaded_once_and_before_a_name_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_loss.py").write_text(LOSS.format(name="taylor4"))
    monkeypatch.setenv(PLUGINS, str(tmp_path / "late_loss.py"))
    load_plugins.cache_clear()
    assert str(get_loss("taylor4")).startswith("taylor4")
    load_plugins()
    with pytest.raises(ValueError, match="Unknown loss 'taylor5'. Did you mean 'taylor4'"):
        get_loss("taylor5")
