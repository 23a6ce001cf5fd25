"""Texts that are empty, garbled, or in another language than the others."""

import re
import unicodedata
from collections import Counter
from typing import ClassVar

import numpy as np

from noiseproof.core.arrays import Ints, evenly
from noiseproof.core.messages import counted
from noiseproof.judge.issues.base import (
    NEEDS_ACTION,
    AuditEvidence,
    Bars,
    Finding,
    Findings,
    FoundIssue,
    LabelIssues,
    Rows,
    register_issue,
)

MOST = 20_000  # texts that are looked at, evenly spread
LONGEST = 2000  # characters of each
SHORT = 12  # letters below which no language is recognised
MIN_WORDS = 3  # function words of another language, and more than twice as many as of the usual one
USUAL = 0.6  # share of the texts that have the language of the data
FUNCTION_WORDS = {
    "English": "the of and to in is that it for was on are with as at be this have from or by not",
    "German": (
        "der die das und ist nicht ein eine zu den von mit auf für sich des dem im auch es ich sie"
    ),
    "French": (
        "le la les des est et que une dans pour qui pas sur plus par avec ce il elle nous vous sont"
    ),
    "Spanish": "el los las que y en es una por con para del se no como pero más su al lo muy este",
    "Italian": (
        "il gli che di è un una per non con sono della del le da si anche come più ma nel questo"
    ),
    "Portuguese": "o os as que e em é um uma para com não do da se por mais como mas foi ao na",
    "Dutch": (
        "de het een en van is dat niet op te zijn voor met die er aan om ook als maar bij naar"
    ),
    "Swedish": "och att det som en är på för med den inte av till har ett om var jag han men så vi",
    "Polish": "w na się nie że to jest do z jak ale po co tak za od przez być dla jego już tylko",
    "Turkish": (
        "ve bir bu için da de ile çok gibi daha ama ne olarak kadar var olan değil sonra ben en"
    ),
}
LANGUAGE_OF = {name: frozenset(words.split()) for name, words in FUNCTION_WORDS.items()}
MOJIBAKE = re.compile(
    r"[ÃÂâÐÑÎÏÄÅ][\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|\ufffd|&[a-z]{2,6};|&#\d+;|[\x00-\x08\x0b\x0c\x0e-\x1f]"
)
SIGN = re.compile(r"[^\w\s]|_")
LATIN = re.compile("[a-zA-Z]")
VOWEL = re.compile("(?i)[aeiouyäöüáéíóúàèìòùâêîôûåøæ]")
# Japanese
ONE_SCRIPT = dict.fromkeys(
    ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "HALFWIDTH"), "CJK"
)
WORD = re.compile(r"[^\W\d_]+")


@register_issue("text")
class BadTexts(FoundIssue):
    """Texts without words, with signs of a wrong encoding or of noise, or in another language than
    most.

    The score is 0.5 and their share.
    """

    flag = "is_text_issue"
    badges: ClassVar = {"is_text_issue": "odd text"}
    needs = ("texts",)
    remedy = "Repair the encoding, translate such texts, or leave them out."
    fixes = "Leaves out garbled texts and those in another language."

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        data = evidence.data
        rows = evenly(np.flatnonzero(data.row >= 0), MOST)
        assert data.texts is not None
        texts = [text[:LONGEST] for text in data.texts[rows]]
        found, usual = _languages(texts)
        language = np.array(found)
        is_garbled = np.array([_is_garbled(text) for text in texts], dtype=bool)
        is_foreign = ~is_garbled & ~np.isin(language, ["", usual])
        if not usual:
            is_foreign[:] = False
        empty = sum(
            len(skipped.rows)
            for skipped in data.skipped
            if skipped.reason.startswith(("no text", "no words"))
        )
        counts = {
            "others": int((~is_garbled & ~is_foreign).sum()),
            "garbled": int(is_garbled.sum()),
            f"not {usual}" if usual else "foreign": int(is_foreign.sum()),
            "empty": empty,
        }
        bars = Bars("texts", [*counts.items()], "texts")
        for bar, what, mask in ((1, "garbled", is_garbled), (2, f"not in {usual}", is_foreign)):
            if not mask.any():
                continue
            count = int(mask.sum())
            are = "is" if count == 1 else "are"
            said = what
            if mask is is_foreign:
                said += f" but in {Counter(language[mask].tolist()).most_common(1)[0][0]}"
            first = int(mask.argmax())
            shown = texts[first][:60].replace("\n", " ")
            yield Finding(
                f"{what} texts",
                min(1.0, NEEDS_ACTION + count / len(texts)),
                f"{count} of {len(texts)} texts {are} {said}, such as row"
                f" {data.row[rows[first]]}: {shown!r}.",
                bars._replace(marked=(bar,)),
                rows=tuple(data.row[rows[mask]].tolist()),
            )
        if empty:
            sentence = f"{counted(empty, 'text')} without words, left out of the audit."
            picture = bars._replace(marked=(3,))
            yield Finding("empty texts", 0.9 * NEEDS_ACTION, sentence, picture)

    def explain(self, data: Rows, rows: Ints) -> list[str]:
        return [
            "the text is garbled or in another language" if odd else "" for odd in self.mask[rows]
        ]


def _is_garbled(text: str) -> bool:
    """Return whether a text shows signs of a wrong encoding, or is no writing at all."""
    broken = len(MOJIBAKE.findall(text))
    if broken and 50 * broken >= len(text):
        return True
    seen = sum(map(len, text.split()))
    if seen < SHORT:
        return False
    signs = len(SIGN.findall(text))
    long_words = sum(len(word) for word in text.split() if _is_long(word))
    latin = len(LATIN.findall(text))
    has_no_vowels = latin > 30 and 10 * len(VOWEL.findall(text)) < latin
    return 3 * signs > 2 * seen or 2 * long_words > len(text) or has_no_vowels


def _is_long(word: str) -> bool:
    """Return whether no language has such a word; Chinese, Japanese and Thai have no spaces between
    words.
    """
    return (
        len(word) > 30
        and 2 * len(LATIN.findall(word)) > len(word)
        and "/" not in word
        and "." not in word[:-1]
    )


def _languages(texts: list[str]) -> tuple[list[str], str]:
    """Return the language or script of each text, "" where it is not clear, and the usual one, ""
    if there is none.
    """
    languages = [_language(text) for text in texts]
    known = Counter(filter(None, languages))
    usual, count = known.most_common(1)[0] if known else ("", 0)
    if count < USUAL * max(1, sum(known.values())) or count < 0.2 * len(texts):
        return languages, ""
    return [
        _language(text, usual) if one not in ("", usual) else one
        for text, one in zip(texts, languages, strict=True)
    ], usual


def _language(text: str, usual: str = "") -> str:
    words = WORD.findall(text.lower())
    letters = "".join(words)[:200]
    if len(letters) < SHORT:
        return ""
    if not letters.isascii():
        names = (unicodedata.name(sign, "? ").split()[0] for sign in letters)
        scripts = Counter(ONE_SCRIPT.get(name, name) for name in names)
        script, count = scripts.most_common(1)[0]
        if script != "LATIN":
            return script.capitalize() if 2 * count > len(letters) else ""
    hits = {name: sum(word in known for word in words) for name, known in LANGUAGE_OF.items()}
    best = max(hits, key=lambda name: hits[name])
    if not usual:
        is_clear = hits[best] > max(count for name, count in hits.items() if name != best)
    else:
        is_clear = hits[best] >= MIN_WORDS and hits[best] > 2 * hits.get(usual, 0)
    return best if is_clear else ""
