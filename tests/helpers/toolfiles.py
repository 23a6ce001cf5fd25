"""What people answer in other tools, in the files that these write; exports of noiseproof go in."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from noiseproof.audit import LabelReport
from noiseproof.audit.exchange import TOOLS

Sets = dict[str, list[str]]  # labels by the name of a picture, or the number of a text


Made = tuple[Path, LabelReport]  # a saved audit in a folder


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


def in_a_copy(made: Made, place: Path) -> Iterator[LabelReport]:
    """An audit that was made once, in a folder of the test's own."""
    folder, report = made
    shutil.copytree(folder, place, dirs_exist_ok=True)
    with inside(place):
        yield report


def content_of(tool: str, path: Path) -> Any:
    file = TOOLS[tool]().file(path)
    if tool == "imagefolder":
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return ET.parse(file) if tool == "cvat" else json.loads(file.read_text("utf-8"))


def written(content: Any, path: str = "export.json") -> Path:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(json.dumps(content))
    return Path(path)


def answer_label_studio(path: Path, sets: Sets) -> Path:
    tasks = content_of("label-studio", path)
    for number, task in enumerate(tasks):
        labels = sets[task["data"]["source_id"]]
        choice = {"from_name": "label", "to_name": "image", "type": "choices"}
        result = [{**choice, "value": {"choices": labels}}] if labels else []
        person = {"completed_by": {"email": "ann@example.com"}, "was_cancelled": False}
        task |= {"id": 100 + number, "annotations": [{"id": number, **person, "result": result}]}
    return written(tasks)


def answer_label_studio_min(path: Path, sets: Sets) -> Path:
    """JSON-MIN has one label as a word, several as choices, and no key for none."""
    flat = []
    for task in content_of("label-studio", path):
        labels = sets[task["data"]["source_id"]]
        answer: Any = {"label": labels[0] if len(labels) == 1 else {"choices": labels}}
        own = {"id": 7, "annotator": 2, "annotation_id": 3}
        flat.append({**task["data"], **own, **(answer if labels else {})})
    return written(flat)


def answer_argilla(path: Path, sets: Sets) -> Path:
    records = content_of("argilla", path)
    for record in records:
        labels = sets[record["metadata"]["source_id"]]
        has_lists = isinstance(record["suggestions"]["label"]["value"], list)
        answer = {"value": labels or ["(none)"], "user_id": "5b1cdd49"}
        answer["value"] = answer["value"] if has_lists else labels[0]
        record |= {"responses": {"label": [answer]}, "status": "completed", "_server_id": "x"}
    written(records, f"{path}/records.json")
    return path


def answer_cvat(path: Path, sets: Sets) -> Path:
    """CVAT keeps no more of the names than it was given: here, files without their folders."""
    tree = ET.parse(path)
    for image in tree.iter("image"):
        name = image.get("name", "")
        tags = image.findall("tag")
        for tag in tags:
            image.remove(tag)
        for label in sets.get(name, [tag.get("label", "") for tag in tags]):
            ET.SubElement(image, "tag", {"label": label, "source": "manual"})
        image.set("name", Path(name).name)
    tree.write("export.xml", encoding="utf-8")
    return Path("export.xml")


def answer_fiftyone(path: Path, sets: Sets) -> Path:
    """An export without attributes, as numbers of classes; FiftyOne writes an empty list as
    null.
    """
    content = content_of("fiftyone", path)
    entries: dict[str, Any] = {}
    for key, old in content["labels"].items():
        ones = old if isinstance(old, list) else [old]
        id = ones[0]["attributes"]["source_id"] if ones else f"{int(key[4:]):02d} ü.png"
        labels = sets.get(id, [one["label"] for one in ones])
        numbers = [content["classes"].index(label) for label in labels]
        entries[key] = numbers or None if isinstance(old, list) else numbers[0]
    written({"classes": content["classes"], "labels": entries}, "back/labels.json")
    return Path("back")


def answer_coco(path: Path, sets: Sets) -> Path:
    content = content_of("coco", path)
    number = {one["name"]: one["id"] for one in content["categories"]}
    annotations = []
    for image in content["images"]:
        old = [one for one in content["annotations"] if one["image_id"] == image["id"]]
        given = [one["category_id"] for one in old]
        wanted = sets.get(image["file_name"])
        for k in given if wanted is None else [number[label] for label in wanted]:
            one = {"id": len(annotations), "image_id": image["id"], "category_id": k}
            annotations.append(one)
    return written({**content, "annotations": annotations})


def answer_imagefolder(path: Path, sets: Sets) -> Path:
    lines = []
    for one in content_of("imagefolder", path):
        label = one["label"]
        if (labels := sets.get(one["source_id"])) is not None:
            label = labels if isinstance(label, list) else labels[0]
        lines.append(json.dumps({"file_name": one["file_name"], "label": label}))
    (path / "metadata.jsonl").write_text("\n".join(lines))
    return path


ANSWERS: dict[str, tuple[str, Callable[[Path, Sets], Path]]] = {
    "label-studio": ("label-studio", answer_label_studio),
    "label-studio-min": ("label-studio", answer_label_studio_min),
    "argilla": ("argilla", answer_argilla),
    "cvat": ("cvat", answer_cvat),
    "fiftyone": ("fiftyone", answer_fiftyone),
    "coco": ("coco", answer_coco),
    "imagefolder": ("imagefolder", answer_imagefolder),
}
