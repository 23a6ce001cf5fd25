"""The order of the house, read from the source: imports point downward, only cli prints, no global
random state.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

SRC = Path(__file__).parents[2] / "src"
FLOORS = (
    {"core"},
    {"papers"},
    {"losses", "heads", "noise", "models"},
    {"data", "strategies"},
    {"train"},
    {"accelerate"},
    {"judge"},
    {"analysis"},
    {"audit"},
    {"estimator"},
    {"review"},
    {"bench", "demo"},
    # __init__ gathers the public names, so below it nothing may use them
    {"cli", "__main__", "__init__"},
)
# The rooms of the house, and the rooms that each may use.
ROOMS = {
    "core": {"core"},
    "data": {"data", "papers"},  # of papers, presets and published numbers in TOML
    "learn": {"losses", "heads", "noise", "models", "strategies", "train"},
    "judge": {"judge"},
    "app": {"audit", "estimator", "review"},
    "research": {"accelerate", "analysis", "bench"},
    "cli": {"cli", "demo", "__main__", "__init__"},
}
USES = {
    "core": (),
    "data": ("core",),
    "learn": ("core", "data"),
    "judge": ("core", "data", "learn"),
    "app": ("core", "data", "learn", "judge"),
    "research": ("core", "data", "learn"),
    "cli": ("core", "data", "learn", "judge", "app", "research"),
}
# What does not fit into this order yet, and why.
EXCEPTIONS = {
    ("data", "models"): "texts and pictures are read as features of pretrained networks",
    ("data", "noise"): "a data set is corrupted once, when it is read",
    ("judge", "accelerate"): "folds train as one stacked network",
    ("audit", "analysis"): "a report has figures",
    ("review", "analysis"): "pages share a shell",
}
ROOM_OF = {package: room for room, packages in ROOMS.items() for package in packages}
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts): path
    for path in sorted(SRC.rglob("*.py"))
}

SEEDS = {
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
    "initial_seed",
}
TORCH_SEEDS = {
    f"torch.{place}{name}" for place in ("", "random.", "cuda.", "mps.") for name in SEEDS
}
TORCH_DRAWS = {
    f"torch.{name}"
    for name in (
        "rand",
        "randn",
        "randint",
        "randperm",
        "normal",
        "bernoulli",
        "multinomial",
        "poisson",
    )
}
NEVER = {"torch.rand_like", "torch.randn_like", "torch.randint_like"}  # they take no generator
IN_PLACE = {
    "uniform_",
    "normal_",
    "random_",
    "bernoulli_",
    "exponential_",
    "log_normal_",
    "cauchy_",
    "geometric_",
    "trunc_normal_",
    "xavier_uniform_",
    "xavier_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "orthogonal_",
    "sparse_",
}
OWN_STATE = {
    "numpy.random.default_rng",
    "numpy.random.Generator",
    "numpy.random.SeedSequence",
    "numpy.random.RandomState",
    "numpy.random.PCG64",
    "numpy.random.Philox",
    "random.Random",
    "random.SystemRandom",
}


def imports(tree: ast.AST, module: str) -> Iterator[tuple[str, str, int]]:
    """Every import, lazy ones too, as (local name, dotted name, line); relative ones resolved."""
    package = module.split(".") if module.endswith("__init__") else module.split(".")[:-1]
    package = package[:-1] if module.endswith("__init__") else package
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield bound, alias.name if alias.asname else bound, node.lineno
                yield "", alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield alias.asname or alias.name, f"{source}.{alias.name}", node.lineno


def floor(dotted: str) -> str:
    """The part of noiseproof that a dotted name belongs to; ``__init__`` for the public names."""
    part = dotted.split(".")[1] if "." in dotted else "__init__"
    return (
        part
        if part in LEVEL or f"noiseproof.{part}" in MODULES or (SRC / "noiseproof" / part).is_dir()
        else "__init__"
    )


def upward(source: str, module: str) -> list[str]:
    own = LEVEL[floor(module)]
    return [
        f"{module}:{line} imports {dotted}"
        for _, dotted, line in imports(ast.parse(source), module)
        if dotted.partition(".")[0] == "noiseproof" and LEVEL[floor(dotted)] > own
    ]


def imported_modules(source: str, module: str) -> set[str]:
    """The modules of noiseproof that a module imports, lazily or for types alone, too."""
    found = set()
    for _, dotted, _ in imports(ast.parse(source), module):
        home = dotted.rpartition(".")[0]
        places = (dotted, f"{dotted}.__init__", home, f"{home}.__init__")
        found |= {*[place for place in places if place in MODULES][:1]}
    return found - {module}


def knots(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other in circles."""
    names = list(graph)
    number = {name: i for i, name in enumerate(names)}
    pairs = [(number[name], number[other]) for name in names for other in graph[name]]
    rows, columns = zip(*pairs, strict=True)
    matrix = coo_array((np.ones(len(pairs)), (rows, columns)), shape=(len(names), len(names)))
    part = connected_components(matrix, directed=True, connection="strong")[1]
    groups: dict[int, list[str]] = {}
    for name, group in zip(names, part.tolist(), strict=True):
        groups.setdefault(group, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


class Habits(ast.NodeVisitor):
    """Collects prints and uses of a global random state."""

    def __init__(self, source: str, module: str) -> None:
        tree = ast.parse(source)
        self.names = {local: dotted for local, dotted, _ in imports(tree, module) if local}
        self.prints: list[int] = []
        self.draws: list[int] = []
        self.forked = 0
        self.visit(tree)

    def dotted(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self.dotted(node.value)}.{node.attr}"
        # ?: a local variable
        return self.names.get(node.id, "?") if isinstance(node, ast.Name) else "?"

    def visit_With(self, node: ast.With) -> None:
        restored = any(
            isinstance(item.context_expr, ast.Call)
            and self.dotted(item.context_expr.func).endswith("fork_rng")
            for item in node.items
        )
        self.forked += restored  # what happens inside is undone
        self.generic_visit(node)
        self.forked -= restored

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == "print" or self.dotted(node).startswith("rich."):
            self.prints.append(node.lineno)
        self.check_reference(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self.dotted(node) in ("sys.stdout", "sys.stderr"):
            self.prints.append(node.lineno)
        self.check_reference(node)
        self.generic_visit(node)

    def check_reference(self, node: ast.Attribute | ast.Name) -> None:
        name = self.dotted(node)
        own = any(name == known or name.startswith(f"{known}.") for known in OWN_STATE)
        numpy_or_python = name.startswith(("numpy.random.", "random.")) and not own
        seeds = name in TORCH_SEEDS | NEVER or name.startswith(
            ("torch.default_generator.", "torch.cuda.default_gen")
        )
        if numpy_or_python or (not self.forked and seeds):
            self.draws.append(node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        name = self.dotted(node.func)
        draws = name in TORCH_DRAWS or name.rpartition(".")[2] in IN_PLACE
        if (
            draws
            and not self.forked
            and "generator" not in {keyword.arg for keyword in node.keywords}
        ):
            self.draws.append(node.lineno)
        self.generic_visit(node)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_floor_and_imports_downward(module: str) -> None:
    assert floor(module) in LEVEL, f"Say in FLOORS where {module} belongs."
    assert upward(MODULES[module].read_text("utf-8"), module) == []


def test_no_modules_import_each_other_in_circles() -> None:
    """Imports inside functions and under TYPE_CHECKING count: a reader follows them, too."""
    graph = {
        module: imported_modules(path.read_text("utf-8"), module)
        for module, path in MODULES.items()
    }
    assert knots(graph) == []


def test_a_circle_of_imports_is_found() -> None:
    lazy = "def f():\n    from noiseproof.core import margin"
    typed = "if TYPE_CHECKING:\n    from noiseproof.core.files import Lock"
    graph = {
        "noiseproof.core.files": imported_modules(lazy, "noiseproof.core.files"),
        "noiseproof.core.margin": imported_modules(typed, "noiseproof.core.margin"),
        "noiseproof.core.lazy": set[str](),
    }
    assert "noiseproof.core.margin" in graph["noiseproof.core.files"]
    graph = {name: others & graph.keys() for name, others in graph.items()}
    assert knots(graph) == [["noiseproof.core.files", "noiseproof.core.margin"]]


@pytest.mark.parametrize("module", MODULES)
def test_rooms_use_each_other_in_one_direction(module: str) -> None:
    package = floor(module)
    used = {floor(name) for name in imported_modules(MODULES[module].read_text("utf-8"), module)}
    allowed = (ROOM_OF[package], *USES[ROOM_OF[package]])
    odd = [
        other
        for other in used
        if ROOM_OF[other] not in allowed and (package, other) not in EXCEPTIONS
    ]
    assert odd == []


def test_judging_needs_no_file_and_no_torch_before_it_is_used() -> None:
    code = "import sys, noiseproof.judge; print('torch' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    names = {
        name
        for module, path in MODULES.items()
        if module.startswith("noiseproof.judge.")
        for _, name, _ in imports(ast.parse(path.read_text("utf-8")), module)
    }
    assert {
        name for name in names if name.startswith(("pathlib", "os", "noiseproof.core.files"))
    } == set()


@pytest.mark.parametrize("module", MODULES)
def test_only_cli_prints_and_nothing_uses_global_random_state(module: str) -> None:
    habits = Habits(MODULES[module].read_text("utf-8"), module)
    assert habits.prints == [] or module.startswith("noiseproof.cli."), (
        f"{module} prints on lines {habits.prints}"
    )
    assert habits.draws == [], (
        f"{module} uses a global random state on lines {habits.draws}: pass a generator"
    )


@pytest.mark.parametrize(
    "module, line",
    [
        ("noiseproof.core.margin", "from noiseproof.losses import get_loss"),
        ("noiseproof.core.margin", "import noiseproof.losses.base"),
        ("noiseproof.core.margin", "from ..losses import base"),
        ("noiseproof.core.__init__", "from ..losses import base"),
        ("noiseproof.losses.base", "from noiseproof import get_loss"),
        ("noiseproof.losses.base", "import noiseproof"),
        ("noiseproof.losses.base", "def f():\n    from noiseproof.data.base import Batch"),
        ("noiseproof.demo", "from noiseproof import cli"),
    ],
)
def test_an_upward_import_is_found(module: str, line: str) -> None:
    assert upward(line, module)


@pytest.mark.parametrize(
    "module, line",
    [
        ("noiseproof.losses.base", "from noiseproof.core.margin import margin"),
        ("noiseproof.losses.base", "from .spec import get_loss"),
        ("noiseproof.losses.base", "from ..core import margin"),
        ("noiseproof.losses.base", "import torch"),
        ("noiseproof.noise.base", "from noiseproof import losses"),
        ("noiseproof.__init__", "from noiseproof.losses import get_loss"),
        ("noiseproof.cli", "from noiseproof import __version__"),
    ],
)
def test_a_downward_import_is_fine(module: str, line: str) -> None:
    assert upward(line, module) == []


@pytest.mark.parametrize(
    "line",
    [
        "import torch; torch.manual_seed(0)",
        "from torch import manual_seed; manual_seed(0)",
        "import torch; torch.cuda.manual_seed_all(0)",
        "import torch; torch.default_generator.manual_seed(0)",
        "import torch; torch.randn(3)",
        "import torch as t; t.randperm(3)",
        "import torch; torch.rand_like(x)",
        "x.normal_()",
        "from torch import nn; nn.init.kaiming_uniform_(w)",
        "import numpy as np; np.random.seed(0)",
        "import numpy as np; np.random.rand()",
        "from numpy.random import rand; rand()",
        "import random; random.seed(0)",
        "from random import shuffle; shuffle(x)",
    ],
)
def test_global_random_state_is_found(line: str) -> None:
    assert Habits(line, "noiseproof.losses.base").draws


@pytest.mark.parametrize(
    "line",
    [
        "import torch; torch.randn(3, generator=g)",
        "import torch; torch.Generator().manual_seed(0)",
        "import torch\nwith torch.random.fork_rng(devices=[]):\n    torch.manual_seed(0)",
        "x.normal_(generator=g)",
        "import numpy as np; np.random.default_rng(0).random(3)",
        "import random; random.Random(0).random()",
        "import numpy as np; random = np.random.default_rng(0); random.shuffle(x)",
    ],
)
def test_a_generator_of_ones_own_is_fine(line: str) -> None:
    assert Habits(line, "noiseproof.losses.base").draws == []


@pytest.mark.parametrize(
    "line",
    [
        "print(1)",
        "import sys; sys.stdout.write('x')",
        "from rich.console import Console; Console()",
    ],
)
def test_a_print_is_found(line: str) -> None:
    assert Habits(line, "noiseproof.losses.base").prints
