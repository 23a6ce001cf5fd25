"""Refusals that need only the options and the header of a table: they come before anything heavy is
imported.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from noiseproof.core.messages import near_file, preview
from noiseproof.core.plugins import MODULES
from noiseproof.core.tablefiles import check_column, read_header, table_kind

ROLES = ("label", "text", "id", "group", "time")
CONSENSUS = ("majority", "dawid-skene", "pooled")
BESIDE = ("labels", "pred_probs", "embeddings")  # which may be files of their own


def check_request(data: str | None, options: Mapping[str, Any]) -> None:
    """Refuse what ``read_rows`` would refuse by its options, the names of files and the header of a
    table alone.

    ``options`` are those of ``read_rows``. What only the content shows is left to it, and so are
    the sources of plug-ins, which may read any file.
    """
    if any("audit source" in kinds for kinds in MODULES.values()):
        return
    path = None if data is None else Path(os.path.abspath(data))
    check_exists(path)
    check_annotators(options["annotators"], options["annotations"], options["consensus"])
    for name in (*BESIDE, "annotations", "test", "describe"):
        if isinstance(options.get(name), str) and not Path(options[name]).exists():
            raise FileNotFoundError(missing_file(name, Path(options[name])))
    if path is None:
        check_parts({name: options[name] for name in BESIDE}, options["annotations"])
    elif table_kind(path) is not None:
        check_label(
            options["label"], options["annotators"], options["labels"], options["annotations"]
        )
        _check_header(path, options)
    elif path.is_dir() or path.suffix.lower() in (".npy", ".npz"):
        check_no_columns(options, str(path))


def _check_header(path: Path, options: Mapping[str, Any]) -> None:
    label, annotators = options["label"], options["annotators"]
    several = (
        label.split(",")
        if options.get("multi_label") == "columns" and isinstance(label, str)
        else []
    )
    if several:  # columns that say yes or no
        options = {**options, "label": None, "annotators": [name.strip() for name in several]}
        label, annotators = None, options["annotators"]
    first = next(iter(annotators), None) if label is None else label
    verbatim = [first, options["text"], options["id"], options["group"], *annotators]
    try:
        columns = read_header(path, verbatim, header=options["header"])
    except Exception:  # a damaged file, which reading it as a whole describes better
        return
    if columns:  # an empty file is described when it is read
        for column in (first, options["text"]):
            check_column(column, columns, str(path))
        trusted = options["trusted"]
        check_roles(columns, options, trusted if trusted in columns else None)


def check_exists(path: Path | None) -> None:
    if path is not None and not path.exists():
        raise FileNotFoundError(
            f"Expected a file or a folder to audit at {path}, found none.{near_file(path)}"
        )


def missing_file(name: str, path: Path) -> str:
    return f"Expected {name} at {path}, found no such file.{near_file(path)}"


def check_annotators(annotators: Sequence[Any], annotations: Any, consensus: str) -> None:
    """Refuse votes in columns and in a file of their own, and an unknown consensus."""
    if len(annotators) and annotations is not None:
        raise ValueError("Expected either `annotators` or `annotations`, got both.")
    if consensus not in CONSENSUS:
        raise ValueError(
            f"Expected `consensus` to be one of {', '.join(CONSENSUS)}, got {consensus!r}."
        )


def check_label(
    label: Any, annotators: Sequence[Any], labels: Any, annotations: Any = None
) -> None:
    if labels is not None:
        raise ValueError("Expected `label`, the column of the labels in the table, got `labels`.")
    if label is None and not annotators and annotations is None:
        raise ValueError(
            "Expected `label`, the name of the column with the given labels, got none."
        )


def check_parts(parts: Mapping[str, Any], annotations: Any = None) -> None:
    """Refuse labels without predictions and embeddings, or either of these without labels or
    votes.
    """
    has_labels = parts["labels"] is not None or annotations is not None
    if not has_labels or (parts["pred_probs"] is None and parts["embeddings"] is None):
        given = " and ".join(f"`{name}`" for name, value in parts.items() if value is not None)
        raise ValueError(
            "Expected data to audit, or both `labels` and `pred_probs` (or `embeddings`), got "
            f"{f'{given} alone' if given else 'none'}."
        )


def check_no_columns(options: Mapping[str, Any], source: str) -> None:
    if named := [
        name for name in (*ROLES, "annotators", "ignore") if options[name] not in (None, [], ())
    ]:
        raise ValueError(
            f"Expected no columns for {source}, got {preview(named)}. Only tables have columns."
        )


def check_roles(
    columns: Sequence[Any], options: Mapping[str, Any], trusted: Any
) -> Collection[Any]:
    """Return the columns with a role; refuse roles that the table does not have, or has twice."""
    roles = [column for role in ROLES if (column := options[role]) is not None]
    roles += [*([trusted] if trusted is not None else []), *options["annotators"]]
    if absent := [c for c in [*roles, *options["ignore"]] if c not in columns]:
        raise ValueError(
            f"Expected the columns {preview(absent)} in the table, there are"
            f" {preview(list(columns), 20)}."
        )
    if twice := sorted({c for c in roles if roles.count(c) > 1}):
        raise ValueError(f"Expected each column in one role, got {preview(twice)} in two.")
    return {*roles, *options["ignore"]}
