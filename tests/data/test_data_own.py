"""A user's own data, in every form it may come, and everything that may be wrong with it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from noiseproof.data import from_arrays, from_hf, from_table, from_text, from_torch, get_dataset
from noiseproof.data.labels import encode_labels
from noiseproof.data.tables import Columns
from noiseproof.data.text import TOKEN

X = np.arange(12.0).reshape(6, 2)
Y = ["b", "a", "b", "c", "c", "a"]


def test_importing_the_package_leaves_the_heavy_libraries_alone() -> None:
    code = (
        "import sys, noiseproof.data; print(*{'pandas', 'pyarrow', 'sklearn', 'scipy', 'PIL'} &"
        " set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "\n"
    )


# Labels


@pytest.mark.parametrize(
    ("values", "numbers", "classes"),
    [
        (["z", "a", "m", "a"], [2, 0, 1, 0], ("a", "m", "z")),
        ([10, 2, 0, 2], [2, 1, 0, 1], ("0", "2", "10")),
        (["10", "2", "0", "2"], [2, 1, 0, 1], ("0", "2", "10")),
        ([1.0, 0.0, 3.0], [1, 0, 2], ("0", "1", "3")),
        (np.array([[3], [1]]), [1, 0], ("1", "3")),
        (torch.tensor([7, 5]), [1, 0], ("5", "7")),
        (pd.Series(["x", "None", "NA"], index=[5, 5, 1]), [2, 1, 0], ("NA", "None", "x")),
        (pd.Categorical(["u", "v", "u"]), [0, 1, 0], ("u", "v")),
        (np.array([1, "a", 2.5], dtype=object), [0, 2, 1], ("1", "2.5", "a")),
        (np.array([1, "1", 1.0, 2], dtype=object), [0, 0, 0, 1], ("1", "2")),
        (["nan", "a"], [1, 0], ("a", "nan")),
        (pd.array([2, 1, 2], dtype="Int64"), [1, 0, 1], ("1", "2")),
        (np.array(["2021-05-05", "2020-01-01"], "M8[ns]"), [1, 0], ("2020-01-01", "2021-05-05")),
        (
            pd.Series(pd.to_datetime(["2021-05-05", "2020-01-01"])),
            [1, 0],
            ("2020-01-01", "2021-05-05"),
        ),
    ],
    ids=str,
)
def test_labels_of_any_kind_become_sorted_classes(
    values: Any, numbers: list[int], classes: tuple[str, ...]
) -> None:
    encoded, names = encode_labels(values)
    assert encoded.tolist() == numbers and names == classes and encoded.dtype is torch.int64


def test_given_classes_fix_the_order() -> None:
    assert encode_labels(["b", "c"], ("c", "b", "a"))[0].tolist() == [1, 0]
    assert encode_labels([2, 0], ("x", "y", "z"), positions=True)[0].tolist() == [2, 0]
    assert encode_labels([2, 5], ("0", "2", "5"))[0].tolist() == [1, 2]
    by_word = ("0", "1", "10", "2")  # as torchvision sorts folders
    assert encode_labels(["2", "10"], by_word, positions=True)[0].tolist() == [3, 2]
    assert encode_labels([2, 3], by_word, positions=True)[0].tolist() == [2, 3]  # its targets
    assert encode_labels(["2", "0"], ("x", "y", "z"), positions=True)[0].tolist() == [2, 0]
    # rows without a 0 would mean other classes
    with pytest.raises(ValueError, match="among '1', '2', '3', got '0'"):
        encode_labels(["0", "1"], ("1", "2", "3"), positions=True)
    with pytest.raises(ValueError, match="Expected labels of `y` among 'a', 'b', got 'd'"):
        encode_labels(["a", "d"], ("a", "b"))
    with pytest.raises(ValueError, match="among the positions 0 … 1 in `classes`, got '-1'"):
        encode_labels([0, -1], ("a", "b"), positions=True)
    with pytest.raises(
        ValueError, match="Expected each of the 3 `classes` once, got 'a', 'b', 'a'"
    ):
        encode_labels(["a"], ("a", "b", "a"))


@pytest.mark.parametrize("missing", [None, float("nan"), "  ", pd.NA])
def test_missing_labels_are_refused_with_their_rows(missing: object) -> None:
    with pytest.raises(
        ValueError,
        match="label in every row of `y`, got none in 2 of 4 rows, the first of them 1, 3",
    ):
        encode_labels(np.array(["a", missing, "b", missing], dtype=object))
    with pytest.raises(ValueError, match="got none in 1 of 2 rows"):
        encode_labels(["a", missing])


@pytest.mark.parametrize(
    "labels, what",
    [
        (np.array([1, 2], "m8[ns]"), r"timedelta64\[ns\]"),
        (np.array([1, 2j]), "complex128"),
        (np.array([("a", 1), ("b", 2)], dtype="U1,i4"), r"\[\('f0', '<U1'\), \('f1', '<i4'\)\]"),
        (pd.Series([["a"], ["a", "b"]]), "list"),
    ],
)
def test_quantities_and_collections_are_no_labels(labels: Any, what: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"Expected words, whole numbers or dates as labels in `y`, got {what}. Write",
    ):
        encode_labels(labels)


def test_numbers_that_name_no_class_are_refused() -> None:
    for labels in ([0.25, 1.5], ["0.25", "1"]):
        with pytest.raises(
            ValueError, match="Expected classes in `y`, got real numbers such as 0.25"
        ):
            encode_labels(labels)
    with pytest.raises(ValueError, match=r"got real numbers such as 1e\+30"):
        encode_labels([1e30, 2e30])
    for odd in (3, None, "abc", {1, 2}, [[1], [1, 2]]):
        with pytest.raises(ValueError, match="Expected one label per row in `y`, got"):
            encode_labels(odd)
    with pytest.raises(
        ValueError,
        match="got infinite numbers in 1 of 2 rows, the first of them 1. Drop those rows",
    ):
        encode_labels([1.0, np.inf])
    with pytest.raises(
        ValueError, match=r"got shape \(2, 1, 1\). Give one word or number per row."
    ):
        from_arrays([[1.0], [2.0]], np.zeros((2, 1, 1)))
    with pytest.raises(ValueError, match=r"got shape \(2, 3\). For one-hot rows use argmax"):
        encode_labels(np.eye(3)[:2])


def test_labels_are_looked_up_as_they_are_written_before_their_value() -> None:
    classes = encode_labels(["1", "1.0", "01", "other"])[1]
    assert encode_labels(["1", "1.0", "01"], classes)[0].tolist() == [
        classes.index(c) for c in ("1", "1.0", "01")
    ]
    # any of three
    with pytest.raises(ValueError, match="among '01', '1', '1.0', 'other', got '1.00'"):
        encode_labels(["1.00", "1"], classes)
    assert encode_labels(np.array([True, False]), ("FALSE", "TRUE", "maybe"))[0].tolist() == [1, 0]


# Arrays


def test_arrays_in_any_label_order() -> None:
    data = from_arrays(X, Y, test=(X[:2], ["c", "a"]), trusted=(X[:1], ["b"]))
    assert data.classes == ("a", "b", "c") and data.train.y.tolist() == [1, 0, 1, 2, 2, 0]
    assert data.train.x.dtype is torch.float32 and data.train.x.tolist() == X.tolist()
    assert data.test.y.tolist() == [2, 0] and data.trusted.y.tolist() == [1]
    assert data.train.clean is None and data.notes == ()


@pytest.mark.parametrize("kind", ["f2", ">f4", "i4", "u1", np.longdouble, object])
def test_numbers_of_any_type_become_float32(kind: Any) -> None:
    array = X.astype(kind)
    array.flags.writeable = False
    for x in (
        array,
        array[::-1, ::-1][::-1, ::-1],
        array.tolist(),
        pd.DataFrame(X).convert_dtypes(),
    ):
        rows = from_arrays(x, Y).train.x
        assert rows.dtype is torch.float32 and rows.tolist() == X.tolist()
    assert torch.equal(
        from_arrays(torch.tensor(X, requires_grad=True), Y).train.x, torch.tensor(X).float()
    )


def test_images_stay_bytes_with_channels_first() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    last = from_arrays(pixels, Y)
    assert last.train.x.dtype is torch.uint8
    assert torch.equal(last.train.x, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert "channels last" in last.notes[0]
    assert from_arrays(pixels.transpose(0, 3, 1, 2), Y).notes == ()
    assert from_arrays(pixels[..., 0], Y).train.x.shape == (6, 1, 5, 4)
    for wide in (pixels.astype(np.int64), pixels.astype(np.uint16)):
        assert (
            torch.equal(from_arrays(wide, Y).train.x, last.train.x)
            and from_arrays(wide, Y).train.x.dtype is torch.uint8
        )
    deep = from_arrays(pixels.astype(np.uint16) * 257, Y).train.x
    assert deep.dtype is torch.float32 and torch.equal(deep, last.train.x.float() * 257)
    real = from_arrays(pixels / 255, Y)
    assert real.train.x.shape == (6, 3, 5, 4) and "channels last" in real.notes[0]
    with pytest.raises(
        ValueError, match="float32 in `test.0.`, as in training, got .* torch.uint8"
    ):
        from_arrays(pixels / 255, Y, test=(pixels, Y))


@pytest.mark.parametrize(
    ("bad", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf"), (1e39, r"1e\+39")]
)
def test_features_that_are_not_finite_are_refused_by_place(bad: float, shown: str) -> None:
    x = X.copy()
    x[3, 1] = x[5, 0] = bad
    with pytest.raises(
        ValueError,
        match=f"Expected finite numbers in `x`, got {shown} in column 1 of row 3; 2 of 6 rows",
    ):
        from_arrays(x, Y)


@pytest.mark.parametrize(
    ("x", "y", "error"),
    [
        (X, Y[:5], "Expected one `label` for each of the 6 rows of x, got 5"),
        (X[:0], [], "none of them 0, got \\(0, 2\\)"),
        (X[:, :0], Y, "none of them 0, got \\(6, 0\\)"),
        (X[:, 0], Y, "of shape \\(N, D\\) or \\(N, C, H, W\\), .* got \\(6,\\)"),
        (X, ["a"] * 6, "Expected at least two classes in `y`, every label is 'a'"),
        ([["a", "b"]] * 6, Y, "Expected numbers in `x`, got dtype <U1 from list. Use from_table"),
        (pd.DataFrame({"a": list("abcdef")}), Y, "got DataFrame .*Use from_table"),
        (np.ma.masked_array(X, X > 10), Y, "got nan in column 1 of row 5; 1 of 6 rows"),
        ([[1, 2], [3]], ["a", "b"], "Expected numbers in rows of one length in `x`, got list"),
        (scipy.sparse.csr_matrix(X), Y, "got csr_matrix .*toarray"),
        (
            torch.tensor(X).to_sparse(),
            Y,
            "Expected dense real numbers in `x`, got torch.sparse_coo",
        ),
        (torch.tensor(X).to(torch.complex64), Y, "Expected dense real numbers in `x`"),
        (X + 1j, Y, "Expected numbers in `x`, got dtype complex128"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(x: Any, y: Any, error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        from_arrays(x, y)


def test_other_parts_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="rows in `validation`, got 6 rows and 5 labels"):
        from_arrays(X, Y, validation=(X, Y[:5]))


def test_holes_and_single_examples_are_reported() -> None:
    data = from_arrays(X, [0, 0, 3, 3, 7, 3])
    assert data.train.y.tolist() == [0, 0, 1, 1, 2, 1] and data.classes == ("0", "3", "7")
    assert data.notes[0].startswith(
        "The labels 0, 3, 7 do not count from 0 without gaps: they were renumbered 0 … 2"
    )
    assert data.notes[1].startswith("1 of 3 classes have a single training example: '7'")
    named = from_arrays(X, [0, 0, 3, 3, 1, 1], classes=("w", "x", "y", "z"))
    assert named.train.y.tolist() == [0, 0, 3, 3, 1, 1]
    assert named.notes == ("1 of 4 classes have no training example: 'y'.",)
    with pytest.raises(ValueError, match="among the positions 0 … 3 in `classes`, got '4'"):
        from_arrays(X, [0, 0, 3, 4, 1, 1], classes=("w", "x", "y", "z"))


def test_classes_that_look_the_same_are_spelled_out() -> None:
    data = from_arrays(X, ["caf\u00e9", "cafe\u0301", "caf\u00e9", "cafe\u0301", "bar", "bar"])
    assert data.num_classes == 3  # what differs in a file stays different when it is written back
    assert (
        "made of different characters: ['cafe\\u0301', 'caf\\xe9']. Are they one?" in data.notes[-1]
    )


@pytest.mark.parametrize("kind", ["float64", "int64", "tensor"])
def test_large_numbers_that_hardly_differ_are_told_apart(kind: str) -> None:
    seconds: Any = 1_700_000_000 + np.arange(100)[:, None] * [1, 0] + [0, 5]  # and a constant
    x = torch.from_numpy(seconds) if kind == "tensor" else seconds.astype(kind)
    data = from_arrays(x, np.arange(100) % 2, test=(x[:10], [0, 1] * 5))
    assert (
        data.train.x[:, 0].tolist() == (np.arange(100) - 49.5).tolist()
        and len(data.train.x[:, 1].unique()) == 1
    )
    assert torch.equal(data.test.x, data.train.x[:10])
    assert data.encoder is not None and torch.equal(
        data.encoder.encode(seconds[3:5]), data.train.x[3:5]
    )
    assert (
        "The numbers in column 0 of `x` hardly differ: their mean was subtracted" in data.notes[0]
    )
    with pytest.raises(ValueError, match=r"Expected rows of shape \(2,\)"):
        from_arrays(x, np.arange(100) % 2, test=(x[:, :1], np.arange(100) % 2))


# torch datasets


class Pictures:
    """A map-style dataset of PIL images of different sizes, as torchvision's are."""

    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (8 + i, 8), (i, 0, 0)), i % 2


class Stream(IterableDataset[tuple[torch.Tensor, str]]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, str]]:
        return ((torch.full((2,), float(i)), "ab"[i % 2]) for i in range(4))


def test_torch_datasets_of_tensors() -> None:
    data = from_torch(
        TensorDataset(torch.tensor(X), torch.tensor([0, 1, 0, 1, 1, 0])),
        test=Stream(),
        classes=("a", "b"),
    )
    assert data.train.x.tolist() == X.tolist() and data.test.y.tolist() == [0, 1, 0, 1]
    assert from_torch(Stream()).train.x[:, 0].tolist() == [0, 1, 2, 3]


def test_torch_datasets_of_pictures() -> None:
    data = from_torch(Pictures(), size=8, trusted=Pictures())
    assert (
        data.classes == ("cat", "dog")
        and data.train.y.tolist() == [0, 1, 0, 1] == data.trusted.y.tolist()
    )
    assert data.train.x[3].shape == (3, 8, 8) and data.train.x[3].dtype is torch.uint8
    assert int(data.train.x[3][0, 0, 0]) == 3
    with pytest.raises(ValueError, match="Expected inputs of one shape.*Set `size`"):
        from_torch(Pictures())


@pytest.mark.parametrize(
    ("items", "error"),
    [
        (None, "Expected a torch Dataset of (x, y), got NoneType"),
        ([], "Expected at least one item"),
        ([1, 2], "Expected items (x, y) in the dataset, got a int"),
        ([(1, 2, 3)], "got a tuple of 3"),
        ({0: (torch.zeros(1), 0)}, "Expected at least two classes"),
        (
            {1: (torch.zeros(1), 0)},
            "Expected to read item 0 of the dataset, got KeyError: 0. Fix it",
        ),
        (
            [("a text", 0), ("another", 1)],
            "Expected tensors, arrays or images in the dataset, got str",
        ),
        (
            [(torch.zeros(2), row) for row in torch.eye(2) - 1],
            "got 0.0, -1.0 in row 0; 2 of 2 rows are negative",
        ),
    ],
)
def test_torch_datasets_of_other_things_are_refused(items: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(error)):
        from_torch(items)


# Tables


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [30, 50, 40, 20],
            "price": [1.5, -2.5, 0.5, 0.5],
            "member": [True, False, True, True],
            "city": ["Rome", "Oslo", "Rome", "Bern"],
            "label": ["yes", "no", "yes", "no"],
        }
    )


def test_tables_keep_their_units_and_know_their_spread() -> None:
    data = from_table(table(), label="label")
    names = ("age", "price", "member", "city=Bern", "city=Oslo", "city=Rome")
    assert data.encoder.names == names and data.classes == ("no", "yes")
    rows = [
        [30, 1.5, 1, 0, 0, 1],
        [50, -2.5, 0, 0, 1, 0],
        [40, 0.5, 1, 0, 0, 1],
        [20, 0.5, 1, 1, 0, 0],
    ]
    assert data.train.x.tolist() == rows and data.train.x.dtype is torch.float32
    reference = np.array(rows)[:, :3]
    scaled = data.encoder.standardise_(data.train.x.clone())
    np.testing.assert_allclose(
        scaled[:, :3], (reference - reference.mean(0)) / reference.std(0), atol=1e-6
    )
    assert torch.equal(scaled[:, 3:], data.train.x[:, 3:])
    constant = from_table(table().assign(price=3.0), label="label")
    assert bool(torch.isfinite(constant.encoder.standardise_(constant.train.x.clone())).all())


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "parquet"])
def test_tables_in_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"shop.{kind}"
    if kind == "parquet":
        table().to_parquet(path)
    else:
        table().to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    data = get_dataset(f"table:table={path},label=label")
    whole = from_table(table(), label="label")
    assert (
        data.name.startswith("shop")
        and data.classes == whole.classes
        and torch.equal(data.train.x, whole.train.x)
    )
    assert torch.equal(data.train.y, whole.train.y)


def test_classes_called_none_or_na_are_classes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,None\n2,NA\n3,null\n4,NA\n,None\n")
    data = from_table(tmp_path / "a.csv", label="y", missing="impute")
    assert data.classes == ("NA", "None", "null") and data.train.y.tolist() == [1, 0, 2, 0, 1]
    assert data.train.x.flatten().tolist() == [1, 2, 3, 4, 2.5]
    (tmp_path / "a.csv").write_text("x,y\n1,None\n2,\n")
    with pytest.raises(
        ValueError, match="label in every row of `y`, got none in 1 of 2 rows, the first of them 1"
    ):
        from_table(tmp_path / "a.csv", label="y")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x,x,y\n1,5,a\n2,6,b\n", "a.csv, got the column 'x' twice"),
        # pandas' y.1 would be the label as an input
        ("x,y,y\n1,a,b\n2,b,a\n", "a.csv, got the column 'y' twice"),
        ("x,y\n1,a,7\n2,b,8\n", "a.csv, got rows with more fields than the header"),
        ("x,y\n1,a\n2,b,c\n", "a.csv, got .*Expected 2 fields in line 3, saw 3"),
        ("x,y\n1,0.5\n2,1.5\n", "got real numbers such as 0.5"),
        # 81 is no character of Windows-1252 either
        (b"x,y\n1,caf\x81\n2,b\n", "Expected UTF-8 in .*a.csv"),
        ("x;y\n1;a;7\n2;b;8\n", "a.csv, got rows with more fields than the header"),
        ("x,y\n1,a\n", "every label is 'a'"),
        ("x,y\n", "Expected at least one row in .*a.csv, got an empty table"),
    ],
)
def test_csv_files_that_would_be_misread_are_refused(
    tmp_path: Path, text: str | bytes, error: str
) -> None:
    (tmp_path / "a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=error):
        from_table(tmp_path / "a.csv", label="y")


@pytest.mark.parametrize(
    ("text", "x", "classes"),
    [
        ("x;z;y\n1,5;2;a\n2;1,25;b\n", [[1.5, 2], [2, 1.25]], ("a", "b")),
        ("x\ty\n1\ta,b\n2\tc;d\n", [[1], [2]], ("a,b", "c;d")),
        ("x;y\n1.234,5;a\n12.000;b\n", [[1234.5], [12000]], ("a", "b")),
        # the label shows which is the separator
        ("size, cm;y\n1,5;a\n2,5;b\n", [[1.5], [2.5]], ("a", "b")),
        ("x,y\n1,a;b;c\n2,d;e;f\n", [[1], [2]], ("a;b;c", "d;e;f")),
        ('x,y\n1,"a;\nb"\n2,"d;\ne"\n', [[1], [2]], ("a;\nb", "d;\ne")),
        (b"\xff\xfe" + "x;y\n1,5;é\n2;ü\n".encode("utf-16-le"), [[1.5], [2]], ("é", "ü")),
        ("x,y\n1,é\n2,ü\n".encode("utf-8-sig"), [[1], [2]], ("é", "ü")),
        ("x,y\n1,é\n2,€\n".encode("cp1252"), [[1], [2]], ("é", "€")),
    ],
)
def test_text_files_are_read_as_they_are_written(
    tmp_path: Path, text: str | bytes, x: list[list[float]], classes: tuple[str, ...]
) -> None:
    (tmp_path / "a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    data = from_table(tmp_path / "a.csv", label="y")
    assert data.train.x.tolist() == x and data.classes == classes


def test_features_are_names_of_any_kind() -> None:
    frame = table()
    for names in (frame.columns[:2], frame.columns[:2].to_numpy(), ("age", "price")):
        assert from_table(frame, label="label", features=names).encoder.names == ("age", "price")
        with pytest.raises(ValueError, match="a list of columns without the label 'age'"):
            from_table(frame, label="age", features=names)


def test_a_wide_table_without_the_column_names_its_first_and_last_ones() -> None:
    frame = pd.DataFrame({**{f"x{i}": [0, 1] for i in range(40)}, "answer": [0, 1]})
    expected = r"There are 41: 'x0', .* 'x8', …, 'x38', 'x39', 'answer'\.$"
    with pytest.raises(ValueError, match=expected):
        from_table(frame, label="wanted")


def test_a_file_without_a_header_has_columns_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("5,1;3,5;0;Iris\n4,9;3,0;1;Rose\n")
    data = from_table(tmp_path / "a.csv", label="3", header=False, features=["1", "2"])
    assert data.train.x.tolist() == [[3.5, 0], [3, 1]] and data.classes == ("Iris", "Rose")
    assert (
        get_dataset(f"table:table={tmp_path / 'a.csv'},label=3,header=false,missing=impute").classes
        == data.classes
    )
    with pytest.raises(
        ValueError,
        match=r"Expected a column '4' in .*a.csv, found none. There are '0', '1', '2', '3'",
    ):
        from_table(tmp_path / "a.csv", label="4", header=False)
    (tmp_path / "a.jsonl").write_text('{"x": 1, "y": "a"}\n')
    with pytest.raises(
        ValueError, match=r"Expected a .csv or .tsv or .xlsx file without names of columns, got"
    ):
        from_table(tmp_path / "a.jsonl", label="1", header=False)


def test_tables_of_other_libraries(tmp_path: Path) -> None:
    columns = {"x": [1.5, 2.5, 3.5], "c": ["u", "v", "u"], "label": ["b", "a", "b"]}
    expected = from_table(pd.DataFrame(columns), label="label")
    pl, pa, datasets = (pytest.importorskip(name) for name in ("polars", "pyarrow", "datasets"))
    names = datasets.Features(
        {
            "x": datasets.Value("float64"),
            "c": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["b", "a"]),
        }
    )
    tables = [columns, pl.DataFrame(columns), pl.LazyFrame(columns), pa.table(columns)]
    for table in (
        *tables,
        datasets.Dataset.from_dict({**columns, "label": [0, 1, 0]}, features=names),
    ):
        data = from_table(table, label="label")
        assert torch.equal(data.train.x, expected.train.x) and data.classes == ("a", "b"), type(
            table
        )
        assert data.train.y.tolist() == [1, 0, 1]
    split = datasets.Dataset.from_dict(columns)
    with pytest.raises(TypeError, match=r"got DatasetDict. Name a split, as in data\['train'\]"):
        from_table(datasets.DatasetDict(train=split), label="label")


def test_csv_files_as_they_come(tmp_path: Path) -> None:
    """A byte-order mark, quotes, a saved index, classes as floats, dates, "?" among numbers, a
    comma at the end.
    """
    rows = "".join(
        f'{i},2020-01-{i + 1:02d},"{i}, ""x""",{"?" if i == 3 else i},{i % 2 + 9}.0,\n'
        for i in range(6)
    )
    (tmp_path / "a.csv").write_text('\ufeff,when,"a, ""b""",n,y\n' + rows, encoding="utf-8")
    data = from_table(tmp_path / "a.csv", label="y")
    assert data.classes == ("9", "10") and data.train.y.tolist() == [0, 1] * 3
    assert list(data.encoder.categories) == ['a, "b"', "n"] and data.encoder.numeric == ()
    assert data.notes[:3] == (
        (
            "Column 'Unnamed: 0' has no name, like the row numbers that pandas saves, and was left"
            " out."
        ),
        "Column 'when' holds dates and was left out.",
        "Column 'n' holds numbers written as words, but for '?': each counts as a category.",
    )
    assert data.encoder.categories["n"] == ("0", "1", "2", "4", "5", "?")
    assert data.train.x[:, 6:].argmax(1).tolist() == [0, 1, 2, 5, 3, 4]


@pytest.mark.parametrize(
    ("values", "encoded"),
    [
        (pd.array([1, None, 3, 4], dtype="Int64"), [[1], [3], [3], [4]]),
        (pd.array([1, None, 3, 4], dtype="int64[pyarrow]"), [[1], [3], [3], [4]]),
        (pd.array([True, None, False, True], dtype="boolean"), [[1], [1], [0], [1]]),
        (pd.array(["u", None, "v", "u"], dtype="string"), [[1, 0], [0, 0], [0, 1], [1, 0]]),
        (pd.Categorical(["u", None, "v", "u"]), [[1, 0], [0, 0], [0, 1], [1, 0]]),
        (pd.arrays.SparseArray([0, 0, 1, 0]), [[0], [0], [1], [0]]),
        ([Decimal("1.5"), Decimal(2), Decimal(3), None], [[1.5], [2], [3], [2]]),
        (np.array([1, 2.5, 3, 4], dtype=object), [[1], [2.5], [3], [4]]),
        (["1", 2.0, "1", None], [[1, 0], [0, 1], [1, 0], [0, 0]]),  # 2.0 is the word 2
    ],
    ids=str,
)
def test_columns_of_every_dtype(values: Any, encoded: list[list[float]]) -> None:
    frame = pd.DataFrame({"c": values, "label": list("abab")})
    assert from_table(frame, label="label", missing="impute").train.x.tolist() == encoded


def test_new_rows_are_encoded_like_the_training_rows() -> None:
    new = pd.DataFrame(
        {
            "label": ["no"],
            "city": ["Paris"],
            "price": [9.0],
            "age": [1],
            "member": [False],
            "more": [1],
        }
    )
    data = from_table(table(), label="label", test=new, trusted=table()[:2])
    assert data.test.x.tolist() == [[1, 9, 0, 0, 0, 0]] and data.test.y.tolist() == [0]
    assert len(data.trusted) == 2 and torch.equal(data.encoder.encode(new), data.test.x)
    with pytest.raises(ValueError, match="Expected numbers in column 'age', got 'old' in row 0"):
        data.encoder.encode(new.assign(age=["old"]))
    with pytest.raises(
        ValueError, match="Expected the columns of the training table, 'price' are missing"
    ):
        data.encoder.encode(new.drop(columns="price"))


def test_missing_values_are_refused_by_name_or_imputed_and_reported() -> None:
    holes = table().astype({"age": float})
    holes.loc[1, "age"] = np.nan
    holes.loc[[0, 2], "city"] = None
    with pytest.raises(
        ValueError,
        match="Expected no missing values, got 1 in 'age', 2 in 'city'. .*missing='impute'",
    ):
        from_table(holes, label="label")
    data = from_table(holes, label="label", missing="impute", test=holes)
    assert data.train.x[1, 0] == 30  # the median of 30, 40, 20
    assert data.train.x[0, 3:].tolist() == [0, 0] and torch.equal(data.test.x, data.train.x)
    assert data.notes == (
        "1 missing number in column 'age' was filled with its median 30.",
        "2 missing words in column 'city' count as none of its categories.",
        "1 missing number in column 'age' of the test set was filled with its median 30.",
        "2 cells in column 'city' of the test set are none of its categories: ''.",
    )
    with pytest.raises(ValueError, match="Expected `missing` to be refuse or impute"):
        from_table(table(), label="label", missing="drop")  # type: ignore[arg-type]


def test_columns_that_can_not_be_used_are_left_out_or_refused() -> None:
    frame = pd.concat([table()] * 30, ignore_index=True)
    frame["when"] = pd.Timestamp("2020-01-01")
    frame["id"] = range(120)
    frame["comment"] = [f"words {i}" for i in range(120)]
    frame["nothing"] = np.nan
    frame["complex"] = 1j
    frame["lists"] = [[1, 2]] * 120
    frame["day"] = [f"2020-01-{i % 9 + 1:02d}" for i in range(120)]
    data = from_table(frame, label="label")
    assert data.encoder.numeric == ("age", "price", "member")
    assert data.notes == (
        "Column 'when' holds dates and was left out.",
        "Column 'id' numbers the rows and was left out; name it in `features` to keep it.",
        "Column 'comment' holds 120 different texts and was left out.",
        "Column 'nothing' is empty and was left out.",
        "Column 'complex' holds complex numbers and was left out.",
        "Column 'lists' holds lists and was left out.",
        "Column 'day' holds dates and was left out.",
    )
    assert from_table(frame, label="label", features=["age", "city"]).encoder.names[0] == "age"
    assert from_table(frame, label="label", features=["age", "id"]).encoder.numeric == ("age", "id")
    with pytest.raises(
        ValueError, match="Expected numbers or categories in column 'comment', which holds 120"
    ):
        from_table(frame, label="label", features=["age", "comment"])


def given(n: int = 300, num_classes: int = 3) -> pd.DataFrame:
    """Labels, and a number that says nothing of them."""
    generator = np.random.default_rng(0)
    labels = generator.permutation(np.arange(n) % num_classes)
    return pd.DataFrame({"x": generator.normal(size=n), "y": np.array(list("abcdefgh"))[labels]})


CODES: dict[str, dict[str, Any]] = {
    "numbers": {"a": 7, "b": 0, "c": 3},
    "reals": {"a": 0.5, "b": -1.5, "c": 2.0},
    "words": {"a": "gold", "b": "silver", "c": "none"},
    "percentages": {"a": "5%", "b": "10%", "c": "$15"},
}


@pytest.mark.parametrize("kind", CODES)
def test_a_code_of_the_label_is_left_out(kind: str) -> None:
    frame = given()
    frame["code"] = frame["y"].map(CODES[kind])
    left_out = (
        "Column 'code' corresponds one-to-one to the label and was left out; name it in"
        " `features` to"
    )
    data = from_table(frame, label="y")
    assert data.encoder.names == ("x",) and data.notes[0].startswith(left_out)
    assert torch.equal(data.encoder.encode(frame[["x"]]), data.train.x)  # new rows need none
    holes = from_table(
        frame.assign(code=frame["code"].where(frame.index % 7 > 0)), label="y", missing="impute"
    )
    assert holes.encoder.names == ("x",) and holes.notes[0].startswith(left_out)
    asked = from_table(frame, label="y", features=["x", "code"])
    assert asked.train.x.shape[1] > 1
    assert (
        "Column 'code' corresponds one-to-one to the label: if it was made from the label, leave"
        " it out" in asked.notes[0]
    )
    with pytest.raises(
        ValueError,
        match="Expected at least one usable column, got 'code'. Column 'code' corresponds",
    ):
        from_table(frame[["code", "y"]], label="y")


def test_features_that_are_no_code_of_the_label_are_kept() -> None:
    frame = given()
    code = frame["y"].map({"a": 0, "b": 1, "c": 2})
    kept = {
        # one wrong label, which it would find
        "contradicts": code.where(frame.index != 17, (code + 1) % 3),
        "finer": code * 2 + frame.index % 2,
        "coarser": code > 0,
        "constant": 1,
        "pieces": code + frame.index.to_numpy() / 1000,  # a value of its own in each row
        "seldom": code.where(frame.index < 15),
    }
    data = from_table(frame.assign(**kept), label="y", missing="impute")
    assert data.encoder.numeric == ("x", *kept) and not any(
        "was left out" in note for note in data.notes
    )
    few = frame[:60].assign(code=code[:60])  # the labels may be right, and the feature strong
    data = from_table(few, label="y")
    assert data.encoder.names == ("x", "code")
    assert data.notes == (
        (
            "Column 'code' corresponds one-to-one to the label: if it was made from the label,"
            " leave it out (`--ignore code` in an audit, else `features`)."
        ),
    )
    assert from_table(few[:20], label="y").notes == ()


NAMES = [
    "id",
    "user_id",
    "userId",
    "uuid",
    "key",
]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_name_the_rows_are_left_out(name: str) -> None:
    numbers = np.random.default_rng(0).choice(10**6, 300, replace=False)
    data = from_table(given().assign(**{name: numbers}), label="y")
    what = (
        f"Column {name!r} differs in every row and was left out; name it in `features` to keep it."
    )
    assert data.encoder.names == ("x",) and data.notes == (what,)
    # two rows of one patient, say
    twice = np.where(numbers == numbers.max(), numbers.min(), numbers)
    assert from_table(given().assign(**{name: twice}), label="y").encoder.names == ("x", name)
    holes = given().assign(**{name: np.where(np.arange(300) == 5, np.nan, numbers)})
    assert from_table(holes, label="y", missing="impute").encoder.names == ("x",)
    assert from_table(given(20).assign(**{name: numbers[:20]}), label="y").encoder.names == (
        "x",
        name,
    )


def test_words_among_numbers_are_gaps() -> None:
    frame = given()
    numbers = np.round(np.random.default_rng(1).normal(50, 20, 300), 2)
    gap = np.random.default_rng(2).random(300) < 0.15
    frame["n"] = np.where(
        gap, np.array(["?", "N/A", "-", "unknown", " "])[np.arange(300) % 5], numbers.astype(str)
    )
    empty = gap & (np.arange(300) % 5 == 4)
    with pytest.raises(
        ValueError,
        match=r"numbers in column 'n', got '-', '\?', 'N/A', 'unknown' in .* of 300 rows",
    ):
        from_table(frame, label="y")
    data = from_table(frame, label="y", missing="impute", test=frame[:10])
    median = np.median(numbers[~gap])
    assert data.encoder.numeric == ("x", "n") and data.encoder.categories == {}
    np.testing.assert_array_equal(
        data.train.x[:, 1], np.where(gap, median, numbers).astype(np.float32)
    )
    assert torch.equal(data.test.x, data.train.x[:10])
    words = f"{int((gap & ~empty).sum())} words in it ('-', '?', 'N/A', 'unknown') count as missing"
    assert data.notes == (
        f"Column 'n' was read as numbers; {words}.",
        f"{int(gap.sum())} missing numbers in column 'n' were filled with its median {median:g}.",
        (
            f"{int(gap[:10].sum())} missing numbers in column 'n' of the test set were filled with"
            f" its median {median:g}."
        ),
    )
    new = pd.DataFrame({"x": [0.0] * 4, "n": ["7", "?", "not yet", None]})
    np.testing.assert_array_equal(
        data.encoder.encode(new)[:, 1], np.float32([7, median, median, median])
    )
    # more than a fifth are no numbers
    many = frame.assign(n=frame["n"].where(frame.index % 3 > 0, "?"))
    notes = from_table(many, label="y", missing="impute").notes
    assert re.fullmatch(r"Column 'n' holds \d+ different words and was left out\.", notes[0])
    zips = frame.assign(n=[f"{i * 331 % 99999:05d}" for i in range(300)])  # 02139 is no number
    assert "Column 'n' holds 300 different words" in from_table(zips, label="y").notes[0]


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("$1,234.50", 1234.5),
        ("$-3", -3),
        ("€ 1,000,000", 1e6),
        ("12.3%", 12.3),
        ("−7 %", -7),
        ("+.5", 0.5),
        ("1e3", 1000),
        ("1,5", None),
        ("5 kg", None),
        ("1.2.3", None),
        ("1_000", None),
    ],
)
def test_numerals_as_people_write_them(word: str, number: float | None) -> None:
    frame = given()[:12].assign(n=[f"${i}.25" for i in range(12)])
    data = from_table(frame, label="y")
    assert data.train.x[:, 1].tolist() == [i + 0.25 for i in range(12)]
    assert data.notes == ("Column 'n' was read as numbers without '$'.",)
    if number is None:
        with pytest.raises(
            ValueError,
            match=f"Expected numbers in column 'n', got {re.escape(repr(word))} in row 0",
        ):
            data.encoder.encode(frame.assign(n=word))
    else:
        assert data.encoder.encode(frame.assign(n=word))[:, 1].tolist() == [np.float32(number)] * 12


@pytest.mark.parametrize("offset", [0.0, 1.7e9, -1.7e15])
def test_numbers_far_from_zero_keep_what_differs(offset: float) -> None:
    """float32 has three numbers for five minutes of Unix seconds, and one for days of
    microseconds.
    """
    seconds = np.random.default_rng(0).integers(0, 300, 300)
    frame = given().assign(t=offset + seconds, constant=0.1, large=1e6)
    data = from_table(frame, label="y", test=frame[:5])
    assert (
        bool((data.encoder.shift[1] != 0) == (offset != 0)) and data.train.x.dtype is torch.float32
    )
    scaled = data.encoder.standardise_(data.train.x.clone())
    exact = (seconds - seconds.mean()) / seconds.std()
    # 0.25 is float64's step there
    np.testing.assert_allclose(scaled[:, 1], exact, atol=2e-6 if offset > -1 else 0.01)
    assert not bool(scaled[:, 2:].any())  # 0.1 is no binary number: its mean is another one
    assert torch.equal(data.test.x, data.train.x[:5])
    assert data.encoder.mean[1] == pytest.approx(offset + seconds.mean(), rel=1e-15, abs=1e-9)


@pytest.mark.parametrize(
    ("frame", "options", "error"),
    [
        (table()[:0], {}, "Expected at least one row in the table, got an empty table"),
        (
            table(),
            {"label": "labels"},
            "Expected a column 'labels' in the table, found none. Did you mean 'label'?",
        ),
        (
            pd.DataFrame({"age;label": ["3;a", "4;b"]}),
            {},
            "Its only one is 'age;label'. Read it with another",
        ),
        (
            table(),
            {"features": ["agee"]},
            "Expected a column 'agee' in the table, found none. Did you mean 'age'?",
        ),
        (
            table(),
            {"features": ["age", "label"]},
            "a list of columns without the label 'label', got",
        ),
        (table(), {"features": "age"}, "a list of columns without the label 'label', got 'age'"),
        (table()[["label"]], {}, "Expected at least one usable column"),
        (
            table().assign(label="yes"),
            {},
            "Expected at least two classes in `label`, every label is 'yes'",
        ),
        (
            table().assign(label=[0.5, 1, 2, 3]),
            {},
            "Expected classes in `label`, got real numbers such as 0.5",
        ),
        (pd.concat([table(), table()[["age"]]], axis=1), {}, "got 'age' twice"),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_name(
    frame: pd.DataFrame, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        from_table(frame, **{"label": "label"} | options)


def test_files_that_are_no_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Expected a DataFrame, .* or the path of a file, got list"):
        from_table([[1, "a"]], label="y")
    with pytest.raises(FileNotFoundError, match="Expected a table at"):
        from_table(tmp_path / "none.csv", label="y")
    for name, blob in (
        ("a.csv", b""),
        ("a.parquet", b"PAR1 not really"),
        ("a.xlsx", b"x"),
        ("b.csv", b'a,y\n1,"2\n'),
    ):
        (tmp_path / name).write_bytes(blob)
        with pytest.raises(ValueError, match=f"Expected .*{name}"):
            from_table(tmp_path / name, label="y")


def coded(rows: int, codes: list[str], flags: list[str], seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    code = rng.choice(codes, rows)
    kind = np.where(np.isin(code, ["01", "03", "A5"]), "yes", "no")
    return pd.DataFrame({"code": code, "flag": rng.choice(flags, rows), "kind": kind})


@pytest.mark.parametrize("form", ["csv", "as pandas reads it", "words"])
def test_other_files_are_read_as_the_training_file_was(tmp_path: Path, form: str) -> None:
    """Without other words beside them, pandas makes the numbers 1, 2 of 01, 02 and truth values of
    TRUE, FALSE.
    """
    codes, flags = ["01", "02", "03", "04", "A5"], ["TRUE", "FALSE", "maybe"]
    coded(200, codes, flags, 0).to_csv(tmp_path / "train.csv", index=False)
    words = coded(50, codes[:4], flags[:2], 1)
    words.to_csv(tmp_path / "test.csv", index=False)
    other: Any = {"csv": tmp_path / "test.csv", "words": words}.get(form)
    data = from_table(
        tmp_path / "train.csv",
        label="kind",
        test=pd.read_csv(tmp_path / "test.csv") if other is None else other,
    )
    names = [f"code={c}" for c in codes] + [f"flag={f}" for f in sorted(flags)]
    assert list(data.encoder.names) == names
    expected = [
        [float(name in (f"code={c}", f"flag={f}")) for name in names]
        for c, f in zip(words["code"], words["flag"], strict=True)
    ]
    assert data.test.x.tolist() == expected
    assert not any("test set" in note for note in data.notes)


def test_cells_that_are_no_category_are_counted(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"code": ["1", "01", "x", "NA"] * 3, "size": [1.0, 2, 3, 4] * 3, "kind": list("ab") * 6}
    )
    table.to_csv(tmp_path / "train.csv", index=False)
    other = pd.DataFrame(
        {
            "code": ["1", "01", "1.0", "9", "NA"],
            "size": ["1", "2", "?", "4", "5"],
            "kind": list("ababa"),
        }
    )
    other.to_csv(tmp_path / "test.csv", index=False)
    data = from_table(
        tmp_path / "train.csv", label="kind", missing="impute", validation=tmp_path / "test.csv"
    )
    assert data.encoder.categories == {"code": ("01", "1", "x")}
    assert data.validation.x.tolist() == [
        [1, 0, 1, 0],
        [2, 1, 0, 0],
        [2.5, 0, 0, 0],
        [4, 0, 0, 0],
        [5, 0, 0, 0],
    ]
    assert data.notes[-2:] == (
        "1 missing number in column 'size' of the validation set was filled with its median 2.5.",
        (
            "3 cells in column 'code' of the validation set are none of its categories: '', '1.0',"
            " '9'."
        ),
    )
    with pytest.raises(ValueError, match="Expected no missing values, got 1 in 'code'"):
        from_table(
            table.iloc[:3].replace("NA", "y"),
            label="kind",
            test=other.assign(size=1, code=["1", "x", None, "1", "x"]),
        )


# Text


def sentences(n: int = 60) -> pd.DataFrame:
    kinds = {"food": "soup bread cheese apple dinner", "sport": "goal match team ball score"}
    rows = [
        (" ".join(np.random.default_rng(i).choice(words.split(), 6)), kind)
        for i, (kind, words) in zip(range(n), list(kinds.items()) * n, strict=False)
    ]
    return pd.DataFrame(rows, columns=["text", "topic"])


def test_texts_become_rows_that_tell_topics_apart() -> None:
    frame = sentences()
    data = from_text(frame[:40], text="text", label="topic", dim=8, test=frame[40:])
    assert data.train.x.shape == (40, 8) and data.train.x.dtype is torch.float32
    torch.testing.assert_close(data.train.x.norm(dim=1), torch.ones(40))
    assert (
        data.train.raw == frame["text"][:40].tolist()
        and data.test.raw == frame["text"][40:].tolist()
    )
    centres = torch.stack([data.train.x[data.train.y == k].mean(0) for k in (0, 1)])
    assert torch.equal((data.test.x @ centres.T).argmax(1), data.test.y)
    assert torch.equal(data.encoder.encode(frame["text"][40:]), data.test.x)


def test_odd_texts_are_reported_or_refused(tmp_path: Path) -> None:
    frame = sentences(6)
    frame.loc[0, "text"] = " "
    data = from_text(frame, text="text", label="topic")
    assert data.notes == ("1 of 6 texts contain no words: nothing can be learned from them.",)
    assert bool(torch.isfinite(data.train.x).all()) and data.train.x.shape == (6, 6)
    frame.loc[2, "text"] = None
    with pytest.raises(
        ValueError,
        match="Expected a text in every row of 'text', got none in 1 row, the first of them 2",
    ):
        from_text(frame, text="text", label="topic")
    for text in ("", "? a !"):
        with pytest.raises(
            ValueError, match="Expected words of two letters or more in the texts, got none"
        ):
            from_text(frame.assign(text=text), text="text", label="topic")
    with pytest.raises(
        ValueError, match="Expected a column of texts as well as the labels, got 'topic' for both"
    ):
        from_text(frame, text="topic", label="topic")
    with pytest.raises(
        ValueError, match="Expected a column 'txt' in the table, found none. Did you mean 'text'?"
    ):
        from_text(frame, text="txt", label="topic")
    sentences(6).to_csv(tmp_path / "news.csv", index=False)
    assert get_dataset(
        f"text:table={tmp_path / 'news.csv'},text=text,label=topic,dim=2"
    ).train.x.shape == (6, 2)


@pytest.mark.parametrize(
    ("texts", "new"),
    [
        (
            ["这个产品很好", "质量很好我喜欢", "这个产品很差", "质量很差我讨厌"],
            ["很好的产品", "我讨厌它很差"],
        ),
        (
            ["この商品はとても良い", "良いし好き", "この商品はとても悪い", "悪いし嫌い"],
            ["とても良いです", "嫌い悪い"],
        ),
        (
            ["สินค้านี้ดีมาก", "ฉันชอบมาก", "สินค้านี้แย่จัง", "ฉันเกลียดจัง"],
            ["ชอบและดีมาก", "แย่และเกลียดจัง"],
        ),
    ],
)
def test_texts_without_spaces_between_words_tell_topics_apart(
    texts: list[str], new: list[str]
) -> None:
    frame = pd.DataFrame({"text": texts, "mood": list("++--")})
    data = from_text(
        frame, text="text", label="mood", test=pd.DataFrame({"text": new, "mood": list("+-")})
    )
    near = data.test.x @ data.train.x.T  # cosine similarities
    assert (near[:, :2].sum(1) > near[:, 2:].sum(1)).tolist() == [True, False] and not data.notes


def test_other_texts_have_the_words_that_scikit_learn_finds() -> None:
    from sklearn.feature_extraction.text import HashingVectorizer

    text = "Don't panic: a naïve x1 c_d 12 3 e; привет, мир! 한국어 는 हिन्दी עברית مرحبا"
    assert re.findall(TOKEN, text) == HashingVectorizer().build_tokenizer()(text)
    assert re.findall(TOKEN, "iPhone手机 3个ดี") == ["iPhone", "手", "机", "个", "ดี"]


# Hugging Face, by its interface


class HFDataset:
    """What is used of ``datasets.Dataset``: column_names, features, rows by number, columns by
    name.
    """

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any]) -> None:
        self.columns, self.features, self.column_names = columns, features, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        return (
            self.columns[key]
            if isinstance(key, str)
            else {c: values[key] for c, values in self.columns.items()}
        )


IMAGE = type("Image", (), {"dtype": "PIL.Image.Image"})()  # a feature is known by its class's name
TEXT, NUMBER, LABEL = (
    SimpleNamespace(dtype="string"),
    SimpleNamespace(dtype="float32"),
    SimpleNamespace(names=["neg", "pos"]),
)


def test_hugging_face_text() -> None:
    def part(n: int) -> HFDataset:
        frame = sentences(n)
        labels = [int(topic == "sport") for topic in frame["topic"]]
        return HFDataset(
            {"text": frame["text"].tolist(), "label": labels}, {"text": TEXT, "label": LABEL}
        )

    data = from_hf({"train": part(20), "test": part(6), "unsupervised": part(4)}, dim=4)
    assert (
        data.classes == ("neg", "pos")
        and data.train.y.tolist() == [0, 1] * 10
        and data.test.y.tolist() == [0, 1] * 3
    )
    assert data.train.x.shape == (20, 4) and len(data.train.raw) == 20


@pytest.mark.parametrize("size", [None, 4])
def test_hugging_face_images(size: int | None, tmp_path: Path) -> None:
    pictures: list[Any] = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in range(3)]
    for i in (1, 2):
        pictures[i].save(tmp_path / f"{i}.png")
    pictures[1] = {"bytes": None, "path": str(tmp_path / "1.png")}  # not decoded yet
    pictures[2] = {"bytes": (tmp_path / "2.png").read_bytes(), "path": "2.png"}
    source = HFDataset(
        {"img": pictures, "label": [0, 1, 1], "note": list("abc")},
        {"img": IMAGE, "label": LABEL, "note": TEXT},
    )
    data = from_hf(source, size=size)
    assert data.train.y.tolist() == [0, 1, 1] and data.train.x[2].shape == (3, size or 8, size or 8)
    assert [int(data.train.x[i][0, 0, 0]) for i in range(3)] == [0, 1, 2]


def test_hugging_face_tables() -> None:
    columns = {"a": [1.0, 2.0, 3.0], "b": [1, 0, 0], "species": ["x", "y", "x"]}
    source = HFDataset(columns, {"a": NUMBER, "b": NUMBER, "species": TEXT})
    data = from_hf(source, label="species")
    assert data.classes == ("x", "y") and data.train.x.tolist() == [[1, 1], [2, 0], [3, 0]]
    assert from_hf(source, label="species", features=["b"]).train.x.shape == (3, 1)


def test_hugging_face_refusals() -> None:
    with pytest.raises(TypeError, match="Expected a Hugging Face Dataset"):
        from_hf([1, 2])
    with pytest.raises(TypeError, match="DatasetDict with a train split, got dict"):
        from_hf({"test": HFDataset({"label": [1]}, {"label": LABEL})})
    streamed = SimpleNamespace(column_names=["a", "label"], features={"a": NUMBER, "label": LABEL})
    with pytest.raises(TypeError, match="A streamed one has no length"):
        from_hf(streamed)
    with pytest.raises(TypeError, match="Expected no further options for images, got 'dim'"):
        from_hf(HFDataset({"a": [1], "label": [0]}, {"a": IMAGE, "label": LABEL}), dim=3)
    with pytest.raises(
        ValueError,
        match="Expected a column 'img' in the dataset, found none. There are 'a', 'label'",
    ):
        from_hf(HFDataset({"a": [1], "label": [0]}, {"a": NUMBER, "label": LABEL}), image="img")
    with pytest.raises(ValueError, match="Expected a column 'label' among 'a'"):
        from_hf(HFDataset({"a": [1]}, {"a": NUMBER}))
    with pytest.raises(ValueError, match="got '-1'. Correct these labels, drop their rows"):
        from_hf(HFDataset({"a": [1.0, 2.0], "label": [0, -1]}, {"a": NUMBER, "label": LABEL}))


def test_codes_stay_categories_and_decimal_commas_are_nobodys_thousands() -> None:
    y = ["a", "b"] * 100
    shops = pd.Categorical([i % 40 for i in range(200)])
    zips = [str(94100 + i % 30) for i in range(200)]
    commas, few = [f"0,{i}" for i in range(200)], [f"{i % 3},5" for i in range(200)]
    data = from_table(
        pd.DataFrame({"shop": shops, "zip": zips, "share": commas, "few": few, "y": y}), label="y"
    )
    assert isinstance(data.encoder, Columns)
    assert len(data.encoder.categories["shop"]) == 40 and len(data.encoder.categories["zip"]) == 30
    assert data.encoder.numeric == ()
    left_out, kept = (
        next(note for note in data.notes if name in note) for name in ("'share'", "'few'")
    )
    advice = "(numbers with a decimal comma: write 0,0 as 0.0)"
    assert left_out == f"Column 'share' holds 200 different words {advice} and was left out."
    assert kept.endswith(
        "each counts as a category (numbers with a decimal comma: write 0,5 as 0.5)."
    )
    assert sum("decimal comma" in note for note in data.notes) == 2
