"""CVAT: tags in its format "CVAT for images 1.1", out and in."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from noiseproof.audit.exchange.base import (
    TOOLS,
    Files,
    Item,
    Labels,
    NewLabels,
    Row,
    Tool,
    find_file,
    paired,
    to_json,
)
from noiseproof.audit.exchange.coco import picture_size

if TYPE_CHECKING:
    from noiseproof.audit.sources.base import AuditData

SHOWN = ("suggested_label", "label_quality", "why")  # attributes of a tag in CVAT


@TOOLS.register_class("cvat")
class Cvat(Tool):
    """A tag for each given label of a picture; the labels of the task, to paste into CVAT, are in
    the .json with the same name.
    """

    takes_texts = False

    def files(self, data: AuditData, path: Path, rows: Sequence[Row]) -> Files:
        usual = {"input_type": "text", "mutable": False, "values": [""], "default_value": ""}
        attributes = [{"name": name, **usual} for name in SHOWN]
        labels = [
            {"name": name, "type": "tag", "attributes": attributes} for name in data.labels.names
        ]
        root = ET.Element("annotations")
        ET.SubElement(root, "version").text = "1.1"
        root.append(_task(labels, len(rows)))
        for frame, row in enumerate(rows):
            width, height = picture_size(data, row)
            size = {"width": str(width), "height": str(height)}
            image = ET.SubElement(root, "image", {"id": str(frame), "name": row.id, **size})
            for label in row.labels:
                tag = ET.SubElement(image, "tag", {"label": label, "source": "manual"})
                for name in SHOWN:
                    ET.SubElement(tag, "attribute", {"name": name}).text = str(row.facts[name])
        return {
            path.with_suffix(".xml"): _to_text(root),
            path.with_suffix(".json"): to_json(labels),
        }

    def parse(self, path: Path) -> Any:
        if path.suffix.lower() != ".xml":
            return None
        try:
            root = ET.parse(path).getroot()
        except ET.ParseError as error:
            raise ValueError(f"Expected XML in {path}, got {error}.") from error
        return root if root.tag == "annotations" else None

    def items(self) -> Iterator[Item]:
        for at, image in enumerate(self.content.iter("image")):
            name = image.get("name", "")
            labels = dict.fromkeys(tag.get("label", "") for tag in image.findall("tag"))
            yield Item(at, list(labels), name, file=find_file(name, self.path))

    def relabelled(self, changes: NewLabels, left_out: Collection[int]) -> str:
        root = copy.deepcopy(self.content)
        for at, image in enumerate(list(root.iter("image"))):
            if at in left_out:
                root.remove(image)
            if at in changes:
                _set_tags(image, changes[at])
        if (labels := root.find("meta//labels")) is not None:
            known = {label.findtext("name") for label in labels}
            new = (name for names in changes.values() for name in names if name not in known)
            _add_classes(labels, dict.fromkeys(new))
        return _to_text(root)


def _set_tags(image: ET.Element, labels: Labels) -> None:
    """Give a picture the tags of ``labels``: those that it has stay, and others are renamed, added
    or removed.
    """
    tags = image.findall("tag")
    for label, entries in paired(((tag.get("label", ""), tag) for tag in tags), labels):
        for tag in entries or [ET.SubElement(image, "tag", {"source": "manual"})]:
            tag.set("label", label)
    for tag in tags:
        if tag.get("label") not in labels:
            image.remove(tag)


def _add_classes(labels: ET.Element, names: Iterable[str]) -> None:
    """Add classes to the labels of a task, each like the last one that it has."""
    for name in names:
        label = copy.deepcopy(labels[-1]) if len(labels) else ET.Element("label")
        for tag, text in (("name", name), ("type", "tag")):
            element = label.find(tag)
            (ET.SubElement(label, tag) if element is None else element).text = text
        labels.append(label)


def _task(labels: Sequence[Mapping[str, Any]], size: int) -> ET.Element:
    """Return the description of the task, as CVAT's own exports have it."""
    meta = ET.Element("meta")
    task = ET.SubElement(meta, "task")
    for name, text in (("size", str(size)), ("mode", "annotation")):
        ET.SubElement(task, name).text = text
    parent = ET.SubElement(task, "labels")
    for label in labels:
        element = ET.SubElement(parent, "label")
        for name in ("name", "type"):
            ET.SubElement(element, name).text = label[name]
        attributes = ET.SubElement(element, "attributes")
        for attribute in label["attributes"]:
            one = ET.SubElement(attributes, "attribute")
            for name in ("name", "mutable", "input_type", "default_value", "values"):
                ET.SubElement(one, name).text = "" if name == "values" else str(attribute[name])
    return meta


def _to_text(root: Any) -> str:
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"
