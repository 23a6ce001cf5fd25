"""Tables as pandas ``DataFrame``: read from files of every kind, and from tables of other
libraries.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from noiseproof.core.limits import LimitExceeded, check_unpacked
from noiseproof.core.messages import near_file, preview
from noiseproof.core.tablefiles import (
    HEADERLESS_KINDS,
    KINDS,
    check_column,
    detect_format,
    header_names,
    import_reader,
    open_bytes,
    parse_json_line,
    read_json_lines,
    read_sheet,
    table_kind,
)
from noiseproof.data.sources import PathLike

if TYPE_CHECKING:  # takes half a second to import
    import pandas as pd

Table: TypeAlias = "pd.DataFrame | PathLike | Any"  # polars, Arrow and Hugging Face tables, too
MOST_COMMAS = 100  # at the end of a line, after cells of all columns
NOTES = "noiseproof"  # the key of a frame's attrs


def read_table(
    table: Table,
    label: str,
    text: str | None = None,
    *verbatim: str | None,
    categories: Iterable[str] = (),
    header: bool = True,
) -> pd.DataFrame:
    """Read a table in memory or in a file as a DataFrame, not empty, with unique columns.

    Args:
        table: a table of any kind, or the path of a file.
        label, text, verbatim: columns that are read as they are written in a .csv or .tsv file; the
            first two must be there.
        categories: columns of words of another table, which are read as they are written, too,
            except for what pandas reads as missing.
        header: whether the first line has the names of the columns; else they are called 0, 1, …
    """
    if isinstance(table, (str, os.PathLike)):
        frame = read_file(Path(table), [label, text, *verbatim], categories, header=header)
        check_table(frame, str(table), label, text)
        return frame
    frame = as_frame(table)
    check_table(frame, "the table", label, text)
    return frame


def check_table(frame: Any, source: str, *columns: str | None) -> None:
    """Refuse a table without one of ``columns``, without rows, or with a column twice."""
    for column in columns:
        check_column(column, list(frame.columns), source)
    if len(frame) == 0:
        raise ValueError(f"Expected at least one row in {source}, got an empty table.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()]
        raise ValueError(
            f"Expected each column of {source} once, got {preview(list(twice))} twice. Rename one"
            " of them."
        )


def reading_notes(frame: pd.DataFrame | ParquetColumns) -> list[str]:
    """What the user should know about how ``read_table`` read a file."""
    return list(frame.attrs.get(NOTES, ()))


def table_name(table: Table, default: str) -> str:
    return Path(table).stem if isinstance(table, (str, os.PathLike)) else default


# In memory


def library_of(value: Any) -> str:
    """The package that defines the type of a value, such as polars."""
    return type(value).__module__.partition(".")[0]


def is_foreign_table(value: Any) -> bool:
    """Whether a value is a table of polars, Arrow or Hugging Face, a dict of columns, or a list of
    dicts.
    """
    kinds = {
        "polars": ("DataFrame", "LazyFrame"),
        "pyarrow": ("Table", "RecordBatch"),
        "datasets": ("Dataset",),
    }
    if library_of(value) in kinds:
        return type(value).__name__ in kinds[library_of(value)]
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict)


def as_frame(table: Any) -> pd.DataFrame:
    """Return a table of any library, a dict of columns or a list of dicts, as a DataFrame.

    Columns of Hugging Face's ClassLabel, or of lists of it, hold the names of the classes, None
    where there is none.
    """
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table
    is_hugging_face = library_of(table) == "datasets"
    if not is_foreign_table(table):
        hint = ""
        if is_hugging_face:
            hint = " Name a split, as in data['train'], read without streaming."
        raise TypeError(
            "Expected a DataFrame, a table of polars, Arrow or Hugging Face, a dict of columns or"
            f" the path of a file, got {type(table).__name__}.{hint}"
        )
    if is_hugging_face:
        return _from_hugging_face(table)
    if isinstance(table, list):
        return pd.DataFrame(table)
    if isinstance(table, dict):
        return pd.DataFrame({name: _column(values, name) for name, values in table.items()})
    if type(table).__name__ == "LazyFrame":
        table = table.collect()
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _from_arrow(table: Any) -> pd.DataFrame:
    # numbers are not copied, and each other column is freed when it was converted
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
    return frame


def _column(values: Any, name: Any) -> Any:
    if getattr(values, "ndim", 1) != 1:
        raise ValueError(
            f"Expected one value per row in column {name!r}, got shape {tuple(values.shape)}."
        )
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


def _from_hugging_face(dataset: Any) -> pd.DataFrame:
    import pandas as pd

    frame: pd.DataFrame = dataset.with_format("pandas")[:]
    for column, kind in dataset.features.items():
        if hasattr(kind, "names"):
            name_of = dict(enumerate(kind.names))  # −1 and gaps have no name
            frame[column] = [name_of.get(k) for k in frame[column].tolist()]
        elif (names := list_class_names(kind)) is not None:
            cells = [None if cell is None else [names[k] for k in cell] for cell in frame[column]]
            frame[column] = pd.Series(cells, index=frame.index, dtype=object)
    return frame


def list_class_names(kind: Any) -> list[str] | None:
    """The class names of a Hugging Face column whose cells are lists of ``ClassLabel``; None for
    any other.
    """
    inner = kind[0] if isinstance(kind, list) and kind else getattr(kind, "feature", None)
    names: list[str] | None = getattr(inner, "names", None)
    return names


# Files


def read_file(
    path: Path,
    verbatim: Sequence[str | None] = (),
    categories: Iterable[str] = (),
    *,
    header: bool = True,
) -> pd.DataFrame:
    if not path.exists():
        raise FileNotFoundError(f"Expected a table at {path}, found no such file.{near_file(path)}")
    kind = table_kind(path)
    if not header and kind not in HEADERLESS_KINDS:
        raise ValueError(
            f"Expected a {' or '.join(HEADERLESS_KINDS)} file without names of columns, got {path}."
        )
    with readable(path):
        if kind in (".csv", ".tsv"):
            return _read_csv(path, verbatim, categories, header)
        if kind == ".jsonl":
            return _read_jsonl(path)
        if kind == ".xlsx":
            return sheet_frame(path, header)[0]
        if kind in (".parquet", ".arrow"):
            return _from_arrow(read_arrow(path))
        raise ValueError(f"a file of kind {path.suffix.lstrip('.')!r}")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise what readers raise about a damaged file as one kind of error, with its path."""
    try:
        yield
    except UnicodeError as error:
        raise ValueError(
            f"Expected UTF-8 in {path}, got {error}. Save the table in that encoding."
        ) from error
    except (ImportError, LimitExceeded):
        raise
    except Exception as error:  # readers raise many kinds of error on damaged files
        reason = str(error).strip().rstrip(".")
        endings = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise ValueError(f"Expected a readable {endings} file in {path}, got {reason}.") from error


def _read_csv(
    path: Path, verbatim: Sequence[str | None], categories: Iterable[str], header: bool
) -> pd.DataFrame:
    import pandas as pd

    found = detect_format(path, verbatim, header=header)
    names = header_names(found.first, header)
    _check_once(names)  # pandas would rename one to x.1
    # pandas infers types from this file alone: 02 would become the number 2 if no other word is in
    # its column. "NA", "None" and "null" may be names of classes, 007 is another id than 7: only
    # empty fields of verbatim columns are missing.
    words: dict[str, Any] = dict.fromkeys([*categories, *filter(None, verbatim)], str)
    # No public name has what pandas takes for gaps. Lines may end in more commas than the header.
    missing = sorted(import_module("pandas._libs.parsers").STR_NA_VALUES)
    beyond = range(len(names), len(names) + MOST_COMMAS)
    others = [k for k, name in enumerate(names) if name not in verbatim]
    gaps = dict.fromkeys([*others, *beyond], missing)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            with open_bytes(path) as file:
                frame: pd.DataFrame = pd.read_csv(
                    file,
                    sep=found.separator,
                    encoding=found.codec,
                    index_col=False,
                    header="infer" if header else None,
                    names=None if header else names,
                    decimal=found.decimal,
                    thousands=found.thousands,
                    dtype=words,
                    keep_default_na=False,
                    na_values=gaps,
                    low_memory=False,
                )
        except pd.errors.ParserWarning:  # the first field would be an index, all columns shifted
            raise ValueError("rows with more fields than the header") from None
    frame.attrs[NOTES] = found.notes
    return frame


def _check_once(names: list[str]) -> None:
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the column {preview(sorted(twice))} twice. Rename one of them")


def _read_jsonl(path: Path) -> pd.DataFrame:
    import pandas as pd

    found = detect_format(path)
    frame = pd.DataFrame([parse_json_line(line) for line in read_json_lines(path, found)])
    frame.attrs[NOTES] = found.notes
    return frame


def sheet_frame(path: Path, header: bool = True) -> tuple[pd.DataFrame, list[int]]:
    """Return the first sheet of an Excel file, and the number of each row in the sheet, from 1."""
    import pandas as pd

    rows = list(read_sheet(path))
    width = max((len(values) for _, values in rows), default=0)
    first: Sequence[Any] = range(width)
    if header and rows:
        first = rows.pop(0)[1]
        if width > len(first):
            raise ValueError("rows with more cells than the header")
    names = header_names(first, header)
    _check_once(names)
    cells = [[*values, *[None] * (width - len(values))] for _, values in rows]
    return pd.DataFrame(cells, columns=names), [number for number, _ in rows]


def read_arrow(path: Path) -> Any:
    """A Parquet, Feather or Arrow IPC file, or an Arrow stream, as an Arrow table."""
    pa = import_reader("pyarrow", "parquet", path)
    if table_kind(path) == ".parquet":
        return open_parquet(path).read()  # half the memory of `read_table`
    with open_bytes(path) as file:
        is_file = file.read(6) == b"ARROW1"
    with pa.OSFile(str(path)) as source:
        return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source).read_all()


def open_parquet(path: Path) -> Any:
    """A Parquet file; one with many more cells than bytes is refused."""
    pq = import_reader("pyarrow.parquet", "parquet", path)
    file = pq.ParquetFile(path, pre_buffer=False)
    check_unpacked(
        8 * file.metadata.num_rows * file.metadata.num_columns, path.stat().st_size, path
    )
    return file


def write_csv(frame: pd.DataFrame, path: Path, line_end: str = "\n") -> None:
    """Write a table as UTF-8 without its index."""
    frame.to_csv(path, index=False, lineterminator=line_end, encoding="utf-8")


class ParquetColumns:
    """The columns of a Parquet file, each read when it is asked for: a DataFrame where single
    columns or rows are enough.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = open_parquet(path)
        self.names = list(self.file.schema_arrow.empty_table().to_pandas().columns)
        self.rows: Any = None  # (N,) positions in the file; by default all

    @classmethod
    def open(cls, path: Path) -> ParquetColumns | None:
        """Return the columns, or None where the file is read as a whole: with repeated or other
        than plain names.
        """
        columns = cls(path)
        is_plain = all(isinstance(name, str) for name in columns.names)
        is_unique = len({*columns.names}) == len(columns.names)
        return columns if is_plain and is_unique and columns.file.metadata.num_rows else None

    @property
    def columns(self) -> Any:
        import pandas as pd

        return pd.Index(self.names)

    @property
    def attrs(self) -> dict[str, Any]:
        return {}

    def __len__(self) -> int:
        return int(self.file.metadata.num_rows) if self.rows is None else len(self.rows)

    def __getitem__(self, name: Any) -> Any:
        """Return a column as a Series; of a list of names the columns of these names, unread."""
        if isinstance(name, list):
            part = copy(self)
            part.names = name
            return part
        if name not in self.names:
            raise KeyError(name)
        with readable(self.path):
            column = self.file.read(columns=[name]).to_pandas()[name].reset_index(drop=True)
        return column if self.rows is None else column.iloc[self.rows]

    def take(self, rows: Any) -> ParquetColumns:
        part = copy(self)
        part.rows = rows if self.rows is None else self.rows[rows]
        return part

    def read(self) -> pd.DataFrame:
        with readable(self.path):
            frame = _from_arrow(self.file.read(columns=self.names))
        frame = frame[self.names].reset_index(drop=True)
        return frame if self.rows is None else frame.take(self.rows)

    def is_nested(self, name: str) -> bool:
        import pyarrow as pa

        return bool(pa.types.is_nested(self.file.schema_arrow.field(name).type))
