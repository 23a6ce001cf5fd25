"""COCO: a category for each picture, or several, each as a box around all of it; out and in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noiseproof.audit.exchange.base import (
    TOOLS,
    Files,
    Item,
    NewLabels,
    Row,
    Tool,
    find_file,
    paired,
    read_json,
    to_json,
)
from noiseproof.data.images import open_image

if TYPE_CHECKING:
    from noiseproof.audit.sources.base import AuditData


# that it needs
KEYS = {"images": ("id", "file_name"), "annotations": ("image_id",), "categories": ("id", "name")}


@TOOLS.register_class("coco")
class Coco(Tool):
    """Pictures by their paths in the audited folder, with an annotation for each label, the audit
    as its attributes.

    A picture without any label has the audit as its own attributes.
    """

    takes_all_rows = True
    takes_texts = False

    def files(self, data: AuditData, path: Path, rows: Sequence[Row]) -> Files:
        # 0 is the background in COCO
        number = {name: k for k, name in enumerate(data.labels.names, 1)}
        images: list[Any] = []
        annotations: list[Any] = []
        for row in rows:
            width, height = picture_size(data, row)
            image = {"id": row.row, "file_name": row.id, "width": width, "height": height}
            images.append(image if row.labels else {**image, "attributes": row.facts})
            for name in row.labels:
                whole = _whole(len(annotations) + 1, image, number[name])
                annotations.append({**whole, "attributes": row.facts})
        categories = [{"id": k, "name": name} for name, k in number.items()]
        content = {"images": images, "annotations": annotations, "categories": categories}
        return {path: to_json(content)}

    def parse(self, path: Path) -> Any:
        content = read_json(path)
        if not isinstance(content, dict):
            return None
        if not all(isinstance(content.get(name), list) for name in KEYS):
            return None
        for name, keys in KEYS.items():
            for at, one in enumerate(content[name]):
                found = {key: one.get(key) for key in keys} if isinstance(one, dict) else {}
                if not found or not all(isinstance(value, (int, str)) for value in found.values()):
                    raise ValueError(
                        f"Expected {' and '.join(keys)}, a number or a word, in each of the {name}"
                        f" of {path}, got {found or one!r:.80} at {at}. Add what it lacks, or leave"
                        " it out."
                    )
        return content

    @cached_property
    def of_image(self) -> dict[Any, list[Any]]:
        """The annotations of each image, by its id."""
        of_image: dict[Any, list[Any]] = {}
        for annotation in self.content["annotations"]:
            of_image.setdefault(annotation["image_id"], []).append(annotation)
        return of_image

    def items(self) -> Iterator[Item]:
        names = {category["id"]: category["name"] for category in self.content["categories"]}
        for at, image in enumerate(self.content["images"]):
            annotations = self.of_image.get(image["id"], [])
            name = image["file_name"]
            categories = dict.fromkeys(one.get("category_id") for one in annotations)
            labels = [names[k] for k in categories if k in names]
            if len(labels) > 1 and not all(_is_whole(one, image) for one in annotations):
                raise ValueError(
                    f"Expected categories of whole pictures, got boxes of {len(labels)} categories"
                    f" in the image {image['id']}. Objects in pictures can't be audited."
                )
            facts = (annotations[0] if annotations else image).get("attributes") or {}
            yield Item.of(at, labels, facts, name, file=find_file(name, self.path))

    def relabelled(self, changes: NewLabels, left_out: Collection[int]) -> str:
        categories = list(self.content["categories"])
        number = {category["name"]: category["id"] for category in categories}
        new_id = _new_ids(categories)
        for name in dict.fromkeys(name for labels in changes.values() for name in labels):
            if name not in number:
                number[name] = next(new_id)
                categories.append({"id": number[name], "name": name})
        new_id = _new_ids(self.content["annotations"])
        images = []
        annotations = []
        for at, image in enumerate(self.content["images"]):
            if at in left_out:
                continue
            images.append(image)
            old = self.of_image.get(image["id"], [])
            if at not in changes:
                annotations += old
                continue
            wanted = [number[name] for name in changes[at]]
            for k, entries in paired([(one.get("category_id"), one) for one in old], wanted):
                annotations += [{**one, "category_id": k} for one in entries]
                if not entries:
                    annotations.append(_whole(next(new_id), image, k))
        written = {"images": images, "annotations": annotations, "categories": categories}
        return to_json({**self.content, **written})


def picture_size(data: AuditData, row: Row) -> tuple[int, int]:
    with open_image(data.source.file(row.id)) as image:
        return int(image.width), int(image.height)


def _new_ids(entries: Iterable[Mapping[str, Any]]) -> Iterator[int | str]:
    """Ids that no entry has: numbers, or words where some ids are."""
    ids = {one.get("id", 0) for one in entries}
    numbers = count(1 + max((id for id in ids if isinstance(id, int)), default=0))
    has_words = any(isinstance(id, str) for id in ids)
    return (str(number) for number in numbers if str(number) not in ids) if has_words else numbers


def _whole(id: int | str, image: Mapping[str, Any], category: Any) -> dict[str, Any]:
    """Return an annotation of a whole picture; without its size, one without a box."""
    width = image.get("width")
    height = image.get("height")
    whole = {"id": id, "image_id": image["id"], "category_id": category, "iscrowd": 0}
    if width and height:
        whole["bbox"] = [0, 0, width, height]
        whole["area"] = width * height
    return whole


def _is_whole(annotation: Mapping[str, Any], image: Mapping[str, Any]) -> bool:
    """Return whether an annotation is about all of a picture: its box is that, or it has none."""
    box = annotation.get("bbox")
    sides = (image.get("width"), image.get("height"))
    if not box:
        return True
    return None not in sides and all(
        abs(a - b) <= 1 for a, b in zip(box, (0, 0, *sides), strict=True)
    )
