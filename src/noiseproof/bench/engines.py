"""Engines that run experiments: in this process, in several on this machine, or on a Ray cluster.

All work alike: a process takes the lock of an experiment without a result, trains it, from its last
checkpoint if there is one, writes the result and releases the lock. So any number of workers and
drivers share a sweep without talking to each other, and a new driver continues where a killed one
stopped.
"""

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
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from noiseproof.accelerate import Job, Outcome, fit_many
from noiseproof.bench.experiment import BadExperiment, Experiment, check, folder_digest
from noiseproof.bench.results import (
    Json,
    holder,
    is_complete,
    lock_run,
    make_result,
    measure,
    once,
    provenance,
    read_result,
    result_path,
    status,
    write_result,
)
from noiseproof.core import plugins
from noiseproof.core.checks import check_count, check_number
from noiseproof.core.cluster import fixed_threads, ray_session
from noiseproof.core.files import Lock, check_place, describe_holder
from noiseproof.core.messages import counted
from noiseproof.core.plugins import import_module, module_file, plugin_modules, plugin_names
from noiseproof.data import get_dataset
from noiseproof.data.sources import data_root
from noiseproof.train import Interrupted, Result, Task
from noiseproof.train.checkpoint import BadCheckpoint
from noiseproof.train.guard import stop_on_signals
from noiseproof.train.settings import make_fabric

ENGINES = ("local", "processes", "ray")
POLL = 0.2  # seconds between looks at what other processes did
FLEET = 256  # runs in one call of ``fit`` on a GPU; the labels of all are in memory
TASKS = 4  # kept in memory where runs follow one another
TROUBLE = 4  # a worker's exit code: it could not train all runs, for reasons outside of them
MAX_DEATHS = 3  # workers that may die in one experiment

log = logging.getLogger("noiseproof")
# finished run, its result, number finished, total
RunProgress = Callable[[Experiment, Json, int, int], None]
Fit = Callable[..., Sequence[Outcome]]


@dataclass(frozen=True)
class SweepPlan:
    """How and where to run, for every process that does."""

    results_dir: str
    engine: str = "local"
    threads: int = 1
    accelerator: str = "auto"
    at_once: int | None = None
    data_dir: str | None = None
    working_dir: str = "."  # relative paths start from it
    command: str | None = None
    modules: dict[str, str] = field(default_factory=dict)  # of plug-ins, with their files
    path: list[str] = field(default_factory=list)  # sys.path of the driver

    @property
    def folder(self) -> Path:
        return Path(self.results_dir)

    def provenance(self) -> Json:
        return provenance(self.engine, self.threads, self.command, self.accelerator)


def run_all(
    experiments: Iterable[Experiment],
    results_dir: str | Path,
    *,
    engine: str = "local",
    workers: int | None = None,
    threads: int = 1,
    accelerator: str = "auto",
    at_once: int | None = None,
    data_dir: str | Path | None = None,
    retry_failed: bool = False,
    address: str | None = None,
    gpus: float | None = None,
    progress: RunProgress | None = None,
    checked: bool = False,
    fit: Fit = fit_many,
) -> dict[str, Json]:
    """Run the experiments without a result in ``results_dir``; return the results of all by key,
    failed ones too.

    Args:
        engine: ``local`` (in this process, side by side on a GPU), ``processes`` (``workers`` of
            them on this machine) or ``ray``.
        workers: number of processes, by default cores / ``threads``; the processors of a local Ray.
        threads: of each run. Another number may change the last digits of a result; the engine does
            not.
        accelerator: auto, cpu or cuda.
        at_once: runs side by side in each process; by default one, and with the engine ``local`` on
            a GPU as many as its memory holds, 32 at most.
        retry_failed: start failed runs again.
        address: of a Ray cluster, ``auto`` for the one of this machine; None starts a temporary
            one. Its machines need the same folders and the same noiseproof.
        gpus: share of a GPU for each run under Ray, by default one if this machine has any.
        progress: called after every run.
        checked: the experiments were checked before, as by ``load_experiments``.
        fit: trains jobs, for the local engine.

    Raises:
        BadExperiment: before anything trains, if an experiment cannot run.
        Interrupted: on Ctrl-C or SIGTERM; the same call resumes.

    >>> import tempfile
    >>> from noiseproof.train import Settings
    >>> short = Settings(epochs=1, model="mlp:hidden=[8]")
    >>> grid = [
    ...     Experiment("digits", "symmetric:rate=0.4", method, 0, short) for method in ("ce", "gce")
    ... ]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     results = run_all(grid, folder)
    >>> [results[experiment.key]["status"] for experiment in grid]
    ['done', 'done']
    """
    check_engine(engine, workers, address, gpus, at_once)
    check_count("threads", threads, 1)
    workers = max(1, (os.cpu_count() or 1) // threads) if workers is None else workers
    if engine != "ray":  # a cluster may have other machines than this one
        make_fabric(accelerator=accelerator, devices=1)
    folder_digest.cache_clear()
    folder = check_place(results_dir, folder=True).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    every = {
        pinned.key: pinned for pinned in (experiment.pinned() for experiment in once(experiments))
    }
    todo, failed = _pending(every, folder, retry_failed)
    if not checked:
        check(todo, data_dir)
    for key in failed:
        _remove_failed(key, folder)
    plan = SweepPlan(
        str(folder),
        engine,
        threads,
        accelerator,
        at_once,
        str(data_root(data_dir).absolute()),
        os.getcwd(),
        " ".join(sys.argv),
        {} if engine == "local" else _modules(todo),
        [place or os.getcwd() for place in sys.path],
    )
    done = len(every) - len(todo)

    def announce(experiment: Experiment, result: Json) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(experiment, result, done, len(every))

    with _stops_counted(every.values(), folder):
        if todo and engine == "local":
            _run_here(todo, plan, announce, fit)
        elif todo and engine == "processes":
            _run_in_processes(todo, plan, announce, min(workers, len(todo)))
        elif todo:
            _run_on_ray(todo, plan, announce, workers, address, gpus)
    return {key: result for key in every if (result := read_result(folder, key)) is not None}


@contextmanager
def _stops_counted(every: Collection[Experiment], folder: Path) -> Iterator[None]:
    """Raise ``Interrupted`` with how far the sweep came; Ctrl-C may also come between two runs."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        if type(stopped) not in (Interrupted, KeyboardInterrupt):  # a search gave up one point
            raise
        count = Counter(status(every, folder).values())
        more = {"failed": count["failed"], "begun": count["interrupted"]}
        rest = "".join(f", {number} {state}" for state, number in more.items() if number)
        raise Interrupted(
            f"Stopped: {count['done']} of {counted(len(every), 'run')} done{rest}."
        ) from stopped


def _pending(
    every: Mapping[str, Experiment], folder: Path, retry: bool
) -> tuple[list[Experiment], set[str]]:
    """The experiments to run, those of one task together so that it is made once; and which have
    failed before.
    """
    states = {
        key: result["status"] for key in every if (result := read_result(folder, key)) is not None
    }
    failed = {key for key, state in states.items() if retry and state == "failed"}
    todo = [
        experiment
        for key, experiment in every.items()
        if key in failed or not is_complete(folder, experiment)
    ]
    order = {
        task: number for number, task in reversed(list(enumerate(e.without_method for e in todo)))
    }
    return sorted(todo, key=lambda experiment: order[experiment.without_method]), failed


def check_engine(
    engine: str,
    workers: int | None = None,
    address: str | None = None,
    gpus: float | None = None,
    at_once: int | None = None,
) -> None:
    """Refuse an unknown engine, and options that the engine would ignore."""
    if engine not in ENGINES:
        raise ValueError(f"Expected an engine of {', '.join(ENGINES)}, got {engine!r}.")
    users = {
        "workers": (workers, ENGINES[1:]),
        "address": (address, ("ray",)),
        "gpus": (gpus, ("ray",)),
        "at_once": (at_once, ENGINES[:2]),
    }
    for option, (value, engines) in users.items():
        if value is not None and engine not in engines:
            raise ValueError(
                f"Expected the engine {' or '.join(engines)} beside `{option}`, got {engine}, which"
                f" ignores it. Choose another engine, or leave `{option}` out."
            )
    for option, count in {"workers": workers, "at_once": at_once}.items():
        if count is not None:
            check_count(option, count, 1)
    if gpus is not None:
        check_number("gpus", gpus, "[0, inf)")


def _modules(experiments: Iterable[Experiment]) -> dict[str, str]:
    """The modules that workers import for plug-ins: all of them, since they may need each other."""
    names = {name for experiment in experiments for name in plugin_names(repr(experiment))}
    modules = plugin_modules() if names else set()
    files = {
        module: file
        for module in sorted(modules)
        if module != "__main__" and (file := module_file(module))
    }
    if mine := sorted(
        name for name in names if not files.keys() >= {*plugins.MODULES[name].values()}
    ):
        raise ValueError(
            "Expected names that workers can import, got names of the script itself"
            f" ({', '.join(map(repr, mine))}). Register them in a module of its own and import"
            " that, or use the local engine."
        )
    return files


def _set_up_worker(plan: Json) -> SweepPlan:
    """Prepare a worker's process: folder, path and plug-ins of the driver."""
    if os.path.isdir(plan["working_dir"]):
        os.chdir(plan["working_dir"])
    sys.path += [place for place in plan["path"] if place not in sys.path]
    for name, file in plan["modules"].items():
        try:
            importlib.import_module(name)
        except ImportError:  # the driver imported it by its path
            import_module(name, file)
    return SweepPlan(**plan)


def _remove_failed(key: str, folder: Path) -> None:
    lock = lock_run(folder, key)
    # another driver may have repeated it
    if lock.held and (read_result(folder, key) or {}).get("status") == "failed":
        shutil.rmtree(folder / "runs" / key, ignore_errors=True)
        result_path(folder, key).unlink(missing_ok=True)
    lock.release()


# In this process

Announce = Callable[[Experiment, Json], None]


def _run_here(
    todo: Sequence[Experiment],
    plan: SweepPlan,
    announce: Announce,
    fit: Fit = fit_many,
    wait: bool = True,
) -> None:
    """Train what no other process trains; then wait for the others, and take over from those that
    die.
    """
    folder = plan.folder
    load = lru_cache(maxsize=2)(partial(get_dataset, data_dir=plan.data_dir))
    fabrics = lru_cache(maxsize=None)(partial(make_fabric, accelerator=plan.accelerator, devices=1))
    alone_on_gpu = plan.engine == "local" and fabrics("32").device.type == "cuda"
    at_once = plan.at_once or (None if alone_on_gpu else 1)  # None: as many as its memory holds
    fleet = at_once != 1

    @lru_cache(maxsize=FLEET if at_once is None else max(TASKS, at_once))
    def make(experiment: Experiment) -> Task:
        return experiment.make_task(plan.data_dir, data=load(experiment.dataset))

    made_by = plan.provenance()
    waiting = {experiment.key: experiment for experiment in todo}
    troubles: dict[str, Exception] = {}  # by key: these runs are skipped
    warned = plan.engine != "local"  # workers have no one to warn

    def finish(experiment: Experiment, result: Json) -> None:
        del waiting[experiment.key]
        announce(experiment, result)

    # runs of one method have one head: next to each other, those of one shape can be stacked
    if fleet:
        methods = list(dict.fromkeys(experiment.method for experiment in todo))
        waiting = dict(sorted(waiting.items(), key=lambda item: methods.index(item[1].method)))
    with fixed_threads(plan.threads):
        while waiting:
            for precision in dict.fromkeys(experiment.precision for experiment in waiting.values()):
                open_runs = (
                    e
                    for key, e in waiting.items()
                    if e.precision == precision and key not in troubles
                )
                fit_here = partial(fit, fabric=fabrics(precision), at_once=at_once)
                for claims in _batches(_claim(open_runs, folder), FLEET if fleet else 1):
                    _train(claims, folder, make, made_by, finish, troubles, fit_here, plan.data_dir)
            _announce_finished(waiting, folder, announce)
            if not wait or waiting.keys() <= troubles.keys():
                break
            if not warned:
                warned = True
                _warn_waiting(waiting, folder)
            time.sleep(POLL)
    if troubles:
        raise next(iter(troubles.values()))


def _warn_waiting(keys: Collection[str], folder: Path) -> None:
    holders = (holder(folder, key) for key in keys)
    places = {describe_holder(one) for one in holders if one}
    log.warning(
        "waiting for %s of others: %s",
        counted(len(keys), "run"),
        ", ".join(sorted(places)) or "just finished",
    )


Claim = tuple[Experiment, Lock]


def _batches(claims: Iterator[Claim], size: int) -> Iterator[Iterable[Claim]]:
    """Up to ``size`` claims at a time, each taken only when it is used, so that other drivers find
    some.
    """
    while (first := next(claims, None)) is not None:
        yield chain([first], islice(claims, size - 1))


def _claim(experiments: Iterable[Experiment], folder: Path) -> Iterator[Claim]:
    """Lock experiments that have no result and are not in training elsewhere, one after another."""
    for experiment in list(experiments):
        if is_complete(folder, experiment):
            continue
        lock = lock_run(folder, experiment.key)
        if lock.held and not is_complete(folder, experiment):  # written in the meantime
            yield experiment, lock
        else:
            lock.release()


def _train(
    claims: Iterable[Claim],
    folder: Path,
    make: Callable[[Experiment], Task],
    made_by: Json,
    announce: Announce,
    troubles: dict[str, Exception],
    fit: Fit,
    data_dir: str | None = None,
) -> None:
    """Train experiments side by side; write and announce each result as soon as it is complete.

    Errors that are not the run's own give no result: those of the disk are raised, others are added
    to ``troubles``.
    """
    started: list[tuple[Experiment, Lock, Task]] = []
    disk_errors: list[OSError] = []

    def jobs() -> Iterator[Job]:
        """Each is made, with its task, when ``fit`` has room for it."""
        for experiment, lock in claims:
            run = experiment.plain  # checkpoints compare specs as text
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
            started.append((experiment, lock, task))
            out = folder / "runs" / experiment.key
            samples = run.records_samples
            yield Job(task, run.method, run.settings, run.seed, out, samples)

    def finished(number: int, outcome: Outcome) -> None:
        experiment, lock, task = started[number]
        if isinstance(outcome, OSError):  # no space left
            disk_errors.append(outcome)
        elif isinstance(outcome, BadCheckpoint):  # the folder of another run
            troubles[experiment.key] = outcome
        elif isinstance(outcome, (MemoryError, torch.OutOfMemoryError)):  # others may have taken it
            troubles[experiment.key] = MemoryError(
                f"Expected enough memory for every run, got none for {experiment.key}: {outcome}"
            )
        elif not isinstance(outcome, Interrupted):
            try:
                measured = (
                    measure(experiment, outcome, task, folder, data_dir)
                    if isinstance(outcome, Result)
                    else {}
                )
            except (
                ValueError,
                OSError,
            ) as error:  # its checkpoint stays: the same command measures it again
                troubles[experiment.key] = error
            else:
                result = make_result(experiment, outcome, task.train.rate, made_by, measured)
                write_result(folder, result)
                announce(experiment, result)
        lock.release()

    try:
        fit(jobs(), resume=True, finished=finished)
    finally:
        for _, lock, _ in started:
            lock.release()
    if disk_errors:
        raise disk_errors[0]


def _announce_finished(waiting: dict[str, Experiment], folder: Path, announce: Announce) -> None:
    for key in list(waiting):
        if is_complete(folder, waiting[key]) and (result := read_result(folder, key)) is not None:
            announce(waiting.pop(key), result)


# In several processes

# The order is read first: a long one would fill the pipe and block the driver until torch is
# imported. Modules come from the driver's path, but the standard library from Python: the folder
# may hold a csv.py.
START = """
import json, os, sys
order, own = json.loads(sys.stdin.readline()), os.path.dirname(os.__file__)
library = [place for place in sys.path if place.startswith(own) and "-packages" not in place]
sys.path[:] = dict.fromkeys([*library, *order["plan"]["path"], *sys.path])
from noiseproof.bench.engines import work
work(order)
"""


def _run_in_processes(
    todo: Sequence[Experiment], plan: SweepPlan, announce: Announce, workers: int
) -> None:
    """Keep ``workers`` processes alive until every run has a result."""
    # with the key of now: files may change
    runs = [(experiment.as_dict(), experiment.key) for experiment in todo]
    waiting = {experiment.key: experiment for experiment in todo}
    made_by = plan.provenance()
    every = frozenset(waiting)
    deaths = Counter[str]()
    team: list[_Worker] = []
    with stop_on_signals() as stop:
        try:
            team += [_Worker(plan, runs, number) for number in range(workers)]
            while waiting and not stop.requested:
                for place, worker in enumerate(team):
                    code = worker.process.poll()
                    key = worker.last_claim(every)
                    if code in (None, 0, TROUBLE):
                        continue
                    # of several, any may have killed it
                    deaths[key] += not key or worker.plan.at_once in (None, 1)
                    if not key and deaths[key] == MAX_DEATHS:
                        raise ChildProcessError(
                            f"Expected workers that start, got {MAX_DEATHS} with exit code {code}."
                        )
                    if deaths[key] >= MAX_DEATHS:
                        reason = (
                            f"its workers died {deaths[key]} times, the last with exit code {code}"
                        )
                        _give_up(waiting.get(key), plan.folder, reason, made_by)
                    worker.stop()
                    # shows which run it was
                    team[place] = _Worker(replace(plan, at_once=1), runs, place)
                ended = all(worker.process.poll() in (0, TROUBLE) for worker in team)
                _announce_finished(waiting, plan.folder, announce)
                if ended and waiting:
                    raise ChildProcessError(
                        f"Expected results of all runs, got none of {len(waiting)} from workers"
                        " that ended. Their output above tells why."
                    )
                time.sleep(POLL / 4)
        finally:
            for worker in team:  # all before waiting for any
                worker.request_stop()
            for worker in team:
                worker.stop()
    if waiting:
        raise Interrupted


class _Worker:
    """A process that trains until nothing is left, or until its driver stops or dies."""

    def __init__(self, plan: SweepPlan, runs: Sequence[tuple[Json, str]], number: int) -> None:
        self.plan = plan
        threads = str(plan.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if (count := torch.cuda.device_count()) > 1:  # spread over the GPUs
            devices = (
                os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
            ).split(",")
            environment["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START],  # -P: without the current folder on the path
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the driver only, which lets workers save first
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        with suppress(BrokenPipeError):  # it died already: see its exit code
            order = {"plan": asdict(plan), "experiments": runs}
            self.process.stdin.write(f"{json.dumps(order)}\n".encode())
            self.process.stdin.flush()
        self._output = b""

    def last_claim(self, keys: Container[str]) -> str:
        """The key of the run that it started last; "" if it has started none."""
        assert self.process.stdout is not None
        self._output = (self._output + (self.process.stdout.read() or b""))[-34:]
        lines = self._output.decode(errors="replace").split("\n")
        return lines[-2] if len(lines) > 1 and lines[-2] in keys else ""

    def request_stop(self) -> None:
        """Close its input, upon which it saves and ends."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def stop(self) -> None:
        assert self.process.stdout is not None
        self.request_stop()
        while self.process.poll() is None:
            self.process.stdout.read()  # a full pipe would block it
            time.sleep(POLL / 4)
        self.process.stdout.close()


def work(order: Json) -> None:
    """Train the runs of ``order`` in a worker's process, which writes the key of each on its
    standard output.
    """
    claims = os.dup(1)
    os.dup2(2, 1)  # what plug-ins print is not for the driver
    threading.Thread(target=_stop_with_driver, daemon=True).start()

    def report(jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            os.write(claims, f"{Path(str(job.out)).name}\n".encode())
            yield job

    def fit(jobs: Iterable[Job], **options: Any) -> Sequence[Outcome]:
        return fit_many(report(jobs), **options)

    try:
        plan = _set_up_worker(order["plan"])
        _run_here(
            [Experiment.from_dict(*run) for run in order["experiments"]], plan, lambda *_: None, fit
        )
    except Interrupted:
        sys.exit(130)
    except (BadCheckpoint, BadExperiment, MemoryError, OSError) as error:
        log.error("%s: %s", type(error).__name__, error)
        sys.exit(TROUBLE)


def _stop_with_driver() -> None:
    """Wait until the driver's end of the pipe closes, because it stopped or died; then end this
    process.
    """
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)  # the loop saves a checkpoint


def _give_up(experiment: Experiment | None, folder: Path, reason: str, made_by: Json) -> None:
    """Write a failed result, unless another process trains the experiment or has finished it."""
    if experiment is None:
        return
    for _, lock in _claim([experiment], folder):
        write_result(folder, make_result(experiment, RuntimeError(reason), None, made_by))
        lock.release()


# On a Ray cluster


def _run_on_ray(
    todo: Sequence[Experiment],
    plan: SweepPlan,
    announce: Announce,
    workers: int,
    address: str | None,
    gpus: float | None,
) -> None:
    """Submit one task for each experiment; Ray places them, and restarts one whose worker died."""
    with ray_session(address, num_cpus=workers * plan.threads) as ray:
        share = float(torch.cuda.is_available()) if gpus is None else gpus
        _check_room(ray.cluster_resources(), plan.threads, share, address)
        task = ray.remote(num_cpus=plan.threads, num_gpus=share, max_retries=MAX_DEATHS - 1)(
            _work_on_ray
        )
        made_by = plan.provenance()
        waiting = {experiment.key: experiment for experiment in todo}
        running = {
            task.remote(asdict(plan), experiment.as_dict(), experiment.key): experiment
            for experiment in todo
        }
        troubles: list[Exception] = []
        with stop_on_signals() as stop:
            while running and not stop.requested:
                ready, _ = ray.wait(list(running), timeout=POLL)
                for ref in ready:
                    experiment = running.pop(ref)
                    try:
                        taken = _take(ray, ref, experiment, plan.folder, made_by)
                    except (
                        ray.exceptions.RayTaskError
                    ) as error:  # an error in the task, not the death of its worker
                        troubles.append(error)
                        continue
                    if not taken:
                        time.sleep(POLL)  # another driver trains it
                        running[task.remote(asdict(plan), experiment.as_dict(), experiment.key)] = (
                            experiment
                        )
                _announce_finished(waiting, plan.folder, announce)
            if running:
                for ref in running:
                    ray.cancel(ref)  # interrupts the run, which saves a checkpoint
                ray.wait(list(running), num_returns=len(running), timeout=30)
                raise Interrupted
        if troubles:
            raise troubles[0]


def _check_room(
    resources: Mapping[str, float], threads: int, gpus: float, address: str | None
) -> None:
    """Refuse what Ray could never place; on a cluster, which may grow, warn."""
    if threads <= resources.get("CPU", 0) and gpus <= resources.get("GPU", 0):
        return
    message = (
        f"Expected {threads} processors and {gpus:g} GPUs for each run, Ray has"
        f" {resources.get('CPU', 0):g} and {resources.get('GPU', 0):g}. Ask for less: --threads,"
        " --gpus."
    )
    if address is None:
        raise ValueError(message)
    log.warning("%s Waiting until the cluster grows.", message)


def _work_on_ray(plan: Json, experiment: Json, key: str) -> Json | None:
    """A Ray task: the result of one experiment, None if another driver trains it."""
    local_plan = _set_up_worker(plan)
    run = Experiment.from_dict(experiment, key)
    _run_here([run], local_plan, lambda *_: None, wait=False)
    return read_result(local_plan.folder, key) if is_complete(local_plan.folder, run) else None


def _take(ray: Any, ref: Any, experiment: Experiment, folder: Path, made_by: Json) -> bool:
    """Whether the task has returned a result, which is written here if its machine has another
    folder.
    """
    try:
        result = ray.get(ref)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        _give_up(experiment, folder, f"its Ray task failed: {error}", made_by)
        return read_result(folder, experiment.key) is not None
    if result is not None and not is_complete(folder, experiment):
        write_result(folder, result)
    return result is not None
