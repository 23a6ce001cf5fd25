"""`noiseproof data`: list, download and look at datasets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli.main import TRAINING, app
from noiseproof.cli.options import names
from noiseproof.cli.show import (
    AsJson,
    DataDir,
    describe,
    echo,
    examples,
    plain,
    refusals,
    say,
    show,
    show_json,
    stage_progress,
)

if TYPE_CHECKING:
    from noiseproof.core.messages import Progress
    from noiseproof.data import Dataset
    from noiseproof.noise import NoisyLabels

data_app = typer.Typer(help="List, download and look at datasets.", no_args_is_help=True)
app.add_typer(data_app, name="data", rich_help_panel=TRAINING)
FEW_CLASSES, TINY_MATRIX = 20, 10  # more classes do not fit on a screen; --json has them all


@data_app.command("list", epilog=examples("data list", "data list --data-dir /srv/data --json"))
@refusals()
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every dataset: what it is, whether its files are here, where they are searched, how to
    get them.
    """
    from noiseproof.data import DATASETS
    from noiseproof.data.sources import FILES, data_root

    described = []
    for name in DATASETS:
        data = describe(DATASETS, name)
        data["parameters"].pop("data_dir", None)
        paths = None if data["required"] else find_files(name, data_dir)
        files = FILES.get(name)
        get = "" if files is None else files.request or f"noiseproof data fetch {name}"
        if data["required"]:
            get = f"your own: {name}:{','.join(f'{key}=…' for key in data['required'])}"
        groups = files.places if files else ()
        described.append(
            {**data, "here": paths is not None, "found": paths, "places": groups, "get": get}
        )
    if as_json:
        return show_json({"data_dir": data_root(data_dir), "datasets": described})
    rows = []
    for data in described:
        here = "" if data["required"] else "yes" if data["here"] else "no"
        places = "; and ".join(" or ".join(group) for group in data["places"])
        where = (
            ", ".join(data["found"] or ()) or places or "needs no files" * (not data["required"])
        )
        rows.append((data["name"], here, data["summary"], where, data["get"]))
    echo(f"data folder: {data_root(data_dir)}")
    return show(("name", "here", "what it is", "found in, or searched in", "how to get it"), rows)


def find_files(name: str, data_dir: str | None) -> list[str] | None:
    """Return the paths of a dataset, [] if it needs none; None if some are missing or
    incomplete.
    """
    from noiseproof.data.sources import FILES, find

    try:
        paths = [
            find(name, data_dir, group)
            for group in range(len(FILES[name].places) if name in FILES else 0)
        ]
    except FileNotFoundError:
        return None
    for files in (list(path.iterdir()) for path in paths if path.is_dir()):
        if not files or any(file.suffix == ".part" for file in files):
            return None
    return [str(path) for path in paths]


@data_app.command(
    "fetch",
    epilog=examples(
        "data fetch mnist",
        "data fetch cifar10n --data-dir /srv/data",
        "data fetch mnist --mirror https://files.example.org/mnist --json",
    ),
)
@refusals()
def data_fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="A dataset of `noiseproof data list`.", autocompletion=names("datasets")
        ),
    ],
    data_dir: DataDir = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            help="URL of a folder with the official files, for machines behind a firewall."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a dataset from its official source, check it and unpack it; continue an earlier
    download.
    """
    from noiseproof.data.research.fetch import fetch
    from noiseproof.data.sources import FILES, data_root

    parts = [
        data_root(data_dir) / f"{item.path}.part"
        for item in (FILES[name].downloads if name in FILES else ())
    ]
    for part in filter(lambda part: part.exists(), parts):
        say(f"continuing {part} after {part.stat().st_size / 1e6:.1f} MB")
    try:
        with _progress() as progress:
            files = fetch(name, data_dir, progress=progress, base_url=mirror)
    except KeyboardInterrupt:
        saved = " and ".join(str(part) for part in parts if part.exists())
        where = f"The data so far is in {saved}. " if saved else ""
        say(f"interrupted. {where}Run the same command again to continue.")
        raise typer.Exit(130) from None
    if as_json:
        return show_json({"name": name, "files": files})
    for file in files:
        echo(str(file))
    return None


@data_app.command(
    "show",
    epilog=examples(
        "data show digits --noise symmetric:rate=0.4",
        "data show cifar10 --noise asymmetric-cifar10:rate=0.4 --seed 1 --json",
        "data show cifar10 --noise open-set:rate=0.4 --foreign cifar100",
        "data show table:table=mine.csv,label=kind",
        "data show mnist --data-dir /srv/data",
    ),
)
@refusals()
def data_show(
    spec: Annotated[
        str,
        typer.Argument(
            help="The dataset: digits, cifar10n:labels=worst, folder:path=photos, …",
            autocompletion=names("datasets"),
        ),
    ],
    data_dir: DataDir = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="Noise of the training labels: symmetric:rate=0.4, …",
            autocompletion=names("noises"),
        ),
    ] = None,
    foreign: Annotated[
        str | None,
        typer.Option(
            help="The dataset whose images open-set noise inserts.",
            autocompletion=names("datasets"),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show a dataset: sizes, shapes, classes and oddities; with noise, the labels after it."""
    from noiseproof.bench.experiment import foreign_images
    from noiseproof.data import corrupt, get_dataset
    from noiseproof.data.sources import data_root
    from noiseproof.noise import NoisyLabels, get_noise

    check_foreign(foreign, noise or "none")
    data = get_dataset(spec, data_dir)
    model = get_noise(noise or "none", data_root(data_dir))
    given = corrupt(data, model, generator=seed, foreign=foreign_images(foreign, data_dir))
    labels = None
    if given.clean is not None and (noise or given.rate):  # or the labels are noisy already
        nominal = model.nominal if noise else None
        labels = NoisyLabels(
            given.given, given.clean, data.num_classes, noise or data.name, nominal
        )
    classes = _classes(data.classes, given.given, labels)
    if as_json:
        summary = labels and {
            "noise": labels.noise,
            "seed": seed,
            "rate": labels.rate,
            "nominal": labels.nominal,
            "flipped": int(labels.is_flipped.sum()),
            "transition": labels.transition().tolist(),
        }
        return show_json(
            {
                "name": data.name,
                "parts": _parts(data),
                "classes": classes,
                "notes": data.notes,
                "noise": summary,
            }
        )
    rows = [
        (p["part"], str(p["rows"]), " × ".join(map(str, p["shape"])), p["dtype"])
        for p in _parts(data)
    ]
    show((data.name, "rows", "shape", "dtype"), rows)
    for note in data.notes:
        echo(f"note: {note}")
    if labels is not None:
        echo(f"\n{labels}")
    echo()
    if len(classes) > FEW_CLASSES:
        return _summarise_classes(data, classes)
    columns = list(classes[0])
    show(
        columns,
        [["" if row[c] is None else plain(row[c], ".3f") for c in columns] for row in classes],
    )
    if labels is not None and data.num_classes <= TINY_MATRIX:
        _show_transition(data.classes, labels)
    return None


def _show_transition(classes: Sequence[str], labels: NoisyLabels) -> None:
    echo("\ntransition: share of each true class (row) given each label (column)")
    matrix = zip(classes, labels.transition().tolist(), strict=True)
    show(("", *classes), [(c, *(f"{t:.3f}" for t in row)) for c, row in matrix])


def _parts(data: Dataset) -> list[dict[str, Any]]:
    return [
        {
            "part": part,
            "rows": len(split),
            "shape": list(split.x[0].shape),
            "dtype": str(split.x[0].dtype)[6:],
        }
        for part in ("train", "validation", "test", "trusted")
        if (split := getattr(data, part)) is not None
    ]


def _summarise_classes(data: Dataset, classes: Sequence[dict[str, Any]]) -> None:
    counts = [row["rows"] for row in classes if row["class"] in data.classes]
    rates = [row["rate"] for row in classes if row.get("rate") is not None]
    echo(
        f"{data.num_classes} classes of {min(counts)} to {max(counts)} training rows; --json lists"
        " them"
    )
    if rates:
        echo(f"share of wrong labels by class: {min(rates):.3f} to {max(rates):.3f}")


def check_foreign(foreign: str | None, noise: str) -> None:
    """Refuse a dataset of images without open-set noise."""
    from noiseproof.noise import get_noise
    from noiseproof.noise.openset import OpenSet

    if foreign is not None and not isinstance(get_noise(noise), OpenSet):
        raise ValueError(
            f"Expected --noise open-set:rate=… beside --foreign {foreign}, whose images it inserts,"
            f" got {noise}. Leave --foreign out, or use that noise."
        )


def _classes(names: Sequence[str], given: Any, labels: NoisyLabels | None) -> list[dict[str, Any]]:
    """Return one row per class: its training rows, and if the truth is known, how many have wrong
    labels.
    """
    import torch

    counts = torch.bincount(given, minlength=len(names)).tolist()
    if labels is None:
        return [{"class": name, "rows": count} for name, count in zip(names, counts, strict=True)]
    rows: list[dict[str, Any]] = []
    for k, name in [*enumerate(names), (-1, "(no class)")]:
        given_labels = labels.given[labels.clean == k]
        if k < 0 and not len(given_labels):  # only open-set noise has images of no class
            continue
        wrong = given_labels[given_labels != k]
        most = int(torch.bincount(wrong).argmax()) if len(wrong) else None
        rows.append(
            {
                "class": name,
                "rows": len(given_labels),
                "wrong": len(wrong),
                "rate": len(wrong) / len(given_labels) if len(given_labels) else None,
                "mostly given as": None if most is None else names[most],
            }
        )
    return rows


def _progress() -> AbstractContextManager[Progress]:
    """Report the progress of a download: a bar on a terminal, else a line for every tenth."""
    reported: dict[str, int] = {}

    def report(file: str, done: int, total: int | None) -> None:
        tenth = 10 * done // total if total else done // 10**7
        if reported.get(file) != tenth:
            reported[file] = tenth
            echo(
                f"{file}: {done / 1e6:.1f}" + (f" of {total / 1e6:.1f}" if total else "") + " MB",
                err=True,
            )

    return stage_progress(report, "DownloadColumn", "TransferSpeedColumn", "TimeRemainingColumn")
