"""`apply` carries out every kind of decision, in files of every kind: excluded rows, new classes,
merged spellings.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from handmade_audit import write_audit, write_row_digests
from PIL import Image
from typer.testing import CliRunner

from noiseproof.audit import corrected, plan_retraining, read_audit
from noiseproof.audit.apply import write_corrected
from noiseproof.audit.decisions import NO_ROW, Decision, write_csv
from noiseproof.audit.plan import plan_corrections, read_reviewed
from noiseproof.cli import app

GIVEN = ["cat", "dog", "cat ", "dog", "cat", "dog", "cot"]  # the last one is not audited
OTHER = ["dog", "cat", "cat", "cat", "dog", "cat"]
# without row 1, which is excluded; "cot" and "cat " are merged
EXPECTED = ["emu", "cat", "dog", "cat", "cat", "cat"]
DECISIONS = [
    Decision(0, "0", "cat", "other", "emu"),
    Decision(1, "1", "dog", "exclude", ""),
    Decision(2, "2", "cat ", "keep", "cat "),
    Decision(3, "3", "dog", "unclear", ""),
    Decision(3, "3", "dog", "note", "", note='blurred, "a bit"'),
    Decision(5, "5", "dog", "accept", "cat"),
    Decision(NO_ROW, "", "cat ", "merge", "cat"),
    Decision(NO_ROW, "", "cot", "merge", "cat "),
]
LIST = (
    'row,id,given_label,excluded,unclear,note\n1,1,dog,True,False,\n3,3,dog,False,True,"blurred,'
    ' ""a bit"""\n'
)


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def make(root: Path, data: Path | None, *, kind: str = "table", **config: Any) -> Path:
    """An audit of six of seven rows, and every kind of decision on it."""
    folder = write_audit(
        root / "audit",
        GIVEN[:6],
        OTHER,
        issues=6,
        kind=kind,
        data=data,
        words=GIVEN,
        source_rows=7,
        classes=["cat", "cat ", "cot", "dog"],
        **config,
    )
    write_csv(DECISIONS, folder / "decisions.csv")
    return folder


def frame() -> pd.DataFrame:
    return pd.DataFrame({"x": range(7), "y": GIVEN})


def write(path: Path) -> Path:
    """The table in a file of this ending."""
    ending = path.name.partition(".")[2]
    if ending == "parquet":
        frame().assign(y=pd.Categorical(GIVEN)).to_parquet(path)
    elif ending == "feather":
        frame().to_feather(path)
    elif ending == "xlsx":
        frame().to_excel(path, index=False)
    elif ending == "jsonl":
        path.write_text("".join(json.dumps({"x": x, "y": y}) + "\n" for x, y in enumerate(GIVEN)))
    else:
        text = "x,y\r\n" + "".join(f'{x},"{y}"\r\n' for x, y in enumerate(GIVEN))
        path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    return path


READ = {
    "csv": pd.read_csv,
    "csv.gz": pd.read_csv,
    "parquet": pd.read_parquet,
    "feather": pd.read_feather,
    "jsonl": lambda path: pd.read_json(path, lines=True),
    "xlsx": pd.read_excel,
}


@pytest.mark.parametrize("ending", READ)
@pytest.mark.parametrize("excluded", ["leave-out", "mark"])
def test_tables_of_every_kind(tmp_path: Path, ending: str, excluded: str) -> None:
    if ending in ("parquet", "feather"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    if ending == "xlsx":
        pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    folder, out = (
        make(tmp_path, write(tmp_path / f"t.{ending}"), label="y"),
        tmp_path / f"new.{ending}",
    )
    output = run("apply", folder, "--out", out, "--excluded", excluded)
    # cells of a sheet may refer to its rows
    is_left_out = excluded == "leave-out" and ending != "xlsx"
    table = READ[ending](out)  # type: ignore[operator]
    assert table["y"].tolist() == (EXPECTED if is_left_out else [EXPECTED[0], "dog", *EXPECTED[1:]])
    assert table["x"].tolist() == ([0, 2, 3, 4, 5, 6] if is_left_out else list(range(7)))
    assert (tmp_path / "new-review.csv").read_text() == LIST
    assert (
        "excluded: 1 row, left out" in output
    ) == is_left_out and "unclear: 1 row, left as before" in output
    assert "merged: 'cat ' is 'cat' in all rows" in output and "new class: 'emu' in 1 row" in output
    assert "decisions: 1 accept, 1 exclude, 1 keep, 1 other, 1 unclear" in output


def test_the_bytes_of_other_records_stay(tmp_path: Path) -> None:
    folder = make(tmp_path, write(tmp_path / "t.csv"), label="y")
    run("apply", folder, "--out", tmp_path / "new.csv")
    text = 'x,y\r\n0,"emu"\r\n2,"cat"\r\n3,"dog"\r\n4,"cat"\r\n5,"cat"\r\n6,"cat"\r\n'
    assert (tmp_path / "new.csv").read_bytes() == text.encode()


def test_the_summary_in_json_and_a_list_that_exists(tmp_path: Path) -> None:
    folder = make(tmp_path, write(tmp_path / "t.csv"), label="y")
    result = json.loads(run("apply", folder, "--out", tmp_path / "new.csv", "--json"))
    expected = {
        "changed": 2,
        "excluded": 1,
        "unclear": 1,
        "left_out": 1,
        "notes": 1,
        "new_classes": {"emu": 1},
        "merged": {"cat ": "cat", "cot": "cat"},
        "listed": str(tmp_path / "new-review.csv"),
    }
    assert expected.items() <= result.items()
    (tmp_path / "new.csv").unlink()
    assert "new-review.csv, where excluded rows are listed" in run(
        "apply", folder, "--out", tmp_path / "new.csv", code=2
    )
    assert not (tmp_path / "new.csv").exists()
    assert "leave-out or mark" in run(
        "apply", folder, "--out", tmp_path / "b.csv", "--excluded", "drop", code=2
    )


def test_pictures_are_left_out_moved_and_merged(tmp_path: Path) -> None:
    for name, label in enumerate(GIVEN):
        (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (name, 0, 0)).save(tmp_path / "photos" / label / f"{name}.png")
    order = sorted(range(7), key=lambda i: (GIVEN[i], i))
    labels = [GIVEN[i] for i in order]
    ids = [f"{GIVEN[i]}/{i}.png" for i in order]
    rows = {name: row for row, name in enumerate(order)}
    folder = write_audit(
        tmp_path / "audit",
        labels,
        ["dog" if label == "cat" else "cat" for label in labels],
        issues=7,
        kind="folder",
        data=tmp_path / "photos",
        ids=ids,
    )
    lines = [
        line if line.row == NO_ROW else line._replace(row=rows[line.row], id=ids[rows[line.row]])
        for line in DECISIONS
    ]
    write_csv(lines, folder / "decisions.csv")
    run("apply", folder, "--out", tmp_path / "new")
    written = sorted(
        path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*.png")
    )
    assert written == ["cat/2.png", "cat/4.png", "cat/5.png", "cat/6.png", "dog/3.png", "emu/0.png"]
    run("apply", folder, "--out", tmp_path / "whole", "--excluded", "mark")
    assert (tmp_path / "whole" / "dog" / "1.png").exists() and (
        tmp_path / "whole-review.csv"
    ).exists()
    write_csv([lines[0]._replace(label="../emu")], folder / "decisions.csv")
    assert "names of folders" in run("apply", folder, "--out", tmp_path / "bad", code=2)


def test_labels_alone_stay_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(14.0).reshape(7, 2))
    np.save(tmp_path / "y.npy", np.array(GIVEN))
    folder = make(tmp_path, tmp_path / "x.npy", kind="arrays", labels=str(tmp_path / "y.npy"))
    output = run("apply", folder, "--out", tmp_path / "new.npy")
    assert np.load(tmp_path / "new.npy").tolist() == [EXPECTED[0], "dog", *EXPECTED[1:]]
    assert "excluded: 1 row, still in the data, and in the list" in output
    assert (tmp_path / "new-review.csv").read_text() == LIST
    with pytest.raises(ValueError, match="Expected no rows to leave out"):
        write_corrected(read_audit(folder), {}, tmp_path / "b.npy", left_out=[1])


def test_numbers_take_no_class_that_is_a_word(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(8.0).reshape(4, 2))
    np.save(tmp_path / "y.npy", np.array([3, 4, 3, 4]))
    folder = write_audit(
        tmp_path / "audit",
        list("3434"),
        list("4343"),
        issues=4,
        kind="arrays",
        data=tmp_path / "x.npy",
        labels=str(tmp_path / "y.npy"),
    )
    write_csv([Decision(0, "0", "3", "other", "7")], folder / "decisions.csv")
    run("apply", folder, "--out", tmp_path / "new.npy")
    assert np.load(tmp_path / "new.npy").tolist() == [7, 4, 3, 4]
    write_csv([Decision(0, "0", "3", "other", "emu")], folder / "decisions.csv")
    assert "Expected a whole number as the name of a new class" in run(
        "apply", folder, "--out", tmp_path / "b.npy", code=2
    )


def test_data_in_memory(tmp_path: Path) -> None:
    folder = make(tmp_path, None, label="y")
    write_row_digests(folder, frame())
    copy = corrected(folder, frame())
    assert copy["y"].tolist() == EXPECTED and copy["x"].tolist() == copy.index.tolist() == [
        0,
        2,
        3,
        4,
        5,
        6,
    ]
    whole = [EXPECTED[0], "dog", *EXPECTED[1:]]
    assert corrected(folder, frame(), excluded="mark")["y"].tolist() == whole
    assert corrected(folder, GIVEN) == whole  # labels alone
    with pytest.raises(ValueError, match="Expected leave-out or mark"):
        corrected(folder, frame(), excluded="drop")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "library", ["pandas", "polars", "lazy", "datasets", "pyarrow", "dict", "records", "torch"]
)
def test_rows_are_left_out_of_tables_and_labels_alone_stay_whole(
    tmp_path: Path, library: str
) -> None:
    folder = make(tmp_path, None, label="y")
    write_row_digests(folder, frame())
    whole = [EXPECTED[0], "dog", *EXPECTED[1:]]
    if library in ("pandas", "polars", "lazy", "datasets"):
        module = pytest.importorskip("polars" if library == "lazy" else library)
        convert = {
            "pandas": lambda: frame(),
            "polars": lambda: module.from_pandas(frame()),
            "lazy": lambda: module.from_pandas(frame()).lazy(),
            "datasets": lambda: module.Dataset.from_pandas(frame()),
        }[library]
        table = convert()
        copy = corrected(folder, table)
        assert type(copy) is type(table)
        copy = copy.collect() if library == "lazy" else copy
        assert list(copy["y"]) == EXPECTED and list(copy["x"]) == [0, 2, 3, 4, 5, 6]
        return
    data: Any = {"dict": frame().to_dict("list"), "records": frame().to_dict("records")}.get(
        library
    )
    if library == "pyarrow":
        data = pytest.importorskip("pyarrow").Table.from_pandas(frame())
    if library == "torch":
        data = [*zip(torch.arange(7), GIVEN, strict=True)]
        data = torch.utils.data.ConcatDataset([data])
    assert corrected(folder, data) == whole


def test_retraining_with_new_classes_excluded_rows_and_merges(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    true = np.arange(240) % 3
    table = pd.DataFrame(
        random.normal(size=(240, 4)) + 4 * np.eye(3, 4)[true], columns=list("abcd")
    )
    names = np.array(["cat", "dog", "emu"])[true].astype(object)
    names[:30:3] = "cat "
    table["y"] = names
    table.to_csv(tmp_path / "t.csv", index=False)
    folder = write_audit(
        tmp_path / "audit",
        names.tolist(),
        ["dog" if name != "dog" else "cat" for name in names],
        issues=40,
        kind="table",
        data=tmp_path / "t.csv",
        label="y",
    )
    decisions = [
        *(Decision(row, str(row), names[row], "exclude", "") for row in range(1, 13, 3)),
        *(Decision(row, str(row), names[row], "other", "kiwi") for row in range(2, 40, 3)),
        Decision(NO_ROW, "", "cat ", "merge", "cat"),
    ]
    write_csv(decisions, folder / "decisions.csv")
    audit, reviewed = read_audit(folder), read_reviewed(folder, None)
    plan = plan_corrections(audit, reviewed.decisions, reviewed.answers(), merges=reviewed.merges)
    assert (
        plan.excluded == (1, 4, 7, 10)
        and plan.becomes == {"cat ": "cat"}
        and plan.new_classes == ("kiwi",)
    )
    planned = plan_retraining(
        audit, plan.changes, reviewed.decisions, becomes=plan.becomes, epochs=5
    )
    assert planned.classes == ("cat", "cat ", "dog", "emu", "kiwi")
    assert not (planned.corrected == 1).any() and planned.excluded is not None
    found = planned.run()
    held_excluded = 4 - int(planned.excluded.sum())  # these are neither trained nor tested on
    assert (
        found.train_rows + found.held_rows == 240 - 4 and len(planned.given) == 240 - held_excluded
    )
    assert found.changed == int((planned.given != planned.corrected)[~planned.held].sum())
    assert "given labels" in run(
        "apply", folder, "--out", tmp_path / "new.csv", "--retrain", "--epochs", "2"
    )
