"""Work on Ray has the results of work in one process, bit by bit."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from noiseproof.audit import audit, read_rows
from noiseproof.core.cluster import fixed_threads, map_jobs, threads_for, work_on
from noiseproof.core.messages import install_command
from noiseproof.data.pictures import encode_pictures
from noiseproof.data.text import encode_texts
from noiseproof.judge.evidence.neighbours import nearest
from noiseproof.judge.evidence.network import Evidence, cross_validate, watch_training
from noiseproof.judge.evidence.trees import cross_fit


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray on this machine, as a user may have started it."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


class StandIn:
    """Ray's functions in this process: what goes to a task and comes back is pickled; the slow
    tests do it with Ray.
    """

    def __init__(self) -> None:
        self.tasks = 0

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, value: Any) -> tuple[str, bytes]:
        return "stored", pickle.dumps(value)

    def remote(self, **options: Any) -> Callable[..., Any]:
        def decorated(function: Any) -> Any:
            class Task:
                @staticmethod
                def remote(*values: Any) -> bytes:
                    self.tasks += 1
                    read = [
                        pickle.loads(
                            v[1]
                            if isinstance(v, tuple) and v[:1] == ("stored",)
                            else pickle.dumps(v)
                        )
                        for v in values
                    ]
                    return pickle.dumps(function(*read))

            return Task

        return decorated

    def get(self, result: bytes) -> Any:
        return pickle.loads(result)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    standing = StandIn()
    monkeypatch.setitem(sys.modules, "ray", standing)  # type: ignore[arg-type]
    return standing


def assert_same(ours: Evidence, theirs: Evidence) -> None:
    for name in ("pred_probs", "unlearned", "doubt", "neighbour_agreement", "dynamics", "guess"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    assert ours.weights == theirs.weights


# the latter trains two networks for each fold
STACKED, ONE_BY_ONE = "ln:lam=1,tau=0.5", "co-teaching"


def networks(method: str, mode: str) -> Evidence:
    x, labels = rows(150)
    if mode == "fast":
        return watch_training(x, labels, 3, method=method, epochs=2)
    return cross_validate(x, labels, 3, np.arange(150) % 3, method=method, epochs=2)


def features(kind: str) -> np.ndarray:
    if kind in ("tfidf", "wordllama"):
        words = np.random.default_rng(0).choice(
            ["good", "bad", "film", "book", "long", "short"], (40, 5)
        )
        return encode_texts([" ".join(row) for row in words], kind)[0]
    import torch

    pictures = torch.randint(
        0, 256, (12, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return encode_pictures(pictures, "efficientnet-lite0:size=32")[0]


NEEDED = {"tfidf": "sklearn", "wordllama": "wordllama", "pictures": "efficientnet_lite_pytorch"}


@pytest.mark.parametrize(
    ("method", "mode", "tasks"),
    [
        (STACKED, "thorough", 3),
        (STACKED, "fast", 2),
        (ONE_BY_ONE, "thorough", 3),
        (ONE_BY_ONE, "fast", 2),
    ],
)
def test_networks_as_tasks_are_those_of_one_process(
    stand_in: StandIn, method: str, mode: str, tasks: int
) -> None:
    """The networks of all folds are one task."""
    expected = networks(method, mode)
    assert stand_in.tasks == 0
    with work_on("ray"):
        assert_same(networks(method, mode), expected)
    assert stand_in.tasks == tasks


def test_progress_of_tasks_reaches_its_total(stand_in: StandIn) -> None:
    done: list[tuple[int, int | None]] = []
    x, labels = rows(150)
    with work_on("ray"):
        watch_training(
            x, labels, 3, epochs=2, progress=lambda stage, at, total: done.append((at, total))
        )
    assert done == [(2, 8), (8, 8)]  # one network of all rows, then the linear ones of three folds


@pytest.mark.parametrize("kind", NEEDED)
def test_features_as_tasks_are_those_of_one_process(
    stand_in: StandIn, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(NEEDED[kind])
    expected = features(kind)
    with work_on("ray"):
        np.testing.assert_array_equal(features(kind), expected)
    assert stand_in.tasks == 1
    monkeypatch.setattr("noiseproof.data.text.BLOCK", 16)
    monkeypatch.setattr("noiseproof.data.pictures.PER_TASK", 1)  # of 16 pictures
    with work_on("ray"):
        np.testing.assert_allclose(features(kind), expected, rtol=1e-5, atol=1e-6)
    assert stand_in.tasks == 1 + (1 if kind == "pictures" else 3)


def test_threads_that_the_user_fixed_are_those_of_the_tasks(stand_in: StandIn) -> None:
    import torch

    with fixed_threads(2), work_on("ray"):
        assert list(map_jobs(_threads_inside, [0])) == [2]
    with work_on("ray"):
        assert list(map_jobs(_threads_inside, [0])) == [1]
    torch.set_num_threads(1)


def _threads_inside(_: int) -> int:
    with threads_for(1) as number:
        return number


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, n)
    x = random.normal(size=(n, 8)) + random.normal(size=(3, 8))[labels]
    return x.astype(np.float32), np.where(random.random(n) < 0.1, (labels + 1) % 3, labels)


def test_jobs_run_here_in_order_one_by_one() -> None:
    began: list[int] = []

    def job(number: int, offset: int) -> int:
        began.append(number)
        return number + offset

    results = map_jobs(job, [3, 1, 2], 10)
    assert next(results) == 13 and began == [3]  # the next ones wait, and need no memory
    assert list(results) == [11, 12]


@pytest.mark.parametrize(
    ("engine", "address", "message"),
    [
        ("cluster", None, "Expected an engine of local, ray, got 'cluster'"),
        ("local", "auto", "which ignores it"),
    ],
)
def test_refusals(engine: Any, address: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message), work_on(engine, address):
        raise AssertionError("not reached")


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape(install_command("ray"))), work_on("ray"):
        raise AssertionError("not reached")


@pytest.mark.slow
def test_folds_on_ray_are_those_of_one_process(ray: Any) -> None:
    x, labels = rows(3000)
    folds = np.arange(3000) % 3
    estimator = HistGradientBoostingClassifier(max_iter=20, random_state=0)
    expected = cross_fit(estimator, x, labels, 3, folds)
    with work_on("ray"):
        probs = cross_fit(estimator, x, labels, 3, folds)
    assert ray.is_initialized()  # it was running before
    np.testing.assert_array_equal(probs, expected)


@pytest.mark.slow
def test_neighbours_on_ray_are_those_of_one_process(ray: Any) -> None:
    pytest.importorskip("faiss")
    x, _ = rows(70_000)  # two tasks
    expected = nearest(x, 10)
    with work_on("ray"):
        near = nearest(x, 10)
    np.testing.assert_array_equal(near.index, expected.index)
    np.testing.assert_array_equal(near.distance, expected.distance)
    assert near.recall == expected.recall


@pytest.mark.slow
@pytest.mark.parametrize("method", [STACKED, ONE_BY_ONE])
@pytest.mark.parametrize("mode", ["thorough", "fast"])
def test_networks_on_ray_are_those_of_one_process(ray: Any, method: str, mode: str) -> None:
    expected = networks(method, mode)
    with work_on("ray"):
        assert_same(networks(method, mode), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEEDED)
def test_features_on_ray_are_those_of_one_process(ray: Any, kind: str) -> None:
    pytest.importorskip(NEEDED[kind])
    expected = features(kind)
    with work_on("ray"):
        np.testing.assert_array_equal(features(kind), expected)


@pytest.mark.slow
def test_an_error_on_ray_is_the_error_of_the_job(ray: Any) -> None:
    with work_on("ray"), pytest.raises(ZeroDivisionError):
        list(map_jobs(divmod, [1], 0))


@pytest.mark.slow
def test_an_audit_on_ray_writes_the_same_list(ray: Any, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    x, labels = rows(21_000)
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(8)]).assign(
        y=np.array(["a", "b", "c"])[labels]
    )
    frame.to_parquet(tmp_path / "data.parquet")
    audit(read_rows(tmp_path / "data.parquet", label="y"), mode="fast").save(tmp_path / "here")
    with work_on("ray"):
        audit(read_rows(tmp_path / "data.parquet", label="y"), mode="fast").save(tmp_path / "ray")
    assert (tmp_path / "here" / "issues.csv").read_bytes() == (
        tmp_path / "ray" / "issues.csv"
    ).read_bytes()
