"""Tables written by Arrow are those that pandas writes, byte by byte."""

import numpy as np
import pandas as pd
import pytest

from noiseproof.data.frames import LONG_TABLE, write_csv


def hard_table(rows: int) -> pd.DataFrame:
    random = np.random.default_rng(0)
    numbers = np.round(random.normal(size=rows), 6)
    numbers[:12] = [0, -0.0, 1, -3, np.nan, 1e-6, -9.9e-05, 1e-4, 999999.5, 1e6, 1e20, np.inf]
    words = np.array(
        ["plain", "", 'a "quoted", word', "two\nlines", "é, ü", " space ", "None", "nan"],
        dtype=object,
    )
    texts = words[random.integers(0, len(words), rows)]
    with_gaps = pd.array(random.integers(-5, 5, rows), dtype="Int64")
    with_gaps[::3] = pd.NA
    return pd.DataFrame(
        {
            "row": np.arange(rows),
            "a, b": random.random(rows) < 0.5,
            "number": numbers,
            "tiny": numbers / 1e7,
            "text": texts,
            "gaps": np.where(random.random(rows) < 0.5, texts, None),
            "group": with_gaps,
            "class": pd.Categorical.from_codes(
                random.integers(-1, 3, rows), ["cat", "d,og", 'e"lk']
            ),
            "none": np.full(rows, np.nan),
        }
    )


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_long_tables_are_written_as_pandas_writes_them(tmp_path, line_end):
    pytest.importorskip("pyarrow")
    table = hard_table(LONG_TABLE + 7)
    write_csv(table, tmp_path / "ours.csv", line_end)
    table.to_csv(tmp_path / "pandas.csv", index=False, lineterminator=line_end)
    assert (tmp_path / "ours.csv").read_bytes() == (tmp_path / "pandas.csv").read_bytes()


def test_columns_that_arrow_cannot_convert_are_left_to_pandas(tmp_path):
    table = pd.DataFrame({"x": [1, "two", (3,)] * LONG_TABLE})
    write_csv(table, tmp_path / "ours.csv")
    assert (tmp_path / "ours.csv").read_text() == table.to_csv(index=False)


def test_short_tables_and_empty_ones(tmp_path):
    for rows in (0, 5):
        table = hard_table(50).iloc[:rows]
        write_csv(table, tmp_path / "ours.csv")
        assert (tmp_path / "ours.csv").read_text() == table.to_csv(index=False)
