"""Annotators on the review page in a real browser: their table, a click that lists their disputed
rows, their votes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from review_browser import CHROMIUM, browsing, open_page, until
from review_server import Server
from test_overview_browser import listed, see_overview

from noiseproof.audit import audit, read_audit
from noiseproof.review.context import AnnotatorFiles
from noiseproof.review.page import file_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

PEOPLE = {"ann": 0.95, "bob": 0.9, "cid": 0.85, "=dan": 0.35}  # a name that a spreadsheet would run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit of 240 rows with three good annotators and one who answers at random; every eighth
    label is wrong.
    """
    root, random = tmp_path_factory.mktemp("people"), np.random.default_rng(0)
    names, truth = np.array(["ash", "birch", "cedar"]), np.arange(240) % 3
    given = np.where(np.arange(240) % 8, truth, (truth + 1) % 3)
    pd.DataFrame({"x": random.normal(truth), "tree": names[given]}).to_csv(
        root / "trees.csv", index=False
    )
    said = [
        (row, name, names[truth[row] if random.random() < r else random.integers(3)])
        for row in range(240)
        for name, r in PEOPLE.items()
        if random.random() < 0.8
    ]
    pd.DataFrame(said, columns=["row", "annotator", "label"]).to_csv(
        root / "votes.csv", index=False
    )
    probs = 0.25 + 0.25 * (truth[:, None] == np.arange(3))
    report = audit(
        root / "trees.csv", label="tree", annotations=root / "votes.csv", pred_probs=probs
    )
    report.save(root / "audit")
    return root / "audit"


def disputed(folder: Path, name: str) -> list[int]:
    """Labels called wrong where this annotator does not say what the consensus is, the worst
    first.
    """
    issues = read_audit(folder).issues.query("is_label_issue")
    votes = (
        pd.read_csv(folder.parent / "votes.csv")
        .query("annotator == @name")
        .set_index("row")["label"]
    )
    pairs = zip(issues["row"], issues["consensus_label"], strict=True)
    return [row for row, consensus in pairs if row in votes.index and votes[row] != consensus]


@pytest.mark.parametrize("served", [True, False])
def test_the_table_leads_to_the_rows_of_an_annotator(
    chromium: Any, folder: Path, tmp_path: Path, served: bool
) -> None:
    (tmp_path / "page.html").write_text(file_page(read_audit(folder)), "utf-8")
    people = pd.read_csv(folder / "annotators.csv", keep_default_na=False)
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        page.goto(server.link if served else (tmp_path / "page.html").as_uri())
        page.wait_for_selector("body[data-ready]")
        see_overview(page)
        lines = [
            line.locator("th, td").all_inner_texts()
            for line in page.locator("#annotators tbody tr").all()
        ]
        assert lines[0][0] == "=dan" and {line[0] for line in lines} == {*PEOPLE}
        worst, row = lines[0], people.iloc[0]
        assert worst[5] == row["advice"] != lines[-1][5]
        assert (
            f"{100 * row['quality']:.1f} % ({100 * row['low']:.1f} to {100 * row['high']:.1f})"
            in worst[1]
        )
        assert worst[2] == str(row["labels"]) and worst[3].startswith(
            f"{row['confuses']} as {row['with']}"
        )
        rows = disputed(folder, "=dan")
        assert len(rows) > 5 and worst[4] == str(len(rows))
        page.get_by_role("button", name=f"{len(rows)} disputed rows of =dan", exact=True).click()
        assert listed(page) == rows


def test_the_votes_on_a_row_are_named(chromium: Any, folder: Path, tmp_path: Path) -> None:
    row = int(read_audit(folder).issues["row"].iloc[0])
    votes = pd.read_csv(folder.parent / "votes.csv")
    votes = votes[votes["row"] == row]
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        until(page, "document.querySelector('.votes') !== null")
        lines = page.locator(".votes li").all_inner_texts()
        for label, names in votes.groupby("label")["annotator"]:
            assert any(label in line and all(name in line for name in names) for line in lines), (
                lines
            )


def test_an_audit_without_annotators_has_none(folder: Path, tmp_path: Path, chromium: Any) -> None:
    plain = audit(folder.parent / "trees.csv", label="tree", pred_probs=np.full((240, 3), 1 / 3))
    plain.save(tmp_path / "plain")
    assert AnnotatorFiles(read_audit(tmp_path / "plain")).describe() == []
    with Server(tmp_path / "plain") as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "overview")
        see_overview(page)
        assert page.locator("#annotators").is_hidden()


def test_changed_files_are_refused(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with open(copy / "annotators.csv", "a") as file:
        file.write("eve,1,1,1,1,1,,,0,\n")
    with pytest.raises(ValueError, match=r"annotators.csv as it was written"):
        AnnotatorFiles(read_audit(copy)).describe()
