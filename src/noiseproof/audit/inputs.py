"""``read_rows``: tables, texts, pictures, arrays or the predictions of another model, as rows to
audit.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from noiseproof.audit.descriptions import with_descriptions
from noiseproof.audit.exchange import find_tool
from noiseproof.audit.files import Audit, cache_beside, is_utf8
from noiseproof.audit.memory import InMemory, adapt, check_order
from noiseproof.audit.sources import SOURCES, Request, Source
from noiseproof.audit.sources.annotations import attach_votes, first_labels, read_annotations
from noiseproof.audit.sources.arrays import align, load_array, with_features
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.arrays import Floats32, Ints
from noiseproof.core.checks import check_word
from noiseproof.core.messages import Json, Progress, near_file, preview
from noiseproof.core.plugins import MODULES, load_plugins
from noiseproof.core.probs import check_probabilities
from noiseproof.core.tablefiles import table_kind
from noiseproof.data.features import get_extractor
from noiseproof.data.frames import as_frame, is_foreign_table, read_file
from noiseproof.data.given import column_names
from noiseproof.data.labels import describe_labels, find_words
from noiseproof.data.labelsets import (
    COLUMNS,
    Labels,
    are_lists,
    is_matrix,
    looks_like_sets,
    separator_for,
    sets_as_words,
)
from noiseproof.data.sources import PATHS, PathLike
from noiseproof.judge.crowd.consensus import METHODS
from noiseproof.judge.labelissues import row_mask

IDENTIFIER = "Is it an identifier rather than a label?"
SEEN = (
    "The predictions agree with every label. If their model was trained on these rows, it repeats"
    " their labels: use the predictions of cross-validation."
)


def read_rows(
    data: PathLike | Any = None,
    *,
    label: str | Sequence[str] | None = None,
    multi_label: str | None = None,
    text: str | None = None,
    id: str | None = None,
    group: str | None = None,
    time: str | None = None,
    ignore: Sequence[str] = (),
    trusted: str | PathLike | Any = None,
    test: PathLike | Any = None,
    annotators: Sequence[str] = (),
    annotations: Any = None,
    consensus: str = "majority",
    labels: Any = None,
    pred_probs: Any = None,
    embeddings: Any = None,
    classes: Sequence[str] | None = None,
    header: bool = True,
    features: str | None = None,
    describe: Any = None,
    seed: int = 0,
    progress: Progress | None = None,
    cache: PathLike | None = None,
) -> AuditData:
    """Read data to audit; rows that can't be audited are left out and listed.

    Args:
        data: a table, as a DataFrame of pandas or polars, an Arrow table, a Hugging Face
            ``Dataset``, a dict of columns or a .csv, .tsv, .parquet, .jsonl, .xlsx or .arrow file;
            a folder with a folder of pictures for each class; what Label Studio, Argilla, CVAT,
            FiftyOne or COCO have as labels (`noiseproof.audit.exchange`); a .npz file or a dict
            with ``x`` and ``labels``; a torch ``Dataset`` of (x, y); an array, a sparse matrix, a
            list of texts or a .npy file of inputs with ``labels``; None for ``labels`` with
            ``pred_probs`` or ``embeddings`` alone.
        label: column of the given labels; without it, the ``consensus`` of annotators. Several
            columns that say yes or no, or 1 or 0, are the labels of rows with several of them.
        multi_label: what separates the labels of a row in its label column, such as ``|`` in a|b,
            an empty cell being none; ``columns``, where ``label`` names several columns, a,b,c.
            Matrices (N, K) of zeros and ones and lists need no option, as ``labels`` or in their
            column. An empty list is no label; None is not labelled.
        text: column of texts, which are audited by their words; the other columns are not used.
        id: column that names a row.
        group: column of groups, such as patients, which are never split between folds.
        time: column of numbers or dates; folds are then blocks of time.
        ignore: columns that no model should see.
        trusted: labels known to be right: a column of yes and no, or an array or a .npy file of
            booleans or row numbers, or a table with the same columns, whose rows help but are not
            audited.
        test: a table with the same columns, or a folder of pictures, with which the rows are
            compared: rows in both, and distributions that differ.
        annotators: columns with the labels of several annotators.
        annotations: the same with a line for each label, a table or its file with the columns
            ``row`` (the id, or the number of the row from 0), ``annotator`` and ``label``; without
            ``label`` and ``labels``, their ``consensus`` is audited.
        consensus: how these labels are made: ``majority``, ``dawid-skene`` or ``pooled``.
        labels: labels of data in memory, arrays, predictions or embeddings: an array, or a .npy
            file; of several labels per row a matrix (N, K) of zeros and ones, whose columns
            ``classes`` names, or a list of lists.
        pred_probs: out-of-sample class probabilities (N, K) of another model, so that nothing is
            trained: an array, a .npy file, or a table or its file, whose named columns are matched
            with the classes, and the column ``id`` with the rows.
        embeddings: features (N, F) of another model: an array, a .npy file, or a table or its file.
        classes: names of the classes, in the order of the columns of ``pred_probs``; whole numbers
            are then positions in it, unless they are strings and numbers are among the names.
        header: whether the first row of a table file names its columns; else they are called 0, 1,
            …
        features: of texts or pictures, by the names of ``noiseproof features``: ``tfidf``,
            ``patches``, ``sentence-transformers:NAME``, ``timm:NAME``; by default pretrained where
            ``noiseproof[text]`` or ``noiseproof[vision]`` is installed.
        describe: a sentence on each class, by which texts are judged without the labels: a dict,
            or a table or its file with the columns ``class`` and ``description``.
        seed: of the features of texts and pictures.
        progress: receives stage, steps done and steps in all while features are computed.
        cache: a folder where features of texts and pictures are kept, so that they are computed
            once.
    """
    began = perf_counter()
    files = {
        "labels": labels,
        "pred_probs": pred_probs,
        "embeddings": embeddings,
        "annotations": annotations,
        "test": test,
        "describe": describe,
        "trusted": trusted,
    }
    paths = {name: _path(value) for name, value in files.items()}
    _check_files({name: value for name, value in files.items() if name != "trusted"})
    has_annotators = _check_annotators(annotators, annotations, consensus)
    label, labels, classes, multi = _read_sets(label, labels, classes, multi_label, has_annotators)
    is_file = isinstance(data, PATHS)
    if is_file:
        data = Path(os.path.abspath(data))
        label, text, id, group, time = map(_column_name, (label, text, id, group, time))
    given = InMemory(data, labels, label, text, classes, features=features)
    if data is not None and not is_file:
        given = adapt(given, has_annotators=has_annotators)
    votes = None if annotations is None else read_annotations(annotations, id, given.label)
    data = given.data
    labels = given.labels
    classes = given.classes
    pred_probs = load_table(pred_probs, id)
    embeddings = load_table(embeddings, id)
    request = Request(
        data, labels, pred_probs, embeddings, trusted, votes, classes, seed, progress, cache
    )
    columns = {
        "label": given.label,
        "text": given.text,
        "id": id,
        "group": group,
        "time": time,
        "annotators": list(annotators),
        "ignore": list(ignore),
    }
    source = _find_source(
        request,
        {
            "data": request.path and str(request.path),
            **paths,
            "labels_key": given.labels_key,
            **columns,
            "consensus": consensus,
            "features": features,
            "weights": None,
            "classes_named": classes is not None,
            "header": header,
            "multi_label": multi,
        },
    )
    _check_columns(columns, source, request)
    if features is not None:
        _check_features(features, source, request)
    rows = _read_source(source, request, paths, test, trusted, describe)
    return replace(_comparable(rows), seconds=perf_counter() - began)


def _check_annotators(annotators: Sequence[str], annotations: Any, consensus: str) -> bool:
    """Return whether there are votes; refuse votes from two places, and an unknown consensus."""
    if len(annotators) and annotations is not None:
        raise ValueError("Expected either `annotators` or `annotations`, got both.")
    check_word("consensus", consensus, METHODS)
    return bool(annotators) or annotations is not None


def _check_columns(columns: Mapping[str, Any], source: Source, request: Request) -> None:
    named = [name for name, column in columns.items() if column not in (None, [])]
    if named and not source.has_columns:
        raise ValueError(
            f"Expected no columns for {request.path or source.name}, got {preview(named)}. Only"
            " tables have columns."
        )


def _read_source(
    source: Source,
    request: Request,
    paths: Mapping[str, str | None],
    test: Any,
    trusted: Any,
    describe: Any,
) -> AuditData:
    """Return the rows of ``source`` with what other arguments know of them."""
    rows = _with_sets(source.read(request))
    if test is not None:
        if not request.needs_features:
            raise ValueError(
                f"Expected features of the {source.name} with `test`, got embeddings or"
                " predictions."
            )
        rows = replace(rows, test=source.read_test(test, rows, request))
    if request.annotations is not None and rows.labels.votes is None:
        rows = attach_votes(rows, request.annotations, request.classes)
    index = request.data if source.has_columns else request.labels
    if request.pred_probs is not None:
        table = _matched(rows, request.pred_probs, paths["pred_probs"], index, "pred_probs")
        rows = _with_pred_probs(rows, table, request.classes is not None)
        votes = rows.labels.votes
        if source.is_voted and votes is not None:  # the predictions resolve ties
            method = source.config["consensus"]
            voted = first_labels(votes, len(rows.classes), method, request.seed, rows.pred_probs)
            rows = replace(rows, labels=replace(rows.labels, codes=voted))
    if request.embeddings is not None:
        table = _matched(rows, request.embeddings, paths["embeddings"], index, "embeddings")
        rows = with_features(rows, load_array(table, "embeddings"), "embeddings")
    if trusted is not None and rows.trusted is None:
        marked = load_array(trusted, "trusted")
        if not marked.size:
            raise ValueError(
                f"Expected `trusted` to hold {rows.source_rows} booleans or row numbers, got none."
                " Leave it out where no label is trusted."
            )
        known = row_mask("trusted", marked, rows.source_rows)
        rows = replace(rows, trusted=known[rows.row])
    return rows if describe is None else with_descriptions(rows, describe)


def _with_sets(data: AuditData) -> AuditData:
    """Return rows with several labels with what their words spell, and keep in config.json how."""
    if not (multi := data.source.multi_label):
        return data
    labels = Labels.of_sets(data.classes, multi["separator"], multi["labels"], data.given)
    names = list(labels.names)
    data.source.config["multi_label"] = {**multi, "labels": names, "joiner": labels.joiner}
    return replace(data, labels=labels)


def _read_sets(
    label: Any,
    labels: Any,
    classes: Sequence[str] | None,
    multi_label: str | None,
    has_annotators: bool,
) -> tuple[Any, Any, Sequence[str] | None, Json | None]:
    """Return label, labels and classes of words that spell sets, and how they do; as they are for
    one label per row.
    """
    columns = label if isinstance(label, (list, tuple)) else None
    if multi_label == COLUMNS and isinstance(label, str):
        columns = label.split(",")
    if has_annotators and (multi_label is not None or columns is not None):
        raise ValueError(
            "Expected one label per row with `annotators`, got several. Leave one of the options"
            " out."
        )
    if columns is not None:
        names = [str(name).strip() for name in columns]
        if len({*names}) < max(2, len(names)) or not all(names):
            raise ValueError(
                f"Expected the names of two label columns or more, each once, got {preview(names)}."
            )
        multi = {"kind": COLUMNS, "separator": separator_for(names)}
        return ",".join(names), labels, None, {**multi, "labels": names, "columns": names}
    if multi_label is not None:
        if not isinstance(multi_label, str) or not multi_label:
            raise ValueError(
                f"Expected a separator such as '|', or {COLUMNS!r}, as `multi_label`, got"
                f" {multi_label!r}."
            )
        known = None if classes is None else list(map(str, classes))
        return label, labels, None, {"kind": "words", "separator": multi_label, "labels": known}
    is_file = isinstance(labels, PATHS) and str(labels).lower().endswith(".npy")
    matrix = load_array(labels, "labels") if is_file else labels
    if not is_matrix(matrix) and not are_lists(matrix):
        return label, labels, classes, None
    words, multi = sets_as_words(matrix, classes)
    return label, words, None, multi


def _comparable_sets(data: AuditData) -> AuditData:
    """Return the rows with a note on labels that cannot be judged; refuse data without any
    other.
    """
    count = data.labels.counts
    names = data.labels.names
    few = [name for name, yes in zip(names, count, strict=True) if not 1 < yes < len(data) - 1]
    if len(few) == len(names):
        raise ValueError(
            "Expected a label that two rows or more have, and two or more do not, got none among"
            f" {len(few)} labels of {len(data)} rows: {preview(few)}. Is the separator right?"
        )
    if not few:
        return data
    note = (
        f"{len(few)} of {len(count)} labels were not judged, since hardly a row, or hardly any"
        " other, has them: "
    )
    return replace(data, notes=(*data.notes, f"{note}{preview(few)}."))


def _find_source(request: Request, config: Json) -> Source:
    """Return the source that accepts the request; refuse what none accepts."""
    path = request.path
    if path is not None:
        if not path.exists():
            raise FileNotFoundError(
                f"Expected a file or a folder to audit at {path}, found none.{near_file(path)}"
            )
        if path.is_dir() or path.suffix.lower() in (".json", ".xml"):
            request = replace(request, tool=find_tool(path))
    if odd := [value for value in config.values() if isinstance(value, str) and not is_utf8(value)]:
        raise ValueError(
            f"Expected names in UTF-8, which config.json can hold, got {preview(odd)}. Rename them."
        )

    load_plugins()
    # a plug-in may claim what a built-in kind accepts
    names = sorted(SOURCES, key=lambda name: name not in MODULES)
    sources = (SOURCES[name]({"kind": name, **config}) for name in names)
    source = next((source for source in sources if source.accepts(request)), None)
    if source is None:
        *others, last = (files for name in SOURCES if (files := SOURCES[name](config).files))
        got = type(request.data).__name__ if path is None else path.name
        raise ValueError(f"Expected {', '.join(others)} or {last}, got {got}.")
    return source


def _check_features(features: str, source: Source, request: Request) -> None:
    """Refuse features that do not exist, or that nothing is computed by, before the data is
    read.
    """
    if source.feature_kind is None:
        raise ValueError(
            f"Expected texts or pictures for the features {features!r}, got a {source.name}."
        )
    if not request.needs_features:
        raise ValueError(
            "Expected either `features` or other models' embeddings or predictions, got"
            f" {features!r}, too."
        )
    get_extractor(features, source.feature_kind)


def read_again(audit: Audit) -> AuditData:
    """Read the rows of an earlier audit from their source, with its options; features are kept for
    further audits.
    """
    config = audit.config
    multi = audit.multi_label
    names = ["label", "text", "id", "group", "time", "trusted", "test", "labels", "embeddings"]
    names += ["features", "describe", "annotations", "consensus", "ignore", "annotators"]
    if config["data"] is None:
        names.append("pred_probs")
    options = {name: config[name] for name in names if config.get(name) is not None}
    if multi.get("kind") == COLUMNS:
        options["multi_label"] = COLUMNS
    elif multi.get("kind") == "words":
        options["multi_label"] = multi["separator"]
    if multi or config.get("classes_named"):
        options["classes"] = multi["labels"] if multi else config["classes"]
    header = config.get("header", True)
    cache = cache_beside(audit.folder)
    return read_rows(config["data"], **options, header=header, seed=config["seed"], cache=cache)


def _comparable(data: AuditData) -> AuditData:
    """Return the rows whose class has other rows, too."""
    if data.labels.are_sets:
        return _comparable_sets(data)
    label = data.source.config["label"]
    name = "labels" if label is None else str(label)
    counts = data.labels.counts
    several_labels = looks_like_sets(dict(zip(data.classes, counts.tolist(), strict=True)))
    notes = [*several_labels, *describe_labels(torch.from_numpy(data.given), data.classes, name)]
    if (several := int((counts > 1).sum())) < 2:
        raise ValueError(
            f"Expected at least two classes of two rows or more in `{name}`, got {several} among"
            f" {len(data.classes)} classes of {len(data)} rows."
            f" {several_labels[0] if several_labels else IDENTIFIER}"
        )
    data = replace(data, notes=tuple(dict.fromkeys([*data.notes, *notes])))
    return data.subset(
        counts[data.given] > 1, "the only row of its class: there is nothing to compare it with"
    )


def _check_files(files: Mapping[str, Any]) -> None:
    """Refuse the name of a file that is not there, before an hour of reading and encoding."""
    for name, value in files.items():
        if isinstance(value, PATHS) and not Path(value).exists():
            raise FileNotFoundError(
                f"Expected {name} at {value}, found no such file.{near_file(Path(value))}"
            )


def _path(value: Any) -> str | None:
    return os.path.abspath(value) if isinstance(value, PATHS) else None


def _column_name(name: Any) -> Any:
    """Return the name of a column of a file, where 4 is "4"."""
    return str(name) if isinstance(name, int) else name


def load_table(value: Any, id: str | None) -> Any:
    """Return predictions or embeddings in a table file, or in a table of another library, as a
    DataFrame.
    """
    if isinstance(value, PATHS) and table_kind(value) is not None:
        return read_file(Path(value), [id])
    return as_frame(value) if is_foreign_table(value) else value


def _matched(data: AuditData, table: Any, path: str | None, index: Any, name: str) -> Any:
    """Return predictions or embeddings in the order of the data: by the column of ids where a table
    has it.
    """
    if not hasattr(table, "iloc") or not hasattr(table, "columns"):
        return table
    id = data.source.config["id"]
    has_header = not all(map(_is_number, table.columns))
    if path is not None and not has_header and len(table) == data.source_rows - 1:
        return read_file(Path(path), header=False)  # as numpy.savetxt writes it
    first = str(table.columns[0]) if len(table.columns) else ""
    if first.startswith("Unnamed: ") and table[first].tolist() == list(range(len(table))):
        table = table.drop(columns=first)  # the index of pandas
    if id is None or id not in table.columns:
        check_order(table, index, name)
        return table
    table = table.assign(**{id: table[id].astype(str)}).set_index(id)
    ids = data.source.row_names(range(data.source_rows))
    if not table.index.is_unique or len({*ids}) < len(ids):
        raise ValueError(
            f"Expected each id once in {id!r} of the data and of `{name}`, got some of them twice."
        )
    if absent := [row_id for row_id in ids if row_id not in table.index]:
        raise ValueError(
            f"Expected the ids of the data in {id!r} of `{name}`, {preview(absent)} are not there."
        )
    return table.loc[ids].reset_index(drop=True)


def _is_number(word: Any) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _with_pred_probs(data: AuditData, pred_probs: Any, in_order: bool) -> AuditData:
    """Return ``data`` with the predictions; ``in_order`` says that the user named the classes in
    this order.
    """
    array = load_array(pred_probs, "pred_probs")
    p = align(data, array, "pred_probs")
    classes = data.labels.names
    K = len(classes)
    shown = preview(list(classes))
    if p.ndim != 2 or p.shape[1] != K or p.dtype.kind not in "fiu":
        raise ValueError(
            f"Expected `pred_probs` of shape ({data.source_rows}, {K}), a column for each class in"
            f" the order {shown}, got {array.shape}, {array.dtype}. Name all classes with"
            " `classes`."
        )
    if (names := column_names(pred_probs)) is not None:
        column_of = list(find_words(map(str, names), classes).values())
        if {*column_of} == {*range(K)}:
            p = p[:, [column_of.index(k) for k in range(K)]]
            in_order = True
        elif not all(isinstance(name, (int, float, np.number)) for name in names):
            raise ValueError(
                f"Expected the columns of `pred_probs` to be called as the classes, {shown}, got"
                f" {preview(names)}. Rename them, name all classes with `classes`, or, if they are"
                " in order, pass an array or a .npy file."
            )
    p = p.astype(np.float32)
    finite = np.asarray(np.isfinite(p).all(1))
    data = replace(data, pred_probs=p).subset(finite, "NaN or infinite predictions")
    p = p[finite]
    if data.labels.are_sets or not len(p):
        return data
    check_probabilities("pred_probs", p, tolerance=0.01, dtype=torch.float32)
    p /= p.sum(1)[:, None]
    if not in_order:
        _check_column_order(data.classes, data.given, p)
    agree = p.argmax(1) == data.given
    notes = (*data.notes, SEEN) if len(agree) >= 50 and agree.all() else data.notes
    return replace(data, pred_probs=p, notes=notes)


def _check_column_order(classes: tuple[str, ...], given: Ints, p: Floats32) -> None:
    """Refuse columns that match more labels in the order of words (0, 1, 10, 2, …), as torchvision
    sorts folders.
    """
    by_word = sorted(range(len(classes)), key=lambda k: classes[k])
    column = p.argmax(1)
    hits = int((column == given).sum())
    hits_by_word = int((np.array(by_word)[column] == given).sum())
    if hits_by_word > hits:
        raise ValueError(
            f"Expected the columns of `pred_probs` in the order {preview(list(classes))}, in which"
            f" they match {hits} of {len(given)} labels, got columns that match {hits_by_word} in"
            f" the order {preview([classes[k] for k in by_word])}. Name all classes in the order of"
            " the columns with `classes`."
        )
