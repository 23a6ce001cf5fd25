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
from review_server import Server

from noiseproof.audit.decisions import find_decisions, read_answers, read_log
from noiseproof.audit.files import read_audit
from noiseproof.audit.measure.design import Design
from noiseproof.audit.measure.estimate import measure

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
    for goal in (7, 31, 36):  # the second part ends in the second round of questions
        with Server(folder, *options) as server, browsing(chromium, tmp_path / "profile") as page:
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
    design, audit = Design.read(read_audit(folder)), read_audit(folder)
    assert design is not None  # every question is the one that the answers before it lead to
    for number in (0, 7, 30, 35):
        assert design.questions(lines[:number], 36)[0].row == asked[number]
    measured = measure(audit, read_answers(find_decisions(folder)))
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


def test_undo_asks_again_and_the_panel_follows_each_answer(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with (
        Server(folder, "--measure", "36") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        open_page(page, server.link)
        press = page.keyboard.press
        assert not page.locator("#measured").is_visible() and not page.locator("#list").is_visible()
        first = wait_for_question(page, 1)
        press("u")
        assert page.inner_text("#message") == "There is nothing to undo."
        for key in ("j", "End", "n", "f", "ArrowLeft", "1"):  # no other row can be chosen
            press(key)
        assert not page.locator("#chooser").is_visible() and wait_for_question(page, 1) == first
        page.keyboard.down("k")
        second = wait_for_question(page, 2)
        page.keyboard.down("k")  # it is held down, and answers no second question
        page.keyboard.up("k")
        assert wait_for_question(page, 2) == second
        one = panel(page)
        assert one["noise rate"].startswith("0.0 % [0.0, ") and progress(page) == "1 of 36 measured"
        press("a")
        wait_for_question(page, 3)
        assert panel(page)["noise rate"] != one["noise rate"]
        press("u")
        assert wait_for_question(page, 2) == second and panel(page) == one
        press("Control+z")
        assert wait_for_question(page, 1) == first and not page.locator("#measured").is_visible()
        assert progress(page) == "0 of 36 measured"
        # Another label, from the list of all.
        press("o")
        page.keyboard.type("owl")
        press("Enter")
        wait_for_question(page, 2)
        page.reload()  # an answer of before the page was opened can be undone, too
        page.wait_for_selector("body[data-ready]")
        page.locator("[data-choice=undo]").click()
        assert wait_for_question(page, 1) == first
        # The usual review afterwards shows the panel, too, and what is chosen from its list is not
        # measured.
        press("k")
        wait_for_question(page, 2)
        measured = panel(page)
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        assert panel(page) == measured and page.locator("#list").is_visible()
        while row_shown(page) == first:
            page.keyboard.press("ArrowDown")
        page.keyboard.press("a")
        until(page, "document.getElementById('counts').textContent.includes('accept 1')")
        until(page, "store.unsaved === 0")
        assert panel(page)["noise rate"] == measured["noise rate"]
    assert [answer.asked for answer in read_answers(find_decisions(folder))] == ["measure", ""]


def test_a_dead_server_keeps_the_question(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with (
        Server(folder, "--measure", "36") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        open_page(page, server.link)
        row = wait_for_question(page, 1)
        server.process.kill()
        server.process.wait()
        page.keyboard.press("k")
        until(page, "document.getElementById('counts').textContent.includes('1 not saved yet')")
        page.wait_for_selector("#message.bad")
        page.keyboard.press("a")  # it decides nothing: there is no next question yet
        assert page.evaluate("store.waiting") == [{"row": row, "question": 1, "decision": "keep"}]
        page.evaluate("store.waiting.length = 0")  # let the browser close without asking
    assert read_log(find_decisions(folder)) == []


def test_two_windows_answer_each_question_once(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with (
        Server(folder, "--measure", "36") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        open_page(page, server.link)
        other = page.context.new_page()
        open_page(other, server.link)
        first = wait_for_question(page, 1)
        assert wait_for_question(other, 1) == first
        page.keyboard.press("k")
        second = wait_for_question(page, 2)
        other.keyboard.press("a")
        until(
            other, "document.getElementById('message').textContent.includes('has another answer')"
        )
        assert wait_for_question(other, 2) == second
        other.keyboard.press("k")
        wait_for_question(other, 3)
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        wait_for_question(page, 3)
    assert [(line.row, line.decision) for line in read_log(find_decisions(folder))] == [
        (first, "keep"),
        (second, "keep"),
    ]


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


def test_blind_with_many_classes_by_search(chromium: Any, tmp_path: Path) -> None:
    names = tuple(f"{word}-{i}" for word in ("ash", "beech", "cedar") for i in range(4))
    folder = write_photos(tmp_path, names)
    with (
        Server(folder, "--measure", "5", "--blind") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        open_page(page, server.link)
        texts = page.locator("#choices button").all_inner_texts()
        assert texts == ["o Label …", "x Exclude", "c Unclear", "s Skip", "u Undo"]
        wait_for_question(page, 1)
        page.keyboard.press("1")  # keys are for a few classes only
        page.keyboard.press("o")
        # in the usual order, without a hint
        assert page.locator("#chooser li").all_inner_texts() == list(names)
        assert page.inner_text("#chooser-title") == "The label of this row"
        page.keyboard.type("cedar-2")
        page.keyboard.press("Enter")
        wait_for_question(page, 2)
        page.locator("[data-choice=other]").click()
        page.keyboard.type("beech")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        wait_for_question(page, 3)
    assert [answer.label for answer in read_answers(find_decisions(folder))] == [
        "cedar-2",
        "beech-1",
    ]


def test_two_reviewers_one_after_the_other_and_what_they_agree_on(
    chromium: Any, tmp_path: Path
) -> None:
    folder = write_table_audit(tmp_path)
    with (
        Server(folder, "--measure", "12", "--reviewer", "ann") as server,
        browsing(chromium, tmp_path / "ann") as page,
    ):
        open_page(page, server.link)
        for number in range(1, 13):
            row = wait_for_question(page, number)
            page.keyboard.press("a" if row % 2 else "k")
        wait_for_end(page)
        assert "agreement" not in panel(page)
    options = ("--measure", "12", "--reviewer", "bob", "--repeats", "1")
    with Server(folder, *options) as server, browsing(chromium, tmp_path / "bob") as page:
        open_page(page, server.link)
        assert progress(page) == "12 of 12 measured"
        for number in range(1, 13):
            row = wait_for_question(page, number)
            # nothing of what Ann answered
            assert page.locator("#card .done, #card .chosen").count() == 0
            page.keyboard.press("a" if row % 2 or number == 5 else "k")
        wait_for_end(page)
        shown = panel(page)["agreement"]
    answers = read_answers(find_decisions(folder))
    assert [(answer.reviewer, answer.asked) for answer in answers] == [("ann", "measure")] * 12 + [
        ("bob", "repeat")
    ] * 12
    same = {answer.row: answer.label for answer in answers[:12]}
    share = np.mean([same[answer.row] == answer.label for answer in answers[12:]])
    assert shown.startswith(f"{100 * share:.1f} % of 12 rows, κ ")


def test_a_small_window_has_room_for_the_question_and_the_last_answer_can_be_undone(
    chromium: Any, tmp_path: Path
) -> None:
    # nothing is called wrong, so that there is no precision
    folder = write_table_audit(tmp_path, issues=0)
    size = {"width": 360, "height": 640}
    with (
        Server(folder, "--measure", "4", "--blind") as server,
        browsing(chromium, tmp_path / "profile", viewport=size, color_scheme="dark") as page,
    ):
        open_page(page, server.link)
        rows = []
        for number in range(1, 5):
            rows.append(wait_for_question(page, number))
            page.locator("[data-label=dog]").click()
        wait_for_end(page)
        assert list(panel(page)) == ["noise rate", "wrong labels left", "to halve the interval"]
        # keys are hidden here
        assert page.locator("#choices button:enabled").all_inner_texts() == ["Undo"]
        page.locator("[data-choice=undo]").click()
        assert (
            wait_for_question(page, 4) == rows[3]
            and page.locator("#choices button:enabled").count() == 8
        )
        assert (
            page.evaluate("document.documentElement.scrollWidth") == 360
            and page.locator("#measured").is_visible()
        )
        for button in page.locator("#choices button").all():
            box = button.bounding_box()
            assert (
                box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["y"] + box["height"] <= 640
            )
        assert page.locator("#card").bounding_box()["height"] > 150


def test_proposals_by_keyboard(chromium: Any, tmp_path: Path) -> None:
    folder, asked = write_table_audit(tmp_path), []
    with (
        Server(folder, "--propose", "find=0.6,measure=0.4", "--count", "5") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        open_page(page, server.link)
        for number in range(1, 6):
            asked.append(wait_for_question(page, number))
            assert progress(page) == f"{number - 1} of 5 looked at"
            page.keyboard.press("k")
        wait_for_end(page)
        assert (
            "Done: 5 rows looked at." in page.inner_text("#card")
            and progress(page) == "5 of 5 looked at"
        )
        assert page.locator("#next code").first.inner_text() == f"noiseproof audit {folder} --again"
    lines = read_log(find_decisions(folder))
    assert [line.row for line in lines] == asked and [line.asked for line in lines].count(
        "measure"
    ) == 2
