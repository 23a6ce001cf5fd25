"""Label Studio, Argilla, FiftyOne, COCO and CVAT read what is written for them, and what they write
is read.

Each tool is in an environment of its own, which `make integrations` builds: their requirements do
not go together.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from noiseproof.audit import audit, read_rows
from noiseproof.audit.plan import read_reviewed

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
VENVS = Path(os.environ.get("NOISEPROOF_INTEGRATIONS", ROOT / ".venv" / "integrations"))
CLASSES = ("cat", "dög & co")
WRONG = ("cat/09 ü.png", "dög & co/04 ü.png")
EXPORTS = {
    "label-studio": "label-studio.json",
    "argilla": "argilla",
    "cvat": "cvat.xml",
    "fiftyone": "fiftyone",
    "coco": "coco.json",
}


def python_of(tool: str) -> str:
    python = VENVS / tool / "bin" / "python"
    assert python.exists(), f"Run `make integrations`, which builds {python.parent.parent}."
    return str(python)


def run_with(tool: str, script: str) -> Any:
    """Run a script in a tool's environment, and return the JSON in the last line that it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [python_of(tool), "-c", script], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An audit of 40 pictures, two of them in the wrong folder, exported to every tool."""
    monkeypatch.chdir(tmp_path)
    for i in range(40):
        given = i % 2 if i not in (4, 9) else 1 - i % 2
        path = Path("photos", CLASSES[given], f"{i:02d} ü.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 10), (6 * i, 0, 255 * (i % 2))).save(path)
    true = [int(path.name[:2]) % 2 for path in sorted(Path("photos").rglob("*.png"))]
    report = audit(read_rows("photos", pred_probs=np.eye(2)[true] * 0.9 + 0.05, classes=CLASSES))
    report.save("audit")
    for tool, name in EXPORTS.items():
        report.export(tool, Path("audit", name))
    return tmp_path


SETS = {
    f"{i:02d} ü.png": [
        name
        for name, yes in zip(
            ("cat", "dög & co", "wet"), (i % 2, i % 3 == 0, i % 5 < 2), strict=True
        )
        if yes
    ]
    for i in range(40)
}
LOST, SPARE = "06 ü.png", "20 ü.png"  # one label is missing, and one too many


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """An audit of 40 pictures with several labels, exported to every tool; returns the given
    labels.
    """
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    given = SETS | {LOST: ["wet"], SPARE: ["cat", "wet"]}
    for name in SETS:
        Image.new("RGB", (20, 10), (6 * int(name[:2]), 0, 0)).save(Path("photos", name))
    lines = [json.dumps({"file_name": name, "label": labels}) for name, labels in given.items()]
    Path("photos/metadata.jsonl").write_text("\n".join(lines))
    probs = [
        [0.95 if name in labels else 0.05 for name in ("cat", "dög & co", "wet")]
        for labels in SETS.values()
    ]
    report = audit(read_rows("photos", pred_probs=np.array(probs)))
    assert {*report.data.names[report.label_issues.is_issue]} == {LOST, SPARE}
    report.save("audit")
    for tool, name in EXPORTS.items():
        report.export(tool, Path("audit", name))
    return given


def chosen(back: str) -> dict[str, tuple[str, str]]:
    return {
        one.id: (one.decision, one.label) for one in read_reviewed("audit", back).decisions.values()
    }


def decided(back: str) -> dict[str, str]:
    return {one.id: one.decision for one in read_reviewed("audit", back).decisions.values()}


def test_fiftyone(here: Path) -> None:
    """Its importer, which `from_dir` calls, and its exporter; its database is not on the package
    index.
    """
    seen = run_with(
        "fiftyone",
        """
import json
import fiftyone as fo
import fiftyone.utils.data as foud
seen = []
with foud.FiftyOneImageClassificationDatasetImporter(dataset_dir="audit/fiftyone") as importer:
    exporter = foud.FiftyOneImageClassificationDatasetExporter(
        export_dir="back", export_media=False
    )
    with exporter:
        for path, _, label in importer:
            seen.append([path, label.label, label.source_id, label.is_label_issue])
            if label.source_id == "cat/09 ü.png":
                label.label = "dög & co"
            exporter.export_sample(path, label)
print(json.dumps(seen))
""",
    )
    assert len(seen) == 40 and all(Image.open(path).size == (20, 10) for path, *_ in seen)
    assert all(source_id.split("/")[0] == label for _, label, source_id, _ in seen)
    assert {source_id for *_, source_id, is_issue in seen if is_issue} == {*WRONG}
    assert decided("back") == {WRONG[0]: "accept"}


def test_fiftyone_sets(sets: dict[str, list[str]]) -> None:
    seen = run_with(
        "fiftyone",
        """
import json
import fiftyone as fo
import fiftyone.utils.data as foud
seen = {}
with foud.FiftyOneImageClassificationDatasetImporter(dataset_dir="audit/fiftyone") as importer:
    with foud.FiftyOneImageClassificationDatasetExporter(
        export_dir="back", export_media=False
    ) as exporter:
        for path, _, label in importer:
            names = [one.label for one in label.classifications]
            seen[path.split("row-")[1][:-4]] = names
            if path.endswith("row-6.png"):
                label.classifications.append(fo.Classification(label="dög & co"))
            exporter.export_sample(path, label)
print(json.dumps(seen))
""",
    )
    assert {int(row): names for row, names in seen.items()} == dict(enumerate(sets.values()))
    assert chosen("back") == {LOST: ("accept", "wet|dög & co")}


def test_argilla(here: Path) -> None:
    """Its parsers of settings and records, and its writer of records; a server needs
    Elasticsearch.
    """
    seen = run_with(
        "argilla",
        """
import json
from unittest.mock import MagicMock
import argilla as rg
from argilla.records._io import JsonIO
rg.Argilla._set_default(MagicMock())
settings = rg.Settings.from_json("audit/argilla/.argilla/settings.json")
settings.validate()
rg.Dataset._load_dataset_model("audit/argilla/.argilla/dataset.json")
records = JsonIO._records_from_json("audit/argilla/records.json")
for record in records:
    person = "12345678-1234-5678-1234-567812345678"
    record.responses.add(rg.Response("label", "dög & co", user_id=person, status="submitted"))
JsonIO.to_json(records, "back.json")
seen = [
    [r.metadata["source_id"], r.suggestions["label"].value, r.fields["image"][:22]] for r in records
]
print(
    json.dumps([settings.questions.label.labels, [field.name for field in settings.fields], seen])
)
""",
    )
    labels, fields, records = seen
    assert tuple(labels) == CLASSES and fields == ["image", "why"]
    assert records == [
        [WRONG[0], CLASSES[1], "data:image/png;base64,"],
        [WRONG[1], CLASSES[0], "data:image/png;base64,"],
    ]
    assert decided("back.json") == {WRONG[0]: "accept", WRONG[1]: "keep"}


def test_argilla_sets(sets: dict[str, list[str]]) -> None:
    labels, seen = run_with(
        "argilla",
        """
import json
from unittest.mock import MagicMock
import argilla as rg
from argilla.records._io import JsonIO
rg.Argilla._set_default(MagicMock())
settings = rg.Settings.from_json("audit/argilla/.argilla/settings.json")
settings.validate()
assert isinstance(settings.questions.label, rg.MultiLabelQuestion)
records = JsonIO._records_from_json("audit/argilla/records.json")
for record in records:
    value = record.suggestions["label"].value if record.metadata["row"] == 6 else ["(none)"]
    person = "12345678-1234-5678-1234-567812345678"
    record.responses.add(rg.Response("label", value, user_id=person, status="submitted"))
JsonIO.to_json(records, "back.json")
seen = {
    r.metadata["source_id"]: [r.suggestions["label"].value, len(r.suggestions["label"].score)]
    for r in records
}
print(json.dumps([settings.questions.label.labels, seen]))
""",
    )
    assert labels == ["cat", "dög & co", "wet", "(none)"]
    assert seen == {LOST: [["dög & co", "wet"], 2], SPARE: [["wet"], 1]}
    assert chosen("back.json") == {LOST: ("accept", "wet|dög & co"), SPARE: ("other", "(none)")}


def test_coco_and_cvat_sets(sets: dict[str, list[str]]) -> None:
    Path("cvat").mkdir()
    Path("cvat/annotations.xml").write_bytes(Path("audit/cvat.xml").read_bytes())
    Path("cvat/images").symlink_to(Path("photos").absolute())
    by_file, tags = run_with(
        "coco",
        """
import json
from pycocotools.coco import COCO
import datumaro as dm
coco = COCO("audit/coco.json")
names = {c["id"]: c["name"] for c in coco.loadCats(coco.getCatIds())}
by_file = {i["file_name"]: [names[one["category_id"]] for one in coco.imgToAnns[i["id"]]]
           for i in coco.loadImgs(coco.getImgIds())}
tags = dm.Dataset.import_from("cvat", "cvat")
names = tags.categories()[dm.AnnotationType.label]
print(
    json.dumps(
        [by_file, {item.id: [names[one.label].name for one in item.annotations] for item in tags}]
    )
)
""",
    )
    assert by_file == sets and tags == {
        name.removesuffix(".png"): sets[name] for name in (LOST, SPARE)
    }


def test_coco_and_cvat(here: Path) -> None:
    """pycocotools for COCO; Datumaro, the library of CVAT's formats, for both, with its writers."""
    Path("cvat").mkdir()
    Path("cvat/annotations.xml").write_bytes(Path("audit/cvat.xml").read_bytes())
    Path("cvat/images").symlink_to(Path("photos").absolute())
    seen = run_with(
        "coco",
        """
import json
from pycocotools.coco import COCO
import datumaro as dm
coco = COCO("audit/coco.json")
names = {c["id"]: c["name"] for c in coco.loadCats(coco.getCatIds())}
by_file = {
    i["file_name"]: names[coco.imgToAnns[i["id"]][0]["category_id"]]
    for i in coco.loadImgs(coco.getImgIds())
}
tags = dm.Dataset.import_from("cvat", "cvat")
names = tags.categories()[dm.AnnotationType.label]
print(
    json.dumps(
        [by_file, {item.id: [names[one.label].name for one in item.annotations] for item in tags}]
    )
)
""",
    )
    by_file, tags = seen
    assert len(by_file) == 40 and all(
        name.split("/")[0] == label for name, label in by_file.items()
    )
    assert tags == {name.removesuffix(".png"): [name.split("/")[0]] for name in WRONG}


@pytest.fixture
def label_studio(tmp_path: Path) -> Iterator[httpx.Client]:
    """A running Label Studio and a person who has signed up; its document root is the folder that
    holds photos/.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "LABEL_STUDIO_BASE_DATA_DIR": str(tmp_path / "label-studio"),
        "COLLECT_ANALYTICS": "false",
        "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED": "true",
        "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT": str(tmp_path),
        "LATEST_VERSION_CHECK": "false",
    }
    command = [
        Path(python_of("label-studio")).with_name("label-studio"),
        "start",
        "--no-browser",
        "--port",
        str(port),
    ]
    with open(tmp_path / "server.log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, follow_redirects=True
        ) as client:
            for _ in range(600):
                assert server.poll() is None, (tmp_path / "server.log").read_text()[-2000:]
                try:
                    if client.get("/health").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(1)
            page = client.get("/user/signup").text
            token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', page)
            assert token is not None
            client.headers["Referer"] = str(client.base_url)
            person = {
                "email": "ann@example.com",
                "password": "Secret-1234",
                "csrfmiddlewaretoken": token[1],
            }
            assert client.post("/user/signup", data=person).status_code == 200
            client.headers["X-CSRFToken"] = client.cookies["csrftoken"]
            yield client
    finally:
        server.terminate()
        server.wait()


def test_label_studio_sets(label_studio: httpx.Client, sets: dict[str, list[str]]) -> None:
    """Several choices and none, in both exports."""
    view = Path("audit/label-studio.xml").read_text("utf-8")
    project = label_studio.post(
        "/api/projects", json={"title": "photos", "label_config": view}
    ).json()["id"]
    tasks = json.loads(Path("audit/label-studio.json").read_text("utf-8"))
    imported = label_studio.post(f"/api/projects/{project}/import", json=tasks).json()
    assert (imported["task_count"], imported["prediction_count"]) == (2, 2)
    for task in label_studio.get(f"/api/tasks?project={project}&fields=all").json()["tasks"]:
        result = task["predictions"][0]["result"] if task["data"]["source_id"] == LOST else []
        answered = label_studio.post(
            f"/api/tasks/{task['id']}/annotations/", json={"result": result}
        )
        assert answered.status_code == 201
    for kind in ("JSON", "JSON_MIN"):
        export = label_studio.get(f"/api/projects/{project}/export?exportType={kind}")
        Path("export.json").write_bytes(export.content)
        assert chosen("export.json") == {
            LOST: ("accept", "wet|dög & co"),
            SPARE: ("other", "(none)"),
        }


def test_label_studio(label_studio: httpx.Client, here: Path) -> None:
    """Tasks with predictions are imported, pictures are served, and both of its exports come
    back.
    """
    view = Path("audit/label-studio.xml").read_text("utf-8")
    project = label_studio.post(
        "/api/projects", json={"title": "photos", "label_config": view}
    ).json()["id"]
    storage = {"project": project, "path": str(here / "photos"), "use_blob_urls": True}
    assert label_studio.post("/api/storages/localfiles", json=storage).status_code == 201
    tasks = json.loads(Path("audit/label-studio.json").read_text("utf-8"))
    imported = label_studio.post(f"/api/projects/{project}/import", json=tasks).json()
    assert (imported["task_count"], imported["prediction_count"]) == (2, 2)
    for task in label_studio.get(f"/api/tasks?project={project}&fields=all").json()["tasks"]:
        picture = label_studio.get(task["data"]["image"])
        assert picture.content == Path("photos", task["data"]["source_id"]).read_bytes()
        choice = {
            "from_name": "label",
            "to_name": "image",
            "type": "choices",
            "value": {"choices": ["dög & co"]},
        }
        answered = label_studio.post(
            f"/api/tasks/{task['id']}/annotations/", json={"result": [choice]}
        )
        assert answered.status_code == 201
    for kind in ("JSON", "JSON_MIN"):
        export = label_studio.get(f"/api/projects/{project}/export?exportType={kind}")
        Path("export.json").write_bytes(export.content)
        assert decided("export.json") == {WRONG[0]: "accept", WRONG[1]: "keep"}
    command = [
        sys.executable,
        "-m",
        "noiseproof",
        "apply",
        "audit",
        "--decisions",
        "export.json",
        "--out",
        "corrected",
    ]
    subprocess.run(command, check=True)
    assert Path("corrected", "dög & co", "09 ü.png").exists()
