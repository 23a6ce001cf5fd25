"""Measuring in a real browser, by keyboard: killed and continued, blind, by two people, on a small
screen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_audit import ANIMALS, write_audit, write_table_audit
from PIL import Image
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server, ServerProcess

from noiseproof.audit.decisions import find_decisions, read_answers, read_log
from noiseproof.audit.files import read_audit
from noiseproof.audit.sample import read_design, read_population
from noiseproof.judge.measure.estimate import measure

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def wait_for_question(page: Any, number: int) -> int:
    """Wait until the page asks a question, and its row is shown; the row."""
    until(page, f"document.getElementById('card').textContent.startsWith('Question {number}')")
    until(page, "view.current === 0 && document.getElementById('row').childElementCount > 0")
    return row_shown(page)


def wait_for_end(page: Any) -> None:
    until(page, "document.querySelector('#card h2')?.textContent.startsWith('Done')")


def progress(page: Any) -> str:
    return str(page.inner_text("#counts"))


def panel(page: Any) -> dict[str, str]:
    names, values = (page.locator(f"#measured {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def key_of(row: int) -> str:
    """What the reviewer of these tests presses: a third of the labels are wrong."""
    return "a" if row % 3 == 0 else "s" if row % 7 == 0 else "k"


def test_measuring_by_keyboard_through_a_closed_browser_and_a_killed_server(
    chromium: Any, tmp_path: Path
) -> None:
    folder, asked = write_table_audit(tmp_path), []
    options = ("--measure", "36", "--reviewer", "ann")
    # the first part ends in the second round of questions
    for goal, kind in ((31, ServerProcess), (36, Server)):
        with (
            kind(folder, *options) as server,
            browsing(chromium, tmp_path / "profile") as page,
        ):
            open_page(page, server.link)
            while len(asked) < goal:
                row = wait_for_question(page, len(asked) + 1)
                assert progress(page) == f"{len(asked)} of 36 measured"
                asked.append(row)
                page.keyboard.press(key_of(row))
            if goal == 36:
                wait_for_end(page)
                assert (
                    progress(page) == "36 of 36 measured"
                    and page.locator("#card #row").count() == 0
                )
                commands = page.locator("#next code").all_inner_texts()
                assert commands == [
                    f"noiseproof {name} {folder}" for name in ("measure", "review", "apply")
                ]
                page.keyboard.press("k")  # nothing is asked
                shown = panel(page)
                assert "36 rows measured" in page.inner_text("#card")
            else:
                wait_for_question(page, len(asked) + 1)  # the last answer is saved
    assert len(set(asked)) == 36
    lines = read_log(find_decisions(folder))
    assert [(line.row, line.decision[0], line.asked, line.reviewer) for line in lines] == [
        (row, key_of(row), "measure", "ann") for row in asked
    ]
    design, audit = read_design(read_audit(folder)), read_audit(folder)
    assert design is not None  # every question is the one that the answers before it lead to
    for number in (0, 7, 30, 35):
        assert design.questions(lines[:number], 36)[0].row == asked[number]
    measured = measure(read_population(audit), read_answers(find_decisions(folder)))
    assert measured is not None
    rate, left = measured.rate, measured.wrong_left
    assert (
        shown["noise rate"]
        == f"{100 * rate.value:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"
    )
    assert shown["wrong labels left"] == f"{left.value:.0f} [{left.low:.0f}, {left.high:.0f}]"
    assert (
        shown["to halve the interval"] == f"{measured.to_halve} more decisions"
        and "agreement" not in shown
    )


def write_photos(root: Path, names: tuple[str, ...]) -> Path:
    random, labels = np.random.default_rng(0), []
    for name in names:
        (root / "photos" / name).mkdir(parents=True)
        for i in range(6):
            pixels = random.integers(0, 255, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "photos" / name / f"{i}.png")
            labels.append(name)
    others = [names[(names.index(label) + 1) % len(names)] for label in labels]
    ids = [f"{name}/{i % 6}.png" for i, name in enumerate(labels)]
    return write_audit(
        root / "audit", labels, others, issues=20, kind="folder", data=root / "photos", ids=ids
    )


def test_blind_with_a_few_classes_and_a_key_for_each(chromium: Any, tmp_path: Path) -> None:
    folder = write_photos(tmp_path, ANIMALS)
    given = read_audit(folder).issues.set_index("row")["given_label"]
    with (
        Server(folder, "--measure", "20", "--blind") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        open_page(page, server.link)
        texts = page.locator("#choices button").all_inner_texts()
        assert texts == [
            "1 cat",
            "2 dog",
            "3 fox",
            "4 owl",
            "x Exclude",
            "c Unclear",
            "s Skip",
            "u Undo",
        ]
        for number in range(1, 21):
            row = wait_for_question(page, number)
            until(page, "document.querySelector('#row img')?.naturalWidth === 50")
            # small pictures are enlarged
            until(page, "document.querySelector('#row img').clientWidth > 300")
            assert page.inner_text("#card").strip() == f"Question {number}"
            assert (
                page.evaluate(
                    "byId('card').innerHTML.match(/cat|dog|fox|owl|given|suggest|likely/)"
                )
                is None
            )
            for key in ("a", "k", "5", "9"):  # no key of what is hidden
                page.keyboard.press(key)
            assert wait_for_question(page, number) == row
            if number % 2:
                page.keyboard.press(str(1 + ANIMALS.index(given[row])))
            else:
                page.locator(f"[data-label={ANIMALS[number % 4]}]").click()
        wait_for_end(page)
    for number, answer in enumerate(read_answers(find_decisions(folder)), 1):
        chosen = given[answer.row] if number % 2 else ANIMALS[number % 4]
        following = ANIMALS[(ANIMALS.index(given[answer.row]) + 1) % 4]
        meaning = {given[answer.row]: "keep", following: "accept"}.get(chosen, "other")
        assert (answer.label, answer.decision, answer.asked) == (chosen, meaning, "measure")
