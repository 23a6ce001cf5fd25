"""What training needs to be installed, and what importing costs."""

from __future__ import annotations

import subprocess
import sys

OPTIONAL = (
    "pandas",
    "matplotlib",
    "jinja2",
    "optuna",
    "ray",
    "tensorboardX",
    "pyarrow",
    "PIL",
    "timm",
)

TRAIN = f"""
import sys
from importlib.machinery import ModuleSpec

class Missing:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.partition(".")[0] in {OPTIONAL!r} else None

    def create_module(self, spec):
        raise ModuleNotFoundError(f"No module named {{spec.name!r}}", name=spec.name)

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Missing())
from noiseproof.cli import app
options = "--epochs 2 --model mlp:hidden=[8] --method sln-mo-lc --noise symmetric:rate=0.4"
app(["train", *options.split(), "--out", "none", "--json"])
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_training_needs_none_of_the_optional_packages() -> None:
    assert '"test_accuracy"' in run(TRAIN)


def test_importing_the_library_loads_neither_the_compiler_nor_what_only_some_commands_need() -> (
    None
):
    loaded = run("import sys, noiseproof; print('\\n'.join(sys.modules))").splitlines()
    heavy = {"torch._dynamo", "lightning_fabric", "sklearn", *OPTIONAL}
    assert heavy.isdisjoint(loaded), heavy & set(loaded)


def test_importing_the_judge_does_not_load_torch() -> None:
    loaded = run("import sys, noiseproof.judge; print('\\n'.join(sys.modules))").splitlines()
    assert "torch" not in loaded
