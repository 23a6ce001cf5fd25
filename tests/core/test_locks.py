"""A lock is of one process, which it names, and is free again however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from chaos import writers

from noiseproof.core.files import Lock, describe_holder, holder, last_holder

HOLD = (
    "import sys; from pathlib import Path; from noiseproof.core.files import Lock; l ="
    " Lock(Path(sys.argv[1])); print(l.held, flush=True); sys.stdin.read()"
)


def test_one_holds_it_and_others_learn_who(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    assert holder(path) is None and last_holder(path) == {}
    first = Lock(path)
    second = Lock(path)  # of another object in the same process, too
    assert first.held and not second.held
    assert describe_holder(holder(path) or {}) == f"process {os.getpid()} on {os.uname().nodename}"
    second.release()  # releases nothing
    assert not Lock(path).held
    first.release()
    assert holder(path) is None and not list(path.parent.iterdir())
    again = Lock(path)
    assert again.held
    again.release()


def test_a_killed_process_leaves_it_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=-1, stdout=-1, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "True\n"
    assert not Lock(path).held and (holder(path) or {})["pid"] == other.pid
    other.send_signal(signal.SIGKILL)
    other.communicate()
    mine = Lock(path)
    assert mine.held
    mine.release()


def count(folder: Path) -> int:
    """Adds 1 to a number thirty times, each time under the lock."""
    done = 0
    while done < 30:
        lock = Lock(folder / "lock")
        if lock.held:
            number = int((folder / "number").read_text()) if (folder / "number").exists() else 0
            (folder / "number").write_text(str(number + 1))
            done += 1
        lock.release()
    return done


def test_two_processes_never_hold_it_together(tmp_path: Path) -> None:
    assert [outcome.value for outcome in writers(count, tmp_path, 3)] == [30, 30, 30]
    assert (tmp_path / "number").read_text() == "90"
