"""The papers' files: complete, well-formed, and read only when needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from noiseproof.papers import (
    PAPERS,
    QUALIFIERS,
    Paper,
    by_column,
    get_paper,
    loss_preset,
    method_preset,
    pop_qualifiers,
)

KEYS = {"authors", "title", "venue", "year", "preset", "protocol", "augmentation", "table"}
MAY = {"grids", "grids_on"}


@pytest.mark.parametrize("name", PAPERS)
def test_a_file_has_what_a_paper_has_and_nothing_else(name: str) -> None:
    content = get_paper(name).content
    assert KEYS <= content.keys() <= KEYS | MAY
    for block in content["preset"]:
        assert block.keys() <= {*QUALIFIERS, "losses", "methods"} and block.keys() & {
            "losses",
            "methods",
        }
    assert get_paper(name).citation.endswith(f"({content['venue']} {content['year']})")


def test_a_block_of_presets_is_a_table() -> None:
    """A column for each value of a list, a row for each name; a template without values holds for
    every column.
    """
    block = {
        "dataset": "mnist",
        "rate": [0.2, 0.4],
        "losses": [["gce", "gce:q={}", 0.7, 0.9], ["ls", "ls:alpha={},K={{K}}", 1, 0.5]],
        "methods": [["ce", "ce"], ["ln", "ln:tau={},lam={}", [1.0, 2], ["a", "b"]]],
    }
    paper = Paper(
        "ln", {"preset": [block, {"dataset": "cifar10", "losses": [["bitempered", "x:y={z}"]]}]}
    )
    assert [tuple(preset) for preset in paper.loss_presets] == [
        ("gce", "ln", {"dataset": "mnist", "rate": 0.2, "num_classes": 10}, "gce:q=0.7"),
        ("gce", "ln", {"dataset": "mnist", "rate": 0.4, "num_classes": 10}, "gce:q=0.9"),
        ("ls", "ln", {"dataset": "mnist", "rate": 0.2, "num_classes": 10}, "ls:alpha=1,K={K}"),
        ("ls", "ln", {"dataset": "mnist", "rate": 0.4, "num_classes": 10}, "ls:alpha=0.5,K={K}"),
        ("bitempered", "ln", {"dataset": "cifar10", "num_classes": 10}, "x:y={z}"),
    ]
    assert [(preset.name, preset.spec) for preset in paper.method_presets[:4]] == [
        ("ce", "ce"),
        ("ce", "ce"),
        ("ln", "ln:tau=1.0,lam=2"),
        ("ln", "ln:tau=a,lam=b"),
    ]
    assert paper.method_presets[-1].name == "bitemp"  # the method's name


def test_a_list_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"Expected 3 values of `noise`, one for each column, got 2: \[1, 2\]."
    ):
        by_column({"dataset": "mnist", "noise": [1, 2]}, 3)


def test_an_unknown_paper_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match="Expected a paper of ln, sln, bias, nal, curriculum, sop, pes, promix, got '000'.",
    ):
        get_paper("000")
    with pytest.raises(ValueError, match=r"No preset gce@000. There are: .*gce@bias"):
        loss_preset("gce", "000", {})
    with pytest.raises(
        ValueError, match=r"No setting sln@bias in the papers. There are: sln@ln, sln@sln."
    ):
        method_preset("sln", "bias", {})


def test_a_loss_needs_to_be_told_apart_and_a_method_takes_what_is_known() -> None:
    assert (
        loss_preset("gce", "ln", {"dataset": "mnist", "noise": "symmetric", "rate": 0.2})
        == "gce:q=0.7"
    )
    with pytest.raises(
        ValueError, match="gce@bias has no setting for rate=0.4. Give dataset, num_classes"
    ):
        loss_preset("gce", "bias", {"rate": 0.4})  # of which the paper says nothing
    assert method_preset("gce", "bias", {"rate": 0.4}) == "gce:q=0.7"


def test_qualifiers_are_taken_out_of_parameters() -> None:
    params = {"q": 0.5, "noise": None, "dataset": "mnist"}
    assert pop_qualifiers(params) == {"dataset": "mnist", "noise": "none"} and params == {"q": 0.5}


def test_importing_the_library_reads_no_paper_and_a_preset_reads_one() -> None:
    code = """
import noiseproof, noiseproof.train.protocols
from noiseproof.papers import get_paper
assert get_paper.cache_info().currsize == 0
noiseproof.get_loss("gce@bias")
assert get_paper.cache_info().currsize == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)
