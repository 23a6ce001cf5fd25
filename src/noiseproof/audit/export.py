"""Results of an audit in the import formats of other tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.files import check_folder
from noiseproof.audit.report import LabelReport
from noiseproof.audit.sources import Source
from noiseproof.core.files import replacing
from noiseproof.data.sources import PathLike

NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML cannot hold


def to_label_studio(report: LabelReport, path: PathLike, *, all_rows: bool = False, force: bool = False) -> Path:
    """Write tasks for Label Studio, with the suggested label as the prediction of each, and its labelling set-up.

    Only issues, unless ``all_rows``; existing files are refused, unless ``force``. Pictures are addressed as local
    files in the audited folder: start Label Studio with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and
    LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT set to it.
    """
    data, issues = report.data, report.label_issues
    if odd := [name for name in data.classes if NO_XML.search(name)]:
        raise ValueError(
            f"Expected names of classes that the XML of Label Studio can hold, got {odd[0]!r}. Remove control "
            "characters, and audit again."
        )
    what = "image" if data.source.is_pictures else "text"
    rows = _rows(report, all_rows)
    names = data.names
    tasks = []
    for i, why in zip(rows.tolist(), report.why(rows).tolist(), strict=True):
        suggestion = {
            "id": f"row-{data.row[i]}", "from_name": "label", "to_name": what, "type": "choices",
            "value": {"choices": [data.classes[issues.suggested[i]]]},
        }  # fmt: skip
        shown = (
            f"/data/local-files/?d={quote(str(names[i]))}"
            if what == "image"
            else data.source.describe(int(data.row[i]), str(names[i]))
        )
        tasks.append({
            "data": {
                what: shown, "row": int(data.row[i]), "id": str(names[i]), "why": why,
                "given_label": data.classes[data.given[i]], "label_quality": round(float(issues.quality[i]), 6),
                "is_label_issue": bool(issues.is_issue[i]),
            },
            "predictions": [{
                "model_version": "noiseproof", "score": round(float(issues.suggested_confidence[i]), 6),
                "result": [suggestion],
            }],
        })  # fmt: skip
    target = Path(path)
    with replacing(_fresh(target, force)) as file:
        file.write_text(json.dumps(tasks, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    tag = {"image": '<Image name="image" value="$image"/>', "text": '<Text name="text" value="$text"/>'}[what]
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in data.classes)
    with replacing(_fresh(target.with_suffix(".xml"), force)) as file:
        file.write_text(
            f'<View>\n  {tag}\n  <Text name="why" value="$why"/>\n'
            f'  <Choices name="label" toName="{what}" choice="single">\n{choices}\n  </Choices>\n</View>\n',
            encoding="utf-8",
        )
    return target


def to_fiftyone(report: LabelReport, folder: PathLike, *, all_rows: bool = True, force: bool = False) -> Path:
    """Write a folder that FiftyOne imports as ``fiftyone.types.FiftyOneImageClassificationDataset``.

    ``data.json`` has the path of each picture and ``labels.json`` its given label, with the results of the audit as
    attributes, from the worst label to the best.
    """
    data, issues = report.data, report.label_issues
    flags = {issue.flag: issue.mask for issue in report.issues}
    check_pictures(data.source)
    rows = _rows(report, all_rows)
    files, labels, names = {}, {}, data.names
    for rank, (i, why) in enumerate(zip(rows.tolist(), report.why(rows).tolist(), strict=True)):
        files[key := f"{rank:07d}"] = str(data.source.file(names[i]))
        labels[key] = {
            "label": data.classes[data.given[i]], "confidence": round(float(issues.quality[i]), 6),
            "attributes": {
                **{flag: bool(mask[i]) for flag, mask in flags.items()},
                "suggested_label": data.classes[issues.suggested[i]],
                "predicted_label": data.classes[issues.predicted[i]], "why": why, "row": int(data.row[i]),
                "id": str(names[i]),
            },
        }  # fmt: skip
    target = check_folder(folder, force=force)
    target.mkdir(parents=True, exist_ok=True)
    for name, content in (("data.json", files), ("labels.json", {"labels": labels})):
        with replacing(target / name) as path:
            path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return target


def check_pictures(source: Source) -> None:
    """Refuse a source that FiftyOne can't import."""
    if not source.is_pictures:
        raise ValueError(f"Expected pictures to export to FiftyOne, got {source.name}. Use label-studio.")


def _rows(report: LabelReport, all_rows: bool) -> NDArray[np.int64]:
    order = report.order
    return order if all_rows else order[report.label_issues.is_issue[order]]


def _fresh(path: Path, force: bool) -> Path:
    if path.exists() and not force:
        raise FileExistsError(f"Expected a new file, {path} exists. Choose another name.")
    return path
