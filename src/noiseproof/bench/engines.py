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
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from noiseproof.accelerate import Job, Outcome, fit_many
from noiseproof.bench.experiment import BadExperiment, Experiment, check, folder_digest
from noiseproof.bench.results import (
    THREADS,
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
        return provenance(self.engine, self.command, self.accelerator)


def run_all(
    experiments: Iterable[Experiment],
    results_dir: str | Path,
    *,
    engine: str = "local",
    workers: int | None = None,
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
        workers: number of processes, by default as many as cores; the processors of a local Ray.
            Each run has one thread.
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
    workers = workers or os.cpu_count() or 1
    if engine != "ray":  # a cluster may have other machines than this one
        make_fabric(accelerator=accelerator, devices=1)
    folder_digest.cache_clear()
    folder = check_place(results_dir, folder=True).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    every = {experiment.key: experiment.pinned() for experiment in once(experiments)}
    failed = _failed(every, folder) if retry_failed else []
    todo = _todo(every, failed, folder)
    if not checked:
        check(todo, data_dir)
    for key in failed:
        _remove_failed(key, folder)
    plan = SweepPlan(
        str(folder),
        engine,
        accelerator,
        at_once,
        str(data_root(data_dir).absolute()),
        os.getcwd(),
        " ".join(sys.argv),
        _modules(todo) if engine != "local" else {},
        [place or os.getcwd() for place in sys.path],
    )
    done = len(every) - len(todo)

    def announce(experiment: Experiment, result: Json) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(experiment, result, done, len(every))

    try:
        if engine == "local":
            _run_here(todo, plan, announce, fit)
        elif engine == "processes":
            _run_in_processes(todo, plan, announce, min(workers, len(todo)))
        elif todo:
            _run_on_ray(todo, plan, announce, workers, address, gpus)
    except (Interrupted, KeyboardInterrupt) as stopped:  # the latter between two runs
        if type(stopped) not in (Interrupted, KeyboardInterrupt):  # a search gave up one point
            raise
        raise Interrupted(_how_far(every.values(), folder)) from stopped
    return {key: result for key in every if (result := read_result(folder, key)) is not None}


def _how_far(every: Collection[Experiment], folder: Path) -> str:
    count = Counter(status(every, folder).values())
    more = {"failed": count["failed"], "begun": count["interrupted"]}
    rest = "".join(f", {number} {state}" for state, number in more.items() if number)
    return f"Stopped: {count['done']} of {counted(len(every), 'run')} done{rest}."


def _failed(keys: Iterable[str], folder: Path) -> list[str]:
    return [key for key in keys if (read_result(folder, key) or {}).get("status") == "failed"]


def _todo(
    every: Mapping[str, Experiment], failed: Collection[str], folder: Path
) -> list[Experiment]:
    """Return the experiments to run, the runs of one task together so that it is made once."""
    todo: dict[Experiment, list[Experiment]] = {}
    for key, experiment in every.items():
        if key in failed or not is_complete(folder, experiment):
            todo.setdefault(experiment.without_method, []).append(experiment)
    return [experiment for of_task in todo.values() for experiment in of_task]


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
                f"Expected the engine {' or '.join(engines)} with `{option}`, got {engine}, which"
                f" ignores it. Choose another engine, or leave `{option}` out."
            )
    for option, count in {"workers": workers, "at_once": at_once}.items():
        if count is not None:
            check_count(option, count, 1)
    if gpus is not None:
        check_number("gpus", gpus, "[0, inf)")


def _modules(experiments: Iterable[Experiment]) -> dict[str, str]:
    """Return the modules that workers import for plug-ins: all of them, since they may need each
    other.
    """
    names = {name for experiment in experiments for name in plugin_names(repr(experiment))}
    if not names:
        return {}
    files = {module: module_file(module) for module in sorted(plugin_modules() - {"__main__"})}
    known = {module: file for module, file in files.items() if file}
    of_script = sorted(
        name for name in names if not {*plugins.MODULES[name].values()} <= set(known)
    )
    if of_script:
        raise ValueError(
            "Expected names that workers can import, got names of the script itself"
            f" ({', '.join(map(repr, of_script))}). Register them in a module of its own and import"
            " that, or use the local engine."
        )
    return known


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
    if lock.held and _failed([key], folder):  # another driver may have repeated it
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

    # runs of one method have one head: next to each other, runs of one shape can be stacked
    if fleet:
        methods = list(dict.fromkeys(experiment.method for experiment in todo))
        waiting = dict(sorted(waiting.items(), key=lambda item: methods.index(item[1].method)))
    with fixed_threads(THREADS):
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
    """Yield up to ``size`` claims at a time, each taken only when it is used, so that other
    drivers find some.
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

    Errors that are not the run's own give no result: errors of the disk are raised, others go to
    ``troubles``.
    """
    started: list[tuple[Experiment, Lock, Task]] = []
    disk_errors: list[OSError] = []

    def jobs() -> Iterator[Job]:
        """Yield the jobs; each is made, with its task, when ``fit`` has room for it."""
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

# Closing its input asks a worker to save and end; so does the death of its driver.
START = "import sys; from noiseproof.bench.engines import work; work(sys.argv[1])"


def _run_in_processes(
    todo: Sequence[Experiment], plan: SweepPlan, announce: Announce, workers: int
) -> None:
    """Keep ``workers`` processes alive until every run has a result."""
    # with the key of now: files may change
    runs = [(experiment.as_dict(), experiment.key) for experiment in todo]
    waiting = {experiment.key: experiment for experiment in todo}
    deaths = Counter[str]()  # by the run that the worker claimed last
    team: list[_Worker] = []
    with stop_on_signals() as stop, tempfile.TemporaryDirectory() as folder:
        try:
            team += [_Worker(plan, runs, number, Path(folder)) for number in range(workers)]
            while waiting and not stop.requested:
                for worker in team:
                    if worker.process.poll() in (None, 0, TROUBLE):
                        continue
                    _count_death(worker, deaths, waiting, plan)
                    worker.restart()
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
                worker.process.wait()
    if waiting:
        raise Interrupted


class _Worker:
    """A process that trains until nothing is left, or until its driver stops or dies."""

    def __init__(
        self, plan: SweepPlan, runs: Sequence[tuple[Json, str]], number: int, folder: Path
    ) -> None:
        self.plan = plan
        self.runs = runs
        self.number = number
        self.order = folder / f"order-{number}.json"
        self.claimed = folder / f"claimed-{number}"  # the key of the run that it started last
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.claimed.write_text("")
        order = {"plan": asdict(self.plan), "runs": self.runs, "claimed": str(self.claimed)}
        self.order.write_text(json.dumps(order))
        home = str(Path(__file__).parents[2])  # where this noiseproof is
        path = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(THREADS),
            "MKL_NUM_THREADS": str(THREADS),
            "PYTHONPATH": os.pathsep.join(path),
        }
        if (count := torch.cuda.device_count()) > 1:  # spread over the GPUs
            visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
            devices = visible.split(",")
            environment["CUDA_VISIBLE_DEVICES"] = devices[self.number % len(devices)]
        return subprocess.Popen(
            # -P: without the current folder on the path
            [sys.executable, "-P", "-c", START, str(self.order)],
            stdin=subprocess.PIPE,
            stdout=2,  # what plug-ins print is not the output of the driver
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the driver only, which lets workers save first
        )

    def restart(self) -> None:
        """Start again with one run at a time, which shows the run that it dies of."""
        self.request_stop()
        self.plan = replace(self.plan, at_once=1)
        self.process = self._start()

    def request_stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


def _count_death(
    worker: _Worker, deaths: Counter[str], waiting: Mapping[str, Experiment], plan: SweepPlan
) -> None:
    """Count the death for the run that the worker trained; give up a run with too many."""
    key = worker.claimed.read_text()
    code = worker.process.returncode
    if not key or worker.plan.at_once in (None, 1):  # of several runs, any may have killed it
        deaths[key] += 1
    if deaths[key] < MAX_DEATHS:
        return
    if not key:
        raise ChildProcessError(
            f"Expected workers that start, got {MAX_DEATHS} with exit code {code}."
        )
    if key in waiting:
        reason = f"its workers died {deaths[key]} times, the last with exit code {code}"
        _give_up(waiting[key], plan.folder, reason, plan.provenance())


def work(order_file: str) -> None:
    """Train runs in a process of a worker, as its order says."""
    threading.Thread(target=_stop_with_driver, daemon=True).start()
    order = json.loads(Path(order_file).read_text())
    claimed = Path(order["claimed"])

    def claims(jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            claimed.write_text(Path(str(job.out)).name)
            yield job

    def fit(jobs: Iterable[Job], **options: Any) -> Sequence[Outcome]:
        return fit_many(claims(jobs), **options)

    try:
        plan = _set_up_worker(order["plan"])
        runs = [Experiment.from_dict(*run) for run in order["runs"]]
        _run_here(runs, plan, lambda *_: None, fit)
    except Interrupted:
        sys.exit(130)
    except (BadCheckpoint, BadExperiment, MemoryError, OSError) as error:
        log.error("%s: %s", type(error).__name__, error)
        sys.exit(TROUBLE)


def _stop_with_driver() -> None:
    """Wait until the driver closes the input of this process or dies, then end the process."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)  # the loop saves a checkpoint


def _give_up(experiment: Experiment, folder: Path, reason: str, made_by: Json) -> None:
    """Write a failed result, unless another process trains the experiment or has finished it."""
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
    with ray_session(address, num_cpus=workers * THREADS) as ray:
        share = float(torch.cuda.is_available()) if gpus is None else gpus
        task = ray.remote(num_cpus=THREADS, num_gpus=share, max_retries=MAX_DEATHS - 1)(
            _work_on_ray
        )

        def submit(experiment: Experiment) -> Any:
            return task.remote(asdict(plan), experiment.as_dict(), experiment.key)

        waiting = {experiment.key: experiment for experiment in todo}
        running = {submit(experiment): experiment for experiment in todo}
        troubles: list[Exception] = []
        with stop_on_signals() as stop:
            while running and not stop.requested:
                ready, _ = ray.wait(list(running), timeout=POLL)
                for ref in ready:
                    experiment = running.pop(ref)
                    try:
                        has_result = _take(ray, ref, experiment, plan)
                    except ray.exceptions.RayTaskError as error:  # an error in the task itself
                        troubles.append(error)
                        continue
                    if not has_result:  # another driver trains it
                        time.sleep(POLL)
                        running[submit(experiment)] = experiment
                _announce_finished(waiting, plan.folder, announce)
            if running:
                for ref in running:
                    ray.cancel(ref)  # interrupts the run, which saves a checkpoint
                ray.wait(list(running), num_returns=len(running), timeout=30)
                raise Interrupted
        if troubles:
            raise troubles[0]


def _work_on_ray(plan: Json, experiment: Json, key: str) -> Json | None:
    """Return the result of one experiment, as a task of Ray; None if another driver trains it."""
    local_plan = _set_up_worker(plan)
    run = Experiment.from_dict(experiment, key)
    _run_here([run], local_plan, lambda *_: None, wait=False)
    return read_result(local_plan.folder, key) if is_complete(local_plan.folder, run) else None


def _take(ray: Any, ref: Any, experiment: Experiment, plan: SweepPlan) -> bool:
    """Return whether the experiment has a result; one that another machine made is written here."""
    try:
        result = ray.get(ref)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        reason = f"its Ray task failed: {error}"
        _give_up(experiment, plan.folder, reason, plan.provenance())
        return read_result(plan.folder, experiment.key) is not None
    if result is not None and not is_complete(plan.folder, experiment):
        write_result(plan.folder, result)
    return result is not None
