"""Work that is killed, or finds the disk full, at any of its file operations; damaged files; two
writers.

A scenario is a function ``scenario(folder) -> JSON value`` at the top of a test's file: what a user
would start, in a folder of its own, and what it says in the end. It runs in processes of its own,
forked from one that has imported everything, so that a kill is a kill. ``NOISEPROOF_CHAOS=1``
(`make chaos`) tries every operation, otherwise a few.

    for case in interruptions(scenario, tmp_path, "kill"):
        assert case.again == whole or case.again.is_refusal
"""

from __future__ import annotations

import builtins
import errno
import importlib.util
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import safetensors.numpy
import safetensors.torch

Scenario = Callable[[Path], Any]
How = Literal["kill", "full"]
THOROUGH = bool(os.environ.get("NOISEPROOF_CHAOS"))
FEW = 6  # operations of a scenario that the short form tries
REFUSALS = ("Expected", "Unknown", "Nothing")  # how messages to a user begin


@dataclass(frozen=True)
class Outcome:
    """What a scenario returned, or the error that it raised; ``killed`` if it did neither."""

    value: Any = None
    error: str = ""  # name of its class
    message: str = ""
    killed: bool = False

    @property
    def is_refusal(self) -> bool:
        """Whether a user was told what is wrong, in our words; a disk that is full may say so
        itself.
        """
        return bool(self.error) and (
            self.message.startswith(REFUSALS)
            or (self.error == "OSError" and "No space left" in self.message)
        )


@dataclass(frozen=True)
class Case:
    """A scenario that was disturbed at one operation, and then started again in the same folder."""

    number: int
    operation: str
    folder: Path
    first: Outcome
    again: Outcome


def interruptions(
    scenario: Scenario, folder: Path, how: How, *, count: int | None = None
) -> Iterator[Case]:
    """The scenario in a new folder for each operation: killed there, or the disk is full from there
    on; then again.

    A write that is killed, or for which there is no room, has written its first half.
    """
    for case in _drive(how, scenario, folder, 0 if THOROUGH else count or FEW)["cases"]:
        first, again = Outcome(**case.pop("first")), Outcome(**case.pop("again"))
        yield Case(**{**case, "folder": Path(case["folder"]), "first": first, "again": again})


def writers(scenario: Scenario, folder: Path, count: int = 2) -> list[Outcome]:
    """The outcomes of ``count`` processes that start the scenario in one folder at the same
    moment.
    """
    return [
        Outcome(**outcome) for outcome in _drive("writers", scenario, folder, count)["outcomes"]
    ]


def outcome_of(work: Callable[[], Any]) -> Outcome:
    """The outcome of work in this process."""
    try:
        return Outcome(json.loads(json.dumps(work())))
    except (Exception, SystemExit) as error:
        return Outcome(error=type(error).__name__, message=str(error))


def exact(value: Any) -> Any:
    """A tree with its tensors as lists, whose text has every digit."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(item) for item in value]
    return (str(value.dtype), value.tolist()) if hasattr(value, "tolist") else value


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """The file with one bit flipped, which keeps its size and time."""
    data, stat = path.read_bytes(), path.stat()
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    try:
        yield
    finally:
        path.write_bytes(data)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def bits(path: Path, count: int = FEW) -> list[int]:
    """Bits of a file to flip: its first and last, and others anywhere; more of them in the thorough
    form.
    """
    size = 8 * path.stat().st_size
    some = random.Random(size).sample(range(size), min(size, count * 32 if THOROUGH else count))
    return sorted({0, size - 1, *some})


@contextmanager
def clock_set_back(seconds: float = 7 * 24 * 3600) -> Iterator[None]:
    """The time of day as a computer has it after its clock was set back."""
    now, now_ns = time.time, time.time_ns
    time.time, time.time_ns = lambda: now() - seconds, lambda: now_ns() - int(seconds * 1e9)
    try:
        yield
    finally:
        time.time, time.time_ns = now, now_ns


def _drive(command: str, scenario: Scenario, folder: Path, number: int) -> dict[str, Any]:
    place = f"{scenario.__code__.co_filename}:{scenario.__name__}"
    call = [sys.executable, __file__, command, place, str(folder), str(number)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "LT_ACCELERATOR": "cpu",
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    ended = subprocess.run(call, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


# What follows runs in the processes of scenarios.


class Shim:
    """Counts operations that change files below ``root``, and disturbs the one of the number
    ``at``.

    With ``how`` "kill" the process is killed in the middle of it, with "full" it and all later ones
    that need room fail. Operations: creating, writing, syncing, renaming and removing files and
    folders, and whole safetensors files.
    """

    def __init__(self, root: Path, how: How = "kill", at: int = 0) -> None:
        self.root, self.how, self.at, self.count, self.last = os.path.realpath(root), how, at, 0, ""

    def step(
        self,
        what: str,
        path: Any,
        *,
        needs_room: bool = True,
        half: Callable[[], object] | None = None,
    ) -> None:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return
        if not os.path.realpath(os.fspath(path)).startswith(self.root):
            return
        self.count += 1
        self.last = f"{what} {os.path.relpath(os.path.realpath(os.fspath(path)), self.root)}"
        is_due = self.count == self.at or (self.how == "full" and self.at and self.count > self.at)
        if not is_due or (self.how == "full" and not needs_room):
            return
        if half is not None:
            half()
        if self.how == "kill":
            _report(self.last)
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))

    def install(self) -> None:
        shim = self
        for name, room in {
            "replace": True,
            "rename": True,
            "link": True,
            "mkdir": True,
            "unlink": False,
            "remove": False,
            "rmdir": False,
            "ftruncate": False,
            "fsync": True,
        }.items():
            original = getattr(os, name)

            def disturbed(
                path: Any,
                *args: Any,
                name: str = name,
                room: bool = room,
                call: Any = original,
                **kw: Any,
            ):
                if kw.get("dir_fd") is None:  # rmtree's, whose names are relative
                    shim.step(name, path, needs_room=room)
                return call(path, *args, **kw)

            setattr(os, name, disturbed)
        write, os_open = os.write, os.open

        def disturbed_write(file: int, data: Any) -> int:
            shim.step("write", file, half=lambda: write(file, bytes(data)[: len(data) // 2]))
            return write(file, data)

        def disturbed_open(path: Any, flags: int, *args: Any, **kw: Any) -> int:
            if flags & (os.O_CREAT | os.O_TRUNC) and not os.path.exists(path):
                shim.step("create", path)
            return os_open(path, flags, *args, **kw)

        os.write, os.open = disturbed_write, disturbed_open
        io.open = builtins.open = self._open(builtins.open)  # type: ignore[assignment]
        # so that they must be imported where they are called
        for module in (safetensors.torch, safetensors.numpy):
            module.save_file = self._save_file(module.save_file)

    def _open(self, original: Any) -> Any:
        shim = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                shim.step(
                    "write",
                    self.name,
                    half=lambda: super(Raw, self).write(bytes(data)[: len(data) // 2]),
                )
                return super().write(data) or 0

        def opened(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: Any = None,
            errors: Any = None,
            newline: Any = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            if isinstance(file, int) or opener is not None or not set(mode) & set("wax+"):
                return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if not os.path.exists(file) or "w" in mode:
                shim.step("create", file)
            raw = Raw(os.fspath(file), mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return (
                buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)
            )

        return opened

    def _save_file(self, original: Any) -> Any:
        def save_file(tensors: Any, path: Any, *args: Any, **kw: Any) -> Any:
            def half() -> None:
                original(tensors, path, *args, **kw)
                os.truncate(path, os.path.getsize(path) // 2)

            self.step("write", path, half=half)
            return original(tensors, path, *args, **kw)

        return save_file


_report: Callable[[str], object] = print


def _child(work: Callable[[], Any], *, go: int | None = None) -> tuple[int, int]:
    """Start ``work`` in a process; its number, and where it reports its outcome."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    _run_child(work, read, write, go)


def _run_child(work: Callable[[], Any], read: int, write: int, go: int | None) -> NoReturn:
    global _report
    os.close(read)
    os.dup2(2, 1)  # what it prints is not for the test
    os_write = os.write
    _report = lambda text: os_write(write, json.dumps({"killed": True, "message": text}).encode())  # noqa: E731
    try:
        if go is not None:
            os.read(go, 1)
        outcome: dict[str, Any] = {"value": work()}
        text = json.dumps(outcome)
    except BaseException as error:
        traceback.print_exc()
        text = json.dumps({"error": type(error).__name__, "message": str(error)})
    os_write(write, text.encode())
    os._exit(0)


def _outcome(child: int, read: int) -> dict[str, Any]:
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"killed": True, "message": f"status {status}"}


def _main(command: str, place: str, folder: Path, count: int) -> dict[str, Any]:
    file, _, name = place.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    scenario: Scenario = getattr(module, name)

    with tempfile.TemporaryDirectory() as warm:
        scenario(Path(warm))  # imports what it imports, once for all processes

    def disturbed(where: Path, how: How, at: int) -> Any:
        shim = Shim(where, how, at)
        shim.install()
        value = scenario(where)
        return {"operations": shim.count} if not at else value

    if command == "writers":
        folder.mkdir(parents=True, exist_ok=True)
        go, start = os.pipe()
        children = [_child(lambda: scenario(folder), go=go) for _ in range(count)]
        os.write(start, b"x" * count)
        return {"outcomes": [_outcome(*child) for child in children]}
    (folder / "count").mkdir(parents=True)
    counted = _outcome(*_child(lambda: disturbed(folder / "count", "kill", 0)))
    assert counted.get("value", {}).get("operations"), (
        f"The scenario failed, or writes no files: {counted}"
    )
    total = counted["value"]["operations"]
    few = min(total, count or total)
    numbers = sorted({1 + i * (total - 1) // max(1, few - 1) for i in range(few)})
    cases = []
    for number in numbers:
        where = folder / f"{command}-{number}"
        where.mkdir(parents=True)
        first = _outcome(*_child(lambda: disturbed(where, command, number)))  # type: ignore[arg-type]  # noqa: B023
        operation = first.pop("message", "") if first.get("killed") else f"operation {number}"
        again = _outcome(*_child(lambda: scenario(where)))  # noqa: B023
        cases.append(
            {
                "number": number,
                "operation": operation,
                "folder": str(where),
                "first": first,
                "again": again,
            }
        )
    return {"cases": cases}


if __name__ == "__main__":
    print(json.dumps(_main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
