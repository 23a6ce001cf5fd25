"""Every registered audit source, read, shown and written back with corrected labels."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from noiseproof.audit import audit, corrected, read_audit, read_rows, write_corrected
from noiseproof.audit.apply import default_out
from noiseproof.audit.sources import SOURCES, open_rows
from noiseproof.core.registry import Registry

N, WRONG = 24, 5
LABELS = ["cat", "dog"] * (N // 2)
GIVEN = [LABELS[i] if i != WRONG else "cat" for i in range(N)]
PREDICTED = np.array([[0.9, 0.1], [0.1, 0.9]] * (N // 2))  # contradict the label of row WRONG alone
Example = dict[str, Any]  # arguments of read_rows


def a_table(folder: Path) -> Example:
    frame = pd.DataFrame(
        {
            "name": [f"r{i}" for i in range(N)],
            "size": [i * 7 % 5 for i in range(N)],
            "note": "a, b",
            "kind": GIVEN,
        }
    )
    frame.to_csv(folder / "t.csv", index=False)
    return {"data": folder / "t.csv", "label": "kind", "id": "name"}


def a_text(folder: Path) -> Example:
    words = {"cat": "purrs and sleeps", "dog": "barks and runs"}
    pd.DataFrame({"text": [words[label] for label in LABELS], "kind": GIVEN}).to_csv(
        folder / "t.tsv", sep="\t"
    )
    return {"data": folder / "t.tsv", "label": "kind", "text": "text"}


def a_folder(folder: Path) -> Example:
    for i, label in enumerate(sorted(GIVEN)):
        path = folder / "photos" / label / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (0, 10 * i, 0)).save(path)
    return {"data": folder / "photos"}


def an_array(folder: Path) -> Example:
    np.save(folder / "x.npy", np.arange(2.0 * N).reshape(N, 2))
    np.save(folder / "y.npy", np.array(GIVEN))
    return {"data": folder / "x.npy", "labels": folder / "y.npy"}


def some_predictions(folder: Path) -> Example:
    np.save(folder / "y.npy", np.array(GIVEN))
    return {"labels": folder / "y.npy"}


def annotated_texts(folder: Path) -> Example:
    words = {"cat": "purrs and sleeps", "dog": "barks and runs"}
    tasks = [
        {"id": i, "text": words[LABELS[i]], "label": GIVEN[i], "annotator": 1, "annotation_id": i}
        for i in range(N)
    ]
    (folder / "texts.json").write_text(json.dumps(tasks))
    return {"data": folder / "texts.json"}


def annotated_pictures(folder: Path) -> Example:
    images = [{"id": i, "file_name": f"{i:02d}.png", "width": 20, "height": 20} for i in range(N)]
    marks = [{"id": i + 1, "image_id": i, "category_id": 1 + (GIVEN[i] == "dog")} for i in range(N)]
    for i, image in enumerate(images):
        Image.new("RGB", (20, 20), (0, 10 * i, 0)).save(folder / str(image["file_name"]))
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    content = {"images": images, "annotations": marks, "categories": categories}
    (folder / "coco.json").write_text(json.dumps(content))
    return {"data": folder / "coco.json"}


EXAMPLES: dict[str, Callable[[Path], Example]] = {
    "table": a_table,
    "text": a_text,
    "folder": a_folder,
    "arrays": an_array,
    "predictions": some_predictions,
    "annotated-texts": annotated_texts,
    "annotated-pictures": annotated_pictures,
}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", list(SOURCES))
def test_a_source_is_read_shown_and_corrected(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name in EXAMPLES, f"Add an example of the audit source {name!r} to EXAMPLES."
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    example = EXAMPLES[name](tmp_path / "data")
    before = contents(tmp_path / "data")

    # read: one row for each label, and a config that reads the same rows again
    rows = (
        read_rows(**example)
        if name != "predictions"
        else read_rows(**example, pred_probs=PREDICTED)
    )
    source = rows.source
    assert (source.name, source.config["kind"], type(source)) == (name, name, SOURCES[name])
    assert rows.classes == ("cat", "dog") and len(rows) == rows.source_rows == N
    given = [rows.classes[k] for k in rows.given]
    wrong = given.index("cat", 12) if name == "folder" else WRONG
    assert given == (sorted(GIVEN) if name == "folder" else GIVEN)
    assert (
        len(source.describe(wrong, str(rows.names[wrong]))) and len(source.row_names([wrong])) == 1
    )

    # show: what a saved config finds, and nothing of a row with another id
    predicted = np.eye(2)[rows.given] * 0.8 + 0.1
    predicted[wrong] = predicted[wrong][::-1]
    report = audit(read_rows(**example, pred_probs=predicted))
    assert report.label_issues.is_issue[wrong]
    report.save("audit")
    saved = read_audit("audit")
    shown = open_rows(saved.config)
    content = shown.show(wrong, str(rows.names[wrong]))
    assert {*content} <= {"fields", "text", "has_image", "predictions", "note"}
    assert (list(content) == ["note"]) == (name == "predictions")
    picture = shown.picture(wrong, str(rows.names[wrong]), 32)
    assert (picture is not None) == content.get("has_image", False) == source.is_pictures
    if source.has_ids:
        assert list(shown.show(wrong, "another id")) == ["note"]
        assert shown.picture(wrong, "another id", 32) is None

    # write_corrected: a copy that differs in one label, beside an original that does not change
    out = write_corrected(saved, {wrong: "dog"}, default_out(saved))
    assert out.exists() and contents(tmp_path / "data") == before
    again = read_rows(
        **{**example, "labels" if out.suffix == ".npy" else "data": out}, pred_probs=predicted
    )
    if name == "folder":
        assert [*again.names].count(f"dog/{Path(rows.names[wrong]).name}") == 1
        assert np.bincount(again.given).tolist() == [12, 12]
    else:
        assert [i for i in range(N) if again.given[i] != rows.given[i]] == [wrong]
    with pytest.raises(FileExistsError, match="Expected a new path"):
        write_corrected(saved, {wrong: "dog"}, out)
    assert write_corrected(saved, {wrong: "dog"}, out, same_ok=True) == out


@pytest.mark.parametrize("name", ["table", "arrays", "predictions"])
def test_labels_in_memory_are_corrected_whatever_the_source(name: str, tmp_path: Path) -> None:
    audit(read_rows(**EXAMPLES[name](tmp_path), pred_probs=PREDICTED)).save(tmp_path / "audit")
    assert (
        corrected(tmp_path / "audit", np.array(GIVEN), accept_all=True, yes=True).tolist() == LABELS
    )


@pytest.mark.usefixtures("forget_plugins")
def test_a_source_in_a_file_of_its_own_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from noiseproof.audit.sources.table import TableSource

    monkeypatch.setattr(SOURCES, "_factories", dict(SOURCES._factories))

    @SOURCES.register_class("toy")
    class ToyLines(TableSource):
        """A table with one JSON object a line."""

        files = "toy lines (.toy)"

        def accepts(self, request: Any) -> bool:
            return request.path is not None and request.path.suffix == ".toy"

        def read(self, request: Any) -> Any:
            from dataclasses import replace

            return super().read(replace(request, data=pd.read_json(request.path, lines=True)))

    path = tmp_path / "t.toy"
    pd.DataFrame({"size": [i * 7 % 5 for i in range(N)], "kind": GIVEN}).to_json(
        path, orient="records", lines=True
    )
    rows = read_rows(path, label="kind")
    assert rows.source.name == rows.source.config["kind"] == "toy" and rows.source.config[
        "data"
    ] == str(path)
    with pytest.raises(
        ValueError, match=r"Expected arrays .*, a table .* or toy lines \(.toy\), got x.txt"
    ):
        (tmp_path / "x.txt").write_text("")
        read_rows(tmp_path / "x.txt")


def test_no_other_module_asks_for_the_kind_of_a_source() -> None:
    """The names of sources are compared with nothing outside of their own files."""
    src = Path(__file__).parents[2] / "src" / "noiseproof"
    folders = [src / "audit", src / "review", src / "cli"]
    names = {*SOURCES}
    for path in [
        path
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if path.parent.name != "sources"
    ]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Compare):
                compared = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                asked = ast.dump(node)
                assert not (compared & names and "kind" in asked), f"{path}:{node.lineno}"


def test_sources_are_a_registry() -> None:
    assert isinstance(SOURCES, Registry) and {*SOURCES} == {*EXAMPLES}
    with pytest.raises(ValueError, match="Unknown audit source 'tabel'. Did you mean 'table'"):
        open_rows({"kind": "tabel"})
