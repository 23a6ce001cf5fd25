"""Every command in a console block of README and docs is run, page by page and in order, in a
folder of small data.

What makes it quick is said here and nowhere else: options that are added to a command (``SMALL``),
random pictures in the place of datasets that would have to be downloaded (``stand_in``), and small
files of the names that pages use. A block that can't be run carries a line ``<!-- not run: REASON
-->`` above it; those are counted and printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
import torch
from command_lines import PAGES, ROOT, Line, lines, words
from PIL import Image
from typer.testing import CliRunner

from noiseproof.audit import corrections, read_audit
from noiseproof.audit.plan import Refused
from noiseproof.cli import app
from noiseproof.data import DATASETS, Dataset, Split

SMALL = {
    "audit": "--force --epochs 3 --folds 2 --device cpu",
    "apply": "--epochs 2",
    "train": "--epochs 2 --workers 0 --accelerator cpu",
    "analyze landscape": "--points 9 --rows 20",
    "bench compare": "--epochs 1 --seeds 2",
    "bench search": "--epochs 1 --seeds 1",
}
TRIALS = "--trials 8"  # of a search that has some
HEAVY = (
    "--protocol sln",
    "--precision bf16",
    "--model resnet34",
    "chen:rate",
    "sln-mo-lc@sln",
)  # networks of real size: slow tests
JSON = {"Content-Type": "application/json"}
SOURCES = [line for page in PAGES for line in lines(page)]


def stand_in(name: str, shape: tuple[int, ...], classes: int) -> Any:
    """A dataset of that name with a hundred random pictures."""

    def make(data_dir: Any = None, **options: Any) -> Dataset:
        random = torch.Generator().manual_seed(0)

        def split(rows: int) -> Split:
            x = torch.randint(256, (rows, *shape), generator=random, dtype=torch.uint8)
            return Split(x, torch.arange(rows) % classes)

        return Dataset(
            name, tuple(map(str, range(classes))), split(max(100, classes)), split(50), spec=name
        )

    return make


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages speak of."""
    folder, random = tmp_path_factory.mktemp("files"), np.random.default_rng(0)

    def table(name: str, label: str, classes: tuple[str, ...], rows: int = 80) -> None:
        y = random.integers(len(classes), size=rows)
        frame = pd.DataFrame(random.normal(y[:, None], 0.3, (rows, 4)), columns=list("abcd"))
        # every tenth label is wrong
        given = np.where(np.arange(rows) % 10, y, (y + 1) % len(classes))
        frame.assign(**{label: np.array(classes)[given]}).to_csv(folder / name, index=False)

    table("data.csv", "y", ("no", "yes"))
    table("cells.csv", "diagnosis", ("benign", "malignant"))
    table("digits.csv", "digit", ("1", "2", "3"))
    for name in ("mine.csv", "my.csv", "checked.csv"):
        table(name, "kind", ("x", "y", "z"))
    rated = pd.read_csv(folder / "data.csv")
    for k, name in enumerate(("ann", "bob", "cid")):
        rated[name] = np.where(random.random(80) < 0.7 + 0.1 * k, rated["y"], "yes")
    rated.drop(columns="y").to_csv(folder / "rated.csv", index=False)
    votes = rated[["ann", "bob", "cid"]].melt(
        ignore_index=False, var_name="annotator", value_name="label"
    )
    votes.rename_axis("row").to_csv(folder / "votes.csv")
    sweep = 'dataset = "digits"\nmethod = ["ce", "gce"]\nmodel = "mlp:hidden=[8]"\nepochs = 1\n'
    (folder / "sweep.toml").write_text(f"[[experiment]]\n{sweep}")
    labels = np.repeat([0, 1], 40)
    np.save(folder / "y.npy", labels)
    np.save(folder / "p.npy", np.where(labels[:, None] == [0, 1], 0.9, 0.1))
    texts = [
        ("a parcel for you", "delivery"),
        ("the invoice is here", "invoice"),
        ("we send parcels", "delivery"),
    ] * 20
    mails = pd.DataFrame(texts, columns=["body", "kind"])
    mails.assign(mail=mails["body"], topic=mails["kind"]).to_csv(folder / "mails.csv", index=False)
    pd.DataFrame(texts, columns=["review", "mood"]).to_csv(folder / "reviews.csv", index=False)
    pd.read_csv(folder / "data.csv").to_parquet(folder / "data.parquet")
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(random.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(
                folder / "photos" / name / f"{number}.png"
            )
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in prepared.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path))
    sets = {
        "mnist": stand_in("mnist", (1, 28, 28), 10),
        "cifar10": stand_in("cifar10", (3, 32, 32), 10),
        "cifar100": stand_in("cifar100", (3, 32, 32), 100),
    }
    monkeypatch.setattr(DATASETS, "_factories", {**DATASETS._factories, **sets})
    return tmp_path


def is_heavy(line: Line) -> bool:
    return any(word in line.text for word in HEAVY)


def arguments(line: Line) -> list[str]:
    """A line's arguments, and what makes them quick."""
    # not 250
    given = [
        "sln-mo-lc@sln:start=1" if word == "sln-mo-lc@sln" else word for word in words(line.text)
    ]
    added = next(
        (more for name, more in SMALL.items() if given[: len(name.split())] == name.split()), ""
    )
    return [*given, *added.split(), *(TRIALS.split() if "--trials" in given else [])]


def run_lines(page: Path, *, heavy: bool) -> list[Line]:
    ran = []
    for line in lines(page):
        if line.why is not None or is_heavy(line) > heavy:
            continue
        given = arguments(line)
        if given[0] == "review" and "--html" not in given:
            review_here(given)
        else:
            result = CliRunner().invoke(app, given)
            missing = re.search(r"Run `pip install [^`]+`", result.stderr)
            if missing and result.exit_code == 2:
                print(f"not run, {missing[0]}: {line.page}:{line.number}: {line.text}")
                continue
            assert result.exit_code == 0, (
                f"{line.page}:{line.number}: {line.text}\n{result.output}\n{result.exception!r}"
            )
        ran.append(line)
    return ran


Ask = Callable[[str, bytes | None], bytes]


def accept_one(folder: str, ask: Ask) -> None:
    """Ask a server for its page, and accept the first suggestion, or those that it asks about."""
    assert b"<html" in ask("", None)
    if "measure" in (about := json.loads(ask("api/audit", None))):
        while (asked := about["question"]) is not None:
            answer = (
                {"decision": "other", "label": about["classes"][0]}
                if about["measure"]["blind"]
                else {"decision": "accept"}
            )
            body = {"row": asked["row"], "question": asked["number"], **answer}
            assert (
                json.loads(ask("api/decisions", json.dumps(body).encode()))["last"]["row"]
                == asked["row"]
            )
            about = json.loads(ask("api/audit", None))
        return
    issues = pd.read_csv(Path(folder, "issues.csv"))
    if issues["is_label_issue"].any():
        row = issues.loc[issues["is_label_issue"], "row"].iloc[0]
        ask("api/decisions", b'{"row": %d, "decision": "accept"}' % row)
    assert Path(folder, "decisions.sqlite").is_file()


def review_here(given: list[str]) -> None:
    """Run the command in this process, and ask its application instead of the port."""
    pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")

    def serve(server: Any, listening: socket.socket) -> None:
        listening.close()

        async def send(path: str, body: bytes | None) -> bytes:
            headers = {"Authorization": "Bearer known", **JSON}
            transport = httpx.ASGITransport(server)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", headers=headers
            ) as client:
                answer = await client.request("POST" if body else "GET", path, content=body)
                return bytes(answer.raise_for_status().content)

        accept_one(given[1], lambda path, body: asyncio.run(send(path, body)))
        server.state.review.queue.log.close()  # as the end of the process does

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("noiseproof.review.server.serve", serve)
        patch.setattr("secrets.token_urlsafe", lambda size: "known")
        result = CliRunner().invoke(app, [*given, "--no-browser"])
    assert result.exit_code == 0, f"{given}\n{result.output}\n{result.exception!r}"


def review(given: list[str]) -> None:
    """Start the server as a user does, accept one suggestion, and end it."""
    pytest.importorskip("fastapi")
    command = [sys.executable, "-m", "noiseproof", *given, "--no-browser"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().removeprefix("review: ").strip()
            base, token = (
                urlsplit(address)._replace(query="").geturl(),
                parse_qs(urlsplit(address).query)["token"][0],
            )

            def ask(path: str, body: bytes | None) -> bytes:
                headers = {"Authorization": f"Bearer {token}", **JSON}
                with urllib.request.urlopen(
                    urllib.request.Request(base + path, body, headers), timeout=60
                ) as answer:
                    return bytes(answer.read())

            accept_one(given[1], ask)
        finally:
            server.send_signal(signal.SIGINT)


def pages(heavy: bool) -> list[Any]:
    found = [
        page
        for page in PAGES
        if any(line.why is None and is_heavy(line) >= heavy for line in lines(page))
    ]
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in found]


@pytest.mark.parametrize("page", pages(heavy=False))
def test_the_commands_of_a_page_run(page: Path, folder: Path) -> None:
    assert run_lines(page, heavy=False)


def test_the_readme_leads_from_a_csv_file_to_a_corrected_one_in_five_commands(folder: Path) -> None:
    page = ROOT / "README.md"
    (block,) = (
        b
        for b in re.findall(
            r"^```console\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
        if "apply" in b
    )
    steps = [
        step
        for line in block.splitlines()
        for step in line.removeprefix("$ ").partition("#")[0].split("&&")
    ]
    assert len(steps) <= 5 and [step.split()[0] for step in steps] == [
        "make",
        "source",
        *["noiseproof"] * 3,
    ]
    own = [Line("README.md", 0, step, None) for step in steps[2:]]
    for line in own:
        if "review" in line.text:
            review(arguments(line))
        else:
            assert CliRunner().invoke(app, arguments(line)).exit_code == 0, line.text
    before, after = (pd.read_csv(name) for name in ("data.csv", "corrected.csv"))
    assert (before["y"] != after["y"]).sum() == 1  # the suggestion that was accepted
    assert before.drop(columns="y").equals(after.drop(columns="y"))


def test_the_ten_lines_of_the_readme_run_on_a_file_of_ones_own(folder: Path) -> None:
    (block,) = re.findall(
        r"^```py\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    exec(compile(block, "README.md", "exec"), {})
    assert len(Path("fixed.csv").read_text().splitlines()) == len(
        Path("data.csv").read_text().splitlines()
    )
    lines = [line for line in block.splitlines() if line and not line.startswith("#")]
    assert len([line for line in lines if "import" not in line]) <= 10
    with pytest.raises(Refused):  # what the line says about `yes`
        corrections(read_audit("issues"), {}, accept_all=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(heavy=True))
def test_the_heavy_commands_of_a_page_run_too(page: Path, folder: Path) -> None:
    assert any(map(is_heavy, run_lines(page, heavy=True)))


def test_what_is_not_run_says_why() -> None:
    """Run with -rP to see the list."""
    left_out = [line for line in SOURCES if line.why is not None]
    print(f"{len(left_out)} of {len(SOURCES)} commands in the pages are not run:")
    for line in left_out:
        print(f"  {line.page}:{line.number}: {line.text}  ({line.why})")
    assert len(left_out) < len(SOURCES) / 4
    assert all(re.search(r"GPU|download|hour|machine", line.why or "") for line in left_out)


def test_make_targets_and_scripts_of_the_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for page in PAGES:
        for target in re.findall(r"^\$ make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
        for script in re.findall(
            r"python ((?:benchmarks|examples)/\w+\.py)", page.read_text("utf-8")
        ):
            assert (ROOT / script).is_file(), f"{page.name}: {script}"
