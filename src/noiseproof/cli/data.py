"""`noiseproof data`: list, download and look at datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli.main import TRAINING, app
from noiseproof.cli.options import Foreign, names, option
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
    from noiseproof.data import Dataset
    from noiseproof.noise import NoisyLabels

data_app = typer.Typer(help="List, download and look at datasets.", no_args_is_help=True)
app.add_typer(data_app, name="data", rich_help_panel=TRAINING)
TINY_MATRIX = 10  # classes; a larger matrix does not fit on a screen


@data_app.command("list", epilog=examples("data list", "data list --data-dir /srv/data"))
@refusals()
def data_list(data_dir: DataDir = None) -> None:
    """List every dataset: what it is, whether its files are here, where they are searched, how to
    get them.
    """
    from noiseproof.data import DATASETS
    from noiseproof.data.sources import FILES, data_root

    rows = []
    for name in DATASETS:
        data = describe(DATASETS, name)
        files = FILES.get(name)
        here, where, get = "yes", "needs no files", ""
        if data["required"]:
            here, where = "", ""
            get = f"your own: {name}:{','.join(f'{key}=…' for key in data['required'])}"
        elif files is not None:
            paths = find_files(name, data_dir)
            here = "yes" if paths else "no"
            where = ", ".join(paths) or "; and ".join(map(" or ".join, files.places))
            get = files.request or f"noiseproof data fetch {name}"
        rows.append((name, here, data["summary"], where, get))
    echo(f"data folder: {data_root(data_dir)}")
    show(("name", "here", "what it is", "found in, or searched in", "how to get it"), rows)


def find_files(name: str, data_dir: str | None) -> list[str]:
    """Return the paths of the official files of a dataset, [] if some are missing or incomplete."""
    from noiseproof.data.sources import FILES, find

    try:
        paths = [find(name, data_dir, group) for group in range(len(FILES[name].places))]
    except FileNotFoundError:
        return []
    for folder in filter(lambda path: path.is_dir(), paths):
        files = list(folder.iterdir())
        if not files or any(file.suffix == ".part" for file in files):
            return []
    return [str(path) for path in paths]


@data_app.command(
    "fetch", epilog=examples("data fetch mnist", "data fetch cifar10n --data-dir /srv/data")
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
) -> None:
    """Download a dataset from its official source, check it and unpack it; continue an earlier
    download.
    """
    from noiseproof.data.research.fetch import fetch
    from noiseproof.data.sources import FILES, data_root

    downloads = FILES[name].downloads if name in FILES else ()
    parts = [data_root(data_dir) / f"{item.path}.part" for item in downloads]
    for part in parts:
        if part.exists():
            say(f"continuing {part} after {part.stat().st_size / 1e6:.1f} MB")
    try:
        with stage_progress() as progress:

            def in_megabytes(file: str, done: int, total: int | None) -> None:
                progress(f"{file}, MB:", done // 10**6, total and total // 10**6)

            files = fetch(name, data_dir, progress=in_megabytes)
    except KeyboardInterrupt:
        saved = " and ".join(str(part) for part in parts if part.exists())
        where = f"The data so far is in {saved}. " if saved else ""
        say(f"interrupted. {where}Run the same command again to continue.")
        raise typer.Exit(130) from None
    for file in files:
        echo(file)


@data_app.command(
    "show",
    epilog=examples(
        "data show digits --noise symmetric:rate=0.4",
        "data show cifar10 --noise open-set:rate=0.4 --foreign cifar100",
        "data show table:table=mine.csv,label=kind",
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
        str,
        option("Noise of the training labels: symmetric:rate=0.4, …", complete=names("noises")),
    ] = "none",
    foreign: Foreign = None,
    as_json: AsJson = False,
) -> None:
    """Show a dataset: sizes, shapes, classes and oddities; with noise, the labels after it."""
    from noiseproof.bench.experiment import foreign_images
    from noiseproof.data import corrupt, get_dataset
    from noiseproof.data.sources import data_root
    from noiseproof.noise import NoisyLabels, get_noise

    check_foreign(foreign, noise)
    data = get_dataset(spec, data_dir)
    model = get_noise(noise, data_root(data_dir))
    corrupted = corrupt(data, model, generator=0, foreign=foreign_images(foreign, data_dir))
    labels = None
    # without ``noise``, only where the labels of the dataset itself are noisy
    if corrupted.clean is not None and (noise != "none" or corrupted.rate):
        name = data.name if noise == "none" else noise
        labels = NoisyLabels(
            corrupted.given, corrupted.clean, data.num_classes, name, model.nominal
        )
    parts = _parts(data)
    classes = _classes(data.classes, corrupted.given, labels)
    if as_json:
        summary = None
        if labels is not None:
            summary = {
                "noise": labels.noise,
                "rate": labels.rate,
                "nominal": labels.nominal,
                "flipped": int(labels.is_flipped.sum()),
                "transition": labels.transition().tolist(),
            }
        about = {"name": data.name, "parts": parts, "classes": classes, "notes": data.notes}
        return show_json(about | {"noise": summary})
    rows = [
        (p["part"], str(p["rows"]), " × ".join(map(str, p["shape"])), p["dtype"]) for p in parts
    ]
    show((data.name, "rows", "shape", "dtype"), rows)
    for note in data.notes:
        echo(f"note: {note}")
    if labels is not None:
        echo(f"\n{labels}")
    echo()
    columns = list(classes[0])
    show(columns, [[plain(row[column], ".3f") for column in columns] for row in classes])
    if labels is not None and data.num_classes <= TINY_MATRIX:
        echo("\ntransition: share of each true class (row) given each label (column)")
        matrix = zip(data.classes, labels.transition().tolist(), strict=True)
        show(("", *data.classes), [(c, *(f"{t:.3f}" for t in row)) for c, row in matrix])
    return None


def _parts(data: Dataset) -> list[dict[str, Any]]:
    splits = {name: getattr(data, name) for name in ("train", "validation", "test", "trusted")}
    return [
        {
            "part": name,
            "rows": len(split),
            "shape": list(split.x[0].shape),
            "dtype": str(split.x[0].dtype).removeprefix("torch."),
        }
        for name, split in splits.items()
        if split is not None
    ]


def _classes(names: Sequence[str], given: Any, labels: NoisyLabels | None) -> list[dict[str, Any]]:
    """Return each class with its training rows, and if the truth is known, how many have wrong
    labels.
    """
    clean = given if labels is None else labels.clean
    rows: list[dict[str, Any]] = []
    for k, name in [*enumerate(names), (-1, "(no class)")]:
        of_class = given[clean == k]
        row: dict[str, Any] = {"class": name, "rows": len(of_class)}
        if labels is not None:
            wrong = of_class[of_class != k]
            row |= {"wrong": len(wrong), "rate": None, "mostly given as": None}
            if len(of_class):
                row["rate"] = len(wrong) / len(of_class)
            if len(wrong):
                row["mostly given as"] = names[int(wrong.mode().values)]
        if k >= 0 or len(of_class):  # only open-set noise has images of no class
            rows.append(row)
    return rows


def check_foreign(foreign: str | None, noise: str) -> None:
    """Refuse a dataset of images without open-set noise."""
    from noiseproof.noise import get_noise
    from noiseproof.noise.openset import OpenSet

    if foreign is not None and not isinstance(get_noise(noise), OpenSet):
        raise ValueError(
            f"Expected --noise open-set:rate=… with --foreign {foreign}, whose images it inserts,"
            f" got {noise}. Leave --foreign out, or use that noise."
        )
