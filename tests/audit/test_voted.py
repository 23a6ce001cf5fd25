"""Corrected data of audits of annotators alone: the consensus in new columns, of every kind of
table and of arrays.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from crowds import simulate
from test_apply import run, write_decisions

from noiseproof.audit import audit, consensus, corrected
from noiseproof.audit.csvfile import Changes, TextRecords
from noiseproof.audit.files import read_audit

NAMES = np.array(["ant", "bee", "cät"])


def items_and_votes(rows: int = 60, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame, Any]:
    """Rows with features, votes on all of them but row 7, and these as class numbers, (N, A)."""
    crowd = simulate(seed, rows=rows, annotators=6, per_row=3)
    noise = np.random.default_rng(seed).standard_normal(rows)
    items = pd.DataFrame(
        {
            "name": [f"i{k:03}" for k in range(rows)],
            "x": (crowd.truth + noise).round(4),
            "note": ['a "b", c', "é\nf"] * (rows // 2),
        }
    )
    votes = crowd.votes[np.arange(rows) != 7]
    row = np.delete(np.arange(rows), 7)[votes.row]
    lines = pd.DataFrame(
        {
            "row": row,
            "annotator": np.array(votes.names)[votes.annotator],
            "label": NAMES[votes.label],
        }
    )
    return items, lines, crowd.votes.table()


def audited(path: Any, folder: Path, votes: Any, **options: Any) -> pd.DataFrame:
    """Audit rows by votes alone, and return the labels with their qualities, by row."""
    report = audit(path, annotations=votes, mode="fast", epochs=1, device="cpu", **options)
    report.save(folder)
    return read_audit(folder).issues.set_index("row")[["given_label", "label_quality"]].sort_index()


def write(items: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".xlsx":
        items.to_excel(path, index=False)
    elif path.suffix == ".jsonl":
        items.to_json(path, orient="records", lines=True, force_ascii=False)
    elif path.suffix == ".parquet":
        items.to_parquet(path, index=False)
    else:
        items.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".xlsx":
        return pd.read_excel(path)
    if path.suffix == ".jsonl":
        return pd.read_json(path, lines=True)
    return (
        pd.read_parquet(path)
        if path.suffix == ".parquet"
        else pd.read_csv(path, sep="\t" if ".tsv" in path.name else ",")
    )


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz", ".jsonl", ".xlsx", ".parquet"])
def test_the_consensus_is_written_beside_what_the_table_has(tmp_path: Path, ending: str) -> None:
    items, lines, table = items_and_votes()
    write(items, tmp_path / f"items{ending}")
    lines.to_csv(tmp_path / "votes.csv", index=False)
    labels = audited(tmp_path / f"items{ending}", tmp_path / "audit", tmp_path / "votes.csv")
    out = tmp_path / f"corrected{ending}"
    printed = run("apply", tmp_path / "audit", "--out", out, "--votes")
    assert (
        "labels: the consensus (majority) of 6 annotators on 59 of 60 rows (1: no label)" in printed
    )
    written = read(out)
    assert list(written.columns) == [*items.columns, "label", "label_quality", "votes"]
    pd.testing.assert_frame_equal(written[items.columns], items)
    assert (
        written["label"].isna().tolist()
        == written["votes"].isna().tolist()
        == [k == 7 for k in range(60)]
    )
    kept = written.drop(index=7)
    assert kept["label"].tolist() == labels["given_label"].tolist()
    np.testing.assert_allclose(
        kept["label_quality"].astype(float), labels["label_quality"], atol=1e-6
    )
    majority = consensus(table, 3, method="majority").label
    counts = np.stack([(table == k).sum(1) for k in range(3)], 1)
    clear = np.sort(counts, 1)[:, -1] > np.sort(counts, 1)[:, -2]
    clear[7] = False
    assert written["label"][clear].tolist() == NAMES[majority[clear]].tolist()
    said = {
        row: dict(zip(part["annotator"], part["label"], strict=True))
        for row, part in lines.groupby("row")
    }
    assert {row: json.loads(cell) for row, cell in kept["votes"].items()} == said


def test_bytes_of_a_text_file_stay(tmp_path: Path) -> None:
    """Odd quotes, CRLF, a short record, blank lines, no line end at the end; a UTF-16 file stays
    one.
    """
    head, *rows = [
        '"x","w"',
        *(f"{k % 3}.5{k}" + (',"a ""q"""' if k % 2 else "") for k in range(24)),
    ]
    text = "\r\n".join([head, "", *rows])
    votes = pd.DataFrame({"row": np.repeat(np.arange(24), 2), "annotator": list("ab") * 24})
    votes["label"] = np.where((votes["row"] % 3 == 0), "=no", "yes, sir")
    for encoding in ("utf-8", "utf-16"):
        path, out = tmp_path / f"{encoding}.csv", tmp_path / f"{encoding}-out.csv"
        path.write_bytes(text.encode(encoding))
        labels = audited(path, tmp_path / encoding, votes)
        run("apply", tmp_path / encoding, "--out", out)
        got = out.read_bytes().decode(encoding).split("\r\n")
        assert got[:2] == [f"{head},label,label_quality", ""] and len(got) == 26
        for line, old, (name, quality) in zip(
            got[2:], rows, labels.itertuples(index=False), strict=True
        ):
            comma = "" if old.endswith('"') else ","
            cell = f'"{name}"' if "," in name else name
            assert line == f"{old}{comma},{cell},{round(quality, 6)}"


def test_cells_that_no_column_has_stay_last(tmp_path: Path) -> None:
    """Rows that end with a comma, where the header does not."""
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,x,\n2,y,\n3\n", "utf-8")
    out = io.BytesIO()
    TextRecords(path).write(Changes(added={"label": ["cat", "dog", None]}), out)
    assert out.getvalue().decode() == "a,b,label\n1,x,cat,\n2,y,dog,\n3,,\n"


def test_decisions_count_and_rows_are_found_again(tmp_path: Path) -> None:
    items, lines, _ = items_and_votes()
    items.to_csv(tmp_path / "items.csv", index=False)
    named = lines.assign(row=items["name"].to_numpy()[lines["row"]])
    labels = audited(tmp_path / "items.csv", tmp_path / "audit", named, id="name")
    given = labels["given_label"]
    other = {row: next(name for name in NAMES if name != given[row]) for row in (3, 4)}
    decisions = [
        (3, "i003", given[3], "other", other[3], "me"),
        (4, "i004", given[4], "keep", given[4], "me"),
        (5, "i005", given[5], "exclude", "", "me"),
    ]
    write_decisions(tmp_path / "audit", *decisions)
    order = np.random.default_rng(1).permutation(60)
    items.iloc[order].to_csv(tmp_path / "items.csv", index=False)
    result = json.loads(run("apply", tmp_path / "audit", "--out", tmp_path / "out.csv", "--json"))
    assert result["voted"] and result["changed"] == 1
    written = pd.read_csv(tmp_path / "out.csv").set_index("name")
    assert "i005" not in written.index and len(written) == 59
    assert written.loc["i003", ["label", "label_quality"]].tolist() == [other[3], 1.0]
    assert written.loc["i004", ["label", "label_quality"]].tolist() == [given[4], 1.0]
    for row in set(labels.index) - {3, 4, 5}:
        name, quality = written.loc[f"i{row:03}", ["label", "label_quality"]]
        assert name == given[row] and quality == pytest.approx(
            labels["label_quality"][row], abs=1e-6
        )
    items.assign(x=items["x"] + 1).to_csv(tmp_path / "items.csv", index=False)
    assert "have changed since" in run(
        "apply", tmp_path / "audit", "--out", tmp_path / "again.csv", code=2
    )


def test_suggestions_and_names_that_are_taken(tmp_path: Path) -> None:
    items, lines, _ = items_and_votes(120)
    items = items.assign(label="old", z=1.5)
    items.to_csv(tmp_path / "items.csv", index=False)
    audited(tmp_path / "items.csv", tmp_path / "audit", lines, ignore=["label", "name"])
    run("apply", tmp_path / "audit", "--out", tmp_path / "all.csv", "--accept-all", "--yes")
    written, issues = (
        pd.read_csv(tmp_path / "all.csv"),
        read_audit(tmp_path / "audit").issues.set_index("row"),
    )
    assert list(written.columns)[-2:] == ["consensus_label", "consensus_label_quality"]
    likelier = issues["is_label_issue"] & (issues["suggestion_quality"] > issues["label_quality"])
    expected = issues["suggested_label"].where(likelier, issues["given_label"]).sort_index()
    quality = issues["suggestion_quality"].where(likelier, issues["label_quality"]).sort_index()
    assert written["consensus_label"].drop(index=7).tolist() == expected.tolist()
    np.testing.assert_allclose(written["consensus_label_quality"].drop(index=7), quality, atol=1e-6)
    assert "--votes" in run("apply", "--help")


def test_copies_of_rows_that_moved_have_one_label(tmp_path: Path) -> None:
    """Their votes and qualities may differ: all their cells are the same, so that either may have
    the other's.
    """
    items, lines, _ = items_and_votes()
    items.loc[[20, 21, 22]] = items.loc[[20, 20, 20]].to_numpy()  # three copies of a row
    lines = lines[~lines["row"].isin([20, 21, 22])]
    more = [(row, name, "bee") for row in (20, 21, 22) for name in ("a0", "a1", "a2")[: row - 19]]
    lines = pd.concat([lines, pd.DataFrame(more, columns=list(lines.columns))])
    lines.to_csv(tmp_path / "votes.csv", index=False)
    write(items, tmp_path / "items.csv")
    labels = audited(tmp_path / "items.csv", tmp_path / "audit", tmp_path / "votes.csv")
    assert (labels.loc[[20, 21, 22], "given_label"] == "bee").all()
    assert labels.loc[[20, 21, 22], "label_quality"].nunique() > 1
    order = np.random.default_rng(0).permutation(60)
    write(items.iloc[order], tmp_path / "items.csv")
    run("apply", tmp_path / "audit", "--out", tmp_path / "moved.csv", "--votes")
    moved = read(tmp_path / "moved.csv")
    assert (moved.loc[moved["name"] == "i020", "label"] == "bee").all()
    votes = [json.loads(cell) for cell in moved.loc[moved["name"] == "i020", "votes"]]
    assert sorted(map(len, votes)) == [1, 2, 3]
    others = moved[moved["name"] != "i020"].set_index("name")["label"].dropna()
    given = labels["given_label"].set_axis(items["name"].drop(index=7)).drop(index="i020")
    assert others.sort_index().tolist() == given.sort_index().tolist()
    write_decisions(tmp_path / "audit", (20, "20", "bee", "other", "ant"))
    message = run("apply", tmp_path / "audit", "--out", tmp_path / "no.csv", code=2)
    assert "copies that have moved" in message and "Decide on both alike" in message


def test_arrays_get_a_table_of_labels(tmp_path: Path) -> None:
    items, lines, _ = items_and_votes()
    numbered = lines.assign(label=lines["label"].map({name: k for k, name in enumerate(NAMES)}))
    x = items[["x"]].to_numpy(np.float32)
    np.save(tmp_path / "x.npy", x)
    numbered.to_csv(tmp_path / "votes.csv", index=False)
    labels = audited(tmp_path / "x.npy", tmp_path / "audit", tmp_path / "votes.csv")
    run("apply", tmp_path / "audit", "--out", tmp_path / "labels.csv")
    written = pd.read_csv(tmp_path / "labels.csv", dtype={"label": "Int64"})
    assert written["row"].tolist() == list(range(60)) and written["label"].isna().tolist() == [
        k == 7 for k in range(60)
    ]
    assert written["label"].drop(index=7).tolist() == labels["given_label"].astype(int).tolist()
    pd.testing.assert_frame_equal(corrected(tmp_path / "audit", x), written)
    order = np.random.default_rng(0).permutation(60)
    np.save(tmp_path / "x.npy", x[order])
    run("apply", tmp_path / "audit", "--out", tmp_path / "moved.csv")
    moved = pd.read_csv(tmp_path / "moved.csv", dtype={"label": "Int64"})
    assert moved["label"].tolist() == written["label"].iloc[order].tolist()
    assert "Expected a .csv file" in run(
        "apply", tmp_path / "audit", "--out", tmp_path / "labels.npy", code=2
    )
    probs = np.full((60, 3), 1 / 3)
    report = audit(pred_probs=probs, annotations=numbered)
    report.save(tmp_path / "predictions")
    table = corrected(tmp_path / "predictions", probs, votes=True)
    assert table["label"].drop(index=7).astype(int).tolist() == report.data.given.tolist()
    assert list(table.columns) == ["row", "label", "label_quality", "votes"]
    run("apply", tmp_path / "predictions", "--out", tmp_path / "of-predictions.csv")
    assert len(pd.read_csv(tmp_path / "of-predictions.csv")) == 60


@pytest.mark.parametrize("library", ["pandas", "polars", "lazy", "pyarrow", "datasets", "records"])
def test_tables_in_memory_get_columns(tmp_path: Path, library: str) -> None:
    items, lines, _ = items_and_votes()
    labels = audited(items, tmp_path / "audit", lines)
    if library in ("polars", "lazy"):
        polars = pytest.importorskip("polars")
        data = polars.from_pandas(items).lazy() if library == "lazy" else polars.from_pandas(items)
        copy = corrected(tmp_path / "audit", data)
        frame = (copy.collect() if library == "lazy" else copy).to_pandas()
    elif library == "pyarrow":
        table = corrected(
            tmp_path / "audit", pytest.importorskip("pyarrow").Table.from_pandas(items)
        )
        # of other libraries, the labels alone are returned
        frame = pd.concat([items, table], axis=1)
    elif library == "datasets":
        frame = corrected(
            tmp_path / "audit", pytest.importorskip("datasets").Dataset.from_pandas(items)
        ).to_pandas()
    elif library == "records":
        frame = pd.concat([items, corrected(tmp_path / "audit", items.to_dict("records"))], axis=1)
    else:
        frame = corrected(tmp_path / "audit", items.set_index(items.index + 5)).set_axis(
            items.index
        )
    pd.testing.assert_frame_equal(frame[items.columns], items)
    assert frame["label"].drop(index=7).tolist() == labels["given_label"].tolist() and pd.isna(
        frame["label"][7]
    )


def test_a_column_of_votes_needs_an_audit_of_annotators_alone(tmp_path: Path) -> None:
    items, lines, _ = items_and_votes()
    items.assign(y=np.resize(NAMES, 60)).to_csv(tmp_path / "items.csv", index=False)
    audited(tmp_path / "items.csv", tmp_path / "audit", lines, label="y")
    write_decisions(tmp_path / "audit")
    out = run("apply", tmp_path / "audit", "--votes", "--out", tmp_path / "out.csv", code=2)
    assert "Expected an audit of annotators alone" in out and not (tmp_path / "out.csv").exists()


def test_blank_cells_with_a_style_make_room(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    items, lines, _ = items_and_votes()
    write(items, tmp_path / "items.xlsx")
    book = openpyxl.load_workbook(tmp_path / "items.xlsx")
    sheet = book.active
    for place in ("D5", "F5", "E1"):
        sheet[place].font = openpyxl.styles.Font(bold=True)
    sheet["B5"].font = openpyxl.styles.Font(bold=True)
    book.save(tmp_path / "items.xlsx")
    labels = audited(tmp_path / "items.xlsx", tmp_path / "audit", lines)
    run("apply", tmp_path / "audit", "--out", tmp_path / "out.xlsx")
    sheet = openpyxl.load_workbook(tmp_path / "out.xlsx").active
    names = [cell.value for cell in sheet[1]]
    # the last column has a style alone
    assert names == [*items.columns, "label", "label_quality", None]
    assert sheet["B5"].font.bold and sheet["D5"].value == labels["given_label"][3]
    assert [sheet.cell(k + 2, 4).value for k in labels.index] == labels["given_label"].tolist()


def test_a_model_is_compared_on_consensus_and_decisions(tmp_path: Path) -> None:
    items, lines, _ = items_and_votes(120)
    items.drop(columns=["name", "note"]).to_csv(tmp_path / "items.csv", index=False)
    lines.to_csv(tmp_path / "votes.csv", index=False)
    given = audited(tmp_path / "items.csv", tmp_path / "audit", tmp_path / "votes.csv")[
        "given_label"
    ]
    other = next(name for name in NAMES if name != given[3])
    write_decisions(tmp_path / "audit", (3, "3", given[3], "other", other, "me"))
    options = ("--retrain", "--estimator", "sklearn.dummy:DummyClassifier", "--json")
    result = json.loads(run("apply", tmp_path / "audit", "--out", tmp_path / "out.csv", *options))
    assert (
        result["retrain"]["train_rows"] + result["retrain"]["held_rows"] == 119
        and result["changed"] == 1
    )
