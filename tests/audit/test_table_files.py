"""Every kind of table file: read, audited, shown, and written back with all but the changed cells
as it was.
"""

from __future__ import annotations

import gzip
import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_audit
from typer.testing import CliRunner

from noiseproof.audit import audit, corrected, read_audit, read_rows, write_corrected
from noiseproof.audit.apply import default_out
from noiseproof.audit.sources import open_rows
from noiseproof.cli import app
from noiseproof.core.tablefiles import KINDS, table_kind

N, WRONG = 24, 5
LABELS = ["café", "thé"] * (N // 2)
GIVEN = [LABELS[i] if i != WRONG else "café" for i in range(N)]
PREDICTED = np.array([[0.9, 0.1], [0.1, 0.9]] * (N // 2))  # contradict the label of row WRONG alone
FRAME = pd.DataFrame(
    {"name": [f"r{i}" for i in range(N)], "size": [i * 7 % 5 + 0.5 for i in range(N)], "y": GIVEN}
)
Written = tuple[Path, dict[str, Any]]


def as_csv(**options: Any) -> str:
    return FRAME.to_csv(index=False, **options)


def semicolons(folder: Path) -> Written:
    (folder / "t.csv").write_text(as_csv(sep=";", decimal=","), "utf-8")
    return folder / "t.csv", {}


def tabs(folder: Path) -> Written:
    (folder / "t.csv").write_text(as_csv(sep="\t", lineterminator="\r\n"), "utf-8", newline="")
    return folder / "t.csv", {}


def bars(folder: Path) -> Written:
    (folder / "t.csv.gz").write_bytes(gzip.compress(as_csv(sep="|").encode(), mtime=0))
    return folder / "t.csv.gz", {}


def utf16(folder: Path) -> Written:
    (folder / "t.csv").write_bytes(as_csv(sep=";").encode("utf-16"))
    return folder / "t.csv", {}


def utf16_big_tsv(folder: Path) -> Written:
    (folder / "t.tsv").write_bytes(b"\xfe\xff" + as_csv(sep="\t").encode("utf-16-be"))
    return folder / "t.tsv", {}


def utf8_with_mark(folder: Path) -> Written:
    (folder / "t.csv").write_bytes(as_csv().encode("utf-8-sig"))
    return folder / "t.csv", {}


def windows(folder: Path) -> Written:
    (folder / "t.csv").write_bytes(as_csv().encode("cp1252"))
    return folder / "t.csv", {}


def no_header(folder: Path) -> Written:
    (folder / "t.csv").write_text(as_csv(header=False), "utf-8")
    return folder / "t.csv", {"label": "2", "id": "0", "header": False}


def json_lines(folder: Path) -> Written:
    lines = [json.dumps(row, ensure_ascii=False) for row in FRAME.to_dict("records")]
    # spaces, and a y inside another value
    lines[3] = lines[3].replace('"y": ', ' "why": [1, {"y": "}"}] ,"y" :\t')
    (folder / "t.jsonl").write_text("\n".join([*lines[:10], "", *lines[10:]]), "utf-8")
    return folder / "t.jsonl", {}


def escaped_json_lines(folder: Path) -> Written:
    FRAME.to_json(folder / "t.ndjson.gz", orient="records", lines=True, force_ascii=True)
    return folder / "t.ndjson.gz", {}


def excel(folder: Path) -> Written:
    openpyxl = pytest.importorskip("openpyxl")
    from openpyxl.chart import BarChart, Reference
    from openpyxl.styles import Font

    book = openpyxl.Workbook()
    sheet = book.active
    for row in [list(FRAME.columns), *FRAME.to_numpy().tolist()]:
        sheet.append(row)
    sheet.insert_rows(4)  # a blank row is none
    sheet["C8"].font = Font(bold=True)  # row 5
    sheet["E1"] = None
    other = book.create_sheet("other")
    other["A1"] = "=SUM(Sheet!B2:B9)"
    chart = BarChart()
    chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=9))
    other.add_chart(chart, "C3")
    book.save(folder / "t.xlsx")
    return folder / "t.xlsx", {}


def excel_without_header(folder: Path) -> Written:
    pytest.importorskip("openpyxl")
    FRAME.to_excel(folder / "t.xlsx", index=False, header=False)
    return folder / "t.xlsx", {"label": "2", "id": "0", "header": False}


def feather(folder: Path) -> Written:
    pytest.importorskip("pyarrow")
    FRAME.to_feather(folder / "t.feather")
    return folder / "t.feather", {}


def arrow_stream(folder: Path) -> Written:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({**FRAME[["name", "size"]], "y": pa.array(GIVEN).dictionary_encode()})
    with (
        pa.OSFile(str(folder / "t.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table.replace_schema_metadata({"who": "me"}), max_chunksize=10)
    return folder / "t.arrow", {}


def parquet(folder: Path) -> Written:
    pytest.importorskip("pyarrow")
    FRAME.assign(y=FRAME["y"].astype("category")).to_parquet(folder / "t.pq")
    return folder / "t.pq", {}


FILES: dict[str, Callable[[Path], Written]] = {
    write.__name__: write
    for write in (
        semicolons,
        tabs,
        bars,
        utf16,
        utf16_big_tsv,
        utf8_with_mark,
        windows,
        no_header,
        json_lines,
        escaped_json_lines,
        excel,
        excel_without_header,
        feather,
        arrow_stream,
        parquet,
    )
}


def test_every_kind_of_table_file_has_an_example(tmp_path: Path) -> None:
    kinds = set()
    for name, write in FILES.items():
        (tmp_path / name).mkdir()
        kinds.add(table_kind(write(tmp_path / name)[0]))
    assert kinds == {*KINDS}


@pytest.mark.parametrize("name", FILES)
def test_a_table_file_is_read_shown_and_corrected(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, options = FILES[name](tmp_path)
    before, options = path.read_bytes(), {"label": "y", "id": "name", **options}

    # read: the same rows as the DataFrame has
    rows, expected = read_rows(path, **options), read_rows(FRAME, label="y", id="name")
    assert (
        rows.classes == expected.classes == ("café", "thé")
        and rows.given.tolist() == expected.given.tolist()
    )
    assert rows.names.tolist() == FRAME["name"].tolist()
    np.testing.assert_array_equal(rows.x, expected.x)

    # show: what a saved audit finds
    report = audit(read_rows(path, **options, pred_probs=PREDICTED))
    assert report.label_issues.is_issue.nonzero()[0].tolist() == [WRONG]
    report.save("audit")
    saved = read_audit("audit")
    fields = dict(open_rows(saved.config).show(WRONG, "r5")["fields"])
    shown = [value for key, value in fields.items() if key not in ("why",)][:2]
    assert shown[0] == "r5" and float(shown[1].replace(",", ".")) == FRAME["size"][WRONG]

    # write_corrected: one label differs
    out = write_corrected(saved, {WRONG: "thé"}, default_out(saved))
    assert table_kind(out) == table_kind(path) and path.read_bytes() == before
    again = read_rows(out, **options)
    assert [
        again.classes[k] for k in again.given
    ] == LABELS and again.names.tolist() == rows.names.tolist()
    np.testing.assert_array_equal(again.x, rows.x)
    assert write_corrected(saved, {WRONG: "thé"}, out, same_ok=True) == out
    assert write_corrected(saved, {}, f"same-{out.name}").exists()
    CHECKS.get(name, check_bytes)(path, out)


def check_bytes(path: Path, out: Path) -> None:
    """All bytes but those of the label are those of the original."""
    before, after = (
        gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes()
        for p in (path, out)
    )
    same = Path(f"same-{out.name}").read_bytes()
    assert (gzip.decompress(same) if out.suffix == ".gz" else same) == before
    head = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    tail = next(
        i for i, (a, b) in enumerate(zip(before[::-1], after[::-1], strict=False)) if a != b
    )
    encoding = (
        "utf-16-le"
        if before[:2] == b"\xff\xfe"
        else "utf-16-be"
        if before[:2] == b"\xfe\xff"
        else "utf-8"
    )
    if b"caf\xe9" in before:
        encoding = "cp1252"
    assert before[:head] == after[:head] and 0 < len(before) - head - tail <= len(
        "caf\\u00e9".encode(encoding)
    )
    old, new = (text.decode(encoding).replace("\\u00e9", "é") for text in (before, after))
    assert new.count("thé") == old.count("thé") + 1 and new.count("café") == old.count("café") - 1
    assert [
        i
        for i, (a, b) in enumerate(zip(old.split("café"), new.split("café"), strict=False))
        if a != b
    ]


def check_excel(path: Path, out: Path) -> None:
    """Other cells and sheets, styles, formulas and charts stay."""
    import openpyxl

    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out) as new:
        assert sorted(old.namelist()) == sorted(new.namelist())
    before, after = openpyxl.load_workbook(path), openpyxl.load_workbook(out)
    cells = [
        (a.coordinate, a.value, b.value)
        for first, second in zip(before.worksheets[0], after.worksheets[0], strict=True)
        for a, b in zip(first, second, strict=True)
        if a.value != b.value
    ]
    place = "C8" if len(before.worksheets) > 1 else "C6"
    assert cells == [(place, "café", "thé")]
    if len(before.worksheets) > 1:
        assert (
            after.worksheets[0]["C8"].font.bold
            and after["other"]["A1"].value == "=SUM(Sheet!B2:B9)"
        )
        assert after["other"]._charts  # openpyxl drops what it can't read


def check_arrow(path: Path, out: Path) -> None:
    """Schema, metadata and all other columns are those of the original."""
    from noiseproof.data.frames import read_arrow

    before, after = read_arrow(path), read_arrow(out)
    assert before.schema.equals(after.schema, check_metadata=True)
    assert (
        before.drop_columns("y").equals(after.drop_columns("y"))
        and after["y"].to_pylist() == LABELS
    )
    assert path.read_bytes()[:6] == out.read_bytes()[:6]  # a file, or a stream


CHECKS: dict[str, Callable[[Path, Path], None]] = {
    "excel": check_excel,
    "excel_without_header": check_excel,
    "feather": check_arrow,
    "arrow_stream": check_arrow,
    "parquet": check_arrow,
}


def test_numbers_truth_values_and_dates_stay_such_in_excel_and_json(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    dates = pd.to_datetime(["2020-01-01", "2021-05-05"])
    for k, values in enumerate(([3, 7], [True, False], list(dates.to_pydatetime()), [0.0, 1.0])):
        frame = pd.DataFrame({"x": range(N), "y": [values[label == "thé"] for label in GIVEN]})
        p = PREDICTED if str(values[0]) < str(values[1]) else PREDICTED[:, ::-1]
        folder = tmp_path / str(k)
        frame.to_excel(tmp_path / "t.xlsx", index=False)
        audit(read_rows(tmp_path / "t.xlsx", label="y", pred_probs=p)).save(folder)
        saved = read_audit(folder)
        write_corrected(saved, {WRONG: saved.classes[p[WRONG].argmax()]}, tmp_path / f"{k}.xlsx")
        new = openpyxl.load_workbook(tmp_path / f"{k}.xlsx").worksheets[0][f"B{WRONG + 2}"].value
        assert (new, type(new)) == (values[1], type(values[1])) or new == values[1] == 1.0
        if k != 2:  # JSON has no dates
            frame.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
            audit(read_rows(tmp_path / "t.jsonl", label="y", pred_probs=p)).save(folder, force=True)
            write_corrected(
                read_audit(folder),
                {WRONG: saved.classes[p[WRONG].argmax()]},
                tmp_path / f"{k}.jsonl",
            )
            new = json.loads((tmp_path / f"{k}.jsonl").read_text().splitlines()[WRONG])["y"]
            assert new == values[1] and type(new) is type(values[1] + 0 if k == 3 else values[1])


def test_labels_made_by_formulas_are_not_overwritten(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    FRAME.to_excel(tmp_path / "t.xlsx", index=False)
    audit(read_rows(tmp_path / "t.xlsx", label="y", pred_probs=PREDICTED)).save(tmp_path / "audit")
    with zipfile.ZipFile(tmp_path / "t.xlsx") as old:
        parts = {name: old.read(name) for name in old.namelist()}
    before, cell, after = parts["xl/worksheets/sheet1.xml"].partition(b'<c r="C7"')  # of row 5
    with zipfile.ZipFile(tmp_path / "t.xlsx", "w") as new:  # with the value that Excel has computed
        parts["xl/worksheets/sheet1.xml"] = before + cell + after.replace(b">", b"><f>A1</f>", 1)
        for name, content in parts.items():
            new.writestr(name, content)
    with pytest.raises(ValueError, match="got a formula in C7. Paste them as values"):
        write_corrected(read_audit(tmp_path / "audit"), {WRONG: "thé"}, tmp_path / "new.xlsx")
    assert not (tmp_path / "new.xlsx").exists()
    write_corrected(read_audit(tmp_path / "audit"), {WRONG + 1: "thé"}, tmp_path / "new.xlsx")


def test_words_that_begin_like_formulas_stay_words_in_excel(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    FRAME.to_excel(tmp_path / "t.xlsx", index=False)
    audit(read_rows(tmp_path / "t.xlsx", label="y", pred_probs=PREDICTED)).save(tmp_path / "audit")
    saved = read_audit(tmp_path / "audit")
    write_corrected(saved, {WRONG: "=1+1"}, tmp_path / "new.xlsx")
    cell = openpyxl.load_workbook(tmp_path / "new.xlsx").worksheets[0]["C7"]
    assert (cell.value, cell.data_type) == ("=1+1", "s")
    with pytest.raises(
        ValueError, match=r"words and numbers that Excel can hold, got 'a\\x0b'. Undo the decision"
    ):
        write_corrected(saved, {WRONG: "a\x0b"}, tmp_path / "newer.xlsx")
    assert not (tmp_path / "newer.xlsx").exists()


def test_an_excel_file_that_is_written_again_is_known_by_its_parts(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    FRAME.to_excel(tmp_path / "t.xlsx", index=False)
    audit(read_rows(tmp_path / "t.xlsx", label="y", pred_probs=PREDICTED)).save(tmp_path / "audit")
    saved = read_audit(tmp_path / "audit")
    out = write_corrected(saved, {WRONG: "thé"}, tmp_path / "new.xlsx")
    time.sleep(2.1)  # the workbook has the time of writing in seconds, its archive in two
    assert write_corrected(saved, {WRONG: "thé"}, out, same_ok=True) == out
    with pytest.raises(FileExistsError):
        write_corrected(saved, {}, out, same_ok=True)


def test_a_changed_line_of_json_is_written_as_the_others_are(tmp_path: Path) -> None:
    for name, separators in (("spaces", (", ", ": ")), ("dense", (",", ":"))):
        lines = [json.dumps(row, separators=separators) for row in FRAME.to_dict("records")]
        lines[3] = lines[3].replace(":", " : ")
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(lines))
        audit(read_rows(path, label="y", pred_probs=PREDICTED)).save(tmp_path / name)
        out = write_corrected(
            read_audit(tmp_path / name),
            {WRONG: "thé"},
            tmp_path / f"{name}-new.jsonl",
            left_out=[7],
        )
        lines[WRONG] = lines[WRONG].replace("caf\\u00e9", "th\\u00e9")
        assert out.read_text().splitlines() == [line for row, line in enumerate(lines) if row != 7]


def test_a_label_that_the_encoding_lacks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(as_csv().encode("cp1252"))
    names = ["café", "thé", "茶"]
    p = np.concatenate([PREDICTED, np.zeros((N, 1))], 1)
    audit(read_rows(tmp_path / "t.csv", label="y", pred_probs=p, classes=names)).save(
        tmp_path / "audit"
    )
    with pytest.raises(
        ValueError,
        match="labels that cp1252 can write in .*t.csv, got '茶'. Save the table as UTF-8",
    ):
        write_corrected(read_audit(tmp_path / "audit"), {WRONG: "茶"}, tmp_path / "new.csv")


def test_a_trusted_table_may_be_of_another_kind(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "t.csv", sep=";", decimal=",", index=False)
    FRAME[:6].to_json(tmp_path / "more.jsonl", orient="records", lines=True)
    rows = read_rows(tmp_path / "t.csv", label="y", id="name", trusted=tmp_path / "more.jsonl")
    assert len(rows) == N + 6 and rows.trusted is not None and rows.trusted.sum() == 6
    assert "Numbers were read with a decimal comma." in rows.notes


def test_a_table_in_memory_is_corrected_as_before(tmp_path: Path) -> None:
    audit(read_rows(FRAME, label="y", pred_probs=PREDICTED)).save(tmp_path / "audit")
    assert corrected(tmp_path / "audit", FRAME, accept_all=True, yes=True)["y"].tolist() == LABELS


@pytest.mark.parametrize("where", ["end", "middle"])
@pytest.mark.parametrize("ending", ["csv.gz", "jsonl.gz"])
def test_a_packed_file_that_is_cut_off_or_damaged_is_refused_by_name(
    tmp_path: Path, ending: str, where: str
) -> None:
    path = tmp_path / f"t.{ending}"
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.normal(size=20_000), "y": ["a", "b"] * 10_000})
    (
        frame.to_csv(path, index=False)
        if ending == "csv.gz"
        else frame.to_json(path, orient="records", lines=True)
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    damaged = bytearray(whole)
    damaged[len(whole) // 2 if where == "middle" else -6] ^= 4
    for content in (whole[: len(whole) // 2], bytes(damaged)):
        path.write_bytes(content)
        done = CliRunner().invoke(
            app, ["audit", str(path), "--label", "y", "--out", str(tmp_path / "audit")]
        )
        assert done.exit_code == 2 and str(path) in done.stderr and "Expected" in done.stderr, (
            done.output
        )
        assert "cut off or damaged" in done.stderr
    assert not (tmp_path / "audit").exists()
    folder = write_audit(
        tmp_path / "made",
        ["a", "b"] * 10_000,
        ["b", "a"] * 10_000,
        issues=1,
        kind="table",
        data=tmp_path / "gone",
        label="y",
    )
    config = json.loads((folder / "config.json").read_text()) | {"data": str(path)}
    (folder / "config.json").write_text(json.dumps(config))
    done = CliRunner().invoke(
        app, ["apply", str(folder), "--accept-all", "--yes", "--out", f"{tmp_path}/new.{ending}"]
    )
    assert done.exit_code == 2 and "cut off or damaged" in done.stderr, done.output
