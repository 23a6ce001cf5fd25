"""Names of one's own: from a file, on the command line, in workers."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from noiseproof.bench import Experiment, run_all
from noiseproof.cli import app
from noiseproof.cli.show import refusals
from noiseproof.core import plugins
from noiseproof.core.plugins import PLUGINS, import_module, load_plugins
from noiseproof.data import DATASETS, get_dataset
from noiseproof.heads import HEADS
from noiseproof.losses import LOSSES, get_loss
from noiseproof.models import MODELS
from noiseproof.noise import NOISES
from noiseproof.strategies import STRATEGIES
from noiseproof.train import Settings, prepare, train
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
NOISE = """
from noiseproof.noise import NoiseModel, register

@register("plain")
class Plain(NoiseModel):
    def draw(self, clean, num_classes, generator, features): ...
"""
MISTAKES = """
import torch
from torch import nn
from noiseproof.core.output import Output
from noiseproof.data import DATASETS
from noiseproof.heads import HEADS, Head
from noiseproof.losses import get_loss
from noiseproof.models import MODELS, Backbone
from noiseproof.strategies import Strategy, register
from noiseproof.train.methods import METHODS, Method

@HEADS.register("tensor")
class Bare(Head):
    def __init__(self, num_features, num_outputs):
        super().__init__()
        self.layer = nn.Linear(num_features, num_outputs)

    def forward(self, features): return self.layer(features)

@HEADS.register("wide")
class Wide(Bare):
    def forward(self, features): return Output(self.layer(features).repeat(1, 2))

for head in ("tensor", "wide"):
    METHODS.register(f"with-{head}")(lambda setting, /, head=head: Method(get_loss("ce"), head))

@METHODS.register("nothing")
def nothing(setting, /): ...

@DATASETS.register("nothing")
def no_data(): ...

@MODELS.register("narrow")
class Narrow(Backbone):
    def __init__(self, in_features): super().__init__()
    def forward(self, x): return x

@DATASETS.register("raises")
def raises():
    return float("no number")

def strategy(name, **hooks):
    methods = {key: lambda *_, it=it: it for key, it in hooks.items()}
    register(name)(type("Wrong", (Strategy,), methods))

strategy("rows0", rows=torch.zeros(0, dtype=torch.int64))
strategy("mask", rows=torch.ones(100, dtype=torch.bool))
strategy("targets0", targets=None)
strategy("outputs0", outputs=None)
strategy("revise0", revise=None)
strategy("weights7", weights=torch.ones(7))
strategy("step0", step=0)
strategy("state0", state_dict={"a": [torch.ones(2), {"b": object()}]})

@register("forgets")
class Forgets(Strategy):
    def __init__(self, a=1, b=2): self.a = a
"""
OWN = (LOSSES, METHODS, STRATEGIES, DATASETS, HEADS, MODELS, NOISES)


def leave() -> None:
    """As if no module of one's own had been imported."""
    for name in [name for name in sys.modules if name.startswith(("own_", "late_"))]:
        del sys.modules[name]
    load_plugins.cache_clear()


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for registry in OWN:
        monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(plugins, "MODULES", dict(plugins.MODULES))
    monkeypatch.setattr(plugins, "DIGESTS", dict(plugins.DIGESTS))
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
        monkeypatch.setattr(plugins, "MODULES", {})
        monkeypatch.setattr(plugins, "DIGESTS", {})
        for name, text in texts.items():
            (tmp_path / f"own_{name}.py").write_text(text)
        monkeypatch.setenv(PLUGINS, ",".join(str(tmp_path / f"own_{name}.py") for name in texts))
        load_plugins()

    return begin


def noiseproof(*words: str, plugins: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "noiseproof", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, PLUGINS: plugins}
    )


def test_a_file_adds_names_to_the_command_line_and_its_workers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOSS.format(name="taylor2"))
    (tmp_path / "sweep.toml").write_text(
        '[[experiment]]\ndataset = "digits"\nmethod = "0.5*taylor2 + mae"\nepochs = 1\nmodel ='
        ' "mlp:hidden=[8]"\n'
    )
    listed = noiseproof("losses", plugins="mine.py", cwd=tmp_path)
    assert listed.returncode == 0 and "taylor2" in listed.stdout
    ran = noiseproof(
        "bench",
        "run",
        "sweep.toml",
        "--engine",
        "processes",
        "--workers",
        "1",
        plugins="mine.py",
        cwd=tmp_path,
    )
    assert ran.returncode == 0 and "1 run done, 0 failed" in ran.stdout


@pytest.mark.parametrize("name", ["gone.py", "no_such_module", "own/json.py"])
def test_what_cannot_be_imported_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "json.py").write_text("")  # a name that is taken
    ran = noiseproof("losses", plugins=name, cwd=tmp_path)
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1
    assert f"Expected modules or .py files in {PLUGINS}, got '{name}': " in ran.stderr


@pytest.mark.slow
def test_workers_import_what_the_driver_did(tmp_path: Path) -> None:
    (tmp_path / "own_loss.py").write_text(LOSS.format(name="taylor3"))
    import_module("own_loss", str(tmp_path / "own_loss.py"))
    assert plugins.MODULES["taylor3"] == {"loss": "own_loss"}
    mine = Experiment(
        "digits", method="0.5*taylor3 + mae", settings=Settings("mlp:hidden=[8]", epochs=1)
    )
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
            {
                "loss": LOSS.format(name="polyx"),
                "method": METHOD.format(name="mymeth", loss="polyx"),
            },
            "loss",
        ),
        *(  # one name of two things
            (
                "foo",
                {"loss": LOSS.format(name="foo"), "strategy": STRATEGY.format(name="foo")},
                changed,
            )
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


def test_a_sweep_without_its_plugin_is_refused_and_results_of_earlier_code_do_not_count(
    begin: Callable[..., None], tmp_path: Path
) -> None:
    sweep, folder, code = (
        tmp_path / "sweep.toml",
        str(tmp_path / "results"),
        LOSS.format(name="taylor8"),
    )
    sweep.write_text(
        '[[experiment]]\ndataset = "digits"\nmodel = "mlp:hidden=[8]"\nepochs = 1\n'
        'method = ["ce", "mae", "taylor8 & momentum"]\nseed = [0, 1]\n'
    )

    def bench(command: str, *options: str) -> Result:
        return CliRunner().invoke(
            app, ["bench", command, str(sweep), "--results", folder, *options]
        )

    begin(loss=code)
    assert bench("run").exit_code == 0
    for command in ("table", "status"):
        begin(loss=code)
        assert (bench(command).exit_code, bench(command).stderr) == (0, "")
        begin(loss=code + "# mended\n")
        shown = bench(command)
        assert shown.exit_code == 0
        assert ("Not compared, since not run yet: taylor8 & momentum.\n" in shown.stdout) == (
            command == "table"
        )
        assert json.loads(bench(command, "--json").stdout)
        begin()
        refused = bench(command)
        assert (refused.exit_code, refused.stdout, refused.stderr) == (2, "", bench("run").stderr)
        assert refused.stderr.startswith(
            f"noiseproof: {sweep}, [[experiment]] 1, method: Unknown method 'taylor8'. "
        )
    begin(loss=code + "# mended\n")
    # made again: nothing is missing
    assert bench("run").exit_code == 0 and bench("table").stderr == ""


@pytest.mark.parametrize("field", ["dataset", "foreign"])
def test_files_of_ones_own_dataset_are_in_the_key(
    field: str, begin: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin(data=DATASET.format(name="mynpy"))
    specs = {
        "d.npz": "mynpy:file=d.npz,n=4",
        "default.npz": "mynpy",
        "e.npz": 'mynpy:files=["d.npz","e.npz"]',
    }
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


def test_modules_of_packages_and_partials_reach_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .losses import NAME")
    (package / "names.py").write_text("NAME = 'taylor6'")
    (package / "losses.py").write_text(
        "from functools import partial\nfrom noiseproof.losses import LOSSES, get_loss\nfrom .names"
        " import NAME\nLOSSES.register(NAME, module=__name__)(partial(get_loss, 'gce', q=0.5))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_package")
    assert plugins.MODULES["taylor6"] == {"loss": "own_package.losses"}
    mine = Experiment("digits", method="taylor6", settings=Settings("mlp:hidden=[8]", epochs=1))
    (result,) = run_all([mine], tmp_path / "results", engine="processes", workers=1).values()
    assert result["status"] == "done" and result["error"] is None


SECOND_NAMES = """
from functools import cache, partial
from noiseproof.losses import LOSSES

LOSSES.register("alias")(LOSSES["gce"])
LOSSES.register("partly")(partial(LOSSES["gce"], q=0.33))

@LOSSES.register("cached")
@cache
def cached():
    return LOSSES["mae"]()
"""


def test_a_plugin_may_register_what_knows_no_module(tmp_path: Path) -> None:
    (tmp_path / "second_names.py").write_text(SECOND_NAMES)
    code = (
        "from noiseproof.core import plugins\nfrom noiseproof.losses import LOSSES,"
        " get_loss\nassert get_loss('partly').q == 0.33 and get_loss('alias').q == 0.7\nassert"
        " type(get_loss('cached')).__name__ == 'MAE'\nmodules = {name: plugins.MODULES[name] for"
        " name in ('alias', 'partly', 'cached')}\nassert modules == dict.fromkeys(modules, {'loss':"
        " 'second_names'}) and 'second_names' in plugins.DIGESTS\n"
    )
    environment = {
        **os.environ,
        PLUGINS: "second_names",
        "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_outside_of_a_plugin_a_second_name_needs_its_module() -> None:
    with pytest.raises(
        TypeError,
        match=r"got one that has a name already. Write a function, or use register\('again'",
    ):
        LOSSES.register("again")(LOSSES["gce"])
    with pytest.raises(
        TypeError, match="Expected a new class or function as the loss 'again', got partial"
    ):
        LOSSES.register("again")(partial(LOSSES["gce"], q=0.5))


def test_an_error_in_a_plugin_listed_by_its_module_has_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "broken_plugin.py").write_text("import os\nraise ValueError('boom')\n")
    environment = {
        **os.environ,
        PLUGINS: "broken_plugin",
        "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "noiseproof", "losses"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"got 'broken_plugin': boom. (in {tmp_path}/broken_plugin.py, line 2)" in " ".join(
        done.stderr.split()
    )


def test_a_broken_package_is_named_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = EntryPoint("theirs", "no_such_module", "noiseproof")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [broken])
    load_plugins.cache_clear()
    with pytest.raises(ValueError, match="Unknown loss 'gcee'. Did you mean 'gce'"):
        get_loss("gcee")
    assert "the plugin theirs (no_such_module) could not be loaded" in caplog.text


@pytest.mark.parametrize(
    "method, said",
    [
        ("nothing", "Expected the method 'nothing' to give a Method, got NoneType."),
        (
            "with-tensor",
            (
                "the head 'tensor' to return Output(logits) of a row with logits of shape (1, 2),"
                " since its `num_outputs` are 2, got Tensor."
            ),
        ),
        ("with-wide", "since its `num_outputs` are 2, got logits of shape (1, 4)."),
        (
            "ce & rows0",
            (
                "`rows` of the strategy 'rows0' to return the numbers of the rows to train on, one"
                " at least, got torch.int64 of shape (0,)."
            ),
        ),
        ("ce & mask", "one at least, got torch.bool of shape (100,)."),
        (
            "ce & targets0",
            (
                "`targets` of the strategy 'targets0' to return a Batch, the given one where it"
                " changes nothing, got NoneType."
            ),
        ),
        ("ce & outputs0", "`outputs` of the strategy 'outputs0' to return a list of Output, "),
        ("ce & revise0", "`revise` of the strategy 'revise0' to return a Batch, "),
        (
            "ce & weights7",
            (
                "`weights` of the strategy 'weights7' to return a factor for each of the `losses`"
                " in their shape (1, 25), or None, got torch.float32 of shape (7,)."
            ),
        ),
        ("ce & step0", "`step` of the strategy 'step0' to return a Step or None, got int."),
        (
            "ce & forgets",
            (
                "Expected Forgets to keep each of its parameters (a, b) under its own name, got"
                " none of `b`."
            ),
        ),
    ],
)
def test_a_mistake_in_a_part_of_a_method_is_said_with_its_name(
    method: str, said: str, begin: Callable[..., None]
) -> None:
    begin(mistakes=MISTAKES)
    with pytest.raises(TypeError, match=re.escape(said)):
        train(
            prepare(get_dataset("two-moons:n=100")),
            method,
            Settings("mlp:hidden=[4]", epochs=1, batch_size=25),
        )


def test_a_state_that_no_file_can_hold_is_refused_after_a_step(
    begin: Callable[..., None], tmp_path: Path
) -> None:
    begin(mistakes=MISTAKES)
    seen: list[int] = []
    settings = Settings("mlp:hidden=[4]", epochs=2, batch_size=25)
    with pytest.raises(
        TypeError,
        match="tensors and plain values in `state_dict` of the strategy `state0`, got: .*obj",
    ):
        train(
            prepare(get_dataset("two-moons:n=100")),
            "ce & state0",
            settings,
            out=tmp_path / "run",
            progress=lambda epoch, step, steps, row: seen.append(step),
        )
    assert not seen


def test_data_and_models_of_ones_own_are_what_they_have_to_be(begin: Callable[..., None]) -> None:
    begin(mistakes=MISTAKES)
    with pytest.raises(
        TypeError, match="Expected the dataset 'nothing' to give a Dataset, got NoneType"
    ):
        get_dataset("nothing")
    with pytest.raises(
        TypeError,
        match="Expected the model 'narrow' to have an integer `num_features`, .* got none",
    ):
        train(prepare(get_dataset("two-moons:n=100")), "ce", Settings("narrow", epochs=1))
    with pytest.raises(
        ValueError, match="'plain' to be a dataclass of its parameters, .* @register and Plain.$"
    ):
        begin(noise=NOISE)


def test_a_refusal_says_where_in_ones_own_file(
    begin: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(work: Callable[[], object]) -> str:
        with pytest.raises(typer.Exit), refusals():
            work()
        return capsys.readouterr().err

    begin(mistakes=MISTAKES)
    at = MISTAKES.splitlines().index('    return float("no number")') + 1
    place = f"(in {tmp_path / 'own_mistakes.py'}, line {at})"
    assert line(lambda: get_dataset("raises")).endswith(
        f"could not convert string to float: 'no number' {place}\n"
    )
    assert line(lambda: get_loss("gce:q=7")).endswith("Use ce for q → 0.\n")
    twice = LOSS.format(name="gce")
    at = twice.splitlines().index('@register("gce")') + 1
    place = f"(in {tmp_path / 'own_twice.py'}, line {at})"
    assert line(lambda: begin(twice=twice)).endswith(
        f": The loss 'gce' is already registered. {place}\n"
    )
    assert line(lambda: begin(early="1\nint('one')")).endswith(
        f"(in {tmp_path / 'own_early.py'}, line 2)\n"
    )


def test_plugins_are_loaded_once_and_before_a_name_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_loss.py").write_text(LOSS.format(name="taylor4"))
    monkeypatch.setenv(PLUGINS, str(tmp_path / "late_loss.py"))
    load_plugins.cache_clear()
    assert str(get_loss("taylor4")).startswith("taylor4")
    load_plugins()
    with pytest.raises(ValueError, match="Unknown loss 'taylor5'. Did you mean 'taylor4'"):
        get_loss("taylor5")
