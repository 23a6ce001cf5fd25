"""Rows with several labels in the files of other tools: out, back as decisions, and in as data of
their own.
"""

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
from toolfiles import (
    ANSWERS,
    Made,
    Sets,
    answer_cvat,
    answer_label_studio,
    content_of,
    in_a_copy,
    inside,
)
from typer.testing import CliRunner

from noiseproof.audit import LabelReport, audit, read_audit, read_rows, write_corrected
from noiseproof.audit.decisions import BadDecisions
from noiseproof.audit.exchange import TOOLS
from noiseproof.audit.plan import read_reviewed
from noiseproof.cli import app
from noiseproof.cli.audit import EXPORTS

NAMES = ("cat", "dög & co", "outdoor")
TRUE = np.array([[i % 2, i % 3 == 0, i % 5 < 2] for i in range(60)], dtype=bool)
GIVEN = TRUE.copy()
# a label that is missing, one too many, and one of a row without any other
LOST, ADDED, GONE = 6, 10, 33
GIVEN[LOST, 1], GIVEN[ADDED, 0], GIVEN[GONE] = False, True, False
WRONG = (LOST, ADDED, GONE)
PROBS = np.where(TRUE, 0.95, 0.05)
ASKING = ("label-studio", "argilla")


def labels_of(answers: Any) -> list[str]:
    return [name for name, yes in zip(NAMES, answers, strict=True) if yes]


def name_of(row: int) -> str:
    return f"{row:02d} ü.png"


@pytest.fixture(scope="module")
def audited_pictures(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A saved audit of 60 pictures with several labels, three of them wrong; made once."""
    with inside(tmp_path_factory.mktemp("pictures")) as folder:
        Path("photos").mkdir()
        for i in range(60):
            Image.new("RGB", (20, 10), (4 * i, 0, 0)).save(Path("photos", name_of(i)))
        lines = [{"file_name": name_of(i), "label": labels_of(GIVEN[i])} for i in range(60)]
        Path("photos/metadata.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        report = audit(read_rows("photos", pred_probs=PROBS, classes=NAMES))
        assert np.array_equal(report.data.labels.answers, GIVEN)
        assert {*report.data.row[report.label_issues.is_issue].tolist()} == {*WRONG}
        report.save("audit")
    return folder, report


@pytest.fixture(scope="module")
def audited_texts(tmp_path_factory: pytest.TempPathFactory) -> Made:
    with inside(tmp_path_factory.mktemp("texts")) as folder:
        words = ["; ".join(labels_of(answers)) for answers in GIVEN]
        frame = pd.DataFrame({"t": [f"text <{i}>" for i in range(60)], "y": words})
        frame.to_csv("t.csv", index=False)
        options = {"label": "y", "text": "t", "multi_label": ";", "classes": NAMES}
        report = audit(read_rows("t.csv", pred_probs=PROBS, **options))
        report.save("audit")
    return folder, report


@pytest.fixture
def pictures(audited_pictures: Made, tmp_path: Path) -> Iterator[LabelReport]:
    yield from in_a_copy(audited_pictures, tmp_path)


@pytest.fixture
def texts(audited_texts: Made, tmp_path: Path) -> Iterator[LabelReport]:
    yield from in_a_copy(audited_texts, tmp_path)


# --- out ------------------------------------------------------------------------------------------


def exported(tool: str, content: Any) -> Sets:
    """The labels that a tool shows first: suggested ones where it asks, else the given ones."""
    if tool == "label-studio":
        return {
            task["data"]["source_id"]: [
                label
                for result in task["predictions"][0]["result"]
                for label in result["value"]["choices"]
            ]
            for task in content
        }
    if tool == "argilla":
        return {
            one["metadata"]["source_id"]: one["suggestions"]["label"]["value"] for one in content
        }
    if tool == "cvat":
        return {
            image.get("name"): [tag.get("label") for tag in image.iter("tag")]
            for image in content.iter("image")
        }
    if tool == "fiftyone":
        return {
            name_of(int(key[4:])): [one["label"] for one in ones]
            for key, ones in content["labels"].items()
        }
    if tool == "coco":
        names = {one["id"]: one["name"] for one in content["categories"]}
        files = {one["id"]: one["file_name"] for one in content["images"]}
        sets: Sets = {name: [] for name in files.values()}
        for one in content["annotations"]:
            sets[files[one["image_id"]]].append(names[one["category_id"]])
        return sets
    return {line["source_id"]: line["label"] for line in content}


@pytest.mark.parametrize("tool", TOOLS)
def test_every_label_goes_out(tool: str, pictures: LabelReport) -> None:
    path = pictures.export(tool, Path("audit", EXPORTS[tool]), all_rows=True)
    answers = TRUE if tool in ASKING else GIVEN  # the suggestions are right
    want = {name_of(i): labels_of(answers[i]) for i in WRONG}
    found = exported(tool, content_of(tool, path))
    assert len(found) == 60 and {name: found[name] for name in want} == want


def test_what_argilla_and_label_studio_ask(texts: LabelReport) -> None:
    texts.export("label-studio", "audit/tasks.json")
    choices = ET.parse("audit/tasks.xml").find("Choices")
    assert choices is not None and choices.get("choice") == "multiple"
    assert [one.get("value") for one in choices] == [*NAMES]
    texts.export("argilla", "audit/argilla", all_rows=True)
    settings = json.loads(Path("audit/argilla/.argilla/settings.json").read_text())
    (question,) = settings["questions"]
    assert question["type"] == question["settings"]["type"] == "multi_label_selection"
    assert [one["value"] for one in question["settings"]["options"]] == [*NAMES, "(none)"]
    score = {"type": "array", "items": {"type": "number"}}
    value = {"type": "array", "items": {"enum": [*NAMES, "(none)"]}, "minItems": 1}
    for record in content_of("argilla", Path("audit/argilla")):
        suggestion = record["suggestions"]["label"]
        jsonschema.validate(suggestion, {"properties": {"value": value, "score": score}})
        assert len(suggestion["value"]) == len(suggestion["score"])  # as its server requires


def test_hugging_face_loads_lists(pictures: LabelReport, tmp_path: Path) -> None:
    from datasets import load_dataset

    pictures.export("imagefolder", "audit/imagefolder")
    loaded = load_dataset(
        "imagefolder", data_dir="audit/imagefolder", cache_dir=str(tmp_path / "cache")
    )["train"]
    by_name = {row["source_id"]: row["label"] for row in loaded}
    assert by_name == {name_of(i): labels_of(GIVEN[i]) for i in range(60)}


# --- back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ANSWERS)
def test_sets_come_back_as_decisions(case: str, pictures: LabelReport) -> None:
    """One suggestion is taken, one row keeps its labels, in another order, and one gets others."""
    tool, answer = ANSWERS[case]
    path = pictures.export(tool, Path("audit", EXPORTS[tool]))
    kept = labels_of(GIVEN[ADDED])
    back = answer(
        path,
        {
            name_of(LOST): labels_of(TRUE[LOST]),
            name_of(ADDED): kept[::-1],
            name_of(GONE): ["outdoor"],
        },
    )
    decided = {
        row: (one.decision, one.label)
        for row, one in read_reviewed("audit", back).decisions.items()
    }
    keep = {ADDED: ("keep", "|".join(kept))} if tool in ASKING else {}
    added = [*labels_of(GIVEN[LOST]), "dög & co"]  # after those that the row has
    assert decided == {LOST: ("accept", "|".join(added)), GONE: ("other", "outdoor"), **keep}
    result = CliRunner().invoke(
        app, ["apply", "audit", "--decisions", str(back), "--out", "corrected", "--json"]
    )
    assert result.exit_code == 0 and json.loads(result.stdout)["changed"] == 2
    lines = [json.loads(line) for line in Path("corrected/metadata.jsonl").read_text().splitlines()]
    want = [{**line, "label": labels_of(GIVEN[i])} for i, line in enumerate(lines)]
    want[LOST]["label"], want[GONE]["label"] = added, ["outdoor"]
    assert lines == want


@pytest.mark.parametrize("case", [case for case in ANSWERS if case != "fiftyone"])
def test_no_label_is_an_answer(case: str, pictures: LabelReport) -> None:
    tool, answer = ANSWERS[case]
    path = pictures.export(tool, Path("audit", EXPORTS[tool]))
    same: Sets = {name_of(i): labels_of(GIVEN[i]) for i in WRONG}
    decided = read_reviewed("audit", answer(path, {**same, name_of(LOST): []})).decisions
    assert decided[LOST].label == "(none)" and decided[LOST].decision in ("other", "accept")
    assert {row: one.decision for row, one in decided.items() if row != LOST} == (
        dict.fromkeys(WRONG[1:], "keep") if tool in ASKING else {}
    )


def test_new_labels_come_back_and_those_with_the_separator_do_not(texts: LabelReport) -> None:
    path = texts.export("label-studio", "audit/tasks.json")
    given = {str(i): labels_of(GIVEN[i]) for i in WRONG}
    back = answer_label_studio(path, {**given, str(ADDED): ["emu", *labels_of(GIVEN[ADDED])]})
    assert read_reviewed("audit", back).decisions[ADDED].label == "; ".join(
        [*labels_of(GIVEN[ADDED]), "emu"]
    )
    with pytest.raises(
        BadDecisions,
        match="labels without ';', which separates the labels of a row .* got 'a;b'. Rename",
    ):
        read_reviewed("audit", answer_label_studio(path, {**given, str(ADDED): ["a;b"]}))


def test_words_of_sets_come_back_as_decisions(pictures: LabelReport) -> None:
    """From a folder whose metadata.csv spells sets as words, in another order or with other
    labels.
    """
    words = ["|".join(labels_of(answers)) for answers in GIVEN]
    words[LOST], words[ADDED] = "outdoor|dög & co", "outdoor|cat"
    Path("words").mkdir()
    pd.DataFrame({"file_name": map(name_of, range(60)), "label": words}).to_csv(
        "words/metadata.csv", index=False
    )
    decided = {
        row: (one.decision, one.label)
        for row, one in read_reviewed("audit", "words").decisions.items()
    }
    assert decided == {LOST: ("accept", "outdoor|dög & co")} and {*labels_of(GIVEN[ADDED])} == {
        "outdoor",
        "cat",
    }


def test_a_skipped_task_is_no_answer(texts: LabelReport) -> None:
    back = answer_label_studio(
        texts.export("label-studio", "audit/tasks.json"), {str(i): [] for i in WRONG}
    )
    tasks = json.loads(back.read_text())
    tasks[0]["annotations"][0]["was_cancelled"] = True
    back.write_text(json.dumps(tasks))
    decided = read_reviewed("audit", back).decisions
    assert decided[tasks[0]["data"]["row"]].decision == "skip" and len(decided) == 3


def test_sets_for_an_audit_of_one_label_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"t": [f"text {i}" for i in range(40)], "y": ["a", "b"] * 20})
    frame.to_csv("t.csv", index=False)
    p = np.eye(2)[np.arange(40) % 2] * 0.9 + 0.05
    report = audit(read_rows("t.csv", label="y", text="t", pred_probs=p))
    report.save("audit")
    tasks = report.export("label-studio", "audit/tasks.json", all_rows=True)
    back = answer_label_studio(tasks, {str(i): ["a", "b"] if i == 3 else ["a"] for i in range(40)})
    with pytest.raises(
        BadDecisions, match="got '3' has 2 labels where one is expected. Correct or drop it"
    ):
        read_reviewed("audit", back)


# --- in -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ANSWERS)
def test_pictures_with_sets_are_audited_and_corrected_in_their_own_format(
    case: str, pictures: LabelReport
) -> None:
    tool, answer = ANSWERS[case]
    path = pictures.export(tool, Path("audit", EXPORTS[tool]), all_rows=True)
    labelled = answer(path, {name_of(i): labels_of(GIVEN[i]) for i in range(60)})
    if tool == "argilla":  # its pictures are part of its records, and not files
        return
    if tool == "fiftyone":
        shutil.copytree(path / "data", labelled / "data", symlinks=True)
    if tool in ("coco", "cvat"):
        shutil.copytree("photos", "images")
    plain = read_rows(labelled, features="patches")
    assert (
        plain.source.name == "annotated-pictures"
        and plain.labels.are_sets
        and plain.labels.names == NAMES
    )
    numbers = [int(plain.source.file(name).resolve().name[:2]) for name in plain.names]  # type: ignore[union-attr]
    unlabelled = [i for i in range(60) if not GIVEN[i].any()] if tool == "fiftyone" else []
    assert sorted(numbers) == [i for i in range(60) if i not in unlabelled]
    assert np.array_equal(plain.labels.answers, GIVEN[numbers])
    order = np.zeros(60, int)  # numbers of the pictures in the order of the file
    order[plain.row], order[[i for i in range(60) if i not in plain.row]] = numbers, unlabelled
    report = audit(read_rows(labelled, pred_probs=PROBS[order], classes=NAMES))
    report.save("again")
    row, empty, gone = (plain.row[numbers.index(i)] for i in (LOST, ADDED, 1))
    changes = {row: "dög & co|outdoor|emu", empty: "(none)"}
    out = write_corrected(
        read_audit("again"), changes, Path(f"new{labelled.suffix}"), left_out=[gone]
    )
    after = read_rows(out, features="patches")
    assert after.labels.are_sets and after.labels.names == ("cat", "dög & co", "emu", "outdoor")
    sets = {
        int(after.source.file(id).resolve().name[:2]): {*after.classes[k].split("|")} - {"(none)"}  # type: ignore[union-attr]
        for id, k in zip(after.names, after.given, strict=True)
    }
    want = {i: {*labels_of(GIVEN[i])} for i in numbers if i != 1} | {
        LOST: {"dög & co", "outdoor", "emu"},
        ADDED: set(),
    }
    assert sets == want


@pytest.mark.parametrize("case", ["label-studio", "label-studio-min", "argilla"])
def test_texts_with_sets_are_audited_and_corrected_in_their_own_format(
    case: str, texts: LabelReport
) -> None:
    tool, answer = ANSWERS[case]
    path = texts.export(tool, Path("audit", EXPORTS[tool]), all_rows=True)
    labelled = answer(path, {str(i): labels_of(GIVEN[i]) for i in range(60)})
    rows = read_rows(labelled, features="tfidf")
    order = [int(text[6:-1]) for text in rows.source.texts()]  # type: ignore[union-attr]
    assert (
        rows.labels.are_sets
        and len(rows) == 60
        and np.array_equal(rows.labels.answers, GIVEN[order])
    )
    report = audit(read_rows(labelled, pred_probs=PROBS[order], classes=NAMES))
    assert {order[i] for i in report.data.row[report.label_issues.is_issue]} == {*WRONG}
    report.save("again")
    changes = {
        order.index(LOST): "cat|outdoor",
        order.index(ADDED): "(none)",
        order.index(GONE): "cat",
    }
    out = write_corrected(read_audit("again"), changes, Path(f"new{labelled.suffix}"))
    after = read_rows(out, features="tfidf")
    want = GIVEN[order]
    want[list(changes)] = [[True, False, True], [False] * 3, [True, False, False]]
    assert np.array_equal(after.labels.answers, want)


def test_a_line_without_a_label_is_not_labelled(pictures: LabelReport) -> None:
    """With a null or no key, and stays as it is; an empty list is an answer."""
    lines = [json.loads(line) for line in Path("photos/metadata.jsonl").read_text().splitlines()]
    lines[0]["label"], lines[1]["label"] = None, []
    del lines[2]["label"]
    Path("photos/metadata.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    rows = read_rows("photos", pred_probs=PROBS, classes=NAMES)
    assert rows.row.tolist() == [1, *range(3, 60)] and not rows.labels.answers[0].any()
    audit(rows).save("again")
    write_corrected(read_audit("again"), {1: "cat", 3: "(none)"}, Path("new"))
    after = [json.loads(line) for line in Path("new/metadata.jsonl").read_text().splitlines()]
    lines[1]["label"], lines[3]["label"] = ["cat"], []
    assert after == lines


@pytest.mark.parametrize("tool", ["imagefolder", "fiftyone", "argilla"])
def test_words_beside_lists_become_lists_where_they_must(tool: str, pictures: LabelReport) -> None:
    """A word that becomes another one stays a word."""
    mixed: list[Any] = [each[0] if len(each) == 1 else each for each in map(labels_of, GIVEN)]
    path = Path("mixed")
    if tool == "argilla":
        path.mkdir()
        records = [
            {
                "id": i,
                "fields": {"text": f"text {i}"},
                "responses": {"label": [{"value": mixed[i]}]},
            }
            for i in range(60)
        ]
        (path / "records.json").write_text(json.dumps(records))
    elif tool == "fiftyone":
        shutil.copytree("photos", path / "data", ignore=shutil.ignore_patterns("*.jsonl"))
        labels = {Path(name_of(i)).stem: mixed[i] for i in range(60)}
        (path / "labels.json").write_text(json.dumps({"classes": list(NAMES), "labels": labels}))
    else:
        shutil.copytree("photos", path)
        lines = [json.dumps({"file_name": name_of(i), "label": mixed[i]}) for i in range(60)]
        (path / "metadata.jsonl").write_text("\n".join(lines))
    audit(read_rows(path, pred_probs=PROBS, classes=NAMES)).save("again")
    more, none, other = [i for i in range(60) if isinstance(mixed[i], str)][:3]
    out = write_corrected(
        read_audit("again"), {more: "|".join(NAMES), none: "(none)", other: "emu"}, Path("new")
    )
    content = content_of(tool, out)
    if tool == "argilla":
        after = [record["responses"]["label"][0]["value"] for record in content]
    else:
        after = (
            list(content["labels"].values())
            if tool == "fiftyone"
            else [line["label"] for line in content]
        )
    assert [{*after[more]}, after[none], after[other]] == [{*NAMES}, [], "emu"] and isinstance(
        after[more], list
    )
    assert [after[i] for i in range(60) if i not in (more, none, other)] == [
        mixed[i] for i in range(60) if i not in (more, none, other)
    ]


def test_numbers_in_lists_of_hugging_face_stay_numbers(pictures: LabelReport) -> None:
    numbers = [[NAMES.index(name) + 5 for name in labels_of(answers)] for answers in GIVEN]
    numbers[0] = numbers[0] * 2  # a label twice is one

    def write(labels: list[Any]) -> None:
        lines = [
            json.dumps({"file_name": name_of(i), "label": each}) for i, each in enumerate(labels)
        ]
        Path("photos/metadata.jsonl").write_text("\n".join(lines))

    write([[None], *numbers[1:]])
    with pytest.raises(ValueError, match="words or numbers in lists of labels, .* got None in one"):
        read_rows("photos", pred_probs=PROBS)
    write(numbers)
    audit(read_rows("photos", pred_probs=PROBS)).save("again")
    with pytest.raises(
        ValueError, match="a whole number as a new label, as those in the data are, got 'emu'. Undo"
    ):
        write_corrected(read_audit("again"), {1: "5|emu"}, Path("new"))
    write_corrected(read_audit("again"), {1: "5|9"}, Path("new"))
    after = [line["label"] for line in content_of("imagefolder", Path("new"))]
    assert after == [numbers[0], [5, 9], *numbers[2:]]


def test_ids_of_coco_may_be_words_and_must_be_there(pictures: LabelReport) -> None:
    content = content_of("coco", pictures.export("coco", "audit/coco.json", all_rows=True))
    for kind in ("images", "annotations", "categories"):
        for one in content[kind]:
            one |= {key: f"{one[key]}" for key in ("id", "image_id", "category_id") if key in one}
    shutil.copytree("photos", "images")
    labelled = Path("words.json")
    labelled.write_text(json.dumps(content))
    rows = read_rows(labelled, features="patches")
    order = [int(name[:2]) for name in rows.names]
    assert np.array_equal(rows.labels.answers, GIVEN[order])
    audit(read_rows(labelled, pred_probs=PROBS[order], classes=NAMES)).save("again")
    row = order.index(GONE)
    new = json.loads(
        write_corrected(read_audit("again"), {row: "cat|emu"}, Path("new.json")).read_text()
    )
    for kind in ("annotations", "categories"):
        ids = [one["id"] for one in new[kind]]
        assert len({*ids}) == len(ids) == len(content[kind]) + (2 if kind == "annotations" else 1)
        assert all(isinstance(id, str) for id in ids)
    assert exported("coco", new)[name_of(GONE)] == ["cat", "emu"]
    for kind, key in (("annotations", "image_id"), ("images", "file_name"), ("categories", "name")):
        bad = {
            **content,
            kind: [{k: v for k, v in content[kind][0].items() if k != key}, *content[kind][1:]],
        }
        labelled.write_text(json.dumps(bad))
        with pytest.raises(
            ValueError, match=f"a number or a word, in each of the {kind} of .*{key}': None.* at 0"
        ):
            read_rows(labelled, features="patches")


def test_one_entry_of_many_with_two_labels_is_a_slip(pictures: LabelReport) -> None:
    """Of a tool without lists: more of them mean that rows have several labels, and so does the
    option.
    """
    one = {name_of(i): [NAMES[i % 2]] for i in range(60)}
    path = pictures.export("cvat", "audit/cvat.xml", all_rows=True)
    shutil.copytree("photos", "images")
    labelled = answer_cvat(path, {**one, name_of(3): ["cat", "outdoor"]})
    rows = read_rows(labelled, features="patches")
    assert not rows.labels.are_sets and len(rows) == 59
    assert any("'03 ü.png' has 2 labels where one is expected" in note for note in rows.notes)
    labels = read_rows(labelled, features="patches", multi_label="|").labels
    assert labels.are_sets and labels.names == NAMES
    answer_cvat(path, {**one, **{name_of(i): ["cat", "outdoor"] for i in range(4)}})
    assert read_rows(labelled, features="patches").labels.are_sets
    with pytest.raises(
        ValueError, match="labels without the separator '&' in the lists of .*'dög & co'. Leave out"
    ):
        read_rows(labelled, features="patches", multi_label="&")


def test_questions_of_label_studio_are_not_mixed(tmp_path: Path) -> None:
    tasks = [
        {
            "id": i,
            "data": {"text": f"text {i}"},
            "annotations": [
                {
                    "result": [
                        {
                            "from_name": name,
                            "to_name": "text",
                            "type": "choices",
                            "value": {"choices": ["a" if i % 2 else "b"]},
                        }
                        for name in ("mood", "topic")
                    ]
                }
            ],
        }
        for i in range(20)
    ]
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(tasks))
    with pytest.raises(
        ValueError, match="got mood, topic. Rename the one with the labels to 'label'"
    ):
        read_rows(path, features="tfidf")
    path.write_text(json.dumps(tasks).replace("topic", "label"))
    assert not read_rows(path, features="tfidf").labels.are_sets
