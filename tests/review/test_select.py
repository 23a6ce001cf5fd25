"""Which issues a list shows, against a reference that looks at one issue after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from handmade_audit import write_table_audit

from noiseproof.audit.files import read_audit
from noiseproof.review.queue import Issues
from noiseproof.review.select import CHOICES, KEPT, Filter, Selections, Sort, State, select


@pytest.fixture(scope="module")
def issues(tmp_path_factory: pytest.TempPathFactory) -> Issues:
    issues = Issues(read_audit(write_table_audit(tmp_path_factory.mktemp("select"))))
    random = np.random.default_rng(0)
    issues.row = random.permutation(len(issues)) * 3
    names = [str(number) for number in random.integers(0, 60, len(issues))]  # some twice
    issues.id = [name if k % 3 else f"cell/{name}" for k, name in enumerate(names)]
    return issues


def listed(issues: Issues, filter: Filter, state: Any, rows: Any, is_match: Any, is_conflict: Any) -> list[int]:
    """The reference."""

    def meets(i: int) -> bool:
        word = "open" if state[i] == 0 else CHOICES[state[i] - 1]
        in_state = {None: True, "open": word == "open", "decided": word != "open", "conflict": is_conflict[i]}
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
            "quality": i, "row": int(issues.row[i]), "given": int(issues.given[i]),
            "suggested": int(issues.suggested[i]), "id": (0, int(name), "") if name.isdigit() else (1, 0, name),
        }[filter.sort]  # fmt: skip

    other = {"given": issues.suggested, "suggested": issues.given}.get(filter.sort, np.zeros(len(issues)))
    kept = sorted((i for i in range(len(issues)) if meets(i)), key=lambda i: (other[i], i))
    return sorted(kept, key=key, reverse=filter.descending)


def test_random_filters_list_what_a_search_of_every_issue_lists(issues: Issues) -> None:
    random = np.random.default_rng(1)
    sizes = []
    for _ in range(400):
        state = random.integers(0, 1 + len(CHOICES), len(issues)).astype(np.int8)
        rows, (is_match, is_conflict) = random.choice(issues.row, 80), random.random((2, len(issues))) < 0.7
        low, high = sorted(random.random(2).round(3).tolist())

        def maybe(value: Any, random: np.random.Generator = random) -> Any:
            return value if random.random() < 0.3 else None

        filter = Filter(
            maybe(int(random.integers(4))), maybe(int(random.integers(4))), maybe(random.choice(get_args(State))),
            maybe(low), maybe(high), maybe("word") or "", maybe("key") or "", random.choice(get_args(Sort)),
            bool(random.integers(2)),
        )  # fmt: skip
        selected = select(issues, filter, state, rows=rows, is_match=is_match, is_conflict=is_conflict)
        assert selected.tolist() == listed(issues, filter, state, rows, is_match, is_conflict), filter
        sizes.append(len(selected))
    assert min(sizes) == 0 and max(sizes) == len(issues)


def test_a_filter_of_nothing_is_the_order_of_the_audit(issues: Issues) -> None:
    state = np.zeros(len(issues), np.int8)
    assert select(issues, Filter(), state).tolist() == list(range(200))
    assert select(issues, Filter(descending=True), state).tolist() == list(range(200))[::-1]
    assert Filter() == Filter() and len({Filter(), Filter(), Filter(given=1)}) == 2


def test_selections_have_short_keys_and_the_oldest_are_forgotten() -> None:
    selections = Selections()
    first = selections.add([5, 3, 5])
    assert selections.add([3, 5]) == first and len(first) == 12
    assert selections[first].tolist() == [3, 5]
    keys = [selections.add([k]) for k in range(KEPT)]
    assert selections[keys[0]].tolist() == [0]
    with pytest.raises(KeyError):
        selections[first]


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
            client.post("/api/decisions", json={"row": row, "decision": "keep" if row == 5 else "accept"})
        assert rows(state="decided") == [3, 5, 8] and rows(state="accept") == [3, 8]
        assert rows(state="open")[:6] == [0, 1, 2, 4, 6, 7] and len(rows(state="open")) == 197
        assert rows(low=10 / 221 - 1e-6, high=12 / 221 + 1e-6) == [9, 10, 11]
        assert rows(sort="row", descending=True)[:2] == [199, 198]
        assert [row % 4 for row in rows(sort="given")] == sorted(row % 4 for row in range(200))
        kept = client.post("/api/selections", json={"rows": [3, 4, 7, 500]}).json()
        assert kept["total"] == 3 and rows(selection=kept["selection"]) == [3, 4, 7]
        both = client.post("/api/selections", json={"rows": [3, 4, 7], "filter": {"state": "open"}}).json()
        assert rows(selection=both["selection"]) == [4, 7]
        client.post("/api/decisions", json={"row": 4, "decision": "skip"})
        assert rows(selection=both["selection"]) == [4, 7]  # it stays in the list that it was decided in
        following = client.get("/api/issues/next", params={"selection": both["selection"]}).json()
        assert following == {"position": 1}
        assert client.get("/api/issues", params={"selection": "0" * 12}).status_code == 410
        for bad in ({"state": "lost"}, {"sort": "why"}, {"low": "nan"}, {"search": "x" * 1001}, {"given": -1}):
            assert client.get("/api/issues", params=bad).status_code == 422, bad
        for wrong in ({"rows": [-1]}, {"rows": ["a"]}, {"filter": {"order": "row"}}):
            assert client.post("/api/selections", json=wrong).status_code == 422, wrong
