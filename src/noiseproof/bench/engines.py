"""Engines that run experiments: in this process, in several on this machine, or on a Ray cluster.

All of them are one: whoever runs takes the lock of an experiment that has no result, trains it from its last checkpoint
if it has one, writes the result and lets go. So several workers, several drivers, and one after another that was
killed, share the work without knowing of each other.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from noiseproof.accelerate import Job, Outcome, fit_many
from noiseproof.bench.experiment import BadExperiment, Experiment, check, folder_digest
from noiseproof.bench.results import (
    Json,
    Lock,
    holder,
    make_result,
    provenance,
    read_result,
    result_path,
    write_result,
)
from noiseproof.core import plugins
from noiseproof.core.checks import check_count, check_number
from noiseproof.core.plugins import import_module, module_file, plugin_modules, plugin_names
from noiseproof.data import get_dataset
from noiseproof.data.sources import data_root
from noiseproof.train import Interrupted, Task
from noiseproof.train.checkpoint import BadCheckpoint
from noiseproof.train.settings import make_fabric
from noiseproof.train.stopping import stop_on_signals

ENGINES = ("local", "processes", "ray")
POLL = 0.2  # seconds between looks at what others do
FLEET = 256  # runs that one call of the fleet gets: their labels are all in memory
TASKS = 4  # that are kept where runs go one after another
TROUBLE = 4  # a worker's exit code: some runs could not be trained, for no reason of their own
MOST_DEATHS = 3  # of workers that one experiment may cost

log = logging.getLogger("noiseproof")
Progress = Callable[[Experiment, Json, int, int], None]  # what is finished, its result, how many are, of how many
Fit = Callable[..., Sequence[Outcome]]


@dataclass(frozen=True)
class Plan:
    """How and where to run, for whoever does."""

    results_dir: str
    engine: str = "local"
    threads: int = 1
    accelerator: str = "auto"
    data_dir: str | None = None
    here: str = "."  # what paths start from
    command: str | None = None
    modules: dict[str, str] = field(default_factory=dict)  # of names that are not noiseproof's, to their files
    path: list[str] = field(default_factory=list)  # where Python looks for them

    @property
    def folder(self) -> Path:
        return Path(self.results_dir)


def run_all(
    experiments: Iterable[Experiment],
    results_dir: str | Path,
    *,
    engine: str = "local",
    workers: int | None = None,
    threads: int = 1,
    accelerator: str = "auto",
    data_dir: str | Path | None = None,
    retry_failed: bool = False,
    address: str | None = None,
    gpus: float | None = None,
    progress: Progress | None = None,
    checked: bool = False,
    fit: Fit = fit_many,
) -> dict[str, Json]:
    """Run what has no result in ``results_dir`` yet; the results of all ``experiments`` by key, failed ones too.

    Args:
        engine: ``local`` (in this process, side by side on a GPU), ``processes`` (``workers`` of them on this machine)
            or ``ray``.
        workers: processes at once, by default as many as ``threads`` leaves room for; a local Ray's processors.
        threads: of each run. Another number may change the last digits of a result, the engine does not.
        accelerator: auto, cpu or cuda.
        retry_failed: begin those anew that failed.
        address: of a Ray cluster, ``auto`` for the one that this machine belongs to; None starts one for the while. Its
            machines need the same folders and the same noiseproof.
        gpus: what each run has of a GPU under Ray, by default one if this machine has any.
        progress: told of every run that is finished.
        checked: they come from ``load_experiments``, which has refused what cannot run.
        fit: trains jobs, for the local engine.

    Raises:
        BadExperiment: before anything trains, of one that cannot.
        Interrupted: when asked to stop (Ctrl-C, SIGTERM); the same call goes on.

    >>> import tempfile
    >>> from noiseproof.train import Settings
    >>> short = Settings(epochs=1, model="mlp:hidden=[8]")
    >>> grid = [Experiment("digits", "symmetric:rate=0.4", method, 0, short) for method in ("ce", "gce")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     results = run_all(grid, folder)
    >>> [results[experiment.key]["status"] for experiment in grid]
    ['done', 'done']
    """
    check_engine(engine, workers, address, gpus)
    check_count("threads", threads, 1)
    workers = max(1, (os.cpu_count() or 1) // threads) if workers is None else workers
    if engine != "ray":  # whose machines may be others than this
        make_fabric(accelerator=accelerator, devices=1)
    folder_digest.cache_clear()
    folder = Path(results_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    every = {pinned.key: pinned for pinned in (experiment.pinned() for experiment in experiments)}
    have = {key: result["status"] for key in every if (result := read_result(folder, key)) is not None}
    again = {key for key, status in have.items() if retry_failed and status == "failed"}
    todo = [e for key, e in every.items() if key in again or key not in have]
    first = {task: place for place, task in reversed(list(enumerate(e.without_method for e in todo)))}
    todo.sort(key=lambda experiment: first[experiment.without_method])  # those of one task together: it is made once
    if not checked:
        check(todo, data_dir)
    for key in again:
        _forget(key, folder)
    plan = Plan(
        str(folder), engine, threads, accelerator, str(data_root(data_dir).absolute()), os.getcwd(),
        " ".join(sys.argv), {} if engine == "local" else _modules(todo), [place or os.getcwd() for place in sys.path],
    )  # fmt: skip
    done = len(every) - len(todo)

    def announce(experiment: Experiment, result: Json) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(experiment, result, done, len(every))

    if todo and engine == "local":
        _run_here(todo, plan, announce, fit)
    elif todo and engine == "processes":
        _run_in_processes(todo, plan, announce, min(workers, len(todo)))
    elif todo:
        _run_on_ray(todo, plan, announce, workers, address, gpus)
    return {key: result for key in every if (result := read_result(folder, key)) is not None}


def check_engine(
    engine: str, workers: int | None = None, address: str | None = None, gpus: float | None = None
) -> None:
    """Refuse an engine that is none, and options that it would ignore."""
    if engine not in ENGINES:
        raise ValueError(f"Expected an engine of {', '.join(ENGINES)}, got {engine!r}.")
    takers = {"workers": (workers, ENGINES[1:]), "address": (address, ("ray",)), "gpus": (gpus, ("ray",))}
    for option, (value, engines) in takers.items():
        if value is not None and engine not in engines:
            raise ValueError(
                f"Expected the engine {' or '.join(engines)} beside `{option}`, got {engine}, which has no use for it. "
                f"Choose another engine, or leave `{option}` out."
            )
    if workers is not None:
        check_count("workers", workers, 1)
    if gpus is not None:
        check_number("gpus", gpus, "[0, inf)", 0)


def _modules(experiments: Iterable[Experiment]) -> dict[str, str]:
    """What workers have to import for names that are not noiseproof's: all their modules, which may need each other."""
    named = {name for experiment in experiments for name in plugin_names(repr(experiment))}
    every = plugin_modules() if named else set()
    found = {module: file for module in sorted(every) if module != "__main__" and (file := module_file(module))}
    if mine := sorted(name for name in named if not found.keys() >= {*plugins.MODULES[name].values()}):
        raise ValueError(
            "Expected names that workers can import, got names of the script itself "
            f"({', '.join(map(repr, mine))}). Register them in a module of its own and import that, or use the local "
            "engine."
        )
    return found


def _imported(plan: Json) -> Plan:
    """The plan, in a process of its own."""
    if os.path.isdir(plan["here"]):
        os.chdir(plan["here"])
    sys.path += [place for place in plan["path"] if place not in sys.path]
    for name, file in plan["modules"].items():
        try:
            importlib.import_module(name)
        except ImportError:  # a file that the driver was given by its path
            import_module(name, file)
    return Plan(**plan)


def _forget(key: str, folder: Path) -> None:
    lock = Lock(folder, key)
    if lock.held and (read_result(folder, key) or {}).get("status") == "failed":  # still: others may have mended it
        shutil.rmtree(folder / "runs" / key, ignore_errors=True)
        result_path(folder, key).unlink(missing_ok=True)
    lock.release()


# In this process

Announce = Callable[[Experiment, Json], None]


def _run_here(
    todo: Sequence[Experiment], plan: Plan, announce: Announce, fit: Fit = fit_many, wait: bool = True
) -> None:
    """Train what nobody else does; then wait for what others do, and take it over from those that die."""
    folder, load = plan.folder, lru_cache(maxsize=2)(partial(get_dataset, data_dir=plan.data_dir))
    fabrics = lru_cache(maxsize=None)(partial(make_fabric, accelerator=plan.accelerator, devices=1))
    fleet = plan.engine == "local" and fabrics("32").device.type == "cuda"

    @lru_cache(maxsize=FLEET if fleet else TASKS)
    def make(experiment: Experiment) -> Task:
        return experiment.make_task(plan.data_dir, data=load(experiment.dataset))

    made_by = provenance(plan.engine, plan.threads, plan.command, plan.accelerator)
    waiting = {experiment.key: experiment for experiment in todo}
    troubles: dict[str, Exception] = {}  # of runs that are left out
    told = False

    def tell(experiment: Experiment, result: Json) -> None:
        del waiting[experiment.key]
        announce(experiment, result)

    if fleet:  # runs of one method have one head, and those of one shape are stacked where they set out together
        methods = list(dict.fromkeys(experiment.method for experiment in todo))
        waiting = dict(sorted(waiting.items(), key=lambda item: methods.index(item[1].method)))
    with torch_threads(plan.threads):
        while waiting:
            for precision in dict.fromkeys(experiment.precision for experiment in waiting.values()):
                own = (e for key, e in waiting.items() if e.precision == precision and key not in troubles)
                claims = _claim(own, folder)
                one = partial(fit, fabric=fabrics(precision), at_once=None if fleet else 1)
                while (found := next(claims, None)) is not None:
                    some = chain([found], islice(claims, FLEET - 1 if fleet else 0))
                    _train(some, folder, make, made_by, tell, troubles, one)
            _announce_finished(waiting, folder, announce)
            if not wait or waiting.keys() <= troubles.keys():
                break
            if plan.engine == "local" and not told:  # workers have nobody to tell
                told = True
                who = (holder(folder, key) for key in waiting)
                at = {f"process {one.get('pid')} on {one.get('host')}" for one in who if one}
                log.warning("waiting for %d runs of others: %s", len(waiting), ", ".join(sorted(at)) or "just finished")
            time.sleep(POLL)
    if troubles:
        raise next(iter(troubles.values()))


def _claim(experiments: Iterable[Experiment], folder: Path) -> Iterator[tuple[Experiment, Lock]]:
    """Those without result that nobody else is training, one after another, with their locks."""
    for experiment in list(experiments):
        if result_path(folder, experiment.key).exists():
            continue
        lock = Lock(folder, experiment.key)
        if lock.held and not result_path(folder, experiment.key).exists():  # it may have come in between
            yield experiment, lock
        else:
            lock.release()


def _train(
    claims: Iterable[tuple[Experiment, Lock]],
    folder: Path,
    make: Callable[[Experiment], Task],
    made_by: Json,
    announce: Announce,
    troubles: dict[str, Exception],
    fit: Fit,
) -> None:
    """Train experiments side by side; write each one's result, and tell of it, as soon as it is there.

    What says nothing of a run itself is no result: an error of the disk is raised, others are added to ``troubles``.
    Claims are taken as there is room, so that other drivers find some.
    """
    begun: list[tuple[Experiment, Lock, float | None]] = []  # with the rate of wrong labels
    broken: list[OSError] = []

    def jobs() -> Iterator[Job]:
        """Each made when it is asked for, with its task."""
        for experiment, lock in claims:
            run = experiment.plain  # a checkpoint knows one spelling
            try:
                task = make(run.without_method)
                experiment.check_unchanged()
            except BadExperiment as error:
                troubles[experiment.key] = error
                lock.release()
                continue
            except BaseException:
                lock.release()
                raise
            begun.append((experiment, lock, task.train.rate))
            yield Job(task, run.method, run.settings, run.seed, folder / "runs" / experiment.key)

    def finished(number: int, outcome: Outcome) -> None:
        experiment, lock, rate = begun[number]
        if isinstance(outcome, OSError):  # no space left
            broken.append(outcome)
        elif isinstance(outcome, BadCheckpoint):  # another's folder
            troubles[experiment.key] = outcome
        elif isinstance(outcome, (MemoryError, torch.OutOfMemoryError)):  # its neighbours may have had it
            troubles[experiment.key] = MemoryError(
                f"Expected memory for every run, {experiment.key} had none: {outcome}"
            )
        elif not isinstance(outcome, Interrupted):
            result = make_result(experiment, outcome, rate, made_by)
            write_result(folder, result)
            announce(experiment, result)
        lock.release()

    try:
        fit(jobs(), resume=True, finished=finished)
    finally:
        for _, lock, _ in begun:
            lock.release()
    if broken:
        raise broken[0]


def _announce_finished(waiting: dict[str, Experiment], folder: Path, announce: Announce) -> None:
    """Take those that others have brought a result of out of ``waiting``, and tell of them."""
    for key in list(waiting):
        if (result := read_result(folder, key)) is not None:
            announce(waiting.pop(key), result)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """So many threads within."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# In several processes

# The order first: a long one must not wait in the pipe, and the driver with it, until torch is there. Then modules come
# from where the driver has them, but Python's own from Python: a csv.py of somebody's may lie in the folder.
START = """
import json, os, sys
order, own = json.loads(sys.stdin.readline()), os.path.dirname(os.__file__)
library = [place for place in sys.path if place.startswith(own) and "-packages" not in place]
sys.path[:] = dict.fromkeys([*library, *order["plan"]["path"], *sys.path])
from noiseproof.bench.engines import work
work(order)
"""


def _run_in_processes(todo: Sequence[Experiment], plan: Plan, announce: Announce, workers: int) -> None:
    """Keep that many workers alive until everything has a result."""
    runs = [(experiment.as_dict(), experiment.key) for experiment in todo]  # a file may change until a worker reads it
    text = json.dumps({"plan": asdict(plan), "experiments": runs}) + "\n"
    waiting = {experiment.key: experiment for experiment in todo}
    made_by = provenance(plan.engine, plan.threads, plan.command, plan.accelerator)
    every, deaths = frozenset(waiting), Counter[str]()
    team: list[_Worker] = []
    with stop_on_signals() as stop:
        try:
            team += [_Worker(text, plan.threads, number) for number in range(workers)]
            while waiting and not stop.requested:
                for place, worker in enumerate(team):
                    code = worker.process.poll()
                    key = worker.last_claim(every)
                    if code in (None, 0, TROUBLE):
                        continue
                    deaths[key] += 1
                    if not key and deaths[key] == MOST_DEATHS:
                        raise ChildProcessError(f"Expected workers that work, {MOST_DEATHS} ended with {code}.")
                    if deaths[key] >= MOST_DEATHS:
                        why = f"its workers died {deaths[key]} times, the last with exit code {code}"
                        _give_up(waiting.get(key), plan.folder, why, made_by)
                    worker.stop()
                    team[place] = _Worker(text, plan.threads, place)
                ended = all(worker.process.poll() in (0, TROUBLE) for worker in team)
                _announce_finished(waiting, plan.folder, announce)
                if ended and waiting:
                    raise ChildProcessError(
                        f"Expected results of all runs, got none of {len(waiting)} from workers that ended. What they "
                        "wrote above says why."
                    )
                time.sleep(POLL / 4)
        finally:
            for worker in team:  # all of them before waiting for any
                worker.leave()
            for worker in team:
                worker.stop()
    if waiting:
        raise Interrupted(f"Stopped with {len(waiting)} of {len(todo)} runs to do. Resume to go on.")


class _Worker:
    """A process that trains until nothing is left, or until it hears that its driver has gone."""

    def __init__(self, text: str, threads: int, number: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if torch.cuda.device_count() > 1:  # spread over the GPUs
            own = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
            environment["CUDA_VISIBLE_DEVICES"] = own.split(",")[number % len(own.split(","))]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START],  # without the folder that it is called in
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C is the driver's, who lets its workers save before they end
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        with suppress(BrokenPipeError):  # it has died already, which its exit code will tell
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()
        self._said = b""

    def last_claim(self, keys: Container[str]) -> str:
        """The key of the run that it has begun last; nothing of what a module may have printed before."""
        assert self.process.stdout is not None
        self._said = (self._said + (self.process.stdout.read() or b""))[-34:]
        lines = self._said.decode(errors="replace").split("\n")
        return lines[-2] if len(lines) > 1 and lines[-2] in keys else ""

    def leave(self) -> None:
        """Let it know that it should stop."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def stop(self) -> None:
        """Wait for its end."""
        assert self.process.stdout is not None
        self.leave()
        while self.process.poll() is None:
            self.process.stdout.read()  # else it might wait for a reader
            time.sleep(POLL / 4)
        self.process.stdout.close()


def work(order: Json) -> None:
    """What a worker does with the order that it has read; on its standard output it says what it begins."""
    claims = os.dup(1)
    os.dup2(2, 1)  # what a strategy of somebody's prints is not for the driver
    threading.Thread(target=_stop_with_driver, daemon=True).start()

    def told(jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            os.write(claims, f"{Path(str(job.out)).name}\n".encode())
            yield job

    def fit(jobs: Iterable[Job], **options: Any) -> Sequence[Outcome]:
        return fit_many(told(jobs), **options)

    try:
        plan = _imported(order["plan"])
        _run_here([Experiment.from_dict(*run) for run in order["experiments"]], plan, lambda *_: None, fit)
    except Interrupted:
        sys.exit(130)
    except (BadCheckpoint, BadExperiment, MemoryError, OSError) as error:
        log.error("%s: %s", type(error).__name__, error)
        sys.exit(TROUBLE)


def _stop_with_driver() -> None:
    """The driver writes nothing more: its end of the pipe closes when it stops or dies, and then so must this."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)  # the loop saves a checkpoint


def _give_up(experiment: Experiment | None, folder: Path, why: str, made_by: Json) -> None:
    """Write down that an experiment failed, unless someone is at it or done with it."""
    if experiment is None:
        return
    for _, lock in _claim([experiment], folder):
        write_result(folder, make_result(experiment, RuntimeError(why), None, made_by))
        lock.release()


# On a Ray cluster


def _run_on_ray(
    todo: Sequence[Experiment],
    plan: Plan,
    announce: Announce,
    workers: int,
    address: str | None,
    gpus: float | None,
) -> None:
    """One task for each experiment; Ray places them, and begins one again whose worker died."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("Expected ray for this engine. Run `pip install 'noiseproof[ray]'`.") from error
    own = not ray.is_initialized()
    if own:
        size = {"num_cpus": workers * plan.threads, "include_dashboard": False} if address is None else {}
        ray.init(address=address or "local", log_to_driver=False, **size)
    try:
        share = float(torch.cuda.is_available()) if gpus is None else gpus
        _check_room(ray.cluster_resources(), plan.threads, share, address)
        task = ray.remote(num_cpus=plan.threads, num_gpus=share, max_retries=MOST_DEATHS - 1)(_work_on_ray)
        made_by = provenance(plan.engine, plan.threads, plan.command, plan.accelerator)
        waiting = {experiment.key: experiment for experiment in todo}
        running = {task.remote(asdict(plan), experiment.as_dict(), experiment.key): experiment for experiment in todo}
        troubles: list[Exception] = []
        with stop_on_signals() as stop:
            while running and not stop.requested:
                ready, _ = ray.wait(list(running), timeout=POLL)
                for ref in ready:
                    experiment = running.pop(ref)
                    try:
                        taken = _take(ray, ref, experiment, plan.folder, made_by)
                    except ray.exceptions.RayTaskError as error:  # of the task's own, not the end of its worker
                        troubles.append(error)
                        continue
                    if not taken:
                        time.sleep(POLL)  # another driver is at it
                        running[task.remote(asdict(plan), experiment.as_dict(), experiment.key)] = experiment
                _announce_finished(waiting, plan.folder, announce)
            if running:
                for ref in running:
                    ray.cancel(ref)  # an interrupt, upon which a run saves a checkpoint
                ray.wait(list(running), num_returns=len(running), timeout=30)
                raise Interrupted(f"Stopped with {len(waiting)} of {len(todo)} runs to do. Resume to go on.")
        if troubles:
            raise troubles[0]
    finally:
        if own:
            ray.shutdown()


def _check_room(there: Mapping[str, float], threads: int, gpus: float, address: str | None) -> None:
    """Refuse, or on a cluster that may grow say, what would wait for ever."""
    if threads <= there.get("CPU", 0) and gpus <= there.get("GPU", 0):
        return
    lack = (
        f"Expected {threads} processors and {gpus:g} GPUs for each run, Ray has {there.get('CPU', 0):g} and "
        f"{there.get('GPU', 0):g}. Ask for less: --threads, --gpus."
    )
    if address is None:
        raise ValueError(lack)
    log.warning("%s Waiting until the cluster grows.", lack)


def _work_on_ray(plan: Json, experiment: Json, key: str) -> Json | None:
    """A Ray task: the result of one experiment, None if another driver is at it."""
    how, one = _imported(plan), Experiment.from_dict(experiment, key)
    _run_here([one], how, lambda *_: None, wait=False)
    return read_result(how.folder, one.key)


def _take(ray: Any, ref: Any, experiment: Experiment, folder: Path, made_by: Json) -> bool:
    """Whether a task has brought a result, which is written here if its machine has another folder."""
    try:
        result = ray.get(ref)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        _give_up(experiment, folder, f"its Ray task failed: {error}", made_by)
        return read_result(folder, experiment.key) is not None
    if result is not None and not result_path(folder, experiment.key).exists():
        write_result(folder, result)
    return result is not None
