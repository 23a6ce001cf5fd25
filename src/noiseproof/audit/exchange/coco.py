"""COCO: a category for each picture, as a box around all of it; out and in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noiseproof.audit.exchange.base import TOOLS, Item, Row, Tool, find_file, read_json, to_json, write_new
from noiseproof.data.images import open_image

if TYPE_CHECKING:
    from noiseproof.audit.report import LabelReport


@TOOLS.register_class("coco")
class Coco(Tool):
    """Pictures by their paths in the audited folder, each with one annotation that has the audit as attributes."""

    takes_all_rows = True
    takes_texts = False

    def write(self, report: LabelReport, path: Path, rows: Sequence[Row], *, force: bool) -> None:
        number = {name: k for k, name in enumerate(report.data.classes, 1)}  # 0 is the background in COCO
        images, annotations = [], []
        for row in rows:
            width, height = picture_size(report, row)
            images.append({"id": row.row, "file_name": row.id, "width": width, "height": height})
            annotations.append({
                "id": row.row + 1, "image_id": row.row, "category_id": number[row.given],
                "bbox": [0, 0, width, height], "area": width * height, "iscrowd": 0, "attributes": row.facts,
            })  # fmt: skip
        categories = [{"id": k, "name": name} for name, k in number.items()]
        write_new(path, to_json({"images": images, "annotations": annotations, "categories": categories}), force)

    def parse(self, path: Path) -> Any:
        content = read_json(path)
        names = ("images", "annotations", "categories")
        return content if isinstance(content, dict) and all(name in content for name in names) else None

    def items(self, content: Any, path: Path) -> Iterator[Item]:
        names = {category["id"]: category["name"] for category in content["categories"]}
        of_image = _annotation_of(content)
        for at, image in enumerate(content["images"]):
            annotation, name = of_image.get(image["id"], {}), image["file_name"]
            label, facts = names.get(annotation.get("category_id")), annotation.get("attributes") or {}
            yield Item.of(at, label, facts, name, file=find_file(name, path))

    def relabelled(self, content: Any, changes: Mapping[int, str], left_out: Collection[int]) -> bytes:
        categories = list(content["categories"])
        number = {category["name"]: category["id"] for category in categories}
        for name in changes.values():
            if name not in number:
                number[name] = max(number.values(), default=0) + 1
                categories.append({"id": number[name], "name": name})
        images = [image for at, image in enumerate(content["images"]) if at not in left_out]
        kept = {image["id"] for image in images}
        new = {content["images"][at]["id"]: number[name] for at, name in changes.items()}
        annotations = [
            {**one, "category_id": new.get(one["image_id"], one["category_id"])}
            for one in content["annotations"]
            if one["image_id"] in kept
        ]
        return to_json({**content, "images": images, "annotations": annotations, "categories": categories}).encode()


def picture_size(report: LabelReport, row: Row) -> tuple[int, int]:
    with open_image(report.data.source.file(row.id)) as image:
        return int(image.width), int(image.height)


def _annotation_of(content: Any) -> dict[Any, Any]:
    """Return the annotation of each picture; refuse pictures with two, which are objects and not classes."""
    of_image: dict[Any, Any] = {}
    for annotation in content["annotations"]:
        first = of_image.setdefault(annotation["image_id"], annotation)
        if first["category_id"] != annotation["category_id"]:
            raise ValueError(
                f"Expected one category for each picture, got several for the image {annotation['image_id']}. Objects "
                "in pictures can't be audited."
            )
    return of_image
