"""Classes that are probably one: exactly which pairs are offered."""

from __future__ import annotations

from itertools import product

import pytest

from noiseproof.judge.issues.spelling import find_spellings


def pairs(**counts: int) -> list[tuple[str, str]]:
    return [
        (pair.spelling, pair.label)
        for pair in find_spellings({name.replace("_", " "): n for name, n in counts.items()})
    ]


@pytest.mark.parametrize(
    "counts, expected",
    [
        ({"Gentoo": 119, "Gentoo_": 3}, [("Gentoo ", "Gentoo")]),
        ({"Gentoo": 3, "Gentoo_": 119}, [("Gentoo", "Gentoo ")]),  # the more frequent one is right
        # of equally frequent ones, that without stray spaces
        ({"Gentoo_": 5, "Gentoo": 5}, [("Gentoo ", "Gentoo")]),
        ({"cat": 5, "Cat": 3, "CAT": 9}, [("cat", "CAT"), ("Cat", "CAT")]),
        (
            {"new__york": 1, "new_york": 2, "new_york_": 0},
            [("new  york", "new york"), ("new york ", "new york")],
        ),
        # the same letters, composed and not
        ({"café": 4, "cafe\u0301": 2}, [("cafe\u0301", "café")]),
        # one letter
        (
            {"Gentoo": 119, "Gento": 1, "Gentooo": 1, "Gemtoo": 2},
            [("Gemtoo", "Gentoo"), ("Gento", "Gentoo"), ("Gentooo", "Gentoo")],
        ),
        ({"Gentoo": 119, "gento": 1}, [("gento", "Gentoo")]),  # and its case
        ({"Gentoo": 119, "Getnoo": 1, "Gntoo_x": 1, "Gen": 1}, []),  # two letters
        ({"cat": 500, "bat": 1}, []),  # short words
        ({"bass": 50, "base": 6}, []),  # not rare enough
        ({"bass": 60, "base": 6}, [("base", "bass")]),
        # digits are no typos
        ({"class1": 500, "class2": 1, "item_10": 1, "item_1": 50, "item1": 500}, []),
        ({"good": 500, "food": 100, "mood": 1}, [("mood", "good")]),  # the most frequent neighbour
        (
            {"Adelie": 100, "adelie": 20, "adelle": 2, "Adelle": 1},
            [("adelie", "Adelie"), ("adelle", "Adelie"), ("Adelle", "adelle")],
        ),
    ],
)
def test_pairs(counts: dict[str, int], expected: list[tuple[str, str]]) -> None:
    assert pairs(**counts) == expected


def reference(one: str, two: str) -> bool:
    """Whether one insertion, deletion or replacement of a letter makes one of the other, by trying
    all of them.
    """
    letters = sorted({*one, *two})
    edits = {
        one[:i] + c + one[i + k :]
        for i in range(len(one) + 1)
        for c in ("", *letters)
        for k in (0, 1)
    }
    return one != two and two in edits


def test_one_letter_against_all_edits() -> None:
    words = ["".join(word) for length in (4, 5) for word in product("ab", repeat=length)]
    for word in words:
        for other in words:
            if word < other:
                found = find_spellings({word: 100, other: 1})
                assert bool(found) == reference(word, other), (word, other)


def test_many_classes() -> None:
    counts = {f"{a}{b} kind": 100 for a, b in product(range(100), range(100))} | {
        "00 kinds": 1,
        "0 kinds of": 1,
    }
    assert find_spellings(counts) == [("00 kinds", "00 kind", 1, 100)]
