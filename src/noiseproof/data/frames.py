"""Tables as pandas ``DataFrame``: read from files of every kind, and from tables of other
libraries.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from noiseproof.core.limits import LimitExceeded, check_unpacked
from noiseproof.core.messages import install_command, near_file, preview
from noiseproof.core.tablefiles import (
    HEADERLESS_KINDS,
    KINDS,
    check_column,
    detect_format,
    open_bytes,
    parse_json_line,
    read_header,
    read_json_lines,
    read_sheet,
    table_kind,
)
from noiseproof.data.sources import PathLike

if TYPE_CHECKING:  # takes half a second to import
    import pandas as pd

Table: TypeAlias = "pd.DataFrame | PathLike | Any"  # polars, Arrow and Hugging Face tables, too
NOTES = "noiseproof"  # the key of a frame's attrs
# rows that Arrow writes faster than pandas, and that it writes at once
LONG_TABLE, BLOCK = 50_000, 2**17
LONG_COLUMN = 2**26  # bytes of words that are looked at in parts before they are read


def read_table(
    table: Table,
    label: str,
    text: str | None = None,
    *verbatim: str | None,
    categories: Iterable[str] = (),
    header: bool = True,
) -> pd.DataFrame:
    """A table in memory or in a file as a DataFrame, not empty, with unique columns and the label.

    In a .csv or .tsv file, the label, the text and the columns ``verbatim`` are read as they are
    written. So are ``categories``, the columns of words of another table, except for what pandas
    reads as missing. Without ``header``, the columns of a file are called 0, 1, …
    """
    if isinstance(table, (str, os.PathLike)):
        frame, source = (
            read_file(Path(table), [label, text, *verbatim], categories, header=header),
            str(table),
        )
    else:
        frame, source = as_frame(table), "the table"
    check_table(frame, source, label, text)
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
    names = {
        "polars": ("DataFrame", "LazyFrame"),
        "pyarrow": ("Table", "RecordBatch"),
        "datasets": ("Dataset",),
    }
    if library_of(value) in names:
        return type(value).__name__ in names[library_of(value)]
    return isinstance(value, dict) or is_list_of_dicts(value)


def is_list_of_dicts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def as_frame(table: Any) -> pd.DataFrame:
    """A table of pandas, polars, Arrow or Hugging Face, a dict of columns or a list of dicts, as a
    DataFrame.

    Columns of Hugging Face's ClassLabel, or of lists of it, hold the names of the classes, None
    where there is none.
    """
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table
    if not is_foreign_table(table):
        hint = (
            " Name a split, as in data['train'], read without streaming."
            if library_of(table) == "datasets"
            else ""
        )
        raise TypeError(
            "Expected a DataFrame, a table of polars, Arrow or Hugging Face, a dict of columns or"
            f" the path of a file, got {type(table).__name__}.{hint}"
        )
    if library_of(table) == "datasets":
        return _from_hugging_face(table)
    if isinstance(table, list):
        return pd.DataFrame(table)
    if isinstance(table, dict):
        return pd.DataFrame({name: _column(values, name) for name, values in table.items()})
    if type(table).__name__ == "LazyFrame":
        table = table.collect()
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _column(values: Any, name: Any) -> Any:
    if getattr(values, "ndim", 1) != 1:
        raise ValueError(
            f"Expected one value a row in column {name!r}, got shape {tuple(values.shape)}."
        )
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


def _from_hugging_face(dataset: Any) -> pd.DataFrame:
    import pandas as pd

    frame: pd.DataFrame = dataset.with_format("pandas")[:]
    for column, kind in dataset.features.items():
        if (names := getattr(kind, "names", None)) is not None:
            frame[column] = [
                names[k] if k is not None and k == k and k >= 0 else None
                for k in frame[column].tolist()
            ]
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
    kind = table_kind(path)
    if not path.exists():
        raise FileNotFoundError(f"Expected a table at {path}, found no such file.{near_file(path)}")
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
            # Numbers are not copied, and each other column of the Arrow table is freed when it was
            # converted.
            frame: pd.DataFrame = read_arrow(path).to_pandas(split_blocks=True, self_destruct=True)
            return frame
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
    names = read_header(path, verbatim, header=header) or []
    if twice := {name for name in names if names.count(name) > 1}:  # pandas would rename one to x.1
        raise ValueError(f"the column {preview(sorted(twice))} twice. Rename one of them")
    options: dict[str, Any] = {"sep": found.separator, "encoding": found.codec, "index_col": False}
    options |= {} if header else {"header": None, "names": names}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            # pandas infers types from this file alone: 02 would become the number 2 if no other
            # word is in its column.
            dtypes: Any = dict.fromkeys(categories, str)
            with open_bytes(path) as file:
                frame: pd.DataFrame = pd.read_csv(
                    file,
                    **options,
                    low_memory=False,
                    dtype=dtypes,
                    decimal=found.decimal,
                    thousands=found.thousands,
                )
        except (
            pd.errors.ParserWarning
        ):  # pandas would use the first field as an index and shift all columns
            raise ValueError("rows with more fields than the header") from None
        if present := [c for c in frame.columns if c in verbatim]:
            # "NA", "None" and "null" may be names of classes, 007 is another id than 7: only empty
            # fields are missing.
            with open_bytes(path) as file:
                words = pd.read_csv(
                    file, **options, usecols=present, dtype=str, keep_default_na=False
                )
            frame[present] = words[present]
    frame.attrs[NOTES] = found.notes
    return frame


def _read_jsonl(path: Path) -> pd.DataFrame:
    import pandas as pd

    found = detect_format(path)
    frame = pd.DataFrame([parse_json_line(line) for line in read_json_lines(path, found)])
    frame.attrs[NOTES] = found.notes
    return frame


def sheet_frame(path: Path, header: bool = True) -> tuple[pd.DataFrame, list[int]]:
    """The first sheet of an Excel file, and the number of each row in the sheet, from 1."""
    import pandas as pd

    rows = list(read_sheet(path))
    names = read_header(path, header=header) or []
    rows = rows[1:] if header else rows
    width = max((len(values) for _, values in rows), default=0)
    if width > len(names) and not header:
        names = [str(i) for i in range(width)]
    if width > len(names):
        raise ValueError("rows with more cells than the header")
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the column {preview(sorted(twice))} twice. Rename one of them")
    cells = [[*values, *[None] * (len(names) - len(values))] for _, values in rows]
    return pd.DataFrame(cells, columns=names), [number for number, _ in rows]


def _import_arrow(path: Path, module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"Expected pyarrow to read {path}, it is not installed. Run"
            f" `{install_command('parquet')}`."
        ) from None


def read_arrow(path: Path) -> Any:
    """A Parquet, Feather or Arrow IPC file, or an Arrow stream, as an Arrow table."""
    pa = _import_arrow(path, "pyarrow")
    if table_kind(path) == ".parquet":
        return open_parquet(path).read()  # half the memory of `read_table`
    with open_bytes(path) as file:
        magic = file.read(6)
    if magic.startswith(b"FEA1"):
        import pyarrow.feather as feather

        return feather.read_table(path)
    with pa.OSFile(str(path)) as source:
        return (pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream)(source).read_all()


def open_parquet(path: Path) -> Any:
    """A Parquet file; one with many more cells than bytes is refused."""
    pq = _import_arrow(path, "pyarrow.parquet")
    file = pq.ParquetFile(path, pre_buffer=False)
    check_unpacked(
        8 * file.metadata.num_rows * file.metadata.num_columns, path.stat().st_size, path
    )
    return file


def write_csv(frame: pd.DataFrame, path: Path, line_end: str = "\n") -> None:
    """Write a table as pandas does, byte by byte; a long one by Arrow, in less than half of the
    time, if that can.
    """
    try:
        if len(frame) < LONG_TABLE:
            raise ImportError("pandas is fast enough")
        import pyarrow.compute as pc

        with open(path, "wb") as file:
            file.write(frame.iloc[:0].to_csv(index=False, lineterminator=line_end).encode())
            for i in range(0, len(frame), BLOCK):
                cells = [
                    _cell_texts(frame[name].iloc[i : i + BLOCK], line_end) for name in frame.columns
                ]
                lines = pc.binary_join_element_wise(
                    pc.binary_join_element_wise(*cells, ","), "", line_end
                )
                file.write(lines.buffers()[2])
    except (
        ImportError,
        NotImplementedError,
        TypeError,
        ValueError,
    ):  # by Arrow, of a column that it does not know
        frame.to_csv(path, index=False, lineterminator=line_end, encoding="utf-8")


def _cell_texts(column: pd.Series[Any], line_end: str) -> Any:
    """The cells of a column as pandas writes them, an Arrow array of strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pa.array(column, from_pandas=True)
    cells = cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells
    if pa.types.is_boolean(cells.type):
        texts = pc.if_else(cells, "True", "False")
    elif pa.types.is_integer(cells.type):
        texts = cells.cast(pa.string())
    elif pa.types.is_float64(cells.type):
        size = pc.abs(cells)
        is_plain = pc.or_(
            pc.equal(size, 0), pc.and_(pc.greater_equal(size, 1e-4), pc.less(size, 1e6))
        )
        # else Arrow's differ
        written = [repr(value) for value in cells.filter(pc.invert(is_plain)).to_pylist()]
        texts = pc.if_else(pc.equal(pc.floor(cells), cells), ".0", "")
        texts = pc.binary_join_element_wise(cells.cast(pa.string()), texts, "")
        texts = pc.replace_with_mask(
            texts, pc.fill_null(pc.invert(is_plain), False), pa.array(written, pa.string())
        )
    elif pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
        quoted = pc.binary_join_element_wise(
            '"', pc.replace_substring(cells.cast(pa.string()), '"', '""'), '"', ""
        )
        texts = pc.if_else(
            pc.match_substring_regex(cells, f'[,"{line_end}]'), quoted, cells.cast(pa.string())
        )
    else:
        raise TypeError(f"a column of {cells.type}")
    return pc.fill_null(texts, "")


class ParquetColumns:
    """The columns of a Parquet file, each read when it is asked for: a DataFrame where single
    columns or rows are enough.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, open_parquet(path)
        self.empty: pd.DataFrame = self.file.schema_arrow.empty_table().to_pandas()
        self.names = list(self.empty.columns)
        self.rows: Any = None  # (N,) positions in the file; by default all

    @classmethod
    def open(cls, path: Path) -> ParquetColumns | None:
        """The columns, or None where the file is read as a whole: with repeated or other than plain
        names.
        """
        columns = cls(path)
        is_plain = all(isinstance(name, str) for name in columns.names) and len(
            {*columns.names}
        ) == len(columns.names)
        return (
            columns
            if is_plain and columns.file.metadata.num_rows and columns.empty.index.nlevels == 1
            else None
        )

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
        """A column as a Series; a list of names gives the columns of these names, unread."""
        if isinstance(name, list):
            return self._copy(names=name)
        if name not in self.names:
            raise KeyError(name)
        with readable(self.path):
            column = self.file.read(columns=[name]).to_pandas()[name].reset_index(drop=True)
        return column if self.rows is None else column.iloc[self.rows]

    def take(self, rows: Any) -> ParquetColumns:
        return self._copy(rows=rows if self.rows is None else self.rows[rows])

    def _copy(self, **changes: Any) -> ParquetColumns:
        other = object.__new__(ParquetColumns)
        other.__dict__.update(self.__dict__ | changes)
        return other

    def read(self) -> pd.DataFrame:
        with readable(self.path):
            frame: pd.DataFrame = self.file.read(columns=self.names).to_pandas(
                split_blocks=True, self_destruct=True
            )
        frame = frame[self.names].reset_index(drop=True)
        return frame if self.rows is None else frame.take(self.rows)

    def is_nested(self, name: str) -> bool:
        import pyarrow as pa

        return bool(pa.types.is_nested(self.file.schema_arrow.field(name).type))

    def parts(self, name: str) -> Iterator[pd.Series[Any]]:
        """A column of the whole file in parts, its row groups in turn."""
        with readable(self.path):
            for i in range(self.file.metadata.num_row_groups):
                yield self.file.read_row_group(i, columns=[name]).to_pandas()[name]

    def word_parts(self, name: str) -> Iterator[list[str]]:
        """The different words of each row group in turn, of a long column of words; of others,
        none.
        """
        import pyarrow as pa

        kind, metadata = self.file.schema_arrow.field(name).type, self.file.metadata
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return
        at = [metadata.schema.column(i).path for i in range(metadata.num_columns)].index(name)
        groups = range(metadata.num_row_groups)
        if (
            sum(metadata.row_group(i).column(at).total_uncompressed_size for i in groups)
            > LONG_COLUMN
        ):
            for i in groups:
                yield (
                    self.file.read_row_group(i, columns=[name])
                    .column(0)
                    .unique()
                    .drop_null()
                    .to_pylist()
                )
