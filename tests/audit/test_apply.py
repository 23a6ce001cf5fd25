"""Corrected datasets: what changes, what must not, and what a model gains."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_audit, write_table_audit
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier
from typer.testing import CliRunner

from noiseproof.audit import audit as audit_rows
from noiseproof.audit import read_rows
from noiseproof.audit.apply import corrected, write_corrected
from noiseproof.audit.csvfile import Changes, TextRecords
from noiseproof.audit.decisions import (
    BadDecisions,
    Decision,
    find_decisions,
    read_decisions,
    write_csv,
)
from noiseproof.audit.files import read_audit
from noiseproof.audit.inputs import read_again
from noiseproof.audit.plan import corrections
from noiseproof.audit.retrain import Retraining, hold_out, plan_retraining
from noiseproof.audit.sources import open_rows
from noiseproof.cli import app
from noiseproof.core.files import Lock
from noiseproof.train import Diverged, Interrupted


def write_decisions(folder: Path, *words: tuple[Any, ...]) -> None:
    write_csv([Decision(*word) for word in words], folder / "decisions.csv")


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.output


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below a folder by the hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- records by their bytes -----------------------------------------------------------------------

cells = st.text(st.sampled_from('ab",\n\r é;\t5'), max_size=5)
tables = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=5)
)


@settings(max_examples=150)
@given(
    tables,
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([",", "\t"]),
    st.data(),
)
def test_records_are_those_of_pandas_and_only_asked_cells_change(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[str]],
    end: str,
    bom: bool,
    last: bool,
    comma: str,
    data: st.DataObject,
) -> None:
    header = [f"c{k}" for k in range(len(rows[0]))]
    text = io.StringIO()
    quoting = (
        csv.QUOTE_ALL
        if data.draw(st.booleans()) or any("\r" in c or "\n" in c for r in rows for c in r)
        else 0
    )
    out = csv.writer(text, delimiter=comma, lineterminator=end, quoting=quoting)
    for row in (header, *rows):
        out.writerow(row)
        text.write(data.draw(st.sampled_from(["", "", end])))  # blank lines are none
    content = text.getvalue() if last else text.getvalue().rstrip("\r\n")
    raw = b"\xef\xbb\xbf" * bom + content.encode()
    path = tmp_path_factory.mktemp("records") / ("t.tsv" if comma == "\t" else "t.csv")
    path.write_bytes(raw)
    records = TextRecords(path)
    frame = pd.read_csv(path, sep=comma, dtype=str, keep_default_na=False, index_col=False)
    assert records.header == header == list(frame.columns)
    assert [records[i] for i in range(len(records))] == rows == frame.to_numpy().tolist()
    assert records.column("c1") == [row[1] for row in rows]
    same = io.BytesIO()
    records.write(Changes(), same)
    assert same.getvalue() == raw
    changes = data.draw(st.dictionaries(st.integers(0, len(rows) - 1), cells))
    changed = io.BytesIO()
    records.write(Changes({"c1": changes}), changed)
    path.write_bytes(changed.getvalue())
    assert [TextRecords(path)[i] for i in range(len(rows))] == [
        [cell if k != 1 else changes.get(i, cell) for k, cell in enumerate(row)]
        for i, row in enumerate(rows)
    ]
    if not changes:
        assert changed.getvalue() == raw


@pytest.mark.parametrize("line", [b'""', b"\x0c", b"\x1c", b'" "', b" \t", b"", b"\xc2\xa0"])
@pytest.mark.parametrize("header", [b"y", b"y,x"])
def test_lines_that_hold_next_to_nothing_are_counted_as_pandas_counts_them(
    tmp_path: Path, line: bytes, header: bytes
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join([header, b"a", line, b"b", b""]))
    frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    assert TextRecords(path).column("y") == frame["y"].tolist()
    changed = io.BytesIO()
    TextRecords(path).write(Changes({"y": {len(frame) - 1: "c"}}), changed)
    assert changed.getvalue() == b"\n".join([header, b"a", line, b"c", b""])


# --- tables ---------------------------------------------------------------------------------------

ODD = (
    '\ufeffid;name,Kind,"a ""quoted"" head",n\r\n'
    'x1,cat,"1,5",007\r\n'
    "\r\n"
    'x2,"dog","two\r\nlines",1e3\r\n'
    'x3,cat,5" pipe,  spaced \r\n'
    'x4,"c,at",,NA\r\n'
    "x5,dog,é,0.10"
)


def odd_audit(root: Path, content: bytes, name: str) -> Path:
    (root / name).write_bytes(content)
    labels = ["cat", "dog", "cat", "c,at", "dog"]
    others = ["dog", "cat", "c,at", "dog", "cat"]
    return write_audit(
        root / "audit", labels, others, issues=5, kind="table", data=root / name, label="Kind"
    )


@pytest.mark.parametrize("name", ["odd.csv", "odd.csv.gz"])
def test_a_table_keeps_every_byte_but_the_label_cells(tmp_path: Path, name: str) -> None:
    raw = ODD.encode()
    folder = odd_audit(tmp_path, gzip.compress(raw) if name.endswith("gz") else raw, name)
    write_decisions(
        folder,
        (0, 0, "cat", "accept", "dog"),
        (1, 1, "dog", "keep", "dog"),
        (2, 2, "cat", "other", "c,at"),
        (3, 3, "c,at", "accept", "dog"),
        (4, 4, "dog", "accept", "cat"),
        (4, 4, "dog", "undo", ""),
    )
    before = (tmp_path / name).read_bytes()
    run("apply", folder, "--out", tmp_path / f"new{name[3:]}")
    written = (tmp_path / f"new{name[3:]}").read_bytes()
    corrected = gzip.decompress(written) if name.endswith("gz") else written
    expected = (
        ODD.replace("x1,cat", "x1,dog")
        .replace("x3,cat", 'x3,"c,at"')
        .replace('x4,"c,at"', 'x4,"dog"')
    )
    assert corrected == expected.encode()
    assert (tmp_path / name).read_bytes() == before


def test_a_class_is_written_as_the_table_writes_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,x\n1.0,5\n2.0,6\n2,7\n2.0,8\n1.0,9\n")
    folder = write_audit(
        tmp_path / "audit",
        ["1", "2", "2", "2", "1"],
        ["2", "1", "1", "1", "2"],
        issues=5,
        kind="table",
        data=tmp_path / "t.csv",
        label="y",
        words=["1.0", "2.0", "2", "2.0", "1.0"],
    )
    write_decisions(folder, (0, 0, "1", "accept", "2"), (2, 2, "2", "accept", "1"))
    run("apply", folder, "--out", tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_text() == "y,x\n2.0,5\n2.0,6\n1.0,7\n2.0,8\n1.0,9\n"


@pytest.mark.parametrize("kind", ["words", "categories", "numbers", "gaps"])
def test_parquet_keeps_its_columns_and_types(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    values = {"words": ["a", "b", "a", "b"], "numbers": [1, 2, 1, 2], "gaps": [1.0, None, 1.0, 2.0]}
    column: Any = pd.Series(
        values.get(kind, values["words"]), dtype="category" if kind == "categories" else None
    )
    dates = pd.date_range("2020-01-01", periods=4, tz="UTC")
    frame = pd.DataFrame({"when": dates, "y": column, "x": np.arange(4, dtype=np.float32)})
    frame.to_parquet(tmp_path / "t.parquet")
    words = ["" if word == "nan" else word for word in np.asarray(frame["y"]).astype(str).tolist()]
    first, second = ("a", "b") if kind in ("words", "categories") else ("1", "2")
    labels = [first, second, first, second]
    folder = write_audit(
        tmp_path / "audit",
        labels,
        labels[::-1],
        issues=4,
        kind="table",
        data=tmp_path / "t.parquet",
        label="y",
        words=words,
    )
    if kind == "gaps":  # a row without a label is not audited
        lines = (folder / "issues.csv").read_text().splitlines(keepends=True)
        (folder / "issues.csv").write_text("".join([*lines[:2], *lines[3:]]))
    write_decisions(folder, (0, 0, first, "accept", second))
    run("apply", folder, "--out", tmp_path / "new.parquet")
    found = pd.read_parquet(tmp_path / "new.parquet")
    expected = frame.copy()
    expected.loc[0, "y"] = frame.loc[3, "y"]
    pd.testing.assert_frame_equal(found, expected)
    run("apply", folder, "--out", tmp_path / "new.csv", code=2)


# --- arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 5, 3, 5], dtype=np.uint8),
        np.array([3.0, 5.0, 3.0, 5.0], dtype=np.float32),
        np.array(["a", "b", "a", "b"]),
        np.array([[3], [5], [3], [5]], dtype=np.int16),
    ],
    ids=["bytes", "floats", "words", "a column"],
)
def test_arrays_get_labels_of_the_same_kind(tmp_path: Path, labels: np.ndarray[Any, Any]) -> None:
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    words = labels.ravel().astype(str).tolist()
    names = [str(int(float(word))) if word[0].isdigit() else word for word in words]
    folder = write_audit(
        tmp_path / "audit",
        names,
        names[::-1],
        issues=4,
        kind="arrays",
        data=tmp_path / "x.npy",
        labels=str(tmp_path / "y.npy"),
        words=words,
        classes=[*sorted(set(names)), "a longer name"],
        classes_named=True,
    )
    write_decisions(folder, (0, 0, names[0], "accept", names[3]))
    run("apply", folder, "--out", tmp_path / "new.npy")
    found = np.load(tmp_path / "new.npy")
    expected = labels.copy()
    expected[0] = labels[1]
    assert found.dtype == labels.dtype and found.tolist() == expected.tolist()
    if labels.dtype.kind == "U":
        write_decisions(folder, (0, 0, "a", "other", "a longer name"))
        run("apply", folder, "--out", tmp_path / "longer.npy")
        assert np.load(tmp_path / "longer.npy").tolist() == ["a longer name", "b", "a", "b"]


@pytest.mark.parametrize("kind", ["array", "parquet"])
def test_labels_in_bytes_are_read_as_utf_8(tmp_path: Path, kind: str) -> None:
    labels, names = [b"a", "bé".encode()] * 2, ["a", "bé"] * 2
    data, out = (tmp_path / f"{name}.{'npy' if kind == 'array' else kind}" for name in ("t", "new"))
    if kind == "array":
        np.save(data, np.array(labels))
    else:
        pd.DataFrame({"y": labels}).to_parquet(data)
    where = {"data": None, "labels": str(data)} if kind == "array" else {"data": data, "label": "y"}
    folder = write_audit(
        tmp_path / "audit",
        names,
        names[::-1],
        issues=4,
        kind="predictions" if kind == "array" else "table",
        classes=["a", "bé", "ça"],
        classes_named=True,
        **where,
    )
    write_decisions(folder, (0, 0, "a", "accept", "bé"), (1, 1, "bé", "other", "ça"))
    run("apply", folder, "--out", out)
    found = np.load(out) if kind == "array" else pd.read_parquet(out)["y"]
    assert found.tolist() == ["bé".encode(), "ça".encode(), *labels[2:]]


@pytest.mark.parametrize("unit", ["ns", "D"])
def test_dates_of_arrays_stay_dates(tmp_path: Path, unit: str) -> None:
    labels = np.array(["2020-01-01", "2021-05-05", "2020-01-01", "NaT"], f"M8[{unit}]")
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    names = ["2020-01-01", "2021-05-05", "2020-01-01"]
    folder = write_audit(
        tmp_path / "audit",
        names,
        names[::-1],
        issues=3,
        kind="arrays",
        data=tmp_path / "x.npy",
        labels=str(tmp_path / "y.npy"),
        words=[*labels[:3].astype(str), ""],
        classes=[*names[:2], "2022-12-31"],
        classes_named=True,
    )
    write_decisions(
        folder, (0, 0, names[0], "accept", names[1]), (2, 2, names[2], "other", "2022-12-31")
    )
    run("apply", folder, "--out", tmp_path / "new.npy")
    found = np.load(tmp_path / "new.npy")
    assert found.dtype == labels.dtype
    assert (
        found.astype(str).tolist()
        == np.array(["2021-05-05", names[1], "2022-12-31", "NaT"], labels.dtype)
        .astype(str)
        .tolist()
    )


# --- pictures -------------------------------------------------------------------------------------


def picture_audit(root: Path) -> Path:
    for number, name in enumerate(
        ("cat/1.png", "cat/2.png", "cat/sub/1.png", "dog/1.png", "dog/2.png")
    ):
        (root / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * number, dtype=np.uint8)).save(root / "photos" / name)
    (root / "photos" / "cat" / "notes.txt").write_text("not a picture")
    labels = ["cat", "cat", "cat", "dog", "dog"]
    ids = ["cat/1.png", "cat/2.png", "cat/sub/1.png", "dog/1.png", "dog/2.png"]
    others = ["dog", "dog", "dog", "cat", "cat"]
    return write_audit(
        root / "audit", labels, others, issues=5, kind="folder", data=root / "photos", ids=ids
    )


@pytest.mark.parametrize("link", [False, True])
def test_pictures_move_to_the_folder_of_their_class_and_none_is_lost(
    tmp_path: Path, link: bool
) -> None:
    folder = picture_audit(tmp_path)
    before = snapshot(tmp_path / "photos")
    write_decisions(
        folder,
        (0, "cat/1.png", "cat", "accept", "dog"),
        (2, "cat/sub/1.png", "cat", "accept", "dog"),
        (4, "dog/2.png", "dog", "accept", "cat"),
    )
    run("apply", folder, "--out", tmp_path / "new", *(["--link"] if link else []))
    moved = {
        "cat/1.png": "dog/1-from-cat.png",
        "cat/sub/1.png": "dog/sub/1.png",
        "dog/2.png": "cat/2-from-dog.png",
    }
    assert snapshot(tmp_path / "new") == {
        moved.get(name, name): content for name, content in before.items()
    }
    assert snapshot(tmp_path / "photos") == before
    assert all(path.is_symlink() == link for path in (tmp_path / "new").rglob("*.png"))
    assert not (tmp_path / "new.part").exists()


def test_links_that_lead_nowhere_are_left_out(tmp_path: Path) -> None:
    folder = picture_audit(tmp_path)
    (tmp_path / "photos" / "cat" / "9.png").symlink_to(tmp_path / "gone.png")
    before = snapshot(tmp_path / "photos")
    write_decisions(folder, (1, "cat/2.png", "cat", "accept", "dog"))
    for options in ((), ("--link",)):
        out = tmp_path / f"new{len(options)}"
        run("apply", folder, "--out", out, *options)
        assert snapshot(out) == {
            {"cat/2.png": "dog/2-from-cat.png"}.get(k, k): v for k, v in before.items()
        }
        assert not (out / "cat" / "9.png").is_symlink()


# --- what is refused ------------------------------------------------------------------------------


def test_nothing_is_written_over_and_the_original_is_never_touched(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    write_decisions(folder, (0, 0, "cat", "accept", "dog"))
    before = snapshot(tmp_path)
    assert "exists. Choose another" in run(
        "apply", folder, "--out", tmp_path / "animals.csv", code=2
    )
    (tmp_path / "link.csv").symlink_to(tmp_path / "gone.csv")
    assert "exists. Choose another" in run("apply", folder, "--out", tmp_path / "link.csv", code=2)
    assert "Expected a .csv" in run("apply", folder, "--out", tmp_path / "new.tsv", code=2)
    assert "no such" not in run("apply", folder, "--out", tmp_path / "new.csv")
    assert "exists. Choose another" in run("apply", folder, "--out", tmp_path / "new.csv", code=2)
    assert {
        name: content for name, content in snapshot(tmp_path).items() if name != "new.csv"
    } == before
    pictures = picture_audit(tmp_path / "more")
    write_decisions(pictures, (0, "cat/1.png", "cat", "accept", "dog"))
    inside = tmp_path / "more" / "photos" / "new"
    assert "Expected a place outside" in run("apply", pictures, "--out", inside, code=2)
    assert not inside.exists()


def test_data_that_changed_since_the_audit_is_refused(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    write_decisions(folder, (0, 0, "cat", "accept", "dog"))
    text = (tmp_path / "animals.csv").read_text()
    (tmp_path / "animals.csv").write_text(text.replace(",dog\n", ",cat\n", 1))
    assert "changed since" in run("apply", folder, "--out", tmp_path / "new.csv", code=2)
    (tmp_path / "animals.csv").write_text("\n".join(text.splitlines()[:-1]))
    assert "changed since" in run("apply", folder, "--out", tmp_path / "new.csv", code=2)
    (tmp_path / "animals.csv").unlink()
    assert "found none" in run("apply", folder, "--out", tmp_path / "new.csv", code=2)
    assert not (tmp_path / "new.csv").exists()
    pictures = picture_audit(tmp_path / "more")
    write_decisions(pictures, (0, "cat/1.png", "cat", "accept", "dog"))
    Image.fromarray(np.full((8, 8), 99, dtype=np.uint8)).save(
        tmp_path / "more" / "photos" / "cat" / "1.png"
    )
    assert "Audit the data again" in run("apply", pictures, "--out", tmp_path / "new", code=2)
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.part").exists()


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_a_table_in_another_order_is_followed_and_one_without_its_ids_refused(
    tmp_path: Path, kind: str
) -> None:
    frame = pd.DataFrame(
        {"id": pd.date_range("2020-01-01", periods=6), "x": [1, 2, 3, 4, 5, 6], "y": list("aaabbb")}
    )
    path, out = tmp_path / f"t.{kind}", tmp_path / f"new.{kind}"

    def write(table: pd.DataFrame) -> None:
        if kind != "frame":
            table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)

    def apply(table: pd.DataFrame) -> list[str]:
        out.unlink(missing_ok=True)
        write(table)
        if kind == "frame":
            return list(corrected(folder, table, accept_all=True, yes=True)["y"])
        write_corrected(read_audit(folder), {0: "b"}, out)
        return list((pd.read_csv(out) if kind == "csv" else pd.read_parquet(out))["y"])

    write(frame)
    probs = np.array([[0.1, 0.9]] + [[0.9, 0.1]] * 2 + [[0.1, 0.9]] * 3)
    folder = tmp_path / "audit"
    audit_rows(
        read_rows(frame if kind == "frame" else path, label="y", id="id", pred_probs=probs)
    ).save(folder)
    assert corrections(read_audit(folder), {}, accept_all=True, yes=True) == {0: "b"}
    swapped, without_id = frame.iloc[[2, 1, 0, 3, 4, 5]], frame.drop(columns="id")
    for other, words in (
        (frame.replace({"x": {6: 7}}), "Audit the data again"),
        (without_id, "column 'id'"),
    ):
        with pytest.raises(ValueError, match=words):
            apply(other)
        assert not out.exists()
    assert apply(frame.iloc[[0, 2, 1, 3, 4, 5]]) == list("baabbb")
    assert apply(swapped) == list("aabbbb")  # the row that changes is now the third


def test_decisions_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    audit = read_audit(folder)
    assert "found none" in run("apply", folder, "--out", tmp_path / "new.csv", code=2)
    for word in (
        (0, "0", "dog", "accept", "cat"),
        (999, "999", "cat", "accept", "dog"),
        (0, "0", "cat", "accept", "bird"),
    ):
        with pytest.raises(
            BadDecisions,
            match=r"another audit: name its folder, or other decisions with --decisions",
        ):
            corrections(audit, {word[0]: Decision(*word)})  # type: ignore[arg-type]
    with pytest.raises(BadDecisions, match="Expected a label"):
        corrections(audit, {0: Decision(0, "0", "cat", "accept", "")})
    for name in ("issues.csv", "config.json", "summary.json"):
        (folder / name).rename(folder / "hidden")
        assert f"found no {name}" in run("apply", folder, code=2)
        (folder / "hidden").rename(folder / name)
    (folder / "config.json").write_text('{"format": 3}')
    assert "format 2" in run("apply", folder, code=2)


def test_accept_all_takes_suggestions_where_nobody_decided(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path, rows=12, issues=6)
    audit = read_audit(folder)
    write_decisions(
        folder,
        (0, 0, "cat", "keep", "cat"),
        (1, 1, "dog", "other", "owl"),
        (2, 2, "fox", "skip", ""),
    )
    found = corrections(audit, read_decisions(find_decisions(folder)), accept_all=True, yes=True)
    suggested = audit.issues.set_index("row")["suggested_label"]
    # 5 is right with 6/13, its suggestion with 3/4·7/13
    assert found == {1: "owl", 3: suggested[3], 4: suggested[4]}
    assert corrections(audit, read_decisions(find_decisions(folder))) == {1: "owl"}


def test_accept_all_leaves_labels_that_are_likelier_right(tmp_path: Path) -> None:
    # of quality 1/13 … 10/13, suggestions 3/4 of the rest
    folder = write_table_audit(tmp_path, rows=12, issues=10)
    suggested = read_audit(folder).issues.set_index("row")["suggested_label"]
    assert corrections(read_audit(folder), {}, accept_all=True, yes=True) == {
        row: suggested[row] for row in range(5)
    }
    shown = run("apply", folder, "--accept-all", "--yes", "--out", tmp_path / "new.csv")
    assert "changed: 5 of 12 labels" in shown
    left = "left as they are: 5 issues whose suggestion is no more likely right than the label"
    assert f"{left}; `noiseproof review {folder}`" in shown
    write_decisions(folder, (9, 9, "dog", "accept", suggested[9]), (8, 8, "cat", "skip", ""))
    shown = run("apply", folder, "--accept-all", "--yes", "--out", tmp_path / "newer.csv", "--json")
    assert (json.loads(shown)["changed"], json.loads(shown)["left"]) == (6, 3)
    assert "left as they are" not in run("apply", folder, "--out", tmp_path / "newest.csv")


def test_accept_all_mends_more_than_accepting_every_issue_would(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    true = random.integers(0, 2, 2000)
    x = random.normal(size=2000) + np.where(true, 1, -1)
    given = np.where(random.random(2000) < 0.2, 1 - true, true)
    p = 0.2 + 0.6 / (1 + np.exp(-2 * x))  # Bayes' rule: the chance that a row's label is given as 1
    report = audit_rows(read_rows(labels=given, pred_probs=np.stack([1 - p, p], 1)))
    report.save(tmp_path / "audit")
    issues = report.data.row[report.label_issues.is_issue]
    mended = corrected(tmp_path / "audit", given, accept_all=True, yes=True)
    changed = np.flatnonzero(mended != given)
    assert set(changed) < set(issues)
    all_mended = given.copy()
    all_mended[issues] = 1 - given[issues]
    assert (mended != true).sum() < (all_mended != true).sum() < (given != true).sum()
    assert (
        ((given != true)[changed]).mean()
        > 0.5
        > ((given != true)[np.setdiff1d(issues, changed)]).mean()
    )


# --- what was audited in memory -------------------------------------------------------------------


def audit_frame(frame: pd.DataFrame, folder: Path) -> None:
    """The audit of a table in memory whose first label is wrong, says another model."""
    classes = np.array([0, 1] * 20)
    audit_rows(read_rows(frame, label="y", pred_probs=np.eye(2)[classes] * 0.8 + 0.1)).save(folder)


@pytest.mark.parametrize(
    "dtype", ["object", "string", "category", "int32", "float32", "Int64", "gaps"]
)
def test_a_frame_in_memory_is_corrected_in_a_copy(tmp_path: Path, dtype: str) -> None:
    cells: Any = ("a", "b") if dtype in ("object", "string", "category") else (0, 1)
    column = pd.Series(
        [cells[i % 2 if i else 1] for i in range(40)], dtype="float64" if dtype == "gaps" else dtype
    )
    if dtype == "gaps":
        column[7] = np.nan
    mended = column.copy()
    mended[0] = cells[0]
    # an index that repeats
    frame = pd.DataFrame({"x": np.arange(40.0), "y": column}).set_axis([5] * 20 + [6] * 20)
    before = frame.copy()
    audit_frame(frame, tmp_path / "audit")
    write_decisions(tmp_path / "audit", (0, 0, cells[1], "accept", cells[0]))
    found = corrected(tmp_path / "audit", frame)
    pd.testing.assert_frame_equal(found, before.assign(y=mended.set_axis(before.index)))
    pd.testing.assert_frame_equal(frame, before)
    (tmp_path / "audit" / "decisions.csv").unlink()
    pd.testing.assert_frame_equal(
        corrected(tmp_path / "audit", frame, accept_all=True, yes=True), found
    )


def test_a_category_that_no_row_has_becomes_one(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(40.0), "y": pd.Categorical(["a", "b"] * 20)})
    probs = np.eye(3)[[0, 1] * 20] * 0.7 + 0.1
    audit_rows(read_rows(frame, label="y", classes=["a", "b", "c"], pred_probs=probs)).save(
        tmp_path / "audit"
    )
    write_decisions(tmp_path / "audit", (1, 1, "b", "other", "c"))
    found = corrected(tmp_path / "audit", frame)["y"]
    assert found.tolist() == ["a", "c", *["a", "b"] * 19] and found.cat.categories.tolist() == [
        "a",
        "b",
        "c",
    ]


def test_a_frame_that_was_not_audited_is_refused_and_the_command_names_the_way(
    tmp_path: Path,
) -> None:
    frame = pd.DataFrame({"x": np.arange(40.0), "y": ["b", "b", *["a", "b"] * 19]})
    audit_frame(frame, tmp_path / "audit")
    with pytest.raises(FileNotFoundError, match="Expected decisions in"):
        corrected(tmp_path / "audit", frame)
    for other in (frame[1:], frame.assign(x=0), frame.assign(y="a")):
        with pytest.raises(
            ValueError, match="that were audited in memory, they or their order have changed since"
        ):
            corrected(tmp_path / "audit", other, accept_all=True, yes=True)
    with pytest.raises(ValueError, match="its column 'y', got x"):
        corrected(tmp_path / "audit", frame[["x"]], accept_all=True, yes=True)
    for options in ((), ("--retrain",)):
        refused = run("apply", tmp_path / "audit", "--accept-all", "--yes", *options, code=2)
        assert f"`noiseproof.audit.corrected('{tmp_path / 'audit'}', data)`" in refused
    assert (
        "audit.corrected" in open_rows(read_audit(tmp_path / "audit").config).show(0, "0")["note"]
    )


def test_labels_in_memory_beside_a_file_are_not_looked_for_in_it(tmp_path: Path) -> None:
    random, true = np.random.default_rng(0), np.arange(40) % 2
    np.save(tmp_path / "x.npy", random.normal(size=(40, 2)))
    given = true.copy()
    given[0] = 1
    probs = np.eye(2)[true] * 0.8 + 0.1
    audit_rows(read_rows(tmp_path / "x.npy", labels=given, pred_probs=probs)).save(
        tmp_path / "audit"
    )
    assert "audit.corrected" in run("apply", tmp_path / "audit", "--accept-all", "--yes", code=2)
    assert corrected(tmp_path / "audit", given, accept_all=True, yes=True).tolist() == true.tolist()
    with pytest.raises(ValueError, match="Expected the labels that were audited, an array"):
        corrected(tmp_path / "audit", pd.DataFrame({"y": given}), accept_all=True, yes=True)


# --- before and after -----------------------------------------------------------------------------


def noisy_audit(root: Path, **config: Any) -> tuple[Path, list[str], list[str]]:
    """Three clouds of points, a third of whose labels are wrong, and an audit that found them
    all.
    """
    random = np.random.default_rng(0)
    true = np.repeat(np.arange(3), 100)
    x = random.normal(size=(300, 4)) + 3 * np.eye(3, 4)[true]
    wrong = random.permutation(300)[:100]
    given = true.copy()
    given[wrong] = (true[wrong] + 1) % 3
    # issues come first in a handmade audit
    order = np.concatenate([wrong, np.setdiff1d(np.arange(300), wrong)])
    x, true, given = x[order], true[order], given[order]
    names = np.array(["a", "b", "c"])
    table = pd.DataFrame(x, columns=list("pqrs")).assign(
        kind=names[given], sure=["no"] * 100 + ["yes"] * 200
    )
    root.mkdir(parents=True, exist_ok=True)
    table.to_csv(root / "t.csv", index=False)
    suggested = np.where(given == true, (given + 1) % 3, true)
    folder = write_audit(
        root / "audit",
        names[given].tolist(),
        names[suggested].tolist(),
        issues=100,
        kind="table",
        data=root / "t.csv",
        label="kind",
        model="mlp:hidden=[16]",
        method="ce",
        epochs=20,
        ignore=["sure"],
        **config,
    )
    return folder, names[given].tolist(), names[true].tolist()


def test_retraining_on_corrected_labels_is_measured_on_rows_that_were_held_out(
    tmp_path: Path,
) -> None:
    folder, given, true = noisy_audit(tmp_path)
    audit = read_audit(folder)
    changes = corrections(audit, {}, accept_all=True, yes=True)
    assert [changes.get(row, label) for row, label in enumerate(given)] == true
    found = plan_retraining(audit, changes, {}, seed=0).run()
    # the same seed, the same numbers
    assert found == plan_retraining(audit, changes, {}, seed=0).run()
    held = hold_out(audit, read_again(audit), np.array([ord(label) - 97 for label in given]), 0)
    assert found.held_rows == held.sum() == 300 - found.train_rows and 54 <= held.sum() <= 66
    assert found.changed == sum(1 for row in changes if not held[row])
    assert found.after > 0.9 > found.before > found.before_by_given
    assert found.interval[0] < found.after - found.before < found.interval[1]
    assert found.warning is not None and f"{held.sum()} held-out labels" in found.warning
    shown = json.loads(
        run(
            "apply",
            folder,
            "--accept-all",
            "--yes",
            "--out",
            tmp_path / "new.csv",
            "--retrain",
            "--json",
        )
    )
    assert shown["changed"] == 100 and shown["retrain"]["after"] == found.after
    assert pd.read_csv(tmp_path / "new.csv")["kind"].tolist() == true


def test_an_estimator_is_compared_on_the_same_rows(tmp_path: Path) -> None:
    folder, _, true = noisy_audit(tmp_path)
    audit = read_audit(folder)
    changes = corrections(audit, {}, accept_all=True, yes=True)
    plan = plan_retraining(audit, changes, {}, estimator=KNeighborsClassifier(1), seed=0)
    labels = np.array([ord(label) - 97 for label in true])
    right = (
        KNeighborsClassifier(1)
        .fit(plan.x[~plan.held], labels[~plan.held])
        .predict(plan.x[plan.held])
    )
    comparison = plan.run()
    assert (
        comparison.method == "KNeighborsClassifier"
        and comparison.after == (right == labels[plan.held]).mean() > 0.9
    )
    assert (
        comparison.before < 0.8
        and comparison.held_rows == plan_retraining(audit, changes, {}).run().held_rows
    )
    options = (
        "--accept-all",
        "--yes",
        "--retrain",
        "--json",
        "--estimator",
        "sklearn.neighbors:KNeighborsClassifier",
    )
    shown = json.loads(run("apply", folder, "--out", tmp_path / "new.csv", *options))
    five = plan_retraining(
        audit, changes, {}, estimator="sklearn.neighbors:KNeighborsClassifier"
    ).run()
    assert (
        shown["retrain"]["after"] == five.after
        and shown["retrain"]["method"] == "KNeighborsClassifier"
    )


def test_trusted_rows_are_held_out_and_need_no_warning(tmp_path: Path) -> None:
    folder, _, _ = noisy_audit(tmp_path, trusted="sure")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"ignore": []}))
    audit = read_audit(folder)
    found = plan_retraining(
        audit, corrections(audit, {}, accept_all=True, yes=True), {}, epochs=5
    ).run()
    near = sum(row % 7 == 0 for row in range(100))  # near-duplicates of rows that are held out
    assert (found.train_rows, found.held_rows, found.warning) == (100 - near, 200, None)
    assert found.before == found.before_by_given  # their labels did not change


def test_nothing_like_a_trusted_row_is_trained_on(tmp_path: Path) -> None:
    random, y = np.random.default_rng(0), np.arange(60) % 2
    x = random.normal(size=(60, 3)) + 3 * y[:, None]
    rows = pd.DataFrame(x, columns=list("pqr")).assign(y=y, who=np.arange(60), ok="no")
    trusted = pd.concat(
        [
            # copies; the same people
            rows[:10].assign(who=range(100, 110)),
            rows[10:20].assign(p=random.normal(size=10)),
        ]
    ).assign(ok="yes")
    for kind in ("column", "table"):
        path = tmp_path / f"{kind}.csv"
        (rows if kind == "table" else pd.concat([rows, trusted])).to_csv(path, index=False)
        trusted.to_csv(tmp_path / "trusted.csv", index=False)
        known = "ok" if kind == "column" else str(tmp_path / "trusted.csv")
        ignore = [] if kind == "column" else ["ok"]
        found = audit_rows(
            read_rows(path, label="y", group="who", trusted=known, ignore=ignore),
            mode="fast",
            epochs=2,
        )
        found.save(tmp_path / kind)
        audit = read_audit(tmp_path / kind)
        plan = plan_retraining(audit, {}, {}, epochs=1)
        assert plan.held.sum() == 20 and (~plan.held).sum() == 40
        seen = {tuple(row) for row in plan.x[~plan.held].tolist()}
        assert not seen & {tuple(row) for row in plan.x[plan.held].tolist()}
        assert plan.run().train_rows == 40
    rows[:20].assign(
        ok=["yes", "no"] * 10, who=np.arange(20) // 2, y=np.arange(20) // 2 % 2
    ).to_csv(path, index=False)
    audit_rows(read_rows(path, label="y", group="who", trusted="ok"), mode="fast", epochs=2).save(
        tmp_path / "pairs"
    )
    with pytest.raises(ValueError, match="only copies of these and rows of their groups"):
        plan_retraining(read_audit(tmp_path / "pairs"), {}, {})


def test_near_duplicates_are_held_out_together(tmp_path: Path) -> None:
    folder, given, _ = noisy_audit(tmp_path)
    audit = read_audit(folder)
    held = hold_out(audit, read_again(audit), np.array([ord(label) - 97 for label in given]), 0)
    copies = audit.issues.loc[audit.issues["duplicate_group"] != "", "row"].to_numpy()
    assert len(copies) > 30 and len(set(held[copies])) == 1


def test_the_command_shows_both_accuracies_and_the_warning(tmp_path: Path) -> None:
    folder, _, _ = noisy_audit(tmp_path)
    write_decisions(folder)
    shown = run("apply", folder, "--out", tmp_path / "same.csv", "--retrain")
    assert (
        "no label changed" in shown
        and (tmp_path / "same.csv").read_bytes() == (tmp_path / "t.csv").read_bytes()
    )
    shown = run(
        "apply",
        folder,
        "--accept-all",
        "--yes",
        "--out",
        tmp_path / "new.csv",
        "--retrain",
        "--epochs",
        3,
        "--method",
        "gce",
    )
    for words in (
        "changed: 100 of 300 labels",
        "gce on 241 rows",
        "given labels",
        "95 % interval",
        "warning:",
    ):
        assert words in shown
    predictions = write_audit(
        tmp_path / "p",
        ["a", "b"],
        ["b", "a"],
        issues=2,
        kind="predictions",
        data=None,
        labels=str(tmp_path / "y.npy"),
    )
    np.save(tmp_path / "y.npy", np.array(["a", "b"]))
    out = tmp_path / "new.npy"
    assert "predictions only" in run(
        "apply", predictions, "--accept-all", "--yes", "--out", out, "--retrain", code=2
    )
    assert not out.exists()  # nothing is written for a comparison that cannot be made


@pytest.mark.parametrize(
    "options, words",
    [
        (("--method", "nonsense"), "Unknown method 'nonsense'"),
        (("--method", "gce:q=7"), "Expected `q`"),
        (("--method", "ce & nonsense"), "nonsense"),
        (("--estimator", "sklearn.svm:LinearSVC"), "fit and predict_proba, got LinearSVC"),
        (("--estimator", "sklearn.svm"), "as module:name"),
        (("--estimator", "sklearn.svm:SVC", "--method", "ce"), "got both. Leave one of them out"),
        ((), "resnet18"),  # an audit's model that does not take its inputs
    ],
)
def test_a_retraining_that_cannot_begin_is_refused_before_anything_is_written(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    folder, _, _ = noisy_audit(tmp_path)
    if not options:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model": "resnet18"}))
    before = snapshot(tmp_path)
    shown = run(
        "apply",
        folder,
        "--accept-all",
        "--yes",
        "--out",
        tmp_path / "new.csv",
        "--retrain",
        *options,
        code=2,
    )
    assert words in shown and "is written" not in shown
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "error, code", [(Diverged("Loss is nan."), 3), (Interrupted(""), 130), (OSError("full"), 2)]
)
def test_a_retraining_that_fails_later_says_what_was_written(
    error: Exception, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, true = noisy_audit(tmp_path)

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(Retraining, "run", fail)
    new = tmp_path / "new.csv"
    options = ("--accept-all", "--yes", "--out", str(new), "--retrain", "--json")
    result = CliRunner().invoke(app, ["apply", str(folder), *options])
    assert (result.exit_code, result.stdout) == (code, "")
    said, why = result.stderr.splitlines()
    assert (
        said
        == f"noiseproof: The corrected data is written to {new}; the retraining is not finished."
    )
    assert why == f"noiseproof: {error if code != 130 else 'Stopped.'}"
    assert pd.read_csv(new)["kind"].tolist() == true


def test_a_retraining_that_was_stopped_goes_on_with_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _ = noisy_audit(tmp_path)
    command = (
        "apply",
        folder,
        "--accept-all",
        "--yes",
        "--out",
        tmp_path / "new.csv",
        "--retrain",
        "--epochs",
        1,
    )

    def stop(*_: Any) -> Any:
        raise Interrupted("")

    with monkeypatch.context() as patch:
        patch.setattr(Retraining, "run", stop)
        run(*command, code=130)
    before = snapshot(tmp_path)
    assert "difference" in run(*command)
    assert "exists. Choose another" in run(*command[:-3], code=2)  # there is nothing to go on with
    assert snapshot(tmp_path) == before
    (tmp_path / "new.csv").write_bytes((tmp_path / "new.csv").read_bytes() + b"\n")
    before = snapshot(tmp_path)
    assert "exists. Choose another" in run(*command, code=2)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("link", [False, True])
def test_pictures_that_are_written_already_are_known_by_their_bytes(
    tmp_path: Path, link: bool
) -> None:
    audit, new = read_audit(picture_audit(tmp_path)), tmp_path / "new"
    write_corrected(audit, {0: "dog"}, new, link=link)
    before = snapshot(new)
    assert write_corrected(audit, {0: "dog"}, new, link=link, same_ok=True) == new
    for changes, other in (({0: "dog"}, not link), ({}, link), ({0: "dog", 1: "dog"}, link)):
        with pytest.raises(FileExistsError):
            write_corrected(audit, changes, new, link=other, same_ok=True)
    assert snapshot(new) == before
    (new / "cat" / "2.png").unlink()
    (new / "cat" / "2.png").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        write_corrected(audit, {0: "dog"}, new, link=link, same_ok=True)


def test_without_out_the_copy_is_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = write_table_audit(tmp_path / "data")
    before = snapshot(tmp_path)
    assert "corrected: corrected.csv" in run("apply", folder, "--accept-all", "--yes")
    assert snapshot(tmp_path).keys() - before.keys() == {"here/corrected.csv"}


def test_a_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_table_audit(tmp_path)
    write_decisions(folder, (0, 0, "cat", "accept", "dog"))

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(TextRecords, "write", fail)
    assert "No space left" in run("apply", folder, "--out", tmp_path / "new.csv", code=2)
    assert not (tmp_path / "new.csv").exists()
    monkeypatch.setattr("shutil.copy2", fail)
    with pytest.raises(OSError, match="No space left"):
        write_corrected(read_audit(picture_audit(tmp_path / "more")), {0: "dog"}, tmp_path / "new")
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.part").exists()


KILLED = """
import os, signal, sys
from noiseproof.audit.csvfile import TextRecords
from noiseproof.audit.plan import corrections
from noiseproof.cli import app

def half(self, changes, file):
    file.write(b"id,x")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

TextRecords.write = half
app(["apply", sys.argv[1], "--out", sys.argv[2]])
"""


def test_an_apply_killed_while_it_writes_leaves_no_half_table_under_the_name(
    tmp_path: Path,
) -> None:
    folder, out = write_table_audit(tmp_path), tmp_path / "new.csv"
    write_decisions(folder, (0, 0, "cat", "accept", "dog"))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(out)], capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL and not out.exists()
    run("apply", folder, "--out", out)
    assert pd.read_csv(out)["kind"][0] == "dog" and len(pd.read_csv(out)) == 220


def test_what_a_killed_apply_left_is_removed_by_the_next(tmp_path: Path) -> None:
    folder = picture_audit(tmp_path)
    (tmp_path / "new.part" / "cat").mkdir(parents=True)
    (tmp_path / "new.part" / "cat" / "left.png").write_text("")
    held = Lock(tmp_path / ".new.lock")
    said = run("apply", folder, "--accept-all", "--yes", "--out", tmp_path / "new", code=2)
    assert "another process writes it" in said and (tmp_path / "new.part").exists()
    held.release()
    run("apply", folder, "--accept-all", "--yes", "--out", tmp_path / "new")
    assert (
        not (tmp_path / "new.part").exists()
        and not (tmp_path / "new" / "cat" / "left.png").exists()
    )
    assert not (tmp_path / ".new.lock").exists()


def test_half_a_table_that_a_killed_apply_left_is_replaced_by_the_next(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    (tmp_path / ".new.csv.part").write_text("half")
    held = Lock(tmp_path / ".new.csv.lock")
    said = run("apply", folder, "--accept-all", "--yes", "--out", tmp_path / "new.csv", code=2)
    assert "another process writes it" in said and not (tmp_path / "new.csv").exists()
    held.release()
    run("apply", folder, "--accept-all", "--yes", "--out", tmp_path / "new.csv")
    assert [path.name for path in tmp_path.glob("*new.csv*")] == ["new.csv"]


def test_links_out_of_the_folder_stay_links(tmp_path: Path) -> None:
    folder = picture_audit(tmp_path)
    (tmp_path / "secret.txt").write_text("of another user")
    (tmp_path / "photos" / "cat" / "secret.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "photos" / "cat" / "notes-again.txt").symlink_to("notes.txt")
    (tmp_path / "elsewhere.png").write_bytes((tmp_path / "photos" / "cat" / "2.png").read_bytes())
    (tmp_path / "photos" / "cat" / "2.png").unlink()
    (tmp_path / "photos" / "cat" / "2.png").symlink_to("../../elsewhere.png")
    write_decisions(folder, (1, "cat/2.png", "cat", "accept", "dog"))
    run("apply", folder, "--out", tmp_path / "new")
    for name, target in (("cat/secret.txt", "secret.txt"), ("dog/2-from-cat.png", "elsewhere.png")):
        copy = tmp_path / "new" / name
        assert copy.is_symlink() and copy.resolve() == tmp_path / target
    assert not (tmp_path / "new" / "cat" / "notes-again.txt").is_symlink()  # it lies inside
    assert (tmp_path / "new" / "cat" / "notes-again.txt").read_text() == "not a picture"


FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(1)",
    "'=quoted",
    "plain",
    "-1",
    "1e5",
    "\tx",
]


def test_cells_for_spreadsheets_are_no_formulas_and_data_stays_as_it_is(tmp_path: Path) -> None:
    count = 9 * len(FORMULAS)
    given = [FORMULAS[i % len(FORMULAS)] for i in range(count)]
    given[0] = "plain"
    classes = sorted(FORMULAS)
    frame = pd.DataFrame({"x": range(count), "name": [f"={i}" for i in range(count)], "y": given})
    frame.to_csv(tmp_path / "t.csv", index=False)
    probs = (
        np.eye(len(classes))[[classes.index(FORMULAS[i % len(FORMULAS)]) for i in range(count)]]
        * 0.9
        + 0.1 / 9
    )
    np.save(tmp_path / "p.npy", probs / probs.sum(1, keepdims=True))
    report = audit_rows(
        read_rows(
            tmp_path / "t.csv", label="y", id="name", pred_probs=tmp_path / "p.npy", classes=classes
        )
    )
    audits = {}
    for safe in (True, False):
        report.save(folder := tmp_path / f"audit-{safe}", csv_safe=safe)
        cells = pd.read_csv(folder / "issues.csv", dtype=str, keep_default_na=False)
        words = (
            cells[["id", "given_label", "suggested_label", "predicted_label", "why"]]
            .to_numpy()
            .ravel()
            .tolist()
        )
        dangerous = {word for word in words if word[:1] in "=+-@\t\r" and word not in ("", "-1")}
        assert bool(dangerous) != safe, dangerous
        audits[safe] = read_audit(folder)
    pd.testing.assert_frame_equal(audits[True].issues, audits[False].issues)
    assert audits[True].key == audits[False].key
    exact = pd.read_parquet(tmp_path / "audit-True" / "issues.parquet").sort_values("row")
    assert exact["given_label"].astype(str).tolist() == given
    folder = tmp_path / "audit-True"
    decisions = [
        Decision(0, "=0", "plain", "accept", FORMULAS[0]),
        Decision(4, "=4", FORMULAS[4], "unclear", ""),
        Decision(4, "=4", FORMULAS[4], "note", "", note="=1+1"),
    ]
    write_csv(decisions, folder / "decisions.csv")
    run("apply", folder, "--out", tmp_path / "new.csv")
    expected = frame.assign(y=[FORMULAS[0], *given[1:]])
    # byte for byte as the user has it
    assert (tmp_path / "new.csv").read_text() == expected.to_csv(index=False)
    assert (tmp_path / "new-review.csv").read_text().splitlines()[
        1
    ] == "4,'=4,''=quoted,False,True,'=1+1"
    run("apply", folder, "--out", tmp_path / "raw.csv", "--no-csv-safe")
    assert (tmp_path / "raw-review.csv").read_text().splitlines()[
        1
    ] == "4,=4,'=quoted,False,True,=1+1"


# --- with the audit itself ------------------------------------------------------------------------


def own_files(root: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    """Data of each kind, with gaps and odd spellings, and how to read it."""
    x = np.random.default_rng(0).normal(size=(12, 3))
    words = ["cat", "dog", " cat", "dog", "", "NA", "cat", "dog", "NA", " cat", "dog", " cat"]
    numbers = ["1.0", "2", "1", "2.0", "", "1", "2", "1", "2", "1", "2", "1"]
    if kind == "folder":
        for i in range(8):
            path = root / "photos" / ("cat", "dog")[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 30 * i, dtype=np.uint8)).save(path)
        return root / "photos", {}
    if kind in ("words", "numbers", "parquet"):
        frame = pd.DataFrame(x, columns=list("abc")).assign(
            y=numbers if kind == "numbers" else words
        )
        if kind == "parquet":
            frame["y"] = pd.Series([1, 2, None, 2, 1, 2, 1, 2, 1, 2, 1, 2], dtype="float64")
            frame.to_parquet(root / "t.parquet")
            return root / "t.parquet", {"label": "y"}
        frame.to_csv(root / "t.csv", index=False)
        return root / "t.csv", {"label": "y"}
    labels = {
        "npz": np.arange(12) % 2,
        "strings": np.array(["cat", "dog"] * 6),
        "npy": np.array([1.0, np.nan, 2.0] * 4),
    }
    if kind == "npz":
        np.savez(root / "d.npz", x=x, labels=labels[kind])
        return root / "d.npz", {}
    np.save(root / "x.npy", x)
    np.save(root / "y.npy", labels[kind])
    return root / "x.npy", {"labels": root / "y.npy"}


@pytest.mark.parametrize("kind", ["words", "numbers", "parquet", "folder", "npz", "npy", "strings"])
def test_what_the_audit_reads_is_what_is_corrected(tmp_path: Path, kind: str) -> None:
    from noiseproof.audit.inputs import read_rows

    path, options = own_files(tmp_path, kind)
    found = read_rows(path, **options)
    names = np.array(found.classes, dtype=object)
    config = {
        name: value for name, value in found.source.config.items() if name not in ("kind", "data")
    }
    folder = write_audit(
        tmp_path / "audit",
        names[found.given].tolist(),
        names[(found.given + 1) % len(names)].tolist(),
        issues=0,
        kind=found.source.name,
        data=path,
        ids=found.names.tolist(),
        classes=found.classes,
        source_rows=found.source_rows,
        **config,
    )
    table = pd.read_csv(folder / "issues.csv", dtype=str, keep_default_na=False)
    table["row"] = found.row  # those without a label are not audited
    table.to_csv(folder / "issues.csv", index=False)
    row, new = int(found.row[2]), names[(found.given[2] + 1) % len(names)]
    out = tmp_path / {
        "folder": "new",
        "words": "new.csv",
        "numbers": "new.csv",
        "parquet": "new.parquet",
    }.get(kind, "new.npy")
    write_corrected(read_audit(folder), {row: new}, out)
    again = read_rows(path, labels=out) if out.suffix == ".npy" else read_rows(out, **options)
    expected = dict(zip(found.names.tolist(), names[found.given].tolist(), strict=True))
    if kind == "folder":
        moved = found.names[2]
        expected[f"{new}/{moved.partition('/')[2]}"] = str(new)
        del expected[moved]
    else:
        expected[found.names[2]] = new
    labels = np.array(again.classes, dtype=object)[again.given].tolist()
    assert dict(zip(again.names.tolist(), labels, strict=True)) == expected


def test_from_a_table_to_its_correction(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    true = np.arange(240) % 3
    given = true.copy()
    wrong = random.permutation(240)[:24]
    given[wrong] = (true[wrong] + 1) % 3
    x = random.normal(size=(240, 4)) + 4 * np.eye(3, 4)[true]
    names = np.array(["ant", "bee", "cow"])
    pd.DataFrame(x, columns=list("pqrs")).assign(kind=names[given]).to_csv(
        tmp_path / "t.csv", index=False
    )
    run("audit", tmp_path / "t.csv", "--label", "kind", "--fast", "--out", tmp_path / "audit")
    run("review", tmp_path / "audit", "--html", tmp_path / "review.html")
    assert "exists. Use --force" in run(
        "review", tmp_path / "audit", "--html", tmp_path / "review.html", code=2
    )
    elsewhere = run(
        "review", tmp_path / "audit", "--html", tmp_path / "new" / "review.html", code=2
    )
    assert (
        f"Expected --html in a folder that exists, got {tmp_path / 'new' / 'review.html'}. Make"
        in elsewhere
    )
    run("apply", tmp_path / "audit", "--accept-all", "--yes", "--out", tmp_path / "new.csv")
    corrected = pd.read_csv(tmp_path / "new.csv")
    assert (corrected["kind"].to_numpy() != names[true]).sum() <= 6 < 24
    assert corrected.drop(columns="kind").equals(
        pd.read_csv(tmp_path / "t.csv").drop(columns="kind")
    )


def test_a_class_folder_that_is_a_link_keeps_its_pictures(tmp_path: Path) -> None:
    folder = picture_audit(tmp_path)
    (tmp_path / "photos" / "dog").rename(tmp_path / "elsewhere")
    (tmp_path / "photos" / "dog").symlink_to(tmp_path / "elsewhere")
    write_decisions(folder, (4, "dog/2.png", "dog", "accept", "cat"))
    run("apply", folder, "--out", tmp_path / "new")
    assert sorted(snapshot(tmp_path / "new")) == [
        "cat/1.png",
        "cat/2-from-dog.png",
        "cat/2.png",
        "cat/notes.txt",
        "cat/sub/1.png",
        "dog/1.png",
    ]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_class_that_no_audited_row_has(
    tmp_path: Path, ending: str, words: bool, named: bool
) -> None:
    table = pd.DataFrame({"a": range(4), "y": list("0101")})
    table = table if words else table.astype({"y": int})
    path = tmp_path / f"t{ending}"
    table.to_csv(path, index=False) if ending == ".csv" else table.to_parquet(path)
    classes = ["cat", "dog", "emu"] if named else ["0", "1", "7"]  # whose only row was skipped
    folder = write_audit(
        tmp_path / "audit",
        classes[:2] * 2,
        classes[2:] * 4,
        issues=1,
        kind="table",
        data=path,
        label="y",
        classes=classes,
        classes_named=named,
        words=list("0101"),
    )
    run("apply", folder, "--accept-all", "--yes", "--out", tmp_path / f"new{ending}")
    new = tmp_path / f"new{ending}"
    after = pd.read_csv(new) if ending == ".csv" else pd.read_parquet(new)
    assert after["y"].astype(str).tolist() == ["2" if named else "7", "1", "0", "1"]


def test_classes_that_the_user_named_are_known_when_it_retrains(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    given = y.copy()
    given[0] = 1
    np.save(tmp_path / "x.npy", (random.normal(size=(40, 3)) + 4 * y[:, None]).astype(np.float32))
    np.save(tmp_path / "y.npy", np.array(["cat", "dog"])[given])
    np.save(tmp_path / "p.npy", np.where(np.arange(3) == y[:, None], 0.9, 0.05).astype(np.float16))
    run(
        "audit",
        "--labels",
        tmp_path / "y.npy",
        "--pred-probs",
        tmp_path / "p.npy",
        "--embeddings",
        tmp_path / "x.npy",
        "--classes",
        "cat,dog,emu",
        "--out",
        tmp_path / "audit",
    )
    options = ("--accept-all", "--yes", "--retrain", "--epochs", 1, "--out", tmp_path / "new.npy")
    assert "difference" in run("apply", tmp_path / "audit", *options)
    assert np.load(tmp_path / "new.npy").tolist()[0] == "cat"


def test_names_that_xml_cannot_hold_are_refused_before_anything_is_exported(tmp_path: Path) -> None:
    pd.DataFrame({"x": range(40), "y": ["a\x0bb", "<c>&\t\n"] * 20}).to_csv(
        tmp_path / "t.csv", index=False
    )
    probs = np.eye(2)[[1, 0] * 20] * 0.8 + 0.1
    report = audit_rows(read_rows(tmp_path / "t.csv", label="y", pred_probs=probs))
    with pytest.raises(ValueError, match=r"can hold, got 'a\\x0bb'"):
        report.export("label-studio", tmp_path / "tasks.json")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
