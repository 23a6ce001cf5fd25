"""Every kind of data in memory: audited directly; arrays, DataFrames and data sets are returned
corrected.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from noiseproof.audit import audit, corrected, read_rows
from noiseproof.audit.decisions import Decision, write_csv
from noiseproof.data.arrays import SparseAxes

N, WRONG = 24, 5
TRUE = ["cat", "dog"] * (N // 2)
GIVEN = [TRUE[i] if i != WRONG else "cat" for i in range(N)]
CODES, TRUE_CODES = ([["cat", "dog"].index(label) for label in labels] for labels in (GIVEN, TRUE))
PREDICTED = np.array([[0.9, 0.1], [0.1, 0.9]] * (N // 2))  # contradict the label of row WRONG alone
SIZES = [i * 7 % 5 + 0.5 for i in range(N)]
TEXTS = [
    f"{'purrs and sleeps' if label == 'cat' else 'barks and runs'} {i}"
    for i, label in enumerate(TRUE)
]
COLUMNS: dict[str, Any] = {"size": SIZES, "y": GIVEN}
PICTURES = [
    Image.new("RGB", (20 + i, 20), (0, 10 * i, 255 * (label == "dog")))
    for i, label in enumerate(TRUE)
]

# as of dicts and torch data sets
LABELS_ALONE = ("an_arrow_table", "an_arrow_batch", "a_list_of_dicts")
# data, options, name of the source, what to correct (None: the data)
Kind = tuple[Any, dict[str, Any], str, Any]


class Items(Dataset[tuple[Any, Any]]):
    def __init__(self, x: Any, y: Any, classes: list[str] | None = None) -> None:
        self.x, self.y = x, y
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.x[i], self.y[i]


def a_pandas_frame() -> Kind:
    return pd.DataFrame(COLUMNS), {"label": "y"}, "table", None


def a_frame_beside_labels() -> Kind:
    return (
        pd.DataFrame({"size": SIZES}),
        {"labels": pd.Series(GIVEN, name="kind")},
        "table",
        pd.Series(GIVEN),
    )


def a_polars_frame() -> Kind:
    pl = pytest.importorskip("polars")
    return pl.DataFrame(COLUMNS), {"label": "y"}, "table", None


def a_lazy_polars_frame() -> Kind:
    pl = pytest.importorskip("polars")
    return (
        pl.LazyFrame(COLUMNS, schema={"size": pl.Float32, "y": pl.Categorical}),
        {"label": "y"},
        "table",
        None,
    )


def an_arrow_table() -> Kind:
    pa = pytest.importorskip("pyarrow")
    return (
        pa.table({**COLUMNS, "y": pa.array(GIVEN).dictionary_encode()}),
        {"label": "y"},
        "table",
        None,
    )


def an_arrow_batch() -> Kind:
    return (
        pytest.importorskip("pyarrow").RecordBatch.from_pydict(COLUMNS),
        {"label": "y"},
        "table",
        None,
    )


def a_dict_of_columns() -> Kind:
    return {"size": np.array(SIZES), "y": np.array(GIVEN)}, {"label": "y"}, "table", None


def a_list_of_dicts() -> Kind:
    return (
        [{"size": size, "y": label} for size, label in zip(SIZES, GIVEN, strict=True)],
        {"label": "y"},
        "table",
        None,
    )


def a_dict_of_arrays() -> Kind:
    return {"x": np.arange(2.0 * N).reshape(N, 2), "y": np.array(CODES)}, {}, "arrays", None


def a_hugging_face_table() -> Kind:
    datasets = pytest.importorskip("datasets")
    names = datasets.Features(
        {
            "y": datasets.ClassLabel(names=["cat", "dog"]),
            "size": datasets.Value("float32"),
            "word": datasets.Value("string"),
        }
    )
    columns = {"y": CODES, "size": SIZES, "word": list("uv") * (N // 2)}
    return datasets.Dataset.from_dict(columns, features=names), {}, "table", None


def hugging_face_texts() -> Kind:
    datasets = pytest.importorskip("datasets")
    names = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    return (
        datasets.Dataset.from_dict({"text": TEXTS, "label": CODES}, features=names),
        {},
        "text",
        None,
    )


def hugging_face_pictures() -> Kind:
    datasets = pytest.importorskip("datasets")
    names = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    return (
        datasets.Dataset.from_dict({"image": PICTURES, "label": CODES}, features=names),
        {},
        "arrays",
        None,
    )


def a_torch_dataset() -> Kind:
    return TensorDataset(torch.arange(2.0 * N).view(N, 2), torch.tensor(CODES)), {}, "arrays", None


def a_torch_dataset_of_pictures() -> Kind:
    return Items(PICTURES, CODES, ["cat", "dog"]), {}, "arrays", None


def a_torch_dataset_of_texts() -> Kind:
    return Items(TEXTS, GIVEN), {}, "text", None


def a_list_of_texts() -> Kind:
    return TEXTS, {"labels": GIVEN}, "text", GIVEN


def an_array_of_texts() -> Kind:
    return np.array(TEXTS), {"labels": np.array(GIVEN)}, "text", np.array(GIVEN)


def a_column_of_texts() -> Kind:
    return pd.Series(TEXTS), {"labels": torch.tensor(CODES)}, "text", torch.tensor(CODES)


def a_sparse_matrix() -> Kind:
    sparse = pytest.importorskip("scipy.sparse")
    return (
        sparse.csr_array(np.arange(2.0 * N).reshape(N, 2)),
        {"labels": tuple(GIVEN)},
        "arrays",
        tuple(GIVEN),
    )


def a_list_of_rows() -> Kind:
    return [[size, size % 2] for size in SIZES], {"labels": CODES}, "arrays", CODES


def a_tensor() -> Kind:
    return torch.tensor(SIZES)[:, None], {"labels": np.array(GIVEN)}, "arrays", np.array(GIVEN)


KINDS: dict[str, Callable[[], Kind]] = {
    make.__name__: make
    for make in (
        a_pandas_frame,
        a_frame_beside_labels,
        a_polars_frame,
        a_lazy_polars_frame,
        an_arrow_table,
        an_arrow_batch,
        a_dict_of_columns,
        a_list_of_dicts,
        a_dict_of_arrays,
        a_hugging_face_table,
        hugging_face_texts,
        hugging_face_pictures,
        a_torch_dataset,
        a_torch_dataset_of_pictures,
        a_torch_dataset_of_texts,
        a_list_of_texts,
        an_array_of_texts,
        a_column_of_texts,
        a_sparse_matrix,
        a_list_of_rows,
        a_tensor,
    )
}


def labels_in(data: Any) -> list[Any]:
    """The labels in corrected data, by the library of each."""
    if isinstance(data, Dataset):
        return [item[1] for item in data]  # type: ignore[attr-defined]
    if type(data).__name__ == "LazyFrame":
        data = data.collect()
    if type(data).__module__.startswith("pyarrow"):
        return data.column("y").to_pylist()
    if type(data).__module__.startswith("datasets"):
        return list(data["y" if "y" in data.column_names else "label"])
    if isinstance(data, list) and isinstance(data[0], dict):
        return [row["y"] for row in data]
    if isinstance(data, dict) or hasattr(data, "columns"):
        data = data["y"]
    return list(data)


@pytest.mark.parametrize("has_targets", [False, True])
def test_items_are_read_for_labels_only_where_targets_are_not_these(
    has_targets: bool, tmp_path: Path
) -> None:
    data = Items(PICTURES, CODES, ["cat", "dog"])
    audit(data, pred_probs=PREDICTED).save(tmp_path)
    data.targets = torch.tensor(CODES if has_targets else TRUE_CODES)  # type: ignore[attr-defined]
    if has_targets:
        data.x = []
    copy = corrected(tmp_path, data, accept_all=True, yes=True)
    assert [int(label) for label in copy] == TRUE_CODES


@pytest.mark.parametrize("name", KINDS)
def test_data_in_memory_is_audited_and_corrected(name: str, tmp_path: Path) -> None:
    data, options, source, to_correct = KINDS[name]()
    to_correct = data if to_correct is None else to_correct
    before = [str(label) for label in labels_in(to_correct)]

    rows = read_rows(data, **options)
    assert (
        rows.source.name == rows.source.config["kind"] == source
        and rows.source.config["data"] is None
    )
    assert rows.given.tolist() == CODES and rows.x is not None and len(rows.x) == N
    assert rows.classes in (("cat", "dog"), ("0", "1"))

    report = audit(data, **options, pred_probs=PREDICTED)
    assert report.label_issues.is_issue.nonzero()[0].tolist() == [WRONG]
    report.save(tmp_path / "audit")

    copy = corrected(tmp_path / "audit", to_correct, accept_all=True, yes=True)
    is_whole = not isinstance(data, (Dataset, dict)) and name not in LABELS_ALONE
    after = [label.item() if hasattr(label, "item") else label for label in labels_in(copy)]
    assert after == (TRUE if before[0] == "cat" else TRUE_CODES)
    assert [str(label) for label in labels_in(to_correct)] == before  # the original is unchanged
    if not is_whole:
        assert isinstance(copy, (list, np.ndarray, torch.Tensor)) and len(copy) == N
        return
    assert type(copy) is type(to_correct)
    for schema in (
        () if type(data).__name__ == "LazyFrame" else ("schema", "features", "dtypes", "dtype")
    ):
        if hasattr(to_correct, schema):
            assert str(getattr(copy, schema)) == str(getattr(to_correct, schema))
    with pytest.raises(ValueError, match="they or their order have changed since"):
        corrected(tmp_path / "audit", copy, accept_all=True, yes=True)


def test_ids_of_foreign_tables_are_checked(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"name": [f"r{i}" for i in range(N)], **COLUMNS})
    audit(frame, label="y", id="name", pred_probs=PREDICTED).save(tmp_path / "audit")
    assert corrected(tmp_path / "audit", frame, accept_all=True, yes=True)["y"].to_list() == TRUE
    other = frame.with_columns(name=pl.col("name").shift(1, fill_value="new"))
    with pytest.raises(
        ValueError, match="24 are gone or have other cells, such as row 0, and there are 24"
    ):
        corrected(tmp_path / "audit", other, accept_all=True, yes=True)


def test_class_labels_of_hugging_face_keep_their_names_and_gaps() -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.Features(
        {"x": datasets.Value("int64"), "kind": datasets.ClassLabel(names=["owl", "cat", "dog"])}
    )
    data = datasets.Dataset.from_dict({"x": range(6), "kind": [1, 2, 1, 2, -1, 1]}, features=names)
    rows = read_rows(data)
    assert rows.classes == ("owl", "cat", "dog") and rows.given.tolist() == [1, 2, 1, 2, 1]
    assert [(skipped.reason, skipped.rows.tolist()) for skipped in rows.skipped] == [
        ("no label", [4])
    ]
    assert "1 of 3 classes have no training example: 'owl'." in rows.notes


def test_a_wide_sparse_matrix_is_projected_onto_its_axes() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    from sklearn.decomposition import TruncatedSVD

    x = sparse.random_array((260, 300), density=0.05, random_state=0, format="coo")
    rows = read_rows(x, labels=np.arange(260) % 3)
    assert rows.x is not None and rows.x.shape == (260, 256)
    assert (
        "The 300 columns of the sparse `inputs` were projected onto their 256 main axes."
        in rows.notes
    )
    expected = TruncatedSVD(256, random_state=0).fit_transform(x.tocsr().astype(np.float32))
    np.testing.assert_allclose(SparseAxes(x, seed=0).encode(x), expected, atol=1e-4)
    centred = expected - expected.mean(0)
    scale = np.median(centred.std(0))
    np.testing.assert_allclose(rows.x, centred / scale, atol=1e-2)
    bad = x.tolil()
    bad[7, 3] = np.nan
    rows = read_rows(bad, labels=np.arange(260) % 3)
    assert len(rows) == 259 and rows.skipped[0].rows.tolist() == [7]
    beside = read_rows(labels=np.arange(260) % 3, embeddings=x)
    assert beside.x is not None and beside.x.shape == (260, 256)


def test_a_sparse_file_is_read_and_shown(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.csr_array(np.diag(np.arange(1.0, N + 1)))
    sparse.save_npz(tmp_path / "x.npz", x)
    np.save(tmp_path / "y.npy", np.array(GIVEN))
    rows = read_rows(tmp_path / "x.npz", labels=tmp_path / "y.npy")
    assert rows.x is not None and rows.x.shape == (N, N) and len(rows.source) == N
    assert rows.source.show(3, "3")["fields"][2:5] == [["2", "0"], ["3", "4"], ["4", "0"]]


def test_what_is_no_data_is_refused() -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from zip(torch.eye(4), [0, 1, 0, 1], strict=True)

    assert len(read_rows(Endless())) == 4
    datasets = pytest.importorskip("datasets")
    split = datasets.Dataset.from_dict({"a": [1, 2] * 5, "label": [0, 1] * 5})
    for other in (split.to_iterable_dataset(), datasets.DatasetDict(train=split)):
        with pytest.raises(
            TypeError, match=r"Name a split, as in data\['train'\], read without streaming"
        ):
            read_rows(other)
    with pytest.raises(ValueError, match="Expected no `labels` with a torch Dataset"):
        read_rows(Items(TEXTS, GIVEN), labels=GIVEN)
    with pytest.raises(
        ValueError, match=r"Expected inputs called x or .* in the dict, or columns .* got 'a', 'b'"
    ):
        read_rows({"a": SIZES, "b": GIVEN})
    with pytest.raises(ValueError, match=r"Expected arrays .*, got float"):
        read_rows(1.5, label="y")
    with pytest.raises(ValueError, match="Expected `labels` of shape"):
        read_rows(pd.DataFrame({"x": SIZES}), labels=GIVEN[1:])
    with pytest.raises(ValueError, match="got 'y' in both. Use `label`"):
        read_rows(pd.DataFrame(COLUMNS), labels=pd.Series(GIVEN, name="y"))
    with pytest.raises(TypeError, match="Expected no 'label' with data that `read_rows` read"):
        audit(read_rows(pd.DataFrame(COLUMNS), label="y"), label="y")
    with pytest.raises(TypeError, match="audit\\(\\) has no option 'lable'. Did you mean 'label'"):
        audit(pd.DataFrame(COLUMNS), lable="y")


def test_columns_may_have_numbers_as_names(tmp_path: Path) -> None:
    frame = pd.DataFrame({0: GIVEN, 1: SIZES, 2: range(N), 3: [i // 2 for i in range(N)]})
    rows = read_rows(frame, label=0, id=2, group=3)
    assert rows.classes == ("cat", "dog") and rows.given.tolist() == CODES
    assert rows.groups is not None and len({*rows.groups.tolist()}) == N // 2
    audit(frame, label=0, pred_probs=PREDICTED).save(tmp_path / "audit")
    assert corrected(tmp_path / "audit", frame, accept_all=True, yes=True)[0].tolist() == TRUE
    texts = read_rows(pd.DataFrame({0: TEXTS, 1: GIVEN}), label=1, text=0, features="tfidf")
    assert texts.source.name == "text" and texts.given.tolist() == CODES


def test_labels_of_rows_in_another_order_are_refused() -> None:
    frame, labels = pd.DataFrame({"size": SIZES}), pd.Series(GIVEN)
    with pytest.raises(ValueError, match="Expected the rows of `labels` in the order of the data"):
        read_rows(frame, labels=labels[::-1])
    for same in (labels, labels.set_axis(range(50, 50 + N)), labels[::-1].to_numpy()[::-1]):
        assert read_rows(frame, labels=same).given.tolist() == CODES
    assert read_rows(frame[::-1], labels=labels[::-1]).given.tolist() == CODES[::-1]


def test_labels_in_a_table_file_are_refused(tmp_path: Path) -> None:
    pd.DataFrame(COLUMNS).to_csv(tmp_path / "y.csv")
    with pytest.raises(
        ValueError, match="Expected a .npy file of labels, got .*y.csv. Audit the table"
    ):
        read_rows(labels=tmp_path / "y.csv", pred_probs=PREDICTED)


def test_a_path_is_audited_directly(tmp_path: Path) -> None:
    pd.DataFrame(COLUMNS).to_csv(tmp_path / "t.csv", index=False, header=False)
    report = audit(tmp_path / "t.csv", label=1, header=False, pred_probs=PREDICTED)
    assert (
        report.label_issues.is_issue.nonzero()[0].tolist() == [WRONG]
        and report.config["label"] == "1"
    )
    assert report.config["data"] == str(tmp_path / "t.csv") and report.config["header"] is False


# --- predictions and embeddings in tables ---------------------------------------------------------


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl", ".xlsx"])
def test_predictions_in_a_table_are_matched_by_class_and_id(tmp_path: Path, ending: str) -> None:
    ids = [f"{i:03d}" for i in range(N)]
    pd.DataFrame({"name": ids, **COLUMNS}).to_csv(tmp_path / "t.csv", index=False)
    frame = pd.DataFrame({"dog": PREDICTED[:, 1], "name": ids, "cat": PREDICTED[:, 0]}).sample(
        frac=1, random_state=0
    )
    write = {".csv": frame.to_csv, ".parquet": frame.to_parquet, ".xlsx": frame.to_excel}
    path = tmp_path / f"p{ending}"
    if ending == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        write[ending](path, index=False)
    report = audit(tmp_path / "t.csv", label="y", id="name", pred_probs=path)
    assert report.label_issues.is_issue.nonzero()[0].tolist() == [WRONG]
    np.testing.assert_allclose(report.data.pred_probs, PREDICTED, atol=1e-6)
    assert report.config["pred_probs"] == str(path)
    rows = read_rows(tmp_path / "t.csv", label="y", id="name", embeddings=path)
    np.testing.assert_allclose(rows.x, PREDICTED[:, ::-1], atol=1e-6)


def test_predictions_in_a_table_without_ids_are_in_order(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    np.save(tmp_path / "y.npy", np.array(GIVEN))
    frame = pd.DataFrame({"dog": PREDICTED[:, 1], "cat": PREDICTED[:, 0]})
    frame.to_csv(tmp_path / "index.csv")  # with the index of pandas
    frame.to_csv(tmp_path / "p.csv", sep=";", decimal=",", index=False)
    np.savetxt(tmp_path / "plain.csv", PREDICTED, delimiter=",")  # without a header
    for p in (
        tmp_path / "index.csv",
        tmp_path / "p.csv",
        tmp_path / "plain.csv",
        pl.DataFrame(frame),
    ):
        rows = read_rows(labels=tmp_path / "y.npy", pred_probs=p)
        np.testing.assert_allclose(rows.pred_probs, PREDICTED, atol=1e-6)
    pd.DataFrame(COLUMNS).to_csv(tmp_path / "t.csv", index=False)
    assert read_rows(tmp_path / "t.csv", label="y", embeddings=tmp_path / "plain.csv").x.shape == (
        N,
        2,
    )  # type: ignore


def test_predictions_of_other_rows_are_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"name": [f"r{i}" for i in range(N)], **COLUMNS})
    p = pd.DataFrame(PREDICTED, columns=["cat", "dog"])
    with pytest.raises(
        ValueError, match="the ids of the data in 'name' of `pred_probs`, 'r3' are not there"
    ):
        read_rows(
            frame, label="y", id="name", pred_probs=p.assign(name=frame["name"].replace("r3", "q"))
        )
    with pytest.raises(
        ValueError, match="Expected each id once in 'name' of the data and of `pred_probs`"
    ):
        read_rows(
            frame, label="y", id="name", pred_probs=p.assign(name=frame["name"].replace("r3", "r4"))
        )
    with pytest.raises(ValueError, match=r"Expected `pred_probs` of shape \(24, 2\)"):
        read_rows(frame, label="y", pred_probs=p.assign(name=frame["name"]))


def test_of_several_label_columns_in_a_dict_these_are_returned(tmp_path: Path) -> None:
    calm, loud = [i % 2 for i in range(N)], [i % 3 == 0 for i in range(N)]
    data = {"size": SIZES, "calm": calm, "loud": [int(yes) for yes in loud]}
    probs = np.stack([np.where(calm, 0.9, 0.1), np.where(loud, 0.9, 0.1)], 1)
    audit(data, label=["calm", "loud"], pred_probs=probs).save(tmp_path / "audit")
    write_csv([Decision(0, "0", "loud", "other", "calm")], tmp_path / "audit" / "decisions.csv")
    copy = corrected(tmp_path / "audit", data)
    assert list(copy.columns) == ["calm", "loud"]
    assert copy["calm"].tolist() == [1, *calm[1:]] and copy["loud"].tolist() == [
        0,
        *data["loud"][1:],
    ]
    with pytest.raises(
        ValueError, match="Expected the audited table with its column 'calm', got size"
    ):
        corrected(tmp_path / "audit", {"size": SIZES})
