"""`apply` never corrects the wrong row: rows are known by their content, and what cannot be told is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from noiseproof.audit import audit, corrected, read_audit, read_rows
from noiseproof.audit.again import audit_again
from noiseproof.audit.decisions import Decision, find_decisions, read_log, write_csv
from noiseproof.audit.rows import digest_array, digest_frame, digest_rows, follow_rows
from noiseproof.audit.sources import open_rows
from noiseproof.cli import app

N = 40
TRUE = np.array(["cat", "dog"])[np.arange(N) % 2]
WRONG = np.arange(0, N, 5)  # rows whose given label is not the true one
GIVEN = np.where(np.isin(np.arange(N), WRONG), np.where(TRUE == "cat", "dog", "cat"), TRUE)


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def within_classes(labels: Any = GIVEN, seed: int = 1) -> np.ndarray[Any, Any]:
    """An order in which every row has the label of the row that was there: labels alone show no
    change.
    """
    order, random = np.arange(len(labels)), np.random.default_rng(seed)
    for name in np.unique(labels):
        order[labels == name] = random.permutation(order[labels == name])
    assert (labels[order] == labels).all() and (order != np.arange(len(labels))).mean() > 0.8
    return order


def frame_of(labels: Any = GIVEN) -> pd.DataFrame:
    """A table whose column `true` says what each row's label should be."""
    return pd.DataFrame(
        {"x": np.arange(N) / 7, "note": [f"row, {i}" for i in range(N)], "true": TRUE, "y": labels}
    )


Writer = Callable[[pd.DataFrame, Path], None]
WRITERS: dict[str, Writer] = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "arrow": lambda frame, path: frame.to_feather(path),
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "xlsx": lambda frame, path: frame.to_excel(path, index=False),
}
READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "csv": pd.read_csv,
    "csv.gz": pd.read_csv,
    "tsv": lambda path: pd.read_csv(path, sep="\t"),
    "parquet": pd.read_parquet,
    "arrow": pd.read_feather,
    "jsonl": lambda path: pd.read_json(path, lines=True),
    "xlsx": pd.read_excel,
}


def audit_table(
    path: Path, folder: Path, frame: pd.DataFrame, write: Writer, **options: Any
) -> None:
    write(frame, path)
    probs = np.eye(2)[(frame["true"] == "dog").astype(int)] * 0.8 + 0.1
    audit(read_rows(path, label="y", pred_probs=probs, ignore=["true"], **options)).save(folder)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("id", [None, "note"])
def test_rows_that_moved_within_their_class_are_followed(
    tmp_path: Path, kind: str, id: str | None
) -> None:
    path, out, write = tmp_path / f"t.{kind}", tmp_path / f"new.{kind}", WRITERS[kind]
    audit_table(path, tmp_path / "audit", frame_of(), write, id=id)
    # columns in another order, too
    write(frame_of().iloc[within_classes()][["y", "note", "x", "true"]], path)
    run("apply", tmp_path / "audit", "--accept-all", "--yes", "--out", out)
    found = READERS[kind](out)
    assert (found["y"] == found["true"]).all() and {*found["note"]} == {*frame_of()["note"]}


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_that_changed_came_or_went_are_refused(tmp_path: Path, kind: str) -> None:
    path, out, write = tmp_path / f"t.{kind}", tmp_path / f"new.{kind}", WRITERS[kind]
    frame = frame_of()
    audit_table(path, tmp_path / "audit", frame, write)
    for other in (
        frame.assign(note=["another", *frame["note"][1:]]),
        frame.assign(y=[*GIVEN[:-1], "cat"]),
        frame[1:],
        pd.concat([frame, frame[-1:]]),
        frame.assign(more=1),
        frame.rename(columns={"x": "z"}),
    ):
        write(other, path)
        words = run("apply", tmp_path / "audit", "--accept-all", "--yes", "--out", out, code=2)
        assert "changed since" in words and "which keeps decisions: noiseproof audit" in words
        assert not out.exists()
        assert (
            "has changed since the audit"
            in open_rows(read_audit(tmp_path / "audit").config).show(0, "0")["note"]
        )


def test_a_table_in_memory_is_followed_too(tmp_path: Path) -> None:
    probs = np.eye(2)[(TRUE == "dog").astype(int)] * 0.8 + 0.1
    audit(frame_of(), label="y", ignore=["true"], pred_probs=probs).save(tmp_path / "audit")
    moved = frame_of().iloc[within_classes()]
    found = corrected(tmp_path / "audit", moved, accept_all=True, yes=True)
    assert (found["y"] == found["true"]).all() and found.index.tolist() == moved.index.tolist()


def test_arrays_are_followed_by_their_inputs(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(N, 3)), GIVEN
    probs = np.eye(2)[(TRUE == "dog").astype(int)] * 0.8 + 0.1
    np.savez(tmp_path / "d.npz", x=x, labels=y)
    audit(read_rows(tmp_path / "d.npz", pred_probs=probs)).save(tmp_path / "audit")
    order = within_classes()
    np.savez(tmp_path / "d.npz", x=x[order], labels=y[order])
    run("apply", tmp_path / "audit", "--accept-all", "--yes", "--out", tmp_path / "new.npy")
    assert (np.load(tmp_path / "new.npy") == TRUE[order]).all()
    np.savez(tmp_path / "d.npz", x=x + 1, labels=y)
    refused = run(
        "apply",
        tmp_path / "audit",
        "--accept-all",
        "--yes",
        "--out",
        tmp_path / "other.npy",
        code=2,
    )
    assert "40 are gone or have other cells" in refused
    audit(read_rows({"x": x, "labels": y}, pred_probs=probs)).save(tmp_path / "memory")
    found = corrected(
        tmp_path / "memory", {"x": x[order], "labels": y[order]}, accept_all=True, yes=True
    )
    assert (found == TRUE[order]).all()


def test_pictures_that_got_other_names_are_followed(tmp_path: Path) -> None:
    for i in range(12):
        path = tmp_path / "photos" / ("cat" if i < 6 else "dog") / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(path)
    wrong = (tmp_path / "photos" / "cat" / "03.png").read_bytes()
    audit(read_rows(tmp_path / "photos", pred_probs=np.eye(2)[[0, 0, 0, 1, 0, 0, *[1] * 6]])).save(
        tmp_path / "audit"
    )
    for name in ("00", "01", "02", "03", "04", "05"):  # 03 becomes z97, the last of its class
        (tmp_path / "photos" / "cat" / f"{name}.png").rename(
            tmp_path / "photos" / "cat" / f"z{100 - int(name)}.png"
        )
    run("apply", tmp_path / "audit", "--accept-all", "--yes", "--out", tmp_path / "new")
    assert [
        path.name for path in (tmp_path / "new" / "dog").iterdir() if path.read_bytes() == wrong
    ] == ["z97.png"]
    assert len([*(tmp_path / "new" / "cat").iterdir()]) == 5


def twins(tmp_path: Path) -> tuple[Path, pd.DataFrame]:
    """An audit of a table in which rows 0 and 2 are the same."""
    frame = pd.DataFrame({"x": [0, 1, 0, 3, 4, 5], "y": list("aabbbb")})
    frame.loc[2, "y"] = "a"
    frame.to_csv(tmp_path / "t.csv", index=False)
    probs = np.eye(2)[[1, 0, 1, 1, 1, 1]] * 0.8 + 0.1
    audit(read_rows(tmp_path / "t.csv", label="y", pred_probs=probs)).save(tmp_path / "audit")
    return tmp_path / "audit", frame


def test_copies_with_different_decisions_are_refused_once_they_move(tmp_path: Path) -> None:
    folder, frame = twins(tmp_path)
    write_csv(
        [Decision(0, "0", "a", "accept", "b"), Decision(2, "2", "a", "keep", "a")],
        folder / "decisions.csv",
    )
    # where nothing moved, a row is in its place
    run("apply", folder, "--out", tmp_path / "same.csv")
    assert pd.read_csv(tmp_path / "same.csv")["y"].tolist() == list("baabbb")
    frame.iloc[[0, 1, 3, 2, 4, 5]].to_csv(tmp_path / "t.csv", index=False)
    refused = run("apply", folder, "--out", tmp_path / "new.csv", code=2)
    assert "one decision for rows 0 and 2" in refused and not (tmp_path / "new.csv").exists()
    frame.iloc[[0, 1, 2, 4, 3, 5]].to_csv(tmp_path / "t.csv", index=False)  # others moved
    run("apply", folder, "--out", tmp_path / "others.csv")
    assert pd.read_csv(tmp_path / "others.csv")["y"].tolist() == list("baabbb")
    write_csv(
        [Decision(0, "0", "a", "accept", "b"), Decision(2, "2", "a", "accept", "b")],
        folder / "decisions.csv",
    )
    frame.iloc[[1, 3, 2, 0, 4, 5]].to_csv(tmp_path / "t.csv", index=False)
    # alike, it does not matter which is which
    run("apply", folder, "--out", tmp_path / "alike.csv")
    assert pd.read_csv(tmp_path / "alike.csv")["y"].tolist() == list("abbbbb")


def test_rows_that_the_source_does_not_have_are_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "t.csv", tmp_path / "new.csv"
    audit_table(path, tmp_path / "audit", frame_of(), WRITERS["csv"], id="note")
    issues = tmp_path / "audit" / "issues.csv"
    issues.with_name("checksums.json").unlink()  # which would refuse any other file
    table = pd.read_csv(issues, dtype=str, keep_default_na=False)
    table.loc[0, "row"] = "4000"
    table.to_csv(issues, index=False)
    assert "row 4000 of a source of 40 rows" in run(
        "apply", tmp_path / "audit", "--accept-all", "--out", out, code=2
    )


def test_digests_that_are_gone_or_damaged_are_refused(tmp_path: Path) -> None:
    path, out, folder = tmp_path / "t.csv", tmp_path / "new.csv", tmp_path / "audit"
    audit_table(path, folder, frame_of(), WRITERS["csv"])
    write_csv([Decision(0, "0", "dog", "accept", "cat")], folder / "decisions.csv")
    content = (folder / "rows.npy").read_bytes()
    (folder / "rows.npy").write_bytes(content[:-1])
    assert "rows.npy as it was written" in run("apply", folder, "--out", out, code=2)
    (folder / "checksums.json").unlink()
    (folder / "rows.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "got other or damaged ones" in run("apply", folder, "--out", out, code=2)
    (folder / "rows.npy").unlink()
    assert "Expected the digests of the audited rows" in run("apply", folder, "--out", out, code=2)


def test_decisions_follow_their_rows_into_another_audit(tmp_path: Path) -> None:
    path, folder, frame = tmp_path / "t.csv", tmp_path / "audit", frame_of()
    audit_table(path, folder, frame, WRITERS["csv"])
    lines = [Decision(int(row), str(row), GIVEN[row], "accept", TRUE[row]) for row in WRONG]
    write_csv(lines, folder / "decisions.csv")
    order = within_classes()
    moved = frame.iloc[order].reset_index(drop=True)
    moved.to_csv(path, index=False)
    probs = np.eye(2)[(moved["true"] == "dog").astype(int)] * 0.8 + 0.1
    audit(read_rows(path, label="y", pred_probs=probs, ignore=["true"])).save(folder, force=True)
    carried = read_log(find_decisions(folder))
    assert [order[one.row] for one in carried] == WRONG.tolist()
    assert all(one.label == moved["true"][one.row] for one in carried)
    run("apply", folder, "--out", tmp_path / "new.csv")
    found = pd.read_csv(tmp_path / "new.csv")
    assert (found["y"] == found["true"]).all()


def test_an_audit_again_does_not_learn_from_other_rows(tmp_path: Path) -> None:
    path, folder, frame = tmp_path / "t.csv", tmp_path / "audit", frame_of()
    frame.to_csv(path, index=False)
    audit(read_rows(path, label="y", ignore=["true"]), mode="fast", epochs=2, model="network").save(
        folder
    )
    write_csv([Decision(0, "0", "dog", "accept", "cat")], folder / "decisions.csv")
    frame.iloc[within_classes()].to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"it has changed: row \d+ is another one"):
        audit_again(folder)


rows = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), max_size=8)


@settings(max_examples=100)
@given(rows, st.data())
def test_followed_rows_are_equal_and_each_is_used_once(
    before: list[Any], data: st.DataObject
) -> None:
    now = data.draw(st.permutations(before)) + data.draw(rows)
    digests = [digest_rows(repr(row).encode() for row in part) for part in (before, now)]
    place, has_copies = follow_rows(*digests)
    found = [int(i) for i in place if i >= 0]
    assert len({*found}) == len(found)
    for row, (i, copied) in enumerate(zip(place.tolist(), has_copies.tolist(), strict=True)):
        count, later = before.count(before[row]), now.count(before[row])
        assert (i >= 0) == (count == later) and (i < 0 or now[i] == before[row])
        positions = [
            [k for k, other in enumerate(part) if other == before[row]] for part in (before, now)
        ]
        assert copied == (count > 1 and positions[0] != positions[1])


def test_digests_differ_where_cells_do() -> None:
    frame = pd.DataFrame(
        {
            "a": [1.0, np.nan, 0.0, 1e300, 5.0],
            "b": ["", "x", None, "é", "1.0"],
            "c": [1, 2, 3, 4, 5],
        }
    )
    digests = {row.tobytes() for row in digest_frame(frame)}
    assert len(digests) == 5
    for column, values in (("a", [2.0] * 5), ("b", ["z"] * 5), ("c", [9] * 5)):
        assert not digests & {
            row.tobytes() for row in digest_frame(frame.assign(**{column: values}))
        }
    swapped = frame.rename(columns={"a": "c", "c": "a"}).astype({"a": float, "c": float})
    assert not digests & {row.tobytes() for row in digest_frame(swapped)}
    nan = np.array([np.nan, -np.nan])
    assert (
        digest_frame(pd.DataFrame({"a": nan}))[0] == digest_frame(pd.DataFrame({"a": nan}))[1]
    ).all()
    assert len({row.tobytes() for row in digest_array(np.eye(4))}) == 4
    scipy = pytest.importorskip("scipy.sparse")
    dense = np.array([[0, 1.0], [1.0, 0], [0, 0]])
    assert len({row.tobytes() for row in digest_array(scipy.csr_matrix(dense))}) == 3
    assert (digest_array(scipy.csc_matrix(dense)) == digest_array(scipy.csr_matrix(dense))).all()
