"""Which issues a list shows, against a reference that looks at one issue after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_audit, write_table_audit

from noiseproof.audit.decisions import find_decisions, read_decisions
from noiseproof.audit.files import read_audit
from noiseproof.audit.sources import open_rows
from noiseproof.audit.sources.base import NoRows
from noiseproof.audit.sources.table import TableSource
from noiseproof.judge.saved import ROW_CHOICES
from noiseproof.review.issues import Issues, Sort
from noiseproof.review.queue import KEPT, Filter, Queue, Search, State, UnknownSelection


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue of issues in no order, with ids that occur twice."""
    folder = write_table_audit(tmp_path)
    queue = Queue(read_audit(folder), folder / "other-decisions.csv")
    issues = queue.issues
    random = np.random.default_rng(0)
    issues.row = random.permutation(len(issues)) * 3
    names = [str(number) for number in random.integers(0, 60, len(issues))]  # some twice
    issues.id = [name if k % 3 else f"cell/{name}" for k, name in enumerate(names)]
    yield queue
    queue.log.close()


def listed(
    issues: Issues, filter: Filter, state: Any, rows: Any, is_match: Any, is_conflict: Any
) -> list[int]:
    """The reference."""

    def meets(i: int) -> bool:
        word = "open" if state[i] == 0 else ROW_CHOICES[state[i] - 1]
        in_state = {
            None: True,
            "open": word == "open",
            "decided": word != "open",
            "conflict": is_conflict[i],
        }
        quality = issues.numbers["label_quality"][i]
        return bool(
            filter.given in (None, issues.given[i])
            and filter.suggested in (None, issues.suggested[i])
            and in_state.get(filter.state, word == filter.state)
            and (filter.low is None or quality >= filter.low)
            and (filter.high is None or quality <= filter.high)
            and (not filter.search or is_match[i])
            and (not filter.selection or issues.row[i] in set(rows.tolist()))
        )

    def key(i: int) -> Any:
        name = issues.id[i]
        return {
            "quality": i,
            "row": int(issues.row[i]),
            "given": int(issues.given[i]),
            "suggested": int(issues.suggested[i]),
            "id": (0, int(name), "") if name.isdigit() else (1, 0, name),
        }[filter.sort]

    other = {"given": issues.suggested, "suggested": issues.given}.get(
        filter.sort, np.zeros(len(issues))
    )
    kept = sorted((i for i in range(len(issues)) if meets(i)), key=lambda i: (other[i], i))
    return sorted(kept, key=key, reverse=filter.descending)


def test_random_filters_list_what_a_search_of_every_issue_lists(queue: Queue) -> None:
    issues = queue.issues
    random = np.random.default_rng(1)
    sizes = []
    for _ in range(400):
        state = random.integers(0, 1 + len(ROW_CHOICES), len(issues)).astype(np.int8)
        rows, (is_match, is_conflict) = (
            random.choice(issues.row, 80),
            random.random((2, len(issues))) < 0.7,
        )
        low, high = sorted(random.random(2).round(3).tolist())

        def maybe(value: Any, random: np.random.Generator = random) -> Any:
            return value if random.random() < 0.3 else None

        filter = Filter(
            given=maybe(int(random.integers(4))),
            suggested=maybe(int(random.integers(4))),
            state=maybe(str(random.choice(get_args(State)))),
            low=maybe(low),
            high=maybe(high),
            search=maybe("word") or "",
            selection=maybe(queue.keep_selection(rows)) or "",
            sort=str(random.choice(get_args(Sort))),
            descending=bool(random.integers(2)),
        )
        queue.people.choice = state
        queue.people.is_conflict = is_conflict
        queue.search.matches = lambda search, is_match=is_match: is_match  # type: ignore[assignment]
        selected = queue.select(filter)
        assert selected.tolist() == listed(issues, filter, state, rows, is_match, is_conflict), (
            filter
        )
        sizes.append(len(selected))
    assert min(sizes) == 0 and max(sizes) == len(issues)


def test_a_filter_of_nothing_is_the_order_of_the_audit(queue: Queue) -> None:
    assert queue.select(Filter()).tolist() == list(range(200))
    assert queue.select(Filter(descending=True)).tolist() == list(range(200))[::-1]


def test_selections_have_short_keys_and_the_oldest_are_forgotten(queue: Queue) -> None:
    first = queue.keep_selection([5, 3, 5])
    assert queue.keep_selection([3, 5]) == first and len(first) == 12
    keys = [queue.keep_selection([k]) for k in range(KEPT)]
    queue.select(Filter(selection=keys[0]))
    with pytest.raises(UnknownSelection):
        queue.select(Filter(selection=first))


def test_the_server_lists_by_filters_and_selections(tmp_path: Path) -> None:
    pytest.importorskip("httpx", reason="the review server's client is not installed")
    pytest.importorskip("fastapi", reason="the review server is not installed")
    from review_server import Server

    with Server(write_table_audit(tmp_path)) as server, server.client() as client:

        def rows(**query: Any) -> list[int]:
            answer = client.get("/api/issues", params={"limit": 500, **query}).json()
            assert answer["total"] == len(answer["issues"])
            return [issue["row"] for issue in answer["issues"]]

        for row in (3, 5, 8):
            client.post(
                "/api/decisions", json={"row": row, "decision": "keep" if row == 5 else "accept"}
            )
        assert rows(state="decided") == [3, 5, 8] and rows(state="accept") == [3, 8]
        assert rows(state="open")[:6] == [0, 1, 2, 4, 6, 7] and len(rows(state="open")) == 197
        assert rows(low=10 / 221 - 1e-6, high=12 / 221 + 1e-6) == [9, 10, 11]
        assert rows(sort="row", descending=True)[:2] == [199, 198]
        assert [row % 4 for row in rows(sort="given")] == sorted(row % 4 for row in range(200))
        kept = client.post("/api/selections", json={"rows": [3, 4, 7, 500]}).json()
        assert kept["total"] == 3 and rows(selection=kept["selection"]) == [3, 4, 7]
        both = client.post(
            "/api/selections", json={"rows": [3, 4, 7], "filter": {"state": "open"}}
        ).json()
        assert rows(selection=both["selection"]) == [4, 7]
        client.post("/api/decisions", json={"row": 4, "decision": "skip"})
        # it stays in the list that it was decided in
        assert rows(selection=both["selection"]) == [4, 7]
        following = client.get("/api/issues/next", params={"selection": both["selection"]}).json()
        assert following == {"position": 1}
        assert client.get("/api/issues", params={"selection": "0" * 12}).status_code == 410
        for bad in (
            {"state": "lost"},
            {"sort": "why"},
            {"low": "nan"},
            {"search": "x" * 1001},
            {"given": -1},
        ):
            assert client.get("/api/issues", params=bad).status_code == 422, bad
        for wrong in ({"rows": [-1]}, {"rows": ["a"]}, {"filter": {"order": "row"}}):
            assert client.post("/api/selections", json=wrong).status_code == 422, wrong


# --- words and snippets ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".jsonl", "memory"])
def test_search_finds_the_rows_whose_id_or_cells_have_all_words(tmp_path: Path, kind: str) -> None:
    random = np.random.default_rng(2)
    words = np.array(["owl", "Fox", "straße", "été", "12.5", "a,b", 'say "hi"', "two\nlines"])
    frame = pd.DataFrame(
        {
            "name": [f"id-{k}" for k in range(60)],
            "first": random.choice(words, 60),
            "second": random.choice(words, 60),
            "size": random.integers(0, 99, 60),
            "kind": random.choice(["cat", "dog"], 60),
        }
    )
    path = tmp_path / f"table{kind}"
    if kind == ".parquet":
        pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
        frame.to_parquet(path)
    elif kind == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif kind == ".csv":
        frame.to_csv(path, index=False)
    given = frame["kind"].tolist()
    audit = read_audit(
        write_audit(
            tmp_path / "audit",
            given,
            [{"cat": "dog", "dog": "cat"}[name] for name in given],
            issues=40,
            kind="table",
            data=None if kind == "memory" else path,
            label="kind",
            id="name",
            ids=frame["name"].tolist(),
        )
    )
    rows: Any = open_rows(audit.config)
    if kind == "memory":
        rows = TableSource(audit.config)
        rows.frame = frame
    search = Search(Issues(audit), rows)
    assert rows.has_cells
    cells = frame.drop(columns="kind").astype(str).agg("\n".join, axis=1).str.lower().tolist()[:40]
    for text in (
        "owl",
        "FOX",
        "owl fox",
        "id-3",
        "ID-12 1",
        "Straße",
        "ÉTÉ owl",
        "a,b",
        '"hi"',
        "lines",
        "7",
        "cat",
        "zzz",
    ):
        expected = [all(word in cell for word in text.lower().split()) for cell in cells]
        assert search.matches(text).tolist() == expected, text
    assert not search.matches("cat").any()  # the label is no cell


def test_without_words_in_the_rows_only_ids_are_searched(tmp_path: Path) -> None:
    issues = Issues(read_audit(write_table_audit(tmp_path)))
    search = Search(issues, NoRows("gone"))
    assert np.flatnonzero(search.matches("19")).tolist() == [19, 119, *range(190, 200)]
    assert not NoRows("gone").has_cells


def test_issues_come_with_a_snippet_of_the_columns_that_matter(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the review server is not installed")
    from noiseproof.review.server import Review

    random = np.random.default_rng(3)
    given = ["iris", "rose"] * 100
    frame = pd.DataFrame(
        {
            "zero": np.zeros(200, int),
            "chance": random.random(200).round(3),
            "who": random.choice(["ann", "bob"], 200),
            "petal": (np.where(np.arange(200) % 2, 5, 1) + random.random(200)).round(3),
            "kind": given,
        }
    )
    frame.to_csv(tmp_path / "flowers.csv", index=False)
    folder = write_audit(
        tmp_path / "audit",
        given,
        ["rose", "iris"] * 100,
        issues=60,
        kind="table",
        data=tmp_path / "flowers.csv",
        label="kind",
        header=True,
    )
    review = Review(folder, None, False)
    before = review.list_issues("", Filter())["issues"]
    assert before[3]["snippet"] == {
        "fields": [
            ["chance", str(frame["chance"][3])],
            ["who", frame["who"][3]],
            ["petal", f"{frame['petal'][3]:g}"],
        ]
    }
    review.context.start().join()
    after = review.list_issues("", Filter(sort="row", descending=True))["issues"]
    assert [issue["snippet"]["fields"] for issue in after] == [
        [["petal", f"{frame['petal'][row]:g}"]] for row in range(59, -1, -1)
    ]
    review.queue.log.close()


# --- many decisions -------------------------------------------------------------------------------


def test_a_filter_or_ranges_of_its_list_are_decided_as_one_batch(tmp_path: Path) -> None:
    pytest.importorskip("httpx", reason="the review server's client is not installed")
    pytest.importorskip("fastapi", reason="the review server is not installed")
    from review_server import Server

    folder = write_table_audit(tmp_path)

    def decided() -> dict[int, str]:
        return {row: one.decision for row, one in read_decisions(find_decisions(folder)).items()}

    with Server(folder) as server, server.client() as client:

        def many(**body: Any) -> Any:
            return client.post("/api/decisions/many", json=body)

        client.post("/api/decisions", json={"row": 4, "decision": "keep"})
        answer = many(decision="accept", filter={"given": 0, "high": 0.1}).json()
        cats = [row for row in range(0, 200, 4) if (row + 1) / 221 <= 0.1]
        assert answer["saved"] == len(cats) - 1 and decided() == dict.fromkeys(cats, "accept") | {
            4: "keep"
        }
        assert client.post("/api/undo", json={}).json()["undone"] == [
            row for row in cats if row != 4
        ]
        assert decided() == {4: "keep"}
        # Ranges are places in the list of the filter.
        answer = many(
            decision="exclude",
            filter={"sort": "row", "descending": True},
            ranges=[[0, 3], [10, 11]],
        ).json()
        assert answer["saved"] == 4
        assert decided() == {4: "keep", **dict.fromkeys((199, 198, 197, 189), "exclude")}
        assert (
            many(decision="unclear", filter={"state": "exclude"}, also_decided=True).json()["saved"]
            == 4
        )
        assert {row for row, word in decided().items() if word == "unclear"} == {199, 198, 197, 189}
        assert many(decision="accept", filter={"search": "nothing"}).json()["saved"] == 0
        assert many(decision="accept").status_code == 409
        assert many(decision="accept", filter={"selection": "gone"}).status_code == 410
        for bad in (
            {"ranges": [[0]]},
            {"ranges": [[0, -1]]},
            {"ranges": [[0, 1, 2]]},
            {"filter": {"no": 1}},
        ):
            assert many(**{"decision": "accept", "filter": {}, **bad}).status_code == 422, bad
