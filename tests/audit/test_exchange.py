"""Audits for other tools, and labels from them: formats by their documentation, and round trips."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from toolfiles import ANSWERS, Made, answer_label_studio, content_of, in_a_copy, inside
from typer.testing import CliRunner

from noiseproof.audit import LabelReport, audit, read_audit, read_rows, write_corrected
from noiseproof.audit.decisions import BadDecisions
from noiseproof.audit.exchange import TOOLS
from noiseproof.audit.plan import read_reviewed
from noiseproof.cli import app
from noiseproof.cli.audit import EXPORTS

CLASSES = ("cat", "dög & co")
WRONG = ("cat/09 ü.png", "dög & co/04 ü.png")  # the pictures with wrong labels
TEXT_TOOLS = ("label-studio", "argilla")
ASKING = TEXT_TOOLS  # which record each answer

# What the tools import, from their documentation.
STRING, NUMBER, OBJECT = {"type": "string"}, {"type": "number"}, {"type": "object"}


def an_object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*required, *properties], "properties": properties}


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


SCHEMAS = {
    # labelstud.io/guide/predictions: tasks in Label Studio's JSON
    "label-studio": list_of(
        an_object(
            data=an_object("why"),
            predictions=list_of(
                an_object(
                    model_version=STRING,
                    score=NUMBER,
                    result=list_of(
                        an_object(
                            id=STRING,
                            from_name={"const": "label"},
                            to_name={"enum": ["image", "text"]},
                            type={"const": "choices"},
                            value=an_object(choices={**list_of(STRING), "maxItems": 1}),
                        )
                    ),
                )
            ),
        )
    ),
    # docs.argilla.io: records by rg.Record
    "argilla": list_of(
        an_object(
            id=STRING,
            fields={**OBJECT, "additionalProperties": STRING},
            metadata=OBJECT,
            suggestions=an_object(label=an_object(value=STRING, score=NUMBER, agent=STRING)),
            responses=OBJECT,
        )
    ),
    # docs.voxel51.com: FiftyOneImageClassificationDataset; attributes become fields, and these
    # names are its own
    "fiftyone": an_object(
        classes=list_of(STRING),
        labels={
            **OBJECT,
            "additionalProperties": an_object(
                label=STRING,
                confidence=NUMBER,
                attributes={
                    "not": {
                        "anyOf": [
                            {"required": [name]}
                            for name in ("id", "tags", "label", "confidence", "logits")
                        ]
                    }
                },
            ),
        },
    ),
    # cocodataset.org/#format-data
    "coco": an_object(
        images=list_of(an_object(id=NUMBER, file_name=STRING, width=NUMBER, height=NUMBER)),
        annotations=list_of(
            an_object(
                id={"type": "integer", "minimum": 1},
                image_id=NUMBER,
                category_id={"type": "integer", "minimum": 1},
                bbox={**list_of(NUMBER), "minItems": 4, "maxItems": 4},
                area=NUMBER,
                iscrowd={"const": 0},
            )
        ),
        categories=list_of(an_object(id={"type": "integer", "minimum": 1}, name=STRING)),
    ),
    # huggingface.co/docs/datasets/image_dataset: a line of metadata.jsonl
    "imagefolder": list_of(an_object(file_name=STRING, label=STRING)),
}


def probabilities(classes: list[int]) -> Any:
    return np.eye(2)[classes] * 0.9 + 0.05


@pytest.fixture(scope="module")
def audited_pictures(
    tmp_path_factory: pytest.TempPathFactory,
) -> Made:
    """A saved audit of 40 pictures, two of them in the wrong folder; made once."""
    with inside(tmp_path_factory.mktemp("pictures")) as folder:
        for i in range(40):
            given = i % 2 if i not in (4, 9) else 1 - i % 2
            path = Path("photos", CLASSES[given], f"{i:02d} ü.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 10), (6 * i, 0, 255 * (i % 2))).save(path)
        true = [int(path.name[:2]) % 2 for path in sorted(Path("photos").rglob("*.png"))]
        report = audit(read_rows("photos", pred_probs=probabilities(true), classes=CLASSES))
        report.save("audit")
    return folder, report


@pytest.fixture(scope="module")
def audited_texts(tmp_path_factory: pytest.TempPathFactory) -> Made:
    with inside(tmp_path_factory.mktemp("texts")) as folder:
        given = [CLASSES[i % 2 if i not in (4, 9) else 1 - i % 2] for i in range(40)]
        frame = pd.DataFrame({"t": [f"text <{i}>" for i in range(40)], "y": given})
        frame.to_csv("t.csv", index=False)
        probs = probabilities([i % 2 for i in range(40)])
        report = audit(read_rows("t.csv", label="y", text="t", pred_probs=probs, classes=CLASSES))
        report.save("audit")
    return folder, report


@pytest.fixture
def pictures(audited_pictures: Made, tmp_path: Path) -> Iterator[LabelReport]:
    yield from in_a_copy(audited_pictures, tmp_path)


@pytest.fixture
def texts(audited_texts: Made, tmp_path: Path) -> Iterator[LabelReport]:
    yield from in_a_copy(audited_texts, tmp_path)


# --- out ------------------------------------------------------------------------------------------


def test_the_command_knows_every_tool() -> None:
    assert {*EXPORTS} == {*TOOLS}


@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_tool_imports(tool: str, pictures: LabelReport) -> None:
    path = pictures.export(tool, Path("audit", EXPORTS[tool]))
    content = content_of(tool, path)
    if tool != "cvat":
        jsonschema.validate(content, SCHEMAS[tool])
    counts = {
        "label-studio": lambda c: len(c),
        "argilla": lambda c: len(c),
        "imagefolder": lambda c: len(c),
        "cvat": lambda c: len(c.findall("image")),
        "coco": lambda c: len(c["images"]),
        "fiftyone": lambda c: len(c["labels"]),
    }
    assert counts[tool](content) == (40 if tool in ("fiftyone", "coco", "imagefolder") else 2)
    with pytest.raises(FileExistsError):
        pictures.export(tool, path)
    pictures.export(tool, path, all_rows=False, force=True)
    assert counts[tool](content_of(tool, path)) == 2


@pytest.mark.parametrize("tool", TEXT_TOOLS)
def test_what_a_tool_imports_of_texts(tool: str, texts: LabelReport) -> None:
    content = content_of(tool, texts.export(tool, Path("audit", EXPORTS[tool])))
    jsonschema.validate(content, SCHEMAS[tool])
    assert {task["data" if tool == "label-studio" else "fields"]["text"] for task in content} == {
        "text <4>",
        "text <9>",
    }


def test_label_studio_serves_pictures_below_its_document_root(
    pictures: LabelReport, tmp_path: Path
) -> None:
    """The root is the folder that holds the audited one, which is a local storage: it can't be the
    root itself.
    """
    tasks = content_of("label-studio", pictures.export("label-studio", "audit/tasks.json"))
    addresses = [task["data"]["image"] for task in tasks]
    prefix = "/data/local-files/?d="
    assert addresses[0] == f"{prefix}photos/cat/09%20%C3%BC.png" and addresses[1].startswith(
        f"{prefix}photos/d%C3%B6g%20%26"
    )


def test_links_to_pictures_open(pictures: LabelReport) -> None:
    for tool, folder in (("fiftyone", "data"), ("imagefolder", "")):
        links = sorted(
            pictures.export(tool, Path("audit", tool)).joinpath(folder).glob("row-*.png")
        )
        assert len(links) == 40 and all(Image.open(link).size == (20, 10) for link in links)
    fiftyone = content_of("fiftyone", Path("audit/fiftyone"))
    assert {path.stem for path in Path("audit/fiftyone/data").iterdir()} == {*fiftyone["labels"]}
    lines = content_of("imagefolder", Path("audit/imagefolder"))
    assert {line["file_name"] for line in lines} == {
        path.name for path in Path("audit/imagefolder").glob("*.png")
    }


def test_hugging_face_loads_what_is_written(pictures: LabelReport, tmp_path: Path) -> None:
    from datasets import load_dataset

    pictures.export("imagefolder", "audit/imagefolder")
    loaded = load_dataset(
        "imagefolder", data_dir="audit/imagefolder", cache_dir=str(tmp_path / "cache")
    )["train"]
    assert loaded.num_rows == 40 and loaded[0]["image"].size == (20, 10)
    assert {row["source_id"] for row in loaded if row["is_label_issue"]} == {*WRONG}
    write_corrected(read_audit("audit"), {4: "dög & co"}, Path("corrected"))
    again = load_dataset("imagefolder", data_dir="corrected", cache_dir=str(tmp_path / "cache"))[
        "train"
    ]
    assert tuple(again.features["label"].names) == CLASSES and sum(again["label"]) == 21


def test_a_table_has_no_pictures_to_export(texts: LabelReport) -> None:
    for tool in {*TOOLS} - {*TEXT_TOOLS}:
        with pytest.raises(
            ValueError, match=f"Expected pictures to export to {tool}, got text. Use label-studio."
        ):
            texts.export(tool, "audit/x")
    assert not Path("audit/x").exists()


# --- back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ANSWERS)
def test_labels_come_back_as_decisions(case: str, pictures: LabelReport) -> None:
    tool, answer = ANSWERS[case]
    path = pictures.export(tool, Path("audit", EXPORTS[tool]))
    back = answer(path, {key: ["dög & co"] for key in WRONG})  # accept one, keep the other
    decided = read_reviewed("audit", back).decisions
    by_id = {one.id: one.decision for one in decided.values()}
    assert by_id == {WRONG[0]: "accept"} | ({WRONG[1]: "keep"} if tool in ASKING else {})
    result = CliRunner().invoke(
        app, ["apply", "audit", "--decisions", str(back), "--out", "corrected", "--json"]
    )
    assert result.exit_code == 0 and json.loads(result.stdout)["changed"] == 1
    assert (
        Path("corrected", "dög & co", "09 ü.png").exists()
        and not Path("corrected", "cat", "09 ü.png").exists()
    )


def test_new_classes_skips_and_several_people_come_back(pictures: LabelReport) -> None:
    path = pictures.export("label-studio", "audit/tasks.json")
    back = answer_label_studio(path, {WRONG[0]: ["bird"], WRONG[1]: ["cat"]})
    tasks = json.loads(back.read_text())
    tasks[0]["annotations"].append(
        {
            "completed_by": 3,
            "result": [{"type": "choices", "value": {"choices": ["cat"]}}],
            "was_cancelled": False,
        }
    )
    # others have answered
    tasks[0]["annotations"].append({"completed_by": 4, "result": [], "was_cancelled": True})
    tasks[1]["annotations"] = [{"completed_by": 3, "result": [], "was_cancelled": True}]
    back.write_text(json.dumps(tasks))
    reviewed = read_reviewed("audit", back)
    lines = {
        (one.reviewer, one.decision, one.label)
        for row in reviewed.decisions
        for one in reviewed.lines(row)
    }
    assert lines == {("ann@example.com", "other", "bird"), ("3", "keep", "cat"), ("3", "skip", "")}
    assert (
        CliRunner()
        .invoke(app, ["apply", "audit", "--decisions", str(back), "--out", "c"])
        .stdout.count("conflicts: 1")
    )


def test_labels_of_another_audit_are_refused(pictures: LabelReport) -> None:
    back = answer_label_studio(
        pictures.export("label-studio", "audit/tasks.json"), {key: ["cat"] for key in WRONG}
    )
    tasks = json.loads(back.read_text())
    for change, message in (
        (
            {"source_id": "cat/77.png"},
            "got one of 'cat/77.png' with .* in export.json, which it does not have",
        ),
        (
            {"given_label": "bird"},
            "with the given label 'bird' in export.json, which it does not have",
        ),
        ({"row": 400}, "which it does not have"),
    ):
        changed = [{**tasks[0], "data": {**tasks[0]["data"], **change}}]
        Path("export.json").write_text(json.dumps(changed))
        with pytest.raises(BadDecisions, match=message):
            read_reviewed("audit", "export.json")
    Path("export.json").write_text('{"a": 1}')
    with pytest.raises(
        BadDecisions,
        match="Expected decisions, or labels from argilla, coco, .* got something else",
    ):
        read_reviewed("audit", "export.json")
    Path("export.json").write_text("{")
    with pytest.raises(ValueError, match="Expected JSON in export.json"):
        read_reviewed("audit", "export.json")


# --- in -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ANSWERS)
def test_labelled_pictures_are_audited_and_corrected_in_their_own_format(
    case: str, pictures: LabelReport
) -> None:
    """All rows go out, are labelled in the tool, and come back as a dataset of their own."""
    tool, answer = ANSWERS[case]
    path = pictures.export(tool, Path("audit", EXPORTS[tool]), all_rows=True)
    names = [pictures.data.names[i] for i in range(40)]
    labelled = answer(path, {name: [name.split("/")[0]] for name in names})
    if tool == "argilla":  # its pictures are part of its records, and not files
        with pytest.raises(
            ValueError, match="Expected arrays .*, a folder of pictures, .* got argilla."
        ):
            read_rows(labelled, pred_probs=probabilities([0] * 40))
        return
    if tool == "fiftyone":
        shutil.copytree(path / "data", labelled / "data", symlinks=True)
    if tool == "coco":
        with pytest.raises(
            FileNotFoundError, match="found none. Move the file to where its paths lead to them"
        ):
            read_rows(labelled)
        shutil.copytree("photos", "images")
    if tool == "cvat":
        shutil.copytree("photos", "data")
        for file in Path("data").rglob("*.png"):
            file.rename(Path("data", file.name))
    rows = read_rows(labelled, features="patches")
    assert rows.source.name == "annotated-pictures" and len(rows) == 40 and rows.x is not None
    numbers = [int(rows.source.file(name).resolve().name[:2]) for name in rows.names]  # type: ignore[union-attr]
    assert sorted(numbers) == list(range(40))
    report = audit(
        read_rows(labelled, pred_probs=probabilities([n % 2 for n in numbers]), classes=CLASSES)
    )
    assert {numbers[i] for i in np.flatnonzero(report.label_issues.is_issue)} == {4, 9}
    report.save("again")
    shown = read_audit("again")
    i = numbers.index(9)
    out = write_corrected(
        shown, {i: "dög & co"}, Path(f"new{labelled.suffix}"), left_out=[numbers.index(0)]
    )
    if labelled.suffix == ".xml":
        assert ET.parse(out).getroot().tag == "annotations"
    new = read_rows(out, features="patches")
    assert len(new) == 39 and np.bincount(new.given).tolist() == [18, 21]


@pytest.mark.parametrize("tool", TEXT_TOOLS)
def test_labelled_texts_are_audited_and_corrected_in_their_own_format(
    tool: str, texts: LabelReport
) -> None:
    answer = ANSWERS[tool][1]
    path = texts.export(tool, Path("audit", EXPORTS[tool]), all_rows=True)
    labels = dict(zip(texts.data.names, [[CLASSES[k]] for k in texts.data.given], strict=True))
    labelled = answer(path, labels)
    order = [int(name) for name in read_rows(labelled, features="tfidf").names]
    rows = read_rows(labelled, pred_probs=probabilities([k % 2 for k in order]), classes=CLASSES)
    assert rows.source.name == "annotated-texts" and rows.source.texts() == [
        f"text <{k}>" for k in order
    ]
    report = audit(rows)
    assert {order[i] for i in np.flatnonzero(report.label_issues.is_issue)} == {4, 9}
    report.save("again")
    out = write_corrected(
        read_audit("again"), {order.index(4): "cat"}, Path(f"new{labelled.suffix}")
    )
    new = read_rows(out, features="tfidf")
    assert [order[i] for i in range(40) if new.given[i] != rows.given[i]] == [4]


def test_tasks_without_a_label_are_listed(texts: LabelReport) -> None:
    path = texts.export("label-studio", "audit/tasks.json", all_rows=True)
    labels = dict(zip(texts.data.names, [[CLASSES[k]] for k in texts.data.given], strict=True))
    tasks = json.loads(answer_label_studio(path, labels).read_text())
    tasks[3]["annotations"] = []
    tasks[5]["annotations"][0]["result"][0]["value"]["choices"] = [""]
    Path("export.json").write_text(json.dumps(tasks))
    rows = read_rows("export.json", features="tfidf")
    assert len(rows) == 38 and [(one.reason, one.rows.tolist()) for one in rows.skipped] == [
        ("no label", [3, 5])
    ]


def test_objects_in_pictures_are_refused(pictures: LabelReport) -> None:
    content = content_of("coco", pictures.export("coco", "audit/coco.json"))
    content["annotations"].append(
        {**content["annotations"][0], "category_id": 2, "id": 99, "bbox": [2, 2, 5, 5]}
    )
    Path("coco.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match="got boxes of 2 categories in the image .*Objects in pictures"
    ):
        read_rows("coco.json")


def a_coco_file(path: Path, names: list[str], **of_annotation: Any) -> Path:
    ids = range(len(names))
    content = {
        "images": [{"id": i, "file_name": name} for i, name in zip(ids, names, strict=True)],
        "annotations": [
            {"id": i, "image_id": i, "category_id": i % 2, **of_annotation} for i in ids
        ],
        "categories": [{"id": k, "name": name} for k, name in enumerate(CLASSES)],
    }
    path.write_text(json.dumps(content))
    return path


def test_a_file_reaches_no_pictures_outside_its_folder(tmp_path: Path) -> None:
    """By an absolute path, by .., in a folder above or behind a link to a folder; a linked file is
    never shown.
    """
    for path in ("listing/a.png", "listing/b.png", "secret/private.png", "above.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / path)
    folder, secret = tmp_path / "listing", tmp_path / "secret/private.png"
    (folder / "linked").symlink_to(secret.parent)
    (folder / "link.png").symlink_to(secret)
    for name in (str(secret), "../secret/private.png", "linked/private.png", "above.png"):
        with pytest.raises(
            ValueError,
            match=r"Expected pictures below .*, got .*(private|above).png. Move it below",
        ):
            read_rows(a_coco_file(folder / "coco.json", ["a.png", "b.png", name]))
    # also as Label Studio names them, from its document root
    names = ["a.png", "listing/b.png", "link.png", "b.png"]
    coco = a_coco_file(folder / "coco.json", names, attributes=None)
    source = read_rows(coco, pred_probs=probabilities([0, 1, 0, 1])).source
    assert [source.picture(row, id, 8) is not None for row, id in enumerate(names)] == [
        True,
        True,
        False,
        True,
    ]
    assert source.file("listing/b.png") == folder / "b.png"
    a_coco_file(coco, ["a.png", "b.png", str(secret)])  # after the audit
    later = type(source)(source.config)
    assert later.picture(0, "a.png", 8) is not None and later.picture(2, str(secret), 8) is None


def test_label_studio_finds_the_pictures_of_a_coco_file(tmp_path: Path) -> None:
    (tmp_path / "set/images").mkdir(parents=True)
    names = [f"{i} ü.png" for i in range(4)]
    for i, name in enumerate(names):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "set/images" / name)
    rows = read_rows(
        a_coco_file(tmp_path / "set/c.json", names), pred_probs=probabilities([0, 1, 0, 1])
    )
    path = audit(rows).export("label-studio", tmp_path / "tasks.json", all_rows=True)
    addresses = {task["data"]["image"] for task in json.loads(path.read_text())}
    assert addresses == {f"/data/local-files/?d=set/images/{i}%20%C3%BC.png" for i in range(4)}


def test_only_links_of_an_earlier_export_are_replaced(pictures: LabelReport) -> None:
    for tool, folder in (("fiftyone", "data"), ("imagefolder", "")):
        place = pictures.export(tool, Path("audit", tool)) / folder
        place.joinpath("row-house.jpg").write_text("mine")
        pictures.export(tool, Path("audit", tool), all_rows=False, force=True)
        assert (
            len([*place.glob("row-*.png")]) == 2
            and place.joinpath("row-house.jpg").read_text() == "mine"
        )


def items_of(tool: str, content: Any) -> list[str | None]:
    items = (item.alone() for item in TOOLS[tool](content, Path("export.json")).items())
    return [item.labels[0] if item.labels else None for item in items]


def test_the_question_of_labels_is_not_guessed() -> None:
    task = {
        "text": "good",
        "source": "web",
        "id": 1,
        "sentiment": "pos",
        "annotator": 2,
        "annotation_id": 3,
    }
    record = {
        "fields": {"text": "good"},
        "responses": {"note": [{"value": "hm"}], "mood": [{"value": "pos"}]},
    }
    for tool, content, names in (
        ("label-studio", [task], "source, sentiment"),
        (
            "label-studio",
            [task, {"text": "bad", "source": "web", "id": 2, "annotation_id": 4}],
            "source, sentiment",
        ),
        ("argilla", [record], "note, mood"),
        (
            "argilla",
            [record | {"responses": {one: [{"value": "x"}]}} for one in ("note", "mood")],
            "note, mood",
        ),
    ):
        with pytest.raises(
            ValueError, match=f"got {names}. Rename the one with the labels to 'label'"
        ):
            items_of(tool, content)
        with pytest.raises(ValueError, match=names):
            TOOLS[tool](content).relabelled({0: ["neg"]}, ())
    del task["source"], record["responses"]["note"]  # type: ignore[attr-defined]
    for tool, content in (("label-studio", [task]), ("argilla", [record])):
        assert items_of(tool, content) == ["pos"]
        assert items_of(tool, json.loads(TOOLS[tool](content).relabelled({0: ["neg"]}, ()))) == [
            "neg"
        ]


def test_records_with_a_column_called_data_are_no_tasks(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[{"data": "words", "y": 1}]')
    assert TOOLS["label-studio"]().parse(tmp_path / "x.json") is None
    assert items_of(
        "label-studio", [{"data": "words", "text": "good", "label": "pos", "annotation_id": 1}]
    ) == ["pos"]


def test_labels_that_are_numbers_stay_numbers(tmp_path: Path) -> None:
    """Also in lines with U+2028, which ends a line for Python and not in JSON."""
    lines = [
        {"file_name": "a.png", "label": 0, "why": "\u2028"},
        {"file_name": "b.png", "label": 1},
    ]
    (tmp_path / "metadata.jsonl").write_text(
        "".join(f"{json.dumps(x, ensure_ascii=False)}\n" for x in lines), "utf-8"
    )
    tool = TOOLS["imagefolder"]()
    content = tool.parse(tmp_path / "metadata.jsonl")
    assert content == lines
    new = [
        json.loads(line)
        for line in TOOLS["imagefolder"](content).relabelled({0: ["1"]}, ()).strip().split("\n")
    ]
    assert new == [lines[0] | {"label": 1}, lines[1]]


def test_classes_of_one_name_keep_their_numbers() -> None:
    content = {
        "classes": ["cat", "cat", "dog"],
        "labels": {"a": 2, "b": 1, "c": {"label": 0, "attributes": None}},
    }
    new = json.loads(TOOLS["fiftyone"](content).relabelled({1: ["bird"]}, ()))
    assert new["classes"] == ["cat", "cat", "dog", "bird"] and items_of("fiftyone", new) == [
        "dog",
        "bird",
        "cat",
    ]


def tasks_of(count: int = 40) -> list[dict[str, Any]]:
    """Tasks of Label Studio with texts, as it exports them."""
    return [
        {
            "id": 100 + i,
            "data": {"text": f"text {i}"},
            "annotations": [
                {
                    "completed_by": 1,
                    "result": [{"type": "choices", "value": {"choices": [CLASSES[i % 2]]}}],
                }
            ],
        }
        for i in range(count)
    ]


def test_a_task_that_cannot_be_read_is_left_out_with_a_note(tmp_path: Path) -> None:
    tasks: list[Any] = tasks_of()
    tasks[3]["annotations"][0]["result"][0]["value"]["choices"] = [*CLASSES]
    tasks[8]["annotations"][0]["result"] = [{"type": "choices"}]
    tasks[11] = "none"
    (tmp_path / "tasks.json").write_text(json.dumps(tasks), "utf-8")
    data = read_rows(tmp_path / "tasks.json", pred_probs=probabilities([i % 2 for i in range(40)]))
    assert data.row.tolist() == [i for i in range(40) if i not in (3, 8, 11)]
    note = next(note for note in data.notes if "left out" in note)
    assert note.startswith(
        "3 entries were left out: \"'103' has 2 labels where one is expected\", 'task 108: "
    )
    assert "'task 11: " in note
    report = audit(data)
    report.save(tmp_path / "audit")
    write_corrected(read_audit(tmp_path / "audit"), {5: "new"}, tmp_path / "corrected.json")
    written = json.loads((tmp_path / "corrected.json").read_text("utf-8"))
    assert written[5]["annotations"][0]["result"][0]["value"]["choices"] == ["new"]
    assert [task for at, task in enumerate(written) if at != 5] == [
        task for at, task in enumerate(tasks) if at != 5
    ]
    for task in tasks[:30]:
        if isinstance(task, dict):
            task["annotations"] = [{"result": 1}]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks), "utf-8")
    with pytest.raises(
        ValueError, match="got others for 30 of 40, such as task 100: its annotations"
    ):
        read_rows(tmp_path / "tasks.json", pred_probs=probabilities([0] * 40))


def test_flat_tasks_without_the_id_of_the_annotation(tmp_path: Path) -> None:
    flat = [
        {
            "id": i,
            "text": f"text {i}",
            "sentiment": CLASSES[i % 2],
            "annotator": 1,
            "lead_time": 0.5,
        }
        for i in range(20)
    ]
    (tmp_path / "min.json").write_text(json.dumps(flat), "utf-8")
    data = read_rows(tmp_path / "min.json", pred_probs=probabilities([i % 2 for i in range(20)]))
    assert data.classes == CLASSES and data.given.tolist() == [i % 2 for i in range(20)]


def test_a_new_class_is_among_the_labels_of_cvat(pictures: LabelReport) -> None:
    path = pictures.export("cvat", "photos/cvat.xml", all_rows=True)
    tool = TOOLS["cvat"]()
    written = ET.fromstring(
        TOOLS["cvat"](tool.parse(path)).relabelled({0: ["emu"], 1: ["cat"], 2: ["emu"]}, ())
    )
    labels = written.find("meta/task/labels")
    assert labels is not None and [one.findtext("name") for one in labels] == [*CLASSES, "emu"]
    assert (
        len(labels[2].findall("attributes/attribute"))
        == len(labels[0].findall("attributes/attribute"))
        == 3
    )
    assert [tag.get("label") for tag in written.iter("tag")][:3] == ["emu", "cat", "emu"]


@pytest.mark.parametrize(("tool", "name"), [("cvat", "out.json"), ("label-studio", "out.xml")])
def test_the_set_up_does_not_replace_the_export(
    tool: str, name: str, pictures: LabelReport
) -> None:
    written = pictures.export(tool, name)
    assert written.suffix != Path(name).suffix and written.is_file() and Path(name).is_file()
    with pytest.raises(FileExistsError, match="Expected a new file, out"):
        pictures.export(tool, name)


def test_other_files_called_labels_json(pictures: LabelReport) -> None:
    for content in ("not JSON", '{"labels": {"0": "cat"}}'):
        Path("photos", "labels.json").write_text(content)
        assert (
            read_rows("photos", pred_probs=pictures.data.pred_probs, classes=CLASSES).source.name
            == "folder"
        )
    Path("labels.json").write_text('{"labels": {"a": 3}, "classes": ["cat"]}')
    for content in (
        '{"labels": {"a": 3}, "classes": ["cat"]}',
        '{"labels": {"a": 0}}',
        '{"labels": {"a": [["cat"]]}}',
    ):
        Path("labels.json").write_text(content)
        with pytest.raises(
            ValueError, match=r"Expected labels of each picture in labels.json, .* for 'a'"
        ):
            read_rows("labels.json")
