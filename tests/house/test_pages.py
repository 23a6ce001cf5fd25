"""Links between pages lead to files and headings that exist, and every page is in a table of
contents.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = ("_methods", "_generated", "_build")  # by `make docs`
WRITTEN = [
    path for path in sorted(DOCS.rglob("*.md")) if path.relative_to(DOCS).parts[0] not in MADE
]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")),
    *WRITTEN,
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
AVOIDED = re.compile(
    r"\b(beside|anew|nobody|none such|in falling order|learned by heart|those of|that of)\b",
    re.IGNORECASE,
)
WORDS = 55_500  # of docs/, as `cat docs/*.md docs/*/*.md | wc -w` counts them
UNREVISED: set[str] = set()


def prose(page: Path) -> str:
    """The text of a page without its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()]", " ", code[0]), text)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        is_elsewhere = (
            "://" in link
            or link.startswith("mailto:")
            or any(part in MADE for part in target.parts)
        )
        if is_elsewhere or not target.is_relative_to(ROOT):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_pages_are_in_plain_words() -> None:
    found = set()
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        found |= {f"{name}: {word.lower()}" for word in AVOIDED.findall(prose(page))}
    assert found <= UNREVISED


def test_the_pages_are_short() -> None:
    assert sum(len(page.read_text("utf-8").split()) for page in WRITTEN) <= WORDS


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {DOCS / "index.md"}
    for page in WRITTEN:
        for contents in re.findall(
            r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        ):
            names = [line for line in contents.splitlines() if line and not line.startswith(":")]
            listed |= {page.parent / f"{name}.md" for name in names}
    assert [page for page in WRITTEN if page not in listed] == []
    assert [page for page in listed if not page.exists() and page.parent.name not in MADE] == []
