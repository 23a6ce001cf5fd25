"""Screenshots of the review page for docs/review.md: `python docs/screenshots.py` (Chromium and
playwright).

Scikit-learn's digits as pictures and its breast cancer table, each with 10 % of the labels changed
at random, seed 0; audited by `noiseproof audit --fast` and served by `noiseproof review`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

# the server and browser of the tests
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from review_browser import browsing, open_page, until
from review_server import ServerProcess

IMAGES = Path(__file__).parent / "images"
RATE, SIDE = 0.1, 64  # share of changed labels; pixels of a digit
VIEWPORT = {"width": 1280, "height": 800}


def changed(labels: np.ndarray) -> np.ndarray:
    """The labels, of which a share is another class at random."""
    rng, classes = np.random.default_rng(0), np.unique(labels)
    wrong = rng.random(len(labels)) < RATE
    return np.where(
        wrong, (labels + rng.integers(1, len(classes), len(labels))) % len(classes), labels
    )


def write_digits(root: Path) -> Path:
    """A folder for each class."""
    digits = load_digits()
    for i, (pixels, label) in enumerate(zip(digits.images, changed(digits.target), strict=True)):
        folder = root / "digits" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((255 - pixels * 255 / 16).astype(np.uint8))
        picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / f"{i:04d}.png")
    return root / "digits"


def write_cancer(root: Path) -> Path:
    table = load_breast_cancer(as_frame=True)
    frame = table.data.assign(
        diagnosis=np.array(table.target_names)[changed(table.target.to_numpy())]
    )
    frame.to_csv(root / "cancer.csv", index=False)
    return root / "cancer.csv"


def audited(data: Path, out: Path, *options: str) -> Path:
    command = [
        sys.executable,
        "-m",
        "noiseproof",
        "audit",
        str(data),
        "--fast",
        "--out",
        str(out),
        *options,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return out


def shoot(page: Any, name: str, ready: str) -> None:
    until(page, ready)
    page.wait_for_timeout(500)  # pictures fade in, the map is drawn
    page.screenshot(path=str(IMAGES / f"review-{name}.png"))


COMPARED = (
    "document.querySelector('#row.compared') && !document.body.innerText.includes('Looking for"
    " rows')"
)


def main() -> None:
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        root = Path(name)
        digits = audited(write_digits(root), root / "digits-audit")
        cancer = audited(write_cancer(root), root / "cancer-audit", "--label", "diagnosis")
        with (
            ServerProcess(digits) as server,
            browsing(driver.chromium, root / "one", viewport=VIEWPORT) as page,
        ):
            open_page(page, server.link, "overview")
            shoot(page, "overview", "document.querySelector('#overview canvas') !== null")
            page.evaluate("views.show('list')")
            shoot(page, "picture", COMPARED)
            page.evaluate("views.show('grid')")
            for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown"):
                page.keyboard.press(key)
            shoot(page, "grid", "document.querySelectorAll('.cell img').length > 8")
        with (
            ServerProcess(cancer) as server,
            browsing(driver.chromium, root / "two", viewport=VIEWPORT) as page,
        ):
            open_page(page, server.link)
            shoot(page, "table", COMPARED)
        with (
            ServerProcess(digits, "--measure", "100", "--blind") as server,
            browsing(driver.chromium, root / "three", viewport=VIEWPORT) as page,
        ):
            page.goto(server.link)
            shoot(page, "measure", "document.querySelector('#row img') !== null")


if __name__ == "__main__":
    main()
