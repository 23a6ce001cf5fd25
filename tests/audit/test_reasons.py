"""Sentences on labels: the exact words for each kind of evidence, and none that contradicts its
verdict.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from noiseproof.audit import LabelReport, audit
from noiseproof.core.messages import quoted
from noiseproof.judge.issues.label import (
    AGREES,
    GENERAL,
    NOT_ENOUGH,
    OUTWEIGHED,
    RowEvidence,
    general_sentences,
)

LOOKS = "looks like 'dog' (90 %) rather than 'cat' (6 %)"
CAT = "it looks more like 'cat' (60 %)"
FOR_DOG: dict[str, Any] = {"confidence": 6, "other": 90}
FOR_CAT: dict[str, Any] = {"confidence": 60, "other": 30}


@pytest.mark.parametrize(
    "evidence, sentence",
    [
        (FOR_DOG, f"This {LOOKS}"),
        (
            FOR_DOG | {"agreement": 0},
            f"This {LOOKS}; none of the most similar rows is labelled 'cat'",
        ),
        (
            FOR_DOG | {"agreement": 8},
            f"This {LOOKS}; only 8 % of the most similar rows are labelled 'cat'",
        ),
        (FOR_DOG | {"agreement": 50}, f"This {LOOKS}"),  # similar rows support the label
        (
            FOR_DOG | {"unlearned": 100},
            f"This {LOOKS}; while learning, the model never took it for 'cat'",
        ),
        (
            FOR_DOG | {"unlearned": 80},
            f"This {LOOKS}; while learning, the model rarely took it for 'cat'",
        ),
        (
            FOR_DOG | {"unlearned": 50},
            f"This {LOOKS}; while learning, the model mostly took it for something else",
        ),
        (FOR_DOG | {"unlearned": 49, "doubt": 49}, f"This {LOOKS}"),
        (FOR_DOG | {"doubt": 70}, f"This {LOOKS}; rows like this are hard to label"),
        (
            FOR_DOG | {"agreement": 0, "unlearned": 100, "doubt": 70},  # three reasons are enough
            (
                f"This {LOOKS}; none of the most similar rows is labelled 'cat'; while learning,"
                " the model never took it for 'cat'"
            ),
        ),
        # the model prefers the given label: nothing that it says is a reason
        (FOR_CAT, f"The label is not certain: this may be 'dog' (30 %), although {CAT}"),
        (
            FOR_CAT | {"unlearned": 60},
            f"The label is not certain: this may be 'dog' (30 %), although {CAT}",
        ),
        ({"confidence": 45, "other": 45}, "The label is not certain: this may be 'dog' (45 %)"),
        # annotators of the given label, of the suggested one, and in all
        (FOR_DOG | {"votes": (1, 2, 3)}, f"2 of 3 annotators say 'dog'; it {LOOKS}"),
        (FOR_CAT | {"votes": (1, 2, 3)}, f"2 of 3 annotators say 'dog', although {CAT}"),
        (FOR_CAT | {"votes": (0, 1, 3)}, f"1 of 3 annotators says 'dog', although {CAT}"),
        (FOR_CAT | {"votes": (0, 3, 3)}, f"All 3 annotators say 'dog', although {CAT}"),
        (FOR_CAT | {"votes": (0, 2, 2)}, f"Both annotators say 'dog', although {CAT}"),
        (FOR_CAT | {"votes": (0, 1, 1)}, f"The annotator says 'dog', although {CAT}"),
        (FOR_CAT | {"votes": (0, 0, 1)}, f"The annotator does not say 'cat', although {CAT}"),
        (FOR_CAT | {"votes": (0, 0, 2)}, f"None of 2 annotators says 'cat', although {CAT}"),
        (
            FOR_CAT | {"votes": (1, 1, 2), "is_reliable": True},
            (
                "1 of 2 annotators says 'dog' and is more reliable than the one who says 'cat',"
                f" although {CAT}"
            ),
        ),
        (
            FOR_DOG | {"votes": (3, 2, 5), "is_reliable": True},
            (
                "2 of 5 annotators say 'dog' and are more reliable than those who say 'cat'; it"
                f" {LOOKS}"
            ),
        ),
        (FOR_DOG | {"votes": (2, 1, 3)}, f"This {LOOKS}, although 2 of 3 annotators say 'cat'"),
        (FOR_DOG | {"votes": (0, 0, 0)}, f"This {LOOKS}"),  # nobody labelled the row
    ],
)
def test_every_kind_of_evidence_has_its_words(evidence: dict[str, Any], sentence: str) -> None:
    assert RowEvidence("cat", "dog", **evidence).sentence() == sentence


def test_labels_that_differ_in_spaces_look_different() -> None:
    assert quoted("Gentoo") == "'Gentoo'"
    assert quoted("Gentoo ") == "'Gentoo ' (with a space at the end)"
    assert quoted(" Gentoo ") == "' Gentoo ' (with a space at the beginning and a space at the end)"
    assert quoted("King  penguin") == "'King  penguin' (with two spaces in a row)"
    assert quoted("Gentoo\t") == r"'Gentoo\t'" and quoted("a\xa0b") == r"'a\xa0b'"
    assert (
        RowEvidence("Gentoo ", "Gentoo", 6, 90).sentence()
        == "This looks like 'Gentoo' (90 %) rather than 'Gentoo ' (with a space at the end) (6 %)"
    )
    classes = ["Adelie", "Gentoo", "Gentoo "]
    truth = np.repeat(classes, 40)
    labels = truth.copy()
    labels[40:44] = "Gentoo "
    report = audit(
        labels=labels, pred_probs=np.where(truth[:, None] == classes, 0.9, 0.05), classes=classes
    )
    assert report.label_issues.is_issue.nonzero()[0].tolist() == [40, 41, 42, 43]
    sentence = RowEvidence("Gentoo ", "Gentoo", 6, 90, agreement=0).sentence()
    # the remark is made once
    assert sentence.endswith("(6 %); none of the most similar rows is labelled 'Gentoo '")
    assert "'Gentoo ' (with a space at the end), suggested 'Gentoo' (quality" in repr(report)
    assert (
        "<td>&#39;Gentoo &#39; (with a space at the end)</td><td>Gentoo</td>"
        in report._repr_html_()
    )


def test_a_label_that_is_not_called_wrong_has_a_sentence_by_its_probability() -> None:
    quality, suggestion = np.array([0.9, 0.9, 0.4, 0.4]), np.array([0.1, 0.1, 0.5, 0.5])
    is_predicted = np.array([True, False, False, True])
    assert general_sentences(quality, suggestion, is_predicted).tolist() == [
        AGREES,
        OUTWEIGHED,
        NOT_ENOUGH,
        NOT_ENOUGH,
    ]


def annotated(
    seed: int, *, accuracies: tuple[float, ...] = (0.9, 0.85, 0.8)
) -> tuple[LabelReport, pd.DataFrame]:
    """300 rows with 45 wrong labels, most of which a model takes for right, while annotators know
    better.
    """
    random = np.random.default_rng(seed)
    names = np.array(["ant", "bee", "cat"])
    truth = np.repeat([0, 1, 2], 100)
    given = truth.copy()
    wrong = random.choice(300, 45, replace=False)
    given[wrong] = (truth[wrong] + 1) % 3
    votes = np.stack(
        [np.where(random.random(300) < r, truth, random.integers(0, 3, 300)) for r in accuracies], 1
    )
    votes[random.random(votes.shape) < 0.1] = -1
    is_fooled = random.random(300) < 0.7
    probs = 0.05 + 0.5 * (truth[:, None] == np.arange(3)) + 0.15 * random.random((300, 3))
    probs += 0.6 * is_fooled[:, None] * (given[:, None] == np.arange(3))
    frame = pd.DataFrame({"y": names[given]})
    for k, column in enumerate(votes.T):
        frame[f"who{k}"] = np.where(column < 0, "", names[column])
    columns = [name for name in frame if name != "y"]
    return (
        audit(frame, label="y", annotators=columns, pred_probs=probs / probs.sum(1, keepdims=True)),
        frame[columns],
    )


@pytest.mark.parametrize(
    "seed, accuracies", [(0, (0.9, 0.85, 0.8)), (1, (0.99, 0.5, 0.5)), (2, (0.95,))]
)
def test_with_annotators_no_reason_contradicts_its_verdict(
    seed: int, accuracies: tuple[float, ...]
) -> None:
    report, votes = annotated(seed, accuracies=accuracies)
    table = report.table()
    issues = table[table["is_label_issue"]]
    against_model = issues["confidence"] > issues["suggested_confidence"]
    # the model alone would contradict the verdict on these
    assert len(issues) >= 25 and against_model.sum() >= 12
    assert (
        issues.loc[against_model, "why"]
        .str.partition(", although ")[0]
        .str.contains("annotator")
        .all()
    )  # they decide
    for row, given, suggested, why in zip(
        issues["row"], issues["given_label"], issues["suggested_label"], issues["why"], strict=True
    ):
        reasons, _, doubts = why.rstrip(".").partition(", although ")
        cells = [vote for vote in votes.loc[row] if vote]
        spoken = re.findall(r"(\d+) of (\d+) annotators says? '(\w+)'", reasons)
        assert all(
            (int(n), int(of)) == (cells.count(who), len(cells)) and who == suggested
            for n, of, who in spoken
        )
        for who in re.findall(
            r"(?i:all \d+ annotators say|both annotators say|the annotator says) '(\w+)'", reasons
        ):
            assert who == suggested and {*cells} == {suggested}
        assert "annotator" in reasons or f"looks like '{suggested}'" in reasons
        assert f"looks like '{given}'" not in reasons and f"say '{given}'" not in reasons.replace(
            "does not", ""
        )
        assert f"'{suggested}'" not in doubts  # what is conceded speaks for the given label
    others = table[~table["is_label_issue"]]
    assert {*others["why"]} <= {*GENERAL}
    assert (
        others.loc[others["why"] == NOT_ENOUGH, "label_quality"]
        < others.loc[others["why"] == NOT_ENOUGH, "suggestion_quality"]
    ).all()


def test_without_annotators_the_sentence_names_the_likelier_label_first() -> None:
    random = np.random.default_rng(0)
    truth = np.repeat([0, 1], 100)
    given = truth.copy()
    given[random.choice(200, 20, replace=False)] ^= 1
    probs = np.clip(
        np.where(truth[:, None] == [0, 1], 0.8, 0.2) + random.normal(0, 0.15, (200, 1)) * [1, -1],
        0.02,
        0.98,
    )
    table = audit(
        labels=np.array(["cat", "dog"])[given], pred_probs=probs, goal="budget=60"
    ).table()
    issues = table[table["is_label_issue"]]
    for given_label, suggested, p, s, why in zip(
        issues["given_label"],
        issues["suggested_label"],
        issues["confidence"],
        issues["suggested_confidence"],
        issues["why"],
        strict=True,
    ):
        p, s = round(100 * p), round(100 * s)
        if s > p:
            assert (
                why == f"This looks like '{suggested}' ({s} %) rather than '{given_label}' ({p} %)."
            )
        else:
            assert why.startswith(f"The label is not certain: this may be '{suggested}' ({s} %)")
    assert (issues["suggested_confidence"] < issues["confidence"]).any()
