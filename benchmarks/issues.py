"""Issue types beside cleanlab's Datalab: planted problems that are found, false alarms on the same
data without them.

    python benchmarks/issues.py [--sets income chile …] [--types order slice …] [--table]
    python benchmarks/issues.py --dev              # the sets that thresholds were changed after a
    look at

Each type is looked for in each set twice: as it is, its rows shuffled and at most 1 000 of them,
and with one problem planted. Types about rows count planted rows that are marked, and all others
that are; types about the whole count sets. Both get the same features and predictions: for `slice`
and `imbalance`, the given labels with one in ten replaced at random. Datalab gets one call of
``find_issues`` for the type, with its defaults; seconds are those of the type alone, the fastest of
three runs, with the search for neighbours where it needs one. Types that Datalab does not have are
run without it. Thresholds of ours were chosen on the sets of ``DEV`` in tablesets.py, five of them
after a look at ``REPORT`` (``--dev``, seed 0), and are reported on ``UNSEEN`` (seed 1), which was
run when they were fixed. Odd texts are lines of Debian's fortunes in six languages and garbled
ones, drawn with the seed (``--dev``: a list); pictures are 150 crops of six photographs of
scikit-image 0.20 (``--dev``: of two of scikit-learn). cleanlab is needed for its own rows alone:
``pip install --target FOLDER --no-deps cleanlab==2.9.0 cleanvision==0.3.7 termcolor imagehash
tabulate PyWavelets``, with FOLDER on the PYTHONPATH. ``--table`` prints Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import string
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tablesets import REPORT, UNSEEN, Missing, Spec, debian, load, module_folder
from timing import provenance, write_rows

from noiseproof.audit import read_rows
from noiseproof.audit.issues import ISSUES
from noiseproof.judge.evidence.gather import AuditEvidence, Surroundings
from noiseproof.judge.labels import find_label_issues

RESULTS = Path(__file__).parent / "results"
ROWS, PLANTED, WRONG = 1000, 10, 0.1
REPEATS = 3  # of which the fastest counts
PICTURES = ("dark", "bright", "blurred", "blank", "of an odd size")
DATALAB = {  # its names of our types
    "near-duplicate": "near_duplicate",
    "outlier": "outlier",
    "order": "non_iid",
    "imbalance": "class_imbalance",
    "slice": "underperforming_group",
    "columns": "null",
}


class Case(NamedTuple):
    """A table with its label column, the rows or the set that were planted, and predictions."""

    frame: pd.DataFrame
    planted: Any = None  # row numbers, or None for a problem of the whole
    differs: Any = None  # (N,): where predictions disagree with the label
    test: pd.DataFrame | None = None


def clean(frame: pd.DataFrame, random: np.random.Generator) -> Case:
    half = len(frame) * 2 // 3
    return Case(frame[:half], (), random.random(half) < WRONG, frame[half:].reset_index(drop=True))


# --- one problem planted --------------------------------------------------------------------------


def numbers_of(frame: pd.DataFrame) -> list[str]:
    return [
        c
        for c in frame.columns
        if c != "label" and frame[c].dtype.kind in "iuf" and frame[c].nunique() > 10
    ]


def copies(case: Case, random: np.random.Generator) -> Case:
    frame, some = case.frame, random.choice(len(case.frame), PLANTED, replace=False)
    both = pd.concat([frame, frame.iloc[some]], ignore_index=True)
    return case._replace(frame=both, planted=np.r_[some, np.arange(len(frame), len(both))])


def strangers(case: Case, random: np.random.Generator) -> Case:
    frame, some = case.frame.copy(), random.choice(len(case.frame), PLANTED, replace=False)
    for name in numbers_of(frame):
        frame[name] = frame[name].astype(float)
        frame.loc[some, name] += 8 * frame[name].std() * random.choice([-1, 1], PLANTED)
    return case._replace(frame=frame, planted=some)


def by_label(case: Case, random: np.random.Generator) -> Case:
    return case._replace(
        frame=case.frame.sort_values("label", kind="stable").reset_index(drop=True), planted=None
    )


def trend(case: Case, random: np.random.Generator) -> Case:
    frame = case.frame.copy()
    name = numbers_of(frame)[0]
    frame[name] = frame[name] + np.linspace(0, 2, len(frame)) * frame[name].std()
    return case._replace(frame=frame, planted=None)


def rare(case: Case, random: np.random.Generator) -> Case:
    frame = case.frame
    least = frame["label"].value_counts().index[-1]
    kept = max(3, len(frame) // (25 * frame["label"].nunique()))
    drop = frame.index[frame["label"] == least][kept:]
    frame = frame.drop(index=drop).reset_index(drop=True)
    return case._replace(frame=frame, planted=None, differs=(frame["label"] == least).to_numpy())


def weak(case: Case, random: np.random.Generator) -> Case:
    values = case.frame[numbers_of(case.frame)[0]]
    inside = (values >= values.quantile(0.8)).to_numpy()
    return case._replace(
        planted=None, differs=case.differs | (inside & (random.random(len(values)) < 0.5))
    )


def gaps(case: Case, random: np.random.Generator) -> Case:
    frame, name = case.frame.copy(), numbers_of(case.frame)[0]
    frame[name] = frame[name].astype(float).where(random.random(len(frame)) < 0.3)
    return case._replace(frame=frame, planted=None)


def leak(case: Case, random: np.random.Generator) -> Case:
    late = pd.Series(pd.factorize(case.frame["label"])[0]).where(
        random.random(len(case.frame)) > 0.01, 0
    )
    return case._replace(frame=case.frame.assign(late=late), planted=None)


def units(case: Case, random: np.random.Generator) -> Case:
    grams = random.uniform(40, 90, len(case.frame)) * np.where(
        random.random(len(case.frame)) < 0.2, 1000, 1
    )
    return case._replace(frame=case.frame.assign(grams=grams), planted=None)


def spelling(case: Case, random: np.random.Generator) -> Case:
    frame = case.frame.assign(label="class " + case.frame["label"].astype(str))
    first = frame.index[frame["label"] == frame["label"].value_counts().index[0]][:3]
    frame.loc[first, "label"] = frame.loc[first, "label"].str.upper()
    return case._replace(frame=frame, planted=None)


def moved(case: Case, random: np.random.Generator) -> Case:
    assert case.test is not None
    test, name = case.test.copy(), numbers_of(case.frame)[0]
    test[name] = test[name] + case.frame[name].std()
    return case._replace(test=test, planted=None)


def overlap(case: Case, random: np.random.Generator) -> Case:
    some = random.choice(len(case.frame), PLANTED, replace=False)
    return case._replace(
        test=pd.concat([case.test, case.frame.iloc[some]], ignore_index=True), planted=some
    )


PROBLEMS: dict[str, tuple[str, Callable[[Case, np.random.Generator], Case]]] = {
    "ten copied rows": ("near-duplicate", copies),
    "ten rows moved by 8 deviations": ("outlier", strangers),
    "sorted by label": ("order", by_label),
    "a column with a trend of 2 deviations": ("order", trend),
    "a class of 1/25 of an even share": ("imbalance", rare),
    "a fifth with half wrong predictions": ("slice", weak),
    "a column of which 70 % are missing": ("columns", gaps),
    "a column made from the label": ("leakage", leak),
    "a fifth of a column times 1000": ("mixed", units),
    "three labels in capitals": ("spelling", spelling),
    "a column moved by one deviation in the test set": ("drift", moved),
    "ten rows in the test set": ("test-overlap", overlap),
}


# --- both contenders ------------------------------------------------------------------------------


def probabilities(given: Any, differs: Any, K: int) -> Any:
    guess = np.where(differs, (given + 1) % K, given)
    return np.where(np.eye(K)[guess] == 1, 0.9, 0.1 / max(K - 1, 1))


def ours(kind: str, rows: Any, probs: Any) -> tuple[Any, int, float]:
    labels, kinds = find_label_issues(rows.given, probs), ISSUES[kind]
    needs_search = kind in ("near-duplicate", "outlier", "test-overlap")
    began = time.perf_counter()
    around = (
        Surroundings.search(rows.x, rows.given, 0) if needs_search else Surroundings.none(len(rows))
    )
    issue: Any = kinds.find(AuditEvidence(rows, around), labels)  # type: ignore[attr-defined]
    return issue.mask, len(issue.findings), time.perf_counter() - began


def datalab(kind: str, rows: Any, probs: Any) -> tuple[Any, int, float]:
    from cleanlab import Datalab

    name = DATALAB[kind]
    lab = Datalab({"y": [int(k) for k in rows.given]}, label_name="y", verbosity=0)
    features = rows.x if name != "null" else rows.table.values
    given = (
        {"pred_probs": probs, "features": features}
        if name == "underperforming_group"
        else {"features": features}
    )
    given = {} if name == "class_imbalance" else given
    began = time.perf_counter()
    lab.find_issues(**given, issue_types={name: {}})
    seconds = time.perf_counter() - began
    mask = lab.get_issues(name)[f"is_{name}_issue"].to_numpy(bool)
    return mask, int(lab.get_issue_summary(name)["num_issues"].iloc[0]), seconds


def look(who: str, kind: str, case: Case) -> dict[str, Any]:
    with_test = kind in ("drift", "test-overlap")
    rows = read_rows(case.frame, label="label", **({"test": case.test} if with_test else {}))
    differs = np.zeros(len(case.frame), bool) if case.differs is None else case.differs
    differs = np.r_[differs, np.zeros(max(0, len(case.frame) - len(differs)), bool)][rows.row]
    probs = probabilities(rows.given, differs, len(rows.classes))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        runs = [
            (ours if who == "noiseproof" else datalab)(kind, rows, probs) for _ in range(REPEATS)
        ]
    mask, findings, _ = runs[0]
    seconds = min(run[2] for run in runs)
    if case.planted is None or kind not in ("near-duplicate", "outlier", "test-overlap"):
        return {"alarm": findings > 0, "seconds": round(seconds, 4)}
    planted = np.isin(rows.row, case.planted)
    return {
        "found": int(mask[planted].sum()),
        "planted": int(planted.sum()),
        "others": int(mask[~planted].sum()),
        "seconds": round(seconds, 4),
    }


def tables(name: str, types: list[str], seed: int) -> list[dict[str, Any]]:
    """All problems in one table."""
    one = load(name)
    frame = one.frame.drop(columns=list(one.human)).rename(columns={one.label: "label"})
    frame = frame.sample(min(ROWS, len(frame)), random_state=seed).reset_index(drop=True)
    done = []
    for problem, (kind, plant) in PROBLEMS.items():
        if kind not in types or (
            plant in (trend, weak, gaps, moved, strangers) and not numbers_of(frame)
        ):
            continue
        before = clean(frame, np.random.default_rng(seed))
        after = plant(before, np.random.default_rng(seed + 1))
        for who in (
            "noiseproof",
            *(["datalab"] if kind in DATALAB and find_spec("cleanlab") else []),
        ):
            try:
                row = {"clean": look(who, kind, before), "planted": look(who, kind, after)}
            except Exception as error:  # a failure is a result
                row = {"error": f"{type(error).__name__}: {error}"[:200]}
            done.append({"set": name, "type": kind, "problem": problem, "who": who, **row})
    return done


# --- pictures and texts ---------------------------------------------------------------------------


def scikit_photos() -> list[NDArray[np.uint8]]:
    from sklearn.datasets import load_sample_images

    return list(load_sample_images().images)


def skimage_photos() -> list[NDArray[np.uint8]]:
    from PIL import Image

    folder = module_folder("skimage") / "data"
    names = (
        "astronaut.png",
        "camera.png",
        "chelsea.png",
        "coffee.png",
        "motorcycle_left.png",
        "rocket.jpg",
    )
    return [np.asarray(Image.open(folder / name).convert("RGB")) for name in names]


def pictures(photos: list[NDArray[np.uint8]], seed: int) -> list[dict[str, Any]]:
    from PIL import Image, ImageFilter

    random, each, done = np.random.default_rng(seed), 150 // len(photos), []
    with tempfile.TemporaryDirectory() as folder:
        for k, photo in enumerate(photos):
            Path(folder, f"photo {k}").mkdir()
            for i in range(each):
                y, x = (random.integers(0, side - 160) for side in photo.shape[:2])
                Image.fromarray(photo[y : y + 160, x : x + 160]).save(
                    Path(folder, f"photo {k}", f"{i:02}.png")
                )
        for i in range(25):
            path, kind = (
                Path(folder, f"photo {i % len(photos)}", f"{2 * i % each:02}.png"),
                PICTURES[i % 5],
            )
            image = Image.open(path).convert("RGB")
            pixels = np.asarray(image, float)
            changed = {
                "dark": pixels * 0.12,
                "bright": 228 + pixels * 0.1,
                "blank": np.full_like(pixels, 128),
                "blurred": np.asarray(image.filter(ImageFilter.GaussianBlur(8)), float),
                "of an odd size": pixels[:30],
            }[kind]
            Image.fromarray(changed.astype(np.uint8)).save(path.with_name(f"{kind}-{i}.png"))
        rows = read_rows(folder, features="pixels")
        odd = [next((kind for kind in PICTURES if kind in str(name)), "") for name in rows.names]
        masks: dict[str, tuple[Any, float]] = {}
        mask, _, seconds = ours(
            "picture", rows, probabilities(rows.given, np.zeros(len(rows), bool), len(photos))
        )
        masks["noiseproof"] = mask, seconds
        if find_spec("cleanlab") and find_spec("cleanvision"):
            masks["datalab"] = datalab_pictures(
                [Path(folder, str(name)) for name in rows.names], rows.given
            )
        for who, (mask, seconds) in masks.items():
            counts = {kind: int(mask[[one == kind for one in odd]].sum()) for kind in PICTURES}
            done.append(
                {
                    "set": "150 crops of photographs",
                    "type": "picture",
                    "problem": "five each: " + ", ".join(PICTURES),
                    "who": who,
                    "found_by_kind": counts,
                    "planted": {
                        "found": sum(counts.values()),
                        "planted": 25,
                        "others": int(mask[[not one for one in odd]].sum()),
                        "seconds": round(seconds, 4),
                    },
                }
            )
    return done


def datalab_pictures(paths: list[Path], given: Any) -> tuple[Any, float]:
    import datasets
    from cleanlab import Datalab

    data = datasets.Dataset.from_dict({"image": list(map(str, paths)), "y": given.tolist()})
    data = data.cast_column("image", datasets.Image())
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        lab = Datalab(data, label_name="y", image_key="image", verbosity=0)
        began = time.perf_counter()
        lab.find_issues(
            issue_types={
                "image_issue_types": {
                    kind: {}
                    for kind in (
                        "dark",
                        "light",
                        "blurry",
                        "low_information",
                        "odd_size",
                        "odd_aspect_ratio",
                    )
                }
            }
        )
        seconds = time.perf_counter() - began
    issues = lab.get_issues()
    flags = [c for c in issues.columns if c.startswith("is_") and "duplicate" not in c]
    return issues[flags].to_numpy(bool).any(1), seconds


FOREIGN = (
    "de/sprichworte",
    "es/proverbios.fortunes",
    "it/leggi",
    "pl/milosc",
    "cs/prislovi",
    "ru/life",
)
ODD_TEXTS = (  # of --dev
    "Entschuldigung, ich bin heute nicht zu Hause und komme auch nicht mit",
    "no puedo ir porque es muy tarde para mí",
    "je ne suis pas là mais nous sommes dans la voiture avec les enfants",
    "привет, я не могу сегодня прийти",
    "Ã‰tÃ© dÃ©jÃ  passÃ© â€™ nâ€™est plus lÃ ",
    "\ufffd\ufffd\ufffd hello \ufffd\ufffd\ufffd",
    "@@##%%^^&&**!!~~||{}{}<>",
    "xkcdqwrtpsdfghjklzxcvbnmqwrtpsdfghjkl",
    "你好，我今天不能来，明天再说吧，谢谢你",
    "jestem w domu i nie mam już czasu na to co było",
)


def drawn_texts(random: np.random.Generator) -> tuple[str, ...]:
    """Six lines in another language, two of them again in a wrong encoding, and two lines of
    noise.
    """
    lines = []
    for name in FOREIGN:
        path = debian(f"usr/share/games/fortunes/{name}", f"fortunes-{name[:2]}")
        fortunes = [
            " ".join(fortune.split())
            for fortune in path.read_text("utf-8", errors="replace").split("\n%\n")
        ]
        lines.append(
            str(random.choice([fortune for fortune in fortunes if 40 <= len(fortune) <= 200]))
        )
    broken = [line.encode("utf-8").decode("latin-1") for line in lines[-2:]]
    noise = [
        "".join(random.choice(list(signs), 40))
        for signs in (string.punctuation, "bcdfghjklmnpqrstvwxz")
    ]
    return (*lines, *broken, *noise)


def texts(name: str, odd: tuple[str, ...], seed: int) -> list[dict[str, Any]]:
    one = load(name)
    frame = one.frame[[one.text, one.label]].sample(min(ROWS, len(one.frame)), random_state=seed)
    frame = frame.reset_index(drop=True)
    more = pd.DataFrame({one.text: odd, one.label: frame[one.label].iloc[: len(odd)].tolist()})
    both = pd.concat([frame, more], ignore_index=True)
    rows = read_rows(both, label=one.label, text=one.text, features="tfidf")
    mask, _, seconds = ours(
        "text", rows, probabilities(rows.given, np.zeros(len(rows), bool), len(rows.classes))
    )
    planted = rows.row >= len(frame)
    # texts without words are left out of the audit, which the report says
    empty = len(both) - len(rows)
    return [
        {
            "set": name,
            "type": "text",
            "problem": "ten garbled or foreign texts",
            "who": "noiseproof",
            "planted": {
                "found": int(mask[planted].sum()) + empty,
                "planted": len(odd),
                "others": int(mask[~planted].sum()),
                "seconds": round(seconds, 4),
            },
        }
    ]


# --- the table ------------------------------------------------------------------------------------


def cell(rows: list[dict[str, Any]]) -> str:
    """Found, false alarms and seconds of one contender over all sets."""
    good = [row for row in rows if "error" not in row]
    if not good:
        return "—"
    seconds = float(np.median([row["planted"]["seconds"] for row in good]))
    failed = f", {len(rows) - len(good)} failed" if len(good) < len(rows) else ""
    if "alarm" in good[0]["planted"]:
        found, alarms = (sum(row[when]["alarm"] for row in good) for when in ("planted", "clean"))
        return f"{found} of {len(good)} sets | {alarms} of {len(good)} sets | {seconds:.3f}{failed}"
    found, planted, others = (
        sum(row["planted"][key] for row in good) for key in ("found", "planted", "others")
    )
    return f"{found} of {planted} rows | {others} rows | {seconds:.3f}{failed}"


def show(rows: list[dict[str, Any]]) -> None:
    print(
        "| type | planted | found | false alarms | s | Datalab: found | false alarms | s |\n"
        + "| --- " * 8
        + "|"
    )
    for problem in dict.fromkeys(row["problem"] for row in rows):
        some = [row for row in rows if row["problem"] == problem]
        cells = [
            cell([row for row in some if row["who"] == who]) for who in ("noiseproof", "datalab")
        ]
        cells = [one if one != "—" else "— | — | —" for one in cells]
        print(f"| `{some[0]['type']}` | {problem} | {' | '.join(cells)} |")


class Part(NamedTuple):
    """Sets with the seed of their samples and of what is planted, and where the rows go."""

    sets: dict[str, Spec]
    seed: int
    odd_texts: Callable[[np.random.Generator], tuple[str, ...]]
    photos: Callable[[], list[NDArray[np.uint8]]]
    out: Path


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dev", action="store_true")
    parser.add_argument("--sets", nargs="*")
    parser.add_argument("--types", nargs="*", default=[*ISSUES])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    part = Part(UNSEEN, 1, drawn_texts, skimage_photos, RESULTS / "issues.json")
    if args.dev:
        part = Part(REPORT, 0, lambda _: ODD_TEXTS, scikit_photos, RESULTS / "issues_dev.json")
    if args.table:
        return show(json.loads(part.out.read_text("utf-8"))["rows"])
    rows: list[dict[str, Any]] = []
    random = np.random.default_rng(part.seed)
    where = provenance() | ({"cleanlab": version("cleanlab")} if find_spec("cleanlab") else {})
    for name in args.sets or part.sets:
        try:
            kind = load(name).kind
            if kind == "table":
                rows += tables(name, args.types, part.seed)
            elif kind == "text" and "text" in args.types:
                rows += texts(name, part.odd_texts(random), part.seed)
        except Missing as error:
            print(f"{name}: {error}")
            continue
        print(name, flush=True)
    rows += pictures(part.photos(), part.seed) if "picture" in args.types and not args.sets else []
    if not args.sets and args.types == [*ISSUES]:
        write_rows(part.out, [{**where, **row} for row in rows])
    return show(rows)


if __name__ == "__main__":
    main()
