"""The pages of methods without Sphinx and figures, which `make docs` adds."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from noiseproof.train.methods import METHODS

spec = importlib.util.spec_from_file_location(
    "method_pages", Path(__file__).parents[2] / "docs" / "method_pages.py"
)
assert spec is not None and spec.loader is not None
method_pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(method_pages)
RESULTS = json.loads(method_pages.RESULTS.read_text("utf-8"))


@pytest.fixture(scope="module")
def against() -> pd.DataFrame:
    return method_pages.compared(pd.DataFrame(RESULTS["rows"]))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_has_a_page(name: str, against: pd.DataFrame) -> None:
    method = METHODS.create(name, method_pages.EXAMPLE)
    parts = [
        method_pages.head(name, method),
        method_pages.when(name),
        method_pages.formula(method),
        method_pages.picture(name),
        method_pages.evidence(against[against["method"] == name], RESULTS["made_by"]),
    ]
    assert all(parts) and all(isinstance(line, str) for part in parts for line in part)
    page = "\n".join(line for part in parts for line in part)
    assert (
        page.startswith(f"# {name}\n")
        and f"With 10 classes and 100 epochs it is `{method}`." in page
    )
    files = {method_pages.file_name(each) for each in METHODS}
    assert {Path(link).stem for link in re.findall(r"\]\(([\w-]+\.md)\)", page)} <= files
    assert "nan" not in page


def test_the_index_has_all_methods_and_their_gains(against: pd.DataFrame) -> None:
    assert len({method_pages.file_name(name) for name in METHODS}) == len(METHODS)
    rows = re.findall(
        r"^\| \[(.+?)\]\(.+\.md\) \| (.*) \|$", method_pages.index(against), re.MULTILINE
    )
    assert sorted(name for name, _ in rows) == sorted(METHODS)
    accuracy = {
        (r["method"], r["set"], r["seed"]): r.get("accuracy")
        for r in RESULTS["rows"]
        if r["noise"] == "none"
    }
    gains: dict[str, list[float]] = {}
    for (method, at, seed), value in accuracy.items():
        if method == "gce" and value is not None and accuracy.get(("ce", at, seed)) is not None:
            gains.setdefault(at, []).append(value - accuracy["ce", at, seed])
    mean = sum(sum(each) / len(each) for each in gains.values()) / len(gains)
    assert dict(rows)["gce"].split(" | ")[0] == f"{mean:+.3f}"


def test_figures_are_of_other_losses_of_logits() -> None:
    for name in ("ce", "ln"):  # the others are compared with it; it has no weight of a margin
        loss = METHODS.create(name, method_pages.EXAMPLE).loss
        assert not method_pages.draw_weights(name, loss, Path("none.svg"))
