"""The numbers of the overview against pandas, and the map against a direct singular value
decomposition.
"""

from __future__ import annotations

import base64
import json
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade_audit import ANIMALS, write_audit, write_table_audit
from numpy.typing import NDArray
from review_server import Server
from test_context import write_flowers

from noiseproof.audit import audit
from noiseproof.audit.files import Audit, read_audit
from noiseproof.audit.inputs import read_again
from noiseproof.audit.sources import open_rows
from noiseproof.review import projection
from noiseproof.review.context import AnnotatorFiles, Context
from noiseproof.review.issues import Issues
from noiseproof.review.page import BINS, Overview
from noiseproof.review.projection import (
    STEPS,
    Projection,
    choose_rows,
    log_ratios,
    project,
    to_steps,
)

TYPES = {"row": "<u4", "given": "<u2", "x": "<u2", "y": "<u2"}


def read_map(answer: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The columns of a map as the page reads them."""
    return {
        name: np.frombuffer(base64.b64decode(answer[name]), kind) for name, kind in TYPES.items()
    }


def projection_of(folder: Path, **options: Any) -> Projection:
    opened = read_audit(folder)
    return Projection(opened, Context(opened, open_rows(opened.config)), **options)


def overview_of(opened: Audit) -> Overview:
    return Overview(opened, Issues(opened, everything=True), AnnotatorFiles(opened))


# --- counts ---------------------------------------------------------------------------------------


def test_counts_are_those_of_pandas(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path, rows=220, issues=150)
    summary = json.loads((folder / "summary.json").read_text())
    summary["classes"] = [
        {"name": name, "cut": 0.1 * k} for k, name in enumerate(reversed(ANIMALS))
    ]
    (folder / "summary.json").write_text(json.dumps(summary))
    opened = read_audit(folder)
    frame, names = opened.issues, list(opened.classes)
    decided = [0, 3, 4, 77, 149, 151]  # the last one is no issue
    shown = overview_of(opened).show(np.array(decided))

    matrix = pd.DataFrame(shown["matrix"])
    called = frame[frame["is_label_issue"]].assign(decided=lambda t: t["row"].isin(decided))
    reference = called.groupby(["given_label", "suggested_label"])["decided"].agg(["size", "sum"])
    found = {
        (names[g], names[s]): (n, d)
        for g, s, n, d in matrix[["given", "suggested", "issues", "decided"]].itertuples(
            index=False
        )
    }
    assert found == {pair: tuple(counts) for pair, counts in reference.T.to_dict("list").items()}
    assert matrix["issues"].sum() == 150 and matrix["decided"].sum() == 5

    by_class = pd.DataFrame(shown["classes"], index=names)
    assert by_class["rows"].to_dict() == frame["given_label"].value_counts().to_dict()
    assert by_class["issues"].to_dict() == called["given_label"].value_counts().to_dict()
    assert by_class["decided"].to_dict() == called.groupby("given_label")["decided"].sum().to_dict()
    wrong = (1 - frame["label_quality"]).groupby(frame["given_label"]).mean()
    np.testing.assert_allclose(by_class["noise_rate"], wrong[names], rtol=1e-3)
    assert by_class["cut"].tolist() == pytest.approx([0.3, 0.2, 0.1, 0.0])

    edges = np.linspace(0, 1, BINS + 1)
    for k, name in enumerate(names):
        for part, rows in (("rows", frame), ("issues", called)):
            qualities = rows.loc[rows["given_label"] == name, "label_quality"]
            assert shown["histogram"][part][k] == np.histogram(qualities, edges)[0].tolist()
    assert shown["noise_rate"] == {"estimate": 0.1, "low": 0.05, "high": 0.15}


def test_rates_and_cuts_of_a_real_audit(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    truth = random.integers(0, 3, 600)
    given = np.where(random.random(600) < 0.15, (truth + 1) % 3, truth)
    x = random.normal(size=(600, 4)) + 3 * np.eye(4)[truth]
    report = audit({"x": x, "labels": given}, mode="fast", model="trees")
    report.save(tmp_path / "audit")
    opened = read_audit(tmp_path / "audit")
    shown = overview_of(opened).show(np.array([], np.int64))
    of_audit = pd.DataFrame(opened.summary["classes"])
    np.testing.assert_allclose(shown["classes"]["noise_rate"], of_audit["noise_rate"], atol=2e-3)
    assert shown["classes"]["cut"] == of_audit["cut"].tolist()
    assert (
        shown["classes"]["issues"] == of_audit["issues"].tolist()
        and sum(shown["matrix"]["decided"]) == 0
    )


def test_an_audit_without_issues_has_an_empty_matrix(tmp_path: Path) -> None:
    opened = read_audit(write_table_audit(tmp_path, issues=0))
    shown = overview_of(opened).show(np.array([], np.int64))
    assert shown["matrix"] == {"given": [], "suggested": [], "issues": [], "decided": []}
    assert np.sum(shown["histogram"]["rows"]) == 220 and np.sum(shown["histogram"]["issues"]) == 0
    assert shown["classes"]["cut"] == [None] * 4


# --- the plane ------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_pca_is_a_singular_value_decomposition_with_one_sign(offset: float) -> None:
    random = np.random.default_rng(0)
    scaled = random.normal(size=(5000, 6)) * [5, 3, 1, 1, 0.5, 0.1]
    x = (scaled @ random.normal(size=(6, 6)) + offset).astype(np.float32)
    rows = random.permutation(5000)[:400]
    points = project(x, rows, "PCA")
    centred = x.astype(np.float64) - x.astype(np.float64).mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2].T
    np.testing.assert_allclose(np.abs(points), np.abs(centred[rows] @ axes), atol=2e-3)
    np.testing.assert_array_equal(project(x, rows, "PCA"), points)


def test_pca_of_one_feature_and_of_a_sample() -> None:
    x = np.arange(12, dtype=np.float32)[:, None]
    np.testing.assert_allclose(project(x, np.arange(12), "PCA"), np.c_[x - 5.5, np.zeros(12)])
    random = np.random.default_rng(0)
    many = random.normal(size=(projection.FITTED + 5000, 3)).astype(np.float32) * [3, 1, 0.1]
    points = project(many, np.arange(100), "PCA", seed=1)
    np.testing.assert_allclose(np.abs(points), np.abs(many[:100, :2]), atol=0.2)
    np.testing.assert_array_equal(points, project(many, np.arange(100), "PCA", seed=1))


def test_umap_keeps_clusters_apart() -> None:
    pytest.importorskip("umap", reason="umap-learn is not installed")
    random = np.random.default_rng(0)
    cluster = np.arange(240) % 3
    x = (random.normal(size=(240, 60)) + 12 * np.eye(3, 60)[cluster]).astype(np.float32)
    points = project(x, np.arange(240), "UMAP", seed=3)
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (cluster[apart.argmin(1)] == cluster).all()
    np.testing.assert_array_equal(project(x, np.arange(240), "UMAP", seed=3), points)


def test_a_folder_called_umap_is_not_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "umap").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(projection.importlib.metadata, "version", metadata_without_umap)
    assert projection.umap_version() == ""


def metadata_without_umap(name: str) -> str:
    raise PackageNotFoundError(name)


def test_log_ratios_have_no_infinities_and_sum_to_zero() -> None:
    p = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    ratios = log_ratios(p)
    np.testing.assert_allclose(ratios.sum(1), 0, atol=1e-5)
    np.testing.assert_allclose(ratios[0, 0] - ratios[0, 1], np.log(2), rtol=1e-5)
    np.testing.assert_allclose(ratios[1, 0] - ratios[1, 1], np.log(1000), rtol=1e-5)


def test_steps_keep_the_shape_and_far_rows_come_to_the_edge() -> None:
    random = np.random.default_rng(0)
    points = random.uniform([-2, 0], [2, 1], size=(1000, 2)).astype(np.float32)
    steps, beyond = to_steps(points)
    assert beyond == 0 and steps[:, 0].min() == 0 and steps[:, 0].max() == STEPS
    scale = STEPS / np.ptp(points[:, 0])
    # one scale for both axes
    np.testing.assert_allclose(steps, (points - points.min(0)) * scale, atol=0.6)
    points[7] = (1e6, -1e6)
    moved, beyond = to_steps(points)
    assert beyond == 1 and moved[7].tolist() == [STEPS, 0]
    assert np.ptp(np.delete(moved, 7, 0)[:, 0].astype(int)) > STEPS / 3  # all others are still seen
    assert to_steps(np.ones((5, 2), np.float32))[0].max() == 0


def test_all_suspects_and_a_seeded_sample_of_the_others_are_on_the_map(tmp_path: Path) -> None:
    labels = Issues(read_audit(write_table_audit(tmp_path, rows=220, issues=50)), everything=True)
    chosen = choose_rows(labels, most=80, seed=1)
    assert chosen[:50].tolist() == [*range(50)] and len({*chosen.tolist()}) == 80
    np.testing.assert_array_equal(chosen, choose_rows(labels, most=80, seed=1))
    assert not np.array_equal(chosen, choose_rows(labels, most=80, seed=2))
    assert choose_rows(labels, most=30).tolist() == [*range(30)]  # the worst
    assert choose_rows(labels).tolist() == [*range(220)]


# --- maps of audits -------------------------------------------------------------------------------


def test_a_map_is_that_of_the_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "umap_version", str)
    folder = write_flowers(tmp_path)
    answer = projection_of(folder).compute()
    found, opened = read_map(answer), read_audit(folder)
    data = read_again(opened)
    assert data.x is not None
    x = data.x[found["row"]].astype(np.float64)
    centred = x - data.x.astype(np.float64).mean(0)
    spread = np.linalg.svd(data.x - data.x.astype(np.float64).mean(0), full_matrices=False)[2][:2].T
    for axis, name in enumerate("xy"):
        assert abs(np.corrcoef(found[name], (centred @ spread)[:, axis])[0, 1]) > 0.99
    frame = opened.issues.set_index("row")
    assert sorted(found["row"].tolist()) == sorted(frame.index)
    assert [opened.classes[k] for k in found["given"]] == frame.loc[
        found["row"], "given_label"
    ].tolist()
    assert answer["issues"] == 3 and frame.loc[found["row"][:3], "is_label_issue"].all()
    assert (answer["method"], answer["by"], answer["rows"]) == ("PCA", "features", len(frame))

    # A file that has changed has none.
    path = tmp_path / "flowers.csv"
    pd.read_csv(path).assign(petal=lambda t: t["petal"] + 1e-3).to_csv(path, index=False)
    with pytest.raises(ValueError, match="The data has changed since the audit"):
        projection_of(folder).compute()


def test_predictions_alone_are_a_map_of_their_log_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "umap_version", str)
    random = np.random.default_rng(0)
    p = random.dirichlet(np.ones(3), 90).astype(np.float32)
    given = p.argmax(1)
    np.save(tmp_path / "y.npy", given)
    np.save(tmp_path / "p.npy", p)
    folder = write_audit(
        tmp_path / "audit",
        [str(k) for k in given],
        [str((k + 1) % 3) for k in given],
        issues=5,
        kind="predictions",
        data=None,
        labels=str(tmp_path / "y.npy"),
        pred_probs=str(tmp_path / "p.npy"),
    )
    answer = projection_of(folder).compute()
    found, ratios = read_map(answer), log_ratios(p / p.sum(1, keepdims=True)).astype(np.float64)
    centred = ratios - ratios.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2].T
    flat = (centred @ axes)[found["row"]]
    apart = np.linalg.norm(flat[:, None] - flat, axis=2)
    steps = np.stack([found["x"], found["y"]], 1).astype(float)
    drawn = np.linalg.norm(steps[:, None] - steps, axis=2)
    assert answer["beyond"] == 0 and answer["by"] == "predictions"
    np.testing.assert_allclose(drawn / drawn.max(), apart / apart.max(), atol=1e-4)


def test_a_map_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    folder = write_flowers(tmp_path)
    (tmp_path / "flowers.csv").unlink()
    shown = projection_of(folder)
    shown.start().join()
    note = shown.show()["note"]
    assert (
        note.startswith("There is no map: ") and "flowers.csv" in note and "x" not in shown.show()
    )


# --- the server -----------------------------------------------------------------------------------


def map_of(client: Any) -> dict[str, Any]:
    """Ask until the map is there."""
    ends = time.monotonic() + 60
    while (answer := client.get("/api/map").json())["pending"]:
        assert time.monotonic() < ends
        time.sleep(0.05)
    return dict(answer)


def test_the_server_sends_the_overview_and_the_map(tmp_path: Path) -> None:
    pytest.importorskip("httpx", reason="the review server's client is not installed")
    pytest.importorskip("uvicorn", reason="the review server is not installed")
    with Server(write_flowers(tmp_path)) as server, server.client() as client:
        before = client.get("/api/overview").json()
        assert (
            sum(before["matrix"]["issues"]) == 3 == before["progress"]["total"]
            and before["measured"] is None
        )
        client.post("/api/decisions", json={"row": 0, "decision": "keep"}).raise_for_status()
        after = client.get("/api/overview").json()
        assert (
            sum(after["matrix"]["decided"])
            == sum(after["classes"]["decided"])
            == after["progress"]["keep"]
            == 1
        )
        found = read_map(map_of(client))
        row = int(found["row"][-1])  # no issue
        brief = client.get(f"/api/map/{row}").json()
        assert (
            brief["row"] == row
            and brief["is_issue"] is False
            and brief["label"] in ("iris", "rose")
        )
        assert brief["fields"] and client.get("/api/map/100000").status_code == 404


def test_measured_decisions_tell_how_many_errors_are_left(tmp_path: Path) -> None:
    pytest.importorskip("httpx", reason="the review server's client is not installed")
    pytest.importorskip("uvicorn", reason="the review server is not installed")
    folder = write_table_audit(tmp_path)
    with Server(folder, "--measure", "12") as server, server.client() as client:
        while (question := client.get("/api/question").json()["question"]) is not None:
            body = {"row": question["row"], "question": question["number"], "decision": "keep"}
            client.post("/api/decisions", json=body).raise_for_status()
    with Server(folder) as server, server.client() as client:
        shown, known = client.get("/api/overview").json(), client.get("/api/audit").json()
        assert shown["measured"] == known["measured"] and shown["measured"]["decisions"] == 12
        assert (
            shown["measured"]["wrong_left"]["value"] == 0 < shown["measured"]["wrong_left"]["high"]
        )


@pytest.mark.parametrize(
    "options", [("--measure", "10"), ("--measure", "10", "--blind"), ("--propose", "measure=1")]
)
def test_whoever_is_asked_sees_no_overview(tmp_path: Path, options: tuple[str, ...]) -> None:
    pytest.importorskip("httpx", reason="the review server's client is not installed")
    pytest.importorskip("uvicorn", reason="the review server is not installed")
    with Server(write_flowers(tmp_path), *options) as server, server.client() as client:
        for path in ("/api/overview", "/api/map", "/api/map/0"):
            assert client.get(path).status_code == 404
