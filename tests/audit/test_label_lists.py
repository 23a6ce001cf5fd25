"""Labels in lists: columns of JSONL, Parquet, DataFrames and Hugging Face, and matrices in .npz
files and dicts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from datasets import Image as HuggingFaceImage
from PIL import Image
from scipy.sparse import csr_matrix

from noiseproof.audit import audit, corrected, find_label_issues, read_audit, read_rows
from noiseproof.audit.apply import write_corrected
from noiseproof.audit.decisions import Decision, DecisionLog
from noiseproof.audit.inputs import read_again
from noiseproof.data.labelsets import has_lists, list_cells

NAMES = ("calm", "happy", "sad")
X = np.random.default_rng(0).normal(size=(80, 3)).round(6)
ANSWERS = np.stack([X[:, 0] > 0.2, X[:, 0] + X[:, 2] > 0.2, X[:, 1] > 0.2], 1)
SETS: list[list[str] | None] = [
    [name for name, yes in zip(NAMES, row, strict=True) if yes] for row in ANSWERS
]
SETS[7] = None  # not labelled
EMPTY = SETS.index([])
LABELLED = [i for i in range(80) if i != 7]
PROBS = np.where(ANSWERS, 0.9, 0.1)
NEW = {0: "sad|calm", 1: "(none)", 2: "happy|new"}
LISTS = {0: ["sad", "calm"], 1: [], 2: ["happy", "new"]}


def frame(labels: Any = None) -> pd.DataFrame:
    return pd.DataFrame(X, columns=list("abc")).assign(
        tags=pd.Series(SETS if labels is None else labels, dtype=object)
    )


def check(rows: Any, names: tuple[str, ...] = NAMES) -> None:
    """The labels of all rows, of which one has none and another is not labelled."""
    assert rows.labels.are_sets and rows.labels.names == names
    assert rows.row.tolist() == LABELLED and np.array_equal(rows.labels.answers, ANSWERS[LABELLED])
    assert [(one.reason, one.rows.tolist()) for one in rows.skipped] == [("no label", [7])]


def saved(folder: Path, *data: Any, **options: Any) -> Path:
    audit(read_rows(*data, pred_probs=PROBS, **options)).save(folder)
    return folder


def decide(folder: Path, words: dict[int, str]) -> None:
    issues, log = read_audit(folder).issues.set_index("row"), DecisionLog(folder / "decisions.csv")
    for row, word in words.items():
        log.add(Decision(row, issues.loc[row, "id"], issues.loc[row, "given_label"], "other", word))
    log.close()


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "arrow"])
def test_lists_in_files_are_read_and_written_back(kind: str, tmp_path: Path) -> None:
    source, out = tmp_path / f"songs.{kind}", tmp_path / f"new.{kind}"
    if kind.startswith("jsonl"):
        frame().to_json(source, orient="records", lines=True)
    else:
        table = pa.Table.from_pandas(frame())
        assert pa.types.is_list(table.schema.field("tags").type)
        if kind == "parquet":
            pq.write_table(table, source)
        else:
            with pa.ipc.new_file(source, table.schema) as writer:
                writer.write_table(table)
    check(read_rows(source, label="tags"))
    rows = read_rows(source, label="tags")
    assert any(
        "1 row was left out as not labelled, without a value in 'tags'" in note
        for note in rows.notes
    )
    folder = saved(tmp_path / "audit", source, label="tags")
    write_corrected(read_audit(folder), NEW, out)
    read: Any = {"parquet": pd.read_parquet, "arrow": pd.read_feather}.get(
        kind, lambda p: pd.read_json(p, lines=True)
    )
    after = read(out)
    got = [None if cell is None else list(cell) for cell in after["tags"]]
    assert got == [LISTS.get(i, each) for i, each in enumerate(SETS)]
    pd.testing.assert_frame_equal(after.drop(columns="tags"), read(source).drop(columns="tags"))
    if kind in ("parquet", "arrow"):
        old, new = (
            pq.read_schema(p) if kind == "parquet" else pa.ipc.open_file(p).schema
            for p in (source, out)
        )
        assert old.equals(new)
    again = read_again(read_audit(folder))
    assert again.classes == rows.classes and np.array_equal(again.given, rows.given)


def test_bytes_of_other_lines_stay(tmp_path: Path) -> None:
    lines = [
        json.dumps({"id": i, "tags": each, "x": X[i].tolist()[0]}) for i, each in enumerate(SETS)
    ]
    lines[3] = lines[3].replace(", ", " ,  ")
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines))
    folder = saved(tmp_path / "audit", source, label="tags")
    write_corrected(read_audit(folder), NEW, tmp_path / "b.jsonl", left_out=[5])
    after = (tmp_path / "b.jsonl").read_text().split("\n")
    assert after == [
        json.dumps({**json.loads(line), "tags": LISTS[i]}) if i in LISTS else line
        for i, line in enumerate(lines)
        if i != 5
    ]


def test_a_missing_key_is_not_labelled_and_an_empty_list_or_word_is_an_answer(
    tmp_path: Path,
) -> None:
    """The same in every format: null, None and NaN are not labelled; CSV and Excel have no null."""
    words = [None if each is None else "|".join(each) for each in SETS]
    lines = [
        {"x": X[i].tolist()[0], "y": X[i].tolist()[1], **({} if each is None else {"tags": each})}
        for i, each in enumerate(SETS)
    ]
    (tmp_path / "lists.jsonl").write_text("\n".join(map(json.dumps, lines)))
    spelled = [
        {**line, "tags": "|".join(line["tags"])} if "tags" in line else line for line in lines
    ]
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, spelled)))
    frame(words).to_parquet(tmp_path / "words.parquet")
    sources: list[tuple[Any, str | None]] = [
        (tmp_path / "words.jsonl", "|"),
        (tmp_path / "words.parquet", "|"),
        (frame(words), "|"),
        (frame(words).replace({None: np.nan}), "|"),
        (tmp_path / "lists.jsonl", None),
        (frame(), None),
    ]
    for data, separator in sources:
        check(read_rows(data, label="tags", multi_label=separator))
    check(read_rows(X, labels=SETS))
    check(read_rows(X, labels=words, multi_label="|"))
    frame(words).to_csv(tmp_path / "words.csv", index=False)
    frame(words).to_excel(tmp_path / "words.xlsx", index=False)
    for name in ("words.csv", "words.xlsx"):
        rows = read_rows(tmp_path / name, label="tags", multi_label="|")
        assert (
            len(rows) == 80
            and not rows.labels.answers[7].any()
            and not rows.labels.answers[EMPTY].any()
        )


# --- in memory ------------------------------------------------------------------------------------


def in_memory(kind: str) -> Any:
    numbers = [None if each is None else [NAMES.index(name) for name in each] for each in SETS]
    columns: dict[str, Any] = {name: X[:, k] for k, name in enumerate("abc")}
    if kind == "pandas":
        return frame()
    if kind == "tuples":
        return frame([None if each is None else tuple(each) for each in SETS])
    if kind == "sets":
        return frame([None if each is None else {*each} for each in SETS])
    if kind == "polars":
        return pl.DataFrame({**columns, "tags": SETS})
    if kind == "arrow":
        return pa.table({**columns, "tags": SETS})
    if kind == "dict":
        return {**columns, "tags": SETS}
    rows = {name: values.tolist() for name, values in columns.items()}
    if kind == "hugging-face":
        return Dataset.from_dict({**rows, "tags": SETS})
    features = Features(
        {
            **{name: Value("float64") for name in "abc"},
            "tags": Sequence(ClassLabel(names=list(NAMES))),
        }
    )
    return Dataset.from_dict({**rows, "tags": numbers}, features=features)


def cells_of(data: Any) -> list[Any]:
    if isinstance(data, pa.Table):
        return list(data.column("tags").to_pylist())
    if isinstance(data, pl.DataFrame):
        return data["tags"].to_list()
    return list(data["tags"])


@pytest.mark.parametrize(
    "kind", ["pandas", "tuples", "sets", "polars", "arrow", "dict", "hugging-face", "class-labels"]
)
def test_lists_in_memory_are_read_and_returned(kind: str, tmp_path: Path) -> None:
    data = in_memory(kind)
    check(read_rows(data, label="tags"))
    folder = saved(tmp_path / "audit", data, label="tags")
    words = {
        row: word.replace("|new", "") if kind == "class-labels" else word
        for row, word in NEW.items()
    }
    decide(folder, words)
    after = corrected(folder, data)
    is_whole = kind not in ("arrow", "dict")  # of which the labels alone are returned
    assert type(after) is (type(data) if is_whole else list)
    want: list[Any] = [LISTS.get(i, each) for i, each in enumerate(SETS)]
    if kind == "class-labels":
        want[2] = ["happy"]
        want = [None if each is None else [NAMES.index(name) for name in each] for each in want]
        assert after.features == data.features
    same = {"tuples": tuple, "sets": set}.get(kind, list)
    cells = (
        cells_of(after) if is_whole else [None if cell is None else list(cell) for cell in after]
    )
    assert cells == [None if each is None else same(each) for each in want]
    if kind == "pandas":
        pd.testing.assert_frame_equal(after.drop(columns="tags"), data.drop(columns="tags"))
        moved = corrected(folder, data.iloc[::-1])  # rows are found by their content
        assert moved["tags"].tolist() == want[::-1]


def test_a_new_label_has_no_number_among_class_names(tmp_path: Path) -> None:
    data = in_memory("class-labels")
    folder = saved(tmp_path / "audit", data, label="tags")
    decide(folder, NEW)
    with pytest.raises(
        ValueError, match="labels among the class names of 'tags', got 'new'. Add them"
    ):
        corrected(folder, data)


def test_pictures_of_hugging_face_with_lists(tmp_path: Path) -> None:
    pictures = [
        Image.fromarray((40 * row + 120).clip(0, 255).astype(np.uint8).repeat(108).reshape(18, 18))
        for row in X
    ]
    names = ["sad", "calm", "happy"]  # the order of the feature, not of the alphabet
    features = Features({"image": HuggingFaceImage(), "labels": Sequence(ClassLabel(names=names))})
    numbers = [None if each is None else [names.index(name) for name in each] for each in SETS]
    data = Dataset.from_dict({"image": pictures, "labels": numbers}, features=features)
    rows = read_rows(data, features="patches")
    order = [NAMES.index(name) for name in names]
    assert (
        rows.labels.are_sets and rows.labels.names == tuple(names) and rows.row.tolist() == LABELLED
    )
    assert np.array_equal(rows.labels.answers, ANSWERS[LABELLED][:, order])
    audit(read_rows(data, pred_probs=PROBS[:, order])).save(tmp_path / "audit")
    decide(tmp_path / "audit", {0: "sad|calm", 1: "(none)"})
    after = corrected(tmp_path / "audit", data)
    assert list(after["labels"])[:2] == [[0, 1], []] and list(after["labels"])[2:] == numbers[2:]


# --- matrices -------------------------------------------------------------------------------------


def test_matrices_in_npz_files_and_dicts(tmp_path: Path) -> None:
    matrix = ANSWERS.astype(np.uint8)
    source = tmp_path / "songs.npz"
    np.savez(source, x=X, y=matrix)
    for data in (source, {"x": X, "y": matrix}):
        rows = read_rows(data, classes=NAMES)
        assert (
            rows.labels.are_sets
            and rows.labels.names == NAMES
            and np.array_equal(rows.labels.answers, ANSWERS)
        )
    folder = saved(tmp_path / "audit", source, classes=NAMES)
    out = write_corrected(read_audit(folder), {0: "calm|sad", 1: "(none)"}, tmp_path / "new.npy")
    want = matrix.copy()
    want[0], want[1] = [1, 0, 1], 0
    assert np.array_equal(np.load(out), want) and np.load(out).dtype == np.uint8
    assert np.array_equal(read_again(read_audit(folder)).labels.answers, ANSWERS)
    folder = saved(tmp_path / "memory", {"x": X, "y": matrix}, classes=NAMES)
    decide(folder, {0: "calm|sad", 1: "(none)"})
    after = corrected(folder, {"x": X, "y": matrix})
    assert np.array_equal(after, want)
    np.savez(tmp_path / "y.npz", labels=matrix)
    rows = read_rows(labels=tmp_path / "y.npz", pred_probs=PROBS)
    assert rows.labels.are_sets and np.array_equal(rows.labels.answers, ANSWERS)


# --- trusted and test tables, refusals ------------------------------------------------------------


def test_other_tables_have_lists_too(tmp_path: Path) -> None:
    rest = [each for each in SETS if each is not None]
    other = frame().drop(index=7).head(20).reset_index(drop=True)
    other.at[0, "tags"] = ["calm", "happy", "sad"]  # a set that may be new
    rows = read_rows(frame(), label="tags", trusted=other)
    assert (
        rows.trusted is not None
        and rows.trusted.sum() == 20
        and rows.labels.answers[rows.trusted][0].all()
    )
    with pytest.raises(ValueError, match="labels of the audited table in `trusted`, got 'angry'"):
        read_rows(frame(), label="tags", trusted=frame([["angry"], *rest]).head(9))
    compared = read_rows(frame(), label="tags", test=other).test
    assert compared is not None and compared.labels.answers[0].all()
    assert np.array_equal(
        compared.labels.answers[1:], ANSWERS[[i for i in range(1, 21) if i != 7]][:19]
    )


def test_what_is_no_list_of_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="in every cell of 'tags' that has any, got 'calm' as well as lists"
    ):
        read_rows(frame(["calm", *SETS[1:]]), label="tags")
    with pytest.raises(
        ValueError, match="the names of labels in the lists of 'tags', got zeros and ones"
    ):
        read_rows(frame(ANSWERS.astype(int).tolist()), label="tags")
    with pytest.raises(
        ValueError, match="labels without the separator 'a' in the lists of 'tags', got 'calm'"
    ):
        read_rows(frame(), label="tags", multi_label="a")
    with pytest.raises(ValueError, match="one label per row with `annotators`, got lists"):
        read_rows(frame().assign(ann=1), label="tags", annotators=["ann"])
    with pytest.raises(
        ValueError, match="labels of every row, got none in 1. Leave these rows out"
    ):
        find_label_issues(SETS, PROBS)


@pytest.mark.parametrize("member", [None, float("nan"), ["calm"], {"name": "calm"}], ids=repr)
def test_what_is_no_label_in_a_list_is_refused(member: Any, tmp_path: Path) -> None:
    sets: list[Any] = [[member, "calm"], *SETS[1:]]
    (tmp_path / "a.jsonl").write_text(
        "".join(f"{json.dumps({'x': i, 'tags': s})}\n" for i, s in enumerate(sets))
    )
    for data, options in ((tmp_path / "a.jsonl", {"label": "tags"}), (X, {"labels": sets})):
        with pytest.raises(
            ValueError, match=r"words or numbers in lists of labels, such as \['calm', 'sad'\], got"
        ):
            read_rows(data, **options)


@pytest.mark.parametrize("pair", [(1, "1"), ("calm", " calm ")], ids=["number", "spaces"])
def test_a_label_written_in_two_ways_is_refused(pair: tuple[Any, Any]) -> None:
    sets = [[pair[0]], [pair[1], "sad"]] * 40
    message = f"got {pair[0]!r} and {pair[1]!r}, which are one label. Write them alike"
    for data, options in ((frame(sets), {"label": "tags"}), (X, {"labels": sets})):
        with pytest.raises(ValueError, match=message):
            read_rows(data, **options)


def test_numbers_stay_numbers() -> None:
    cells = [[3, 10], None, [10], np.array([3])]
    assert list_cells(cells, {0: "10", 1: "3|10", 2: "7"}, "|") == {0: [10], 1: [3, 10], 2: [7]}
    assert repr(list_cells([[0.5, 2.0]], {0: "2.0|7"}, "|")) == "{0: [2.0, 7.0]}"
    assert list_cells([["3"], [10]], {0: "7"}, "|") == {0: ["7"]}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hugging-face"])
def test_a_new_number_among_numbers(kind: str, tmp_path: Path) -> None:
    sets = [None if each is None else [NAMES.index(name) + 5 for name in each] for each in SETS]
    data: Any = tmp_path / f"a.{kind}"
    if kind == "hugging-face":
        data = Dataset.from_dict({"a": X[:, 0].tolist(), "tags": sets})
    elif kind == "jsonl":
        frame(sets).to_json(data, orient="records", lines=True)
    else:
        pq.write_table(pa.table({"a": X[:, 0], "tags": sets}), data)
    folder = saved(tmp_path / "audit", data, label="tags")

    def change(word: str) -> list[Any]:
        if kind != "hugging-face":
            out = write_corrected(read_audit(folder), {0: word}, tmp_path / f"new.{kind}")
            return cells_of(
                pd.read_json(out, lines=True) if kind == "jsonl" else pq.read_table(out)
            )
        decide(folder, {0: word})
        return cells_of(corrected(folder, data))

    with pytest.raises(
        ValueError, match="a whole number as a new label, as those in the data are, got 'new'. Undo"
    ):
        change("5|new")
    assert not (tmp_path / f"new.{kind}").exists()
    assert change("5|9") == [[5, 9], *sets[1:]]


def test_spaces_around_labels_in_lists_stay(tmp_path: Path) -> None:
    sets = [
        None if each is None else [f" {name} " if name == "calm" else name for name in each]
        for each in SETS
    ]
    check(read_rows(frame(sets), label="tags"))
    folder = saved(tmp_path / "audit", frame(sets), label="tags")
    decide(folder, {0: "calm|sad", 1: "calm"})
    assert cells_of(corrected(folder, frame(sets))) == [[" calm ", "sad"], [" calm "], *sets[2:]]


def test_spaces_around_the_names_of_columns_do_not_count(tmp_path: Path) -> None:
    labels = pd.DataFrame(ANSWERS.astype(int), columns=["calm", " happy", "sad"])
    folder = saved(tmp_path / "audit", X, labels=labels)
    decide(folder, {0: "happy|sad"})
    after = corrected(folder, labels)
    assert list(after.columns) == list(labels.columns) and after.iloc[0].tolist() == [0, 1, 1]
    pd.testing.assert_frame_equal(after[1:], labels[1:])
    with pytest.raises(
        ValueError, match="each once, got 3: 'calm', 'calm', 'sad'. Name the columns by `classes`"
    ):
        read_rows(X, labels=labels.set_axis(["calm", " calm", "sad"], axis=1))


@pytest.mark.parametrize(
    "form", ["csv", "frame", "matrix", "sparse", "lists of 0 and 1", "table", "npz"]
)
def test_a_label_without_a_column_is_refused_and_nothing_is_written(
    form: str, tmp_path: Path
) -> None:
    matrix = ANSWERS.astype(np.uint8)
    table = (
        frame().drop(columns="tags").assign(**{name: matrix[:, k] for k, name in enumerate(NAMES)})
    )
    table.to_csv(tmp_path / "a.csv", index=False)
    np.savez(tmp_path / "a.npz", x=X, y=matrix)
    labels: Any = {
        "matrix": matrix,
        "sparse": csr_matrix(matrix),
        "lists of 0 and 1": matrix.tolist(),
        "table": table[list(NAMES)],
    }.get(form)
    data: Any = {"csv": tmp_path / "a.csv", "frame": table, "npz": tmp_path / "a.npz"}.get(form, X)
    options: dict[str, Any] = {"csv": {"label": list(NAMES)}, "frame": {"label": list(NAMES)}}.get(
        form, {}
    )
    if labels is not None:
        options["labels"] = labels
    folder = saved(
        tmp_path / "audit",
        data,
        **options,
        **({"classes": NAMES} if not options.get("label") else {}),
    )
    decide(folder, {0: "sad|new"})
    out = tmp_path / ("new.npy" if form == "npz" else f"new.{form}")
    message = (
        "Expected labels among the columns 'calm', 'happy', 'sad', got 'new'. Add a column, or undo"
        " the decision"
    )
    with pytest.raises(ValueError, match=message):
        if form in ("csv", "npz"):
            write_corrected(read_audit(folder), {0: "sad|new"}, out)
        else:
            corrected(folder, data if labels is None else labels)
    assert not out.exists()


@pytest.mark.parametrize("number", [float("nan"), -1.0, 0.5])
def test_a_matrix_of_others_than_zeros_and_ones_is_refused(number: float, tmp_path: Path) -> None:
    matrix = ANSWERS.astype(float)
    matrix[0, 0] = number
    np.savez(tmp_path / "a.npz", x=X, y=matrix)
    with pytest.raises(ValueError, match="or 0 and 1 for several labels per row"):
        read_rows(tmp_path / "a.npz")


@pytest.mark.parametrize("gap", [None, float("nan"), np.float32("nan"), pd.NA], ids=repr)
def test_gaps_among_lists_are_rows_without_labels(gap: Any) -> None:
    assert has_lists([["calm"], gap, ["sad", "calm"]], "labels")
