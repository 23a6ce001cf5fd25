"""Refusals name options of the command, never arguments of Python; and what is printed is safe."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_table_audit
from typer.testing import CliRunner

import noiseproof.cli
from noiseproof.cli import app
from noiseproof.cli.audit import ARGUMENTS, audit
from noiseproof.cli.show import option_names

N = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the lines speak of."""
    folder = tmp_path_factory.mktemp("refused")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_files()
    write_table_audit(folder)
    (folder / "audit").rename(folder / "found")
    return folder


@pytest.fixture
def files(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A refusal leaves nothing."""
    monkeypatch.chdir(made)
    before = sorted(made.rglob("*"))
    yield made
    assert sorted(made.rglob("*")) == before


def write_files() -> None:
    given = np.arange(N) % 2
    frame = pd.DataFrame(
        {
            "a": np.arange(N) * 7 % 11 + 0.5,
            "b": np.arange(N) % 5,
            "y": np.array(["no", "yes"])[given],
        }
    )
    frame.to_csv("t.csv", index=False)
    frame[["y"]].to_csv("alone.csv", index=False)
    frame.assign(y="no").to_csv("one.csv", index=False)
    frame.assign(y="").to_csv("none.csv", index=False)
    frame.assign(y=np.arange(N) + 0.5).to_csv("real.csv", index=False)
    frame.assign(note="").to_csv("empty.csv", index=False)
    frame.drop(columns="b").to_csv("fewer.csv", index=False)
    frame.to_csv("data.csv", index=False, header=False)
    p = np.eye(2)[given] * 0.8 + 0.1
    for name, array in {
        "y": given,
        "p": p,
        "x": p,
        "wide": np.c_[p, p],
        "logits": 5 * p,
        "short": p[:9],
    }.items():
        np.save(f"{name}.npy", array)
    np.save("cube.npy", np.zeros((N, 2, 2, 2, 2)))
    np.save("many.npy", np.arange(N + 5))
    pd.DataFrame(p, columns=["up", "down"]).to_csv("named.csv", index=False)
    for name in ("cat", "dog"):
        Path("photos", name).mkdir(parents=True)
    frame["y"] = np.where(np.arange(N) < 35, "no", "yes")
    frame.to_csv("uneven.csv", index=False)
    frame.assign(a=frame["a"].where(frame.index > 1)).to_csv("gaps.csv", index=False)
    numbers = frame["a"] + np.arange(N) / 100
    frame.assign(a=numbers.astype(str).where(frame.index > 1, "unknown")).to_csv(
        "words.csv", index=False
    )
    Path("sweep.toml").write_text('[[experiment]]\ndataset = "table:table=gaps.csv,label=y"\n')
    Path("digits.toml").write_text('[[experiment]]\ndataset = "digits"\n')
    Path("measured.toml").write_text('[[experiment]]\ndataset = "digits"\nmeasures = "snr"\n')
    Path("bad.toml").write_text('[[experiment]]\ndataset = "digits"\nworkers = -1\n')


AUDIT = {
    "t.csv": "Expected --label, the name",
    "t.csv --label kind": "There are 'a', 'b', 'y'",
    "tt.csv --label y": "tt.csv, found none. Did you mean 't.csv'?",
    "t.csv --labels y.npy": "Expected --label, the column of the labels in the table, got --labels",
    "t.csv --label y --text words": "'words'",
    "t.csv --label y --id y": "one role",
    "t.csv --label y --annotators p,q": "'p', 'q'",
    "t.csv --label y --classes no": "--classes",
    "t.csv --label y --classes no,no": "--classes once",
    "t.csv --label y --trusted nobody": "Expected --trusted to be a column",
    "t.csv --label y --trusted many.npy": "in --trusted, got 44",
    "t.csv --label y --trusted p.npy": "Expected --trusted to hold 40",
    "t.csv --label y --trusted fewer.csv": "Expected the columns of the audited table in fewer.csv",
    "t.csv --label y --features tfidf": "Expected texts or pictures",
    "t.csv --label y --text a --features tfidf --embeddings x.npy": "Expected either --features or",
    "t.csv --label y --pred-probs wide.npy": "Expected --pred-probs of shape (40, 2)",
    "t.csv --label y --pred-probs logits.npy": "Expected probabilities in --pred-probs",
    "t.csv --label y --pred-probs named.csv": "Expected the columns of --pred-probs",
    "t.csv --label y --pred-probs short.npy": "40",
    "t.csv --label y --embeddings cube.npy": "Expected columns that vary",
    "t.csv --label y --embeddings nothing.npy": "found no such file",
    "t.csv --label y --goal best": "goal",
    "t.csv --label y --test nothing.csv": "Expected test at nothing.csv, found no such file",
    "t.csv --label y --text a --describe nothing.csv": "Expected describe at nothing.csv",
    "t.csv --label y --method best": "best",
    "t.csv --label y --model best": "Unknown model 'best'",
    "t.csv --label y --estimator best": "best",
    "t.csv --label y --estimator sklearn.svm:LinearSVC": "predict_proba",
    "t.csv --label y --engine dask": "Expected an engine of local, ray",
    "t.csv --label y --address auto": "Expected the engine ray with --address",
    "t.csv --label y --export paper": "Expected --export of",
    "t.csv --label y --time y": "one role",
    "t.csv --label b --time y": "Expected numbers or dates in column 'y'",
    "alone.csv --label y": "Name a --text, or pass --embeddings",
    "one.csv --label y": "at least two classes",
    "none.csv --label y": "got none in any of 40 rows",
    "real.csv --label y": "0.5",
    "empty.csv --label y --text note": "note",
    "data.csv --label 2": "which look like data: use --no-header if",
    "x.npy": "with --labels",
    "x.npy --label y": "Only tables have columns",
    "x.npy --labels y.npy --features tfidf": "Expected features for pictures",
    "cube.npy --labels y.npy": "Expected columns that vary",
    "--labels y.npy": "both --labels and --pred-probs (or --embeddings), got --labels alone",
    "--pred-probs p.npy": "got --pred-probs alone",
    "photos --labels y.npy": "--labels",
    "photos": "photos",
    "nothing.csv --label y": "found none",
    "t.csv --label z": "Expected a column 'z'",
    "t.csv --label y --export fiftyone": "Expected pictures to export",
    "photos --text t --out elsewhere": "Only tables have columns",
    "photos --out photos/audit": "Expected a folder outside the pictures in photos",
    "t.csv --label y --out t.csv": "got the file",
    "--again": "Expected the folder of an audit with --again, got none",
    "nowhere --again": "Expected an audit in nowhere, found no issues.csv",
    "audit --label y --seed 0 --again": "Expected no --label, --seed with --again: all options are",
    "audit --out other --again": "Expected no --out with --again",
}


IMPUTE = "`missing=impute` in the dataset, as in table:table=FILE,label=COLUMN,missing=impute"
OTHERS = {
    "train --dataset table:table=gaps.csv,label=y": (
        f"Drop those rows or columns, or fill in medians with {IMPUTE}."
    ),
    "train --dataset table:table=words.csv,label=y": f"or count words as gaps with {IMPUTE}.",
    "data show table:table=gaps.csv,label=y": IMPUTE,
    "bench run sweep.toml --dry-run": IMPUTE,
    "bench run sweeep.toml": "got 'sweeep.toml', which is neither. Did you mean 'sweep.toml'?",
    "bench compare --data tt.csv --label y": "tt.csv, found no such file. Did you mean 't.csv'?",
    "bench compare --data gaps.csv --label y": "or fill in medians with --missing impute.",
    "bench compare --data t.csv --label y --missing no": (
        "Expected --missing to be refuse or impute, got 'no'."
    ),
    "bench compare --data digits --missing impute": "Expected --label",
    "bench compare --data t.csv --label y --text a --missing impute": "got 'missing'.",
    "bench compare --data two-moons:n=10,n_test=0": "Expected",
    "bench compare --data table:table=t.csv,label=y": (
        "Add one, or split a table with --label COLUMN."
    ),
    # a key, no option
    "bench run bad.toml": "[[experiment]] 1: Expected `workers` to be an integer of at",
    "bench search gce:q=[0.3,0.7] --validation 0": "Expected --validation above 0",
    "train --validation 1.5": "Expected --validation in (0, 1), got 1.5.",
    "train --batch-size x": "Expected --batch-size to be an integer of at least 1, got 'x'.",
    "train --clip -1": "Expected --clip in [0, inf)",
    # parameters of a spec are not options
    "train --method backward:clip=-1": "Expected `clip` in [0, 0.5)",
    "train --method het:samples=0": "Expected `samples`",
    "train --dataset two-moons:seed=-1": "Expected `seed`",
    "train --noise open-set:rate=0.2": "Expected --foreign images",
    "train --dataset cifar10 --data-dir nowhere": (
        "or set --data-dir or NOISEPROOF_DATA to where they are."
    ),
    "train --dataset table:table=uneven.csv,label=y --noise symmetric:rate=0.9,count=equal": (
        "Use `count=per-class`"
    ),
    "train --dataset digits --method co-teaching --noise symmetric": (
        "Write symmetric:rate=0.2 for 20 % wrong labels."
    ),
    "train --dataset digits --out t.csv": (
        "Expected a folder, got the file t.csv. Choose another one."
    ),
    "train --dataset digits --out t.csv/run": (
        "Expected a folder, got the file t.csv. Choose another one."
    ),
    "train --dataset cifar10 --data-dir t.csv": (
        "Expected --data-dir or NOISEPROOF_DATA to be the folder with"
    ),
    "bench table ln-table1 --results t.csv": (
        "Expected a folder, got the file t.csv. Choose another one."
    ),
    "bench status ln-table1 --results t.csv": (
        "Expected a folder, got the file t.csv. Choose another one."
    ),
    "bench run digits.toml --results t.csv": (
        "Expected a folder, got the file t.csv. Choose another one."
    ),
    "bench run measured.toml": (
        "sample-weights (alpha, snr) or annotators (annotator_nll), got 'snr'."
    ),
    "calibrate gce --classes 1": "Expected --classes to be an integer of at least 2, got 1.",
    "calibrate gce --classes 10 --free q,q": (
        "got 'q', 'q'. Give one name or a pair of different names."
    ),
    "analyze fit --loss sop --classes 10": (
        "Give a loss such as ce or gce; what this one does shows only in training."
    ),
    # names of other libraries
    "train --lr 0.1": "No such option: --lr. Write --optimizer sgd:lr=0.1,momentum=0.9.",
    "train --loss gce": "No such option: --loss. Write --method gce.",
    "bench search gce --lr 0.1": "No such option: --lr (Possible options:",  # no --optimizer
    "bench compare --data digits --seeds 0,1,2": "at least 1: 3 stands for the seeds",
    "bench run ln-table1 --seeds 0": "'--seeds': Expected a number of seeds, at least 1",
    "calibrate nope --classes 10": "Unknown loss 'nope'",
    "calibrate gce:q=3 --classes 10": "Expected `q` in (0, 1], got 3",
    "calibrate mae --classes 1000": "No other `scale` learns 1000 classes. `remargin:loss=(mae:",
    "calibrate aul --classes 1000 --free q": "66040 times slower than cross entropy",
    "calibrate agce --classes 10": "several hyperparameters",
    "calibrate agce --classes 10 --free a,q,x": "--free",
    "data fetch webvision": "can't be downloaded automatically",
    "data fetch digits": "digits needs no download",
    "data fetch cifar11": "Unknown dataset 'cifar11'",
    "data show cifar10 --data-dir .": "Run `noiseproof data fetch cifar10`",
    "data show digits:colour=red": "'colour'",
    "data show digits --noise symetric:rate=0.4": "Did you mean 'symmetric'",
    "data show digits --noise symmetric:rate=40": "A rate of 40 % is 0.4",
    "data show digits --noise chen:rate=0.4": "`noiseproof train --noise chen:rate=0.4` computes",
    "data show digits --noise open-set:rate=0.4": "Expected --foreign images",
    "data show digits --foreign digits": "Expected --noise open-set:rate=… with --foreign digits",
    "data show table:table=gone.csv,label=y": "gone.csv",
    "train --noise none --foreign digits:seed=1": "got none. Leave --foreign out",
    "train --log paper": "Expected one of csv, tensorboard, mlflow, wandb to log to, got 'paper'.",
    "train --method gcee": "Did you mean",
    "train --method gce:q=3": "Expected `q` in (0, 1], got 3.",
    "train --method ce@009": "009",
    "train --optimizer sdg": "Unknown optimizer 'sdg'. Did you mean 'sgd'?",
    "train --optimizer sgd:lr=-1": "Expected `lr` in (0, inf), got -1.",
    "train --schedule nope": "Unknown schedule 'nope'. There are: constant, cosine,",
    "train --precision 16": "Expected one of 32, bf16, 64 as precision, got '16'.",
    "train --protocol sln": "got 'digits' of paper 'sln'",
    "train --model resnet23": "Unknown model 'resnet23'",
    "train --dataset digitz": "Did you mean 'digits'?",
    "train --batch-size 0": "Expected --batch-size to be an integer of at least 1, got 0.",
    "train --epochs 0": "'--epochs'",
    "train --devices x": "'--devices'",
    "train --strategy nope": "nope",
    "train --out none --samples": "Expected a folder for --samples, got --out none",
    "train --out none --log csv": "Expected a folder for --log, got --out none",
    "demo --epochs 1": "--epochs",
    "review nowhere": "Expected an audit in nowhere",
    "review found --html page.html --measure 50": "Expected --html without --measure",
    "review found --html page.html --reviewer ann": "Expected --html without --reviewer",
    "review found --reviewer ann --reviewers ann,bob": "Name all people in --reviewers.",
    "review found --measure 50 --all": "Expected --measure without --all",
    "review found --blind": "Expected --measure or --propose with --blind",
    "review found --repeats 0.1": "Expected --measure with --repeats",
    "review found --count 5": "Expected --propose with --count",
    "review found --overlap 0.1": "Expected --reviewers with --overlap",
    "review found --measure 0": "--measure",
    "review found --propose lern=1": "Expected shares of find, learn, measure",
    "review found --propose find=1 --measure 5": "Expected --propose without --measure",
    "review found --reviewers ann,ann": "different names",
    "review found --host 0.0.0.0": "Expected --allowed-host with --host 0.0.0.0",
    "review found --host 192.0.2.1": "an address of this machine for --host",  # TEST-NET
    "review found --html no/such/page.html": "Expected --html in a folder that exists",
    "apply found": "Expected decisions in",
    "apply found --fix columns --retrain": "Expected --fix or --retrain, got both",
    "apply found --fix slice": "by a command.",
}


LINES = {f"audit {line}": message for line, message in AUDIT.items()} | OTHERS


@pytest.mark.parametrize("line", LINES)
def test_bad_input_is_refused_in_words_of_the_command(line: str, files: Path) -> None:
    result = CliRunner().invoke(app, line.split())
    said = re.sub(r"[│\s]+", " ", result.stderr)  # typer's own refusals are in a box
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert LINES[line] in said, said
    assert "Traceback" not in result.output
    if line.startswith("audit"):
        message = result.stderr.strip().splitlines()[-1]
        words = message.replace("precision=", "").replace("recall=", "")
        assert not re.search(r"\b[a-z_]+=(?!\d)", words), message
        arguments = (*ARGUMENTS, *option_names(audit))
        assert not [name for name in arguments if f"`{name}`" in message], message


# a title, an empty screen, text from right to left
HOSTILE = ["dog\x1b]0;owned\x07", "cat\x9b2J", "owl\r\u202e"]


def test_control_characters_of_labels_never_reach_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    count = 60
    given = [HOSTILE[i % 3] for i in range(count)]
    given[0] = HOSTILE[1]
    frame = pd.DataFrame(
        {"x": range(count), "name": [f"n{i}\x1b[31m" for i in range(count)], "y": given}
    )
    frame.to_csv("t.csv", index=False, quoting=csv.QUOTE_ALL)
    np.save(
        "p.npy",
        np.eye(3)[[sorted(HOSTILE).index(HOSTILE[i % 3]) for i in range(count)]] * 0.85 + 0.05,
    )
    commands = [
        ("audit", "t.csv", "--label", "y", "--id", "name", "--pred-probs", "p.npy"),
        (
            "audit",
            "t.csv",
            "--label",
            "y",
            "--id",
            "name",
            "--pred-probs",
            "p.npy",
            "--force",
            "--json",
        ),
        ("apply", "audit", "--accept-all", "--yes"),
        ("audit", "t.csv", "--label", "\x1b[2J"),
        ("review", "audit", "--html", "a\x1b[2J.html"),
        ("measure", "audit"),
    ]
    for command in commands:
        done = CliRunner().invoke(app, [*command])
        assert "Traceback" not in done.output
        assert not [
            c for c in done.output if c != "\n" and unicodedata.category(c) in ("Cc", "Cs")
        ], command
        assert "\u202e" not in done.output
    assert "dog\\x1b]0;owned\\x07" in CliRunner().invoke(app, [*commands[0], "--force"]).output
    written = pd.read_csv("corrected.csv", lineterminator="\n")
    # as the user has it
    assert {*written["y"]} == {*HOSTILE} and written["name"].tolist() == frame["name"].tolist()


def test_only_one_function_prints() -> None:
    """What it prints is free of control characters."""
    folder = Path(noiseproof.cli.__file__).parent
    for path in folder.glob("*.py"):
        if path.name not in ("show.py", "main.py"):  # main prints the version
            assert "typer.echo" not in path.read_text("utf-8"), path
