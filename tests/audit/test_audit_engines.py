"""Work on Ray has the results of work in one process, bit by bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from noiseproof.audit import audit, read_rows
from noiseproof.audit.evidence.engines import map_jobs, work_on
from noiseproof.audit.evidence.estimators import cross_fit
from noiseproof.audit.evidence.neighbours import nearest


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray on this machine, as a user may have started it."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


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
    [("cluster", None, "Expected an engine of local, ray, got 'cluster'"), ("local", "auto", "which ignores it")],
)
def test_refusals(engine: Any, address: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message), work_on(engine, address):
        raise AssertionError("not reached")


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"noiseproof\[ray\]"), work_on("ray"):
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
def test_an_error_on_ray_is_the_error_of_the_job(ray: Any) -> None:
    with work_on("ray"), pytest.raises(ZeroDivisionError):
        list(map_jobs(divmod, [1], 0))


@pytest.mark.slow
def test_an_audit_on_ray_writes_the_same_list(ray: Any, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    x, labels = rows(21_000)
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(8)]).assign(y=np.array(["a", "b", "c"])[labels])
    frame.to_parquet(tmp_path / "data.parquet")
    audit(read_rows(tmp_path / "data.parquet", label="y"), mode="fast").save(tmp_path / "here")
    with work_on("ray"):
        audit(read_rows(tmp_path / "data.parquet", label="y"), mode="fast").save(tmp_path / "ray")
    assert (tmp_path / "here" / "issues.csv").read_bytes() == (tmp_path / "ray" / "issues.csv").read_bytes()
