"""Refusals name options of the command, never arguments of Python."""

from __future__ import annotations

import csv
import re
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import noiseproof.cli
from noiseproof.cli import app
from noiseproof.cli.audit import ARGUMENTS, audit
from noiseproof.cli.show import option_names

N = 40


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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


REFUSED = {
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
    "t.csv --label y --method best": "best",
    "t.csv --label y --model best": "Unknown model 'best'",
    "t.csv --label y --estimator best": "best",
    "t.csv --label y --estimator sklearn.svm:LinearSVC": "predict_proba",
    "t.csv --label y --engine dask": "Expected an engine of local, ray",
    "t.csv --label y --address auto": "Expected the engine ray beside --address",
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
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_words_of_the_command(line: str) -> None:
    result = CliRunner().invoke(app, ["audit", *line.split()])
    message = result.stderr.strip().splitlines()[-1]
    assert result.exit_code == 2, result.output
    assert REFUSED[line] in message, message
    assert not re.search(
        r"\b[a-z_]+=(?!\d)", message.replace("precision=", "").replace("recall=", "")
    ), message
    assert not [name for name in (*ARGUMENTS, *option_names(audit)) if f"`{name}`" in message], (
        message
    )


def test_every_argument_stands_for_an_option_of_the_command() -> None:
    from noiseproof.cli.main import app as commands

    text = (
        CliRunner()
        .invoke(commands, ["audit", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
        .output
    )
    options = {
        option
        for words in ARGUMENTS.values()
        for option in words.split()
        if option.startswith("--")
    }
    options |= {*option_names(audit).values()}
    assert {"--pred-probs", "--csv-safe", "--json"} <= options and not [
        name for name in options if name not in text
    ]


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
    "bench compare --data words.csv --label y": "or count words as gaps with --missing impute.",
    "bench compare --data t.csv --label y --missing no": (
        "Expected --missing to be refuse or impute, got 'no'."
    ),
    "bench compare --data two-moons:n=10,n_test=0": "Expected",
    "bench compare --data table:table=t.csv,label=y": (
        "Add one, or split a table with --label COLUMN."
    ),
    # a key, no option
    "bench run bad.toml": "bad.toml, [[experiment]] 1: Expected `workers` to be an integer of at",
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
    "train --dataset table:table=t.csv,label=y --noise symmetric:rate=0.9,count=equal": (
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
}


@pytest.mark.parametrize("line", OTHERS)
def test_other_commands_name_their_options_too(line: str) -> None:
    frame = pd.read_csv("t.csv")
    frame["y"] = np.where(np.arange(N) < 35, "no", "yes")
    frame.to_csv("t.csv", index=False)
    frame.assign(a=frame["a"].where(frame.index > 1)).to_csv("gaps.csv", index=False)
    numbers = frame["a"] + np.arange(N) / 100
    frame.assign(a=numbers.astype(str).where(frame.index > 1, "unknown")).to_csv(
        "words.csv", index=False
    )
    Path("sweep.toml").write_text('[[experiment]]\ndataset = "table:table=gaps.csv,label=y"\n')
    Path("digits.toml").write_text('[[experiment]]\ndataset = "digits"\n')
    Path("measured.toml").write_text('[[experiment]]\ndataset = "digits"\nmeasures = "snr"\n')
    Path("bad.toml").write_text('[[experiment]]\ndataset = "digits"\nworkers = -1\n')
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 2 and OTHERS[line] in result.stderr, result.output


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
