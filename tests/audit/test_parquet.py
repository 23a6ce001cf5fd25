"""Parquet files of tables: read column by column, with the same rows and features as a table in
memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from noiseproof.audit import audit, read_rows
from noiseproof.data.frames import ParquetColumns

pq = pytest.importorskip("pyarrow.parquet")

N = 160
RANDOM = np.random.default_rng(0)
LABELS = np.array(["cat", "dog"])[np.arange(N) % 2]
FRAME = pd.DataFrame(
    {
        "size": np.where(
            np.arange(N) % 11 == 0, np.nan, np.arange(N) % 2 + RANDOM.normal(0, 0.3, N)
        ),
        "count": RANDOM.integers(0, 9, N),
        "price": [f"${i * 7 % 31}.50" if i % 40 else "?" for i in range(N)],
        "colour": np.where(
            np.arange(N) % 13 == 0, None, np.array(["red", "green", "blue"])[np.arange(N) % 3]
        ),
        "city": pd.Categorical(np.array(["Rome", "Oslo"])[RANDOM.integers(0, 2, N)]),
        "whole": pd.array([None if i % 17 == 0 else i % 5 for i in range(N)], dtype="Int64"),
        "review": [" ".join(map(str, RANDOM.permutation(12))) + " words" for _ in range(N)],
        "day": pd.date_range("2020-01-01", periods=N),
        "vector": [[0.5, float(i)] for i in range(N)],
        "number": np.arange(N),
        "name": [f"r{i}" for i in range(N)],
        "label": np.where(np.arange(N) == 7, None, LABELS),
    }
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    FRAME.to_parquet(tmp_path / "t.parquet", row_group_size=50)
    return tmp_path / "t.parquet"


def same_rows(one: Any, other: Any) -> None:
    for name in ("given", "row", "x", "ids"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.table.values, other.table.values)
    assert one.table.num_categories == other.table.num_categories
    assert one.classes == other.classes and one.source_rows == other.source_rows
    assert [(s.reason, s.rows.tolist()) for s in one.skipped] == [
        (s.reason, s.rows.tolist()) for s in other.skipped
    ]
    assert one.source.config["labels_sha256"] == other.source.config["labels_sha256"]


def test_columns_are_read_one_by_one_and_give_the_same_rows_as_a_frame(
    path: Path, monkeypatch: Any
) -> None:
    read: list[Any] = []
    whole = pq.ParquetFile.read
    monkeypatch.setattr(
        pq.ParquetFile, "read", lambda *a, **k: read.append(k.get("columns")) or whole(*a, **k)
    )
    rows, expected = (read_rows(data, label="label", id="name") for data in (path, FRAME))
    assert read and all(columns is not None and len(columns) == 1 for columns in read)
    assert "vector" not in {columns[0] for columns in read}  # its type says that it is of no use
    same_rows(rows, expected)
    assert rows.notes == expected.notes
    assert [note for note in rows.notes if "'price' was read as numbers" in note]
    assert "Column 'review' holds 160 different texts and was left out" in "".join(rows.notes)


def test_rows_and_columns_are_selected_before_they_are_read(path: Path) -> None:
    columns = ParquetColumns.open(path)
    assert (
        columns is not None and len(columns) == N and list(columns.columns) == list(FRAME.columns)
    )
    some = columns[["count", "colour"]].take(np.array([5, 3, 100])).take(np.array([2, 0]))
    assert len(some) == 2
    pd.testing.assert_frame_equal(
        some.read().reset_index(drop=True),
        FRAME[["count", "colour"]].iloc[[100, 5]].reset_index(drop=True),
        check_dtype=False,
    )
    assert some["count"].tolist() == FRAME["count"].iloc[[100, 5]].tolist()
    with pytest.raises(KeyError, match="other"):
        columns["other"]


def test_an_index_that_pandas_stored_is_no_column(tmp_path: Path) -> None:
    frame = FRAME.drop(columns="vector").set_index("name")[::-1]
    frame.to_parquet(tmp_path / "t.parquet")
    rows, expected = (read_rows(data, label="label") for data in (tmp_path / "t.parquet", frame))
    same_rows(rows, expected)
    assert rows.notes == expected.notes


def test_a_pipeline_gets_the_columns_of_a_file(path: Path) -> None:
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(make_column_transformer(("passthrough", ["count"])), LogisticRegression())
    rows, expected = (read_rows(data, label="label", id="name") for data in (path, FRAME))
    quality = [audit(each, estimator=model).label_issues.quality for each in (rows, expected)]
    np.testing.assert_array_equal(*quality)


def test_a_trusted_table_of_more_rows_is_read_beside_the_file(path: Path, tmp_path: Path) -> None:
    FRAME.iloc[:10].to_parquet(tmp_path / "more.parquet")
    options: dict[str, Any] = {"label": "label", "trusted": tmp_path / "more.parquet"}
    rows, expected = (read_rows(data, **options) for data in (path, FRAME))
    np.testing.assert_array_equal(rows.x, expected.x)
    assert rows.trusted is not None and rows.trusted.sum() == 9  # one of the ten has no label


def test_damaged_files_and_missing_columns_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="'kind' in"):
        read_rows(path, label="kind")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="Expected a readable .* file in .*t.parquet"):
        read_rows(path, label="label")
