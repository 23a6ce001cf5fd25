"""``noiseproof audit`` as a user meets it: real files, every bad input, exit codes, exports,
nothing overwritten.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner, Result

from noiseproof.audit import read_rows
from noiseproof.audit.decisions import Decision, DecisionLog, find_decisions, read_decisions
from noiseproof.audit.files import read_audit
from noiseproof.cli import app

QUICK = ("--device", "cpu", "--epochs", "6", "--folds", "2")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def run_json(*arguments: str | Path) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """600 digits as a table, and which of their labels are wrong: one in ten, by chance."""
    folder = tmp_path_factory.mktemp("digits")
    images, y = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    rows = random.permutation(len(y))[:600]
    wrong = random.random(600) < 0.1
    given = np.where(wrong, (y[rows] + random.integers(1, 10, 600)) % 10, y[rows])
    table = pd.DataFrame(images[rows], columns=[f"pixel {i}" for i in range(64)])
    table.insert(0, "name", [f"digit-{i}" for i in rows])
    table["digit"] = [f"a {k}" for k in given]
    table.to_csv(folder / "digits.csv", index=False)
    return folder / "digits.csv", wrong


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", ["--fast", "--thorough"])
def test_planted_noise_is_found_end_to_end(
    digits: tuple[Path, np.ndarray], here: Path, mode: str
) -> None:
    path, wrong = digits
    summary = run_json(
        path,
        "--label",
        "digit",
        "--id",
        "name",
        mode,
        "--device",
        "cpu",
        "--folds",
        "2",
        "--epochs",
        "12",
    )
    table = pd.read_csv(here / "audit" / "issues.csv", keep_default_na=False)
    assert len(table) == 600 and sorted(table["row"]) == list(range(600))
    called = table.set_index("row")["is_label_issue"].sort_index().to_numpy()
    precision, recall = (called & wrong).sum() / called.sum(), (called & wrong).sum() / wrong.sum()
    assert precision > 0.7 and recall > 0.7, (precision, recall)
    assert summary["noise_rate"]["low"] <= wrong.mean() <= summary["noise_rate"]["high"]
    assert not summary["labels_look_fine"]
    truth = load_digits().target
    issues = table[table["is_label_issue"]]
    right = [
        truth[int(name.split("-")[1])] == int(label[2:])
        for name, label in issues[["id", "suggested_label"]].values
    ]
    assert np.mean(right) > 0.7  # what it suggests is the truth
    assert (issues["suggested_label"] != issues["given_label"]).all()
    config = json.loads((here / "audit" / "config.json").read_text())
    assert (
        config["data"] == str(path)
        and config["label"] == "digit"
        and config["mode"] == mode.strip("-")
    )
    assert config["classes"] == [f"a {k}" for k in range(10)]


def test_the_next_command_after_a_leaking_column_leaves_it_out(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 300)
    table = pd.DataFrame({"y": y, "a": random.normal(size=300) + y, "b": random.random(300)})
    table["billing code"] = np.where(np.arange(300) == 5, 1 - y, y)
    table.to_csv("bills.csv", index=False)
    words = ["audit", "bills.csv", "--label", "y", "--fast", "--ignore", "b", "--out", "found"]
    monkeypatch.setattr(sys, "argv", ["noiseproof", *words])
    done = CliRunner().invoke(app, words)
    lines = done.stdout.splitlines()
    assert (
        "classes. Not to be trusted: `billing code` alone predicts the label almost perfectly."
        " Audit again" in lines[0]
    ), done.stderr
    command = (
        "noiseproof audit bills.csv --label y --fast --ignore 'b,billing code' --out found --force"
    )
    assert lines[-1] == f"next: {command}"
    result = CliRunner().invoke(
        app, ["apply", "found", "--accept-all", "--yes", "--out", "all.csv"]
    )
    assert result.exit_code == 0
    assert " ".join(result.stderr.split()).endswith(
        "Audit again without it: --ignore 'b,billing code'."
    )
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    again = CliRunner().invoke(app, shlex.split(command)[1:])
    assert again.exit_code == 0 and again.stdout.splitlines()[-1] == "next: noiseproof review found"


def test_the_same_command_gives_the_same_files(digits: tuple[Path, np.ndarray], here: Path) -> None:
    for out in ("one", "two"):
        run_json(
            digits[0],
            "--label",
            "digit",
            "--id",
            "name",
            "--fast",
            "--out",
            out,
            "--seed",
            "3",
            *QUICK,
        )
    assert (here / "one" / "issues.csv").read_bytes() == (here / "two" / "issues.csv").read_bytes()


def test_an_earlier_audit_is_not_overwritten(digits: tuple[Path, np.ndarray], here: Path) -> None:
    np.save("y.npy", np.arange(40) % 2)
    np.save("p.npy", np.eye(2)[np.arange(40) % 2] * 0.8 + 0.1)
    arguments = ("--labels", "y.npy", "--pred-probs", "p.npy")
    assert run(*arguments).exit_code == 0
    before = (here / "audit" / "issues.csv").read_bytes()
    (here / "audit" / "decisions.csv").write_text("mine")
    refused = run(*arguments)
    assert (
        refused.exit_code == 2
        and "which holds files" in refused.stderr
        and "--force" in refused.stderr
    )
    assert run(*arguments, "--force").exit_code == 0
    assert (here / "audit" / "issues.csv").read_bytes() == before
    assert (here / "audit" / "decisions.csv").read_text() == "mine"


def test_an_open_review_is_not_written_over(here: Path) -> None:
    np.save("y.npy", np.arange(40) % 2)
    np.save("p.npy", np.eye(2)[np.arange(40) % 2] * 0.8 + 0.1)
    arguments = ("--labels", "y.npy", "--pred-probs", "p.npy", "--force")
    assert run(*arguments).exit_code == 0
    review = DecisionLog(here / "audit" / "decisions.csv")
    refused = run(*arguments)
    review.close()
    assert (
        refused.exit_code == 2 and "Stop it, or choose another folder with --out" in refused.stderr
    )
    assert "--decisions" not in refused.stderr  # which is no option of an audit
    assert run(*arguments).exit_code == 0


@pytest.mark.parametrize("taken", ["by an audit", "by a review"])
def test_an_audit_is_not_thrown_away_where_its_folder_is_taken_meanwhile(
    here: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    np.save("y.npy", np.arange(40) % 2)
    np.save("p.npy", np.eye(2)[np.arange(40) % 2] * 0.8 + 0.1)
    arguments = ("--labels", "y.npy", "--pred-probs", "p.npy", "--export", "label-studio")
    reviews = []
    if taken == "by a review":
        assert run(*arguments).exit_code == 0
    (here / "audit-1").mkdir()
    read = read_rows

    def meanwhile(*values: Any, **options: Any) -> Any:
        if taken == "by a review":
            reviews.append(DecisionLog(here / "audit" / "decisions.csv"))
        else:
            write_text(here / "audit" / "issues.csv", "another's")
        return read(*values, **options)

    before = {path.name: path.read_bytes() for path in here.glob("audit/*")}
    monkeypatch.setattr("noiseproof.audit.read_rows", meanwhile)
    done = run(*arguments, *(("--force",) if taken == "by a review" else ()))
    for review in reviews:
        review.close()
    assert done.exit_code == 0, done.output
    assert (
        "audit was taken during the audit" in done.stderr
        and "the results are in audit-2" in done.stderr
    )
    assert "next: noiseproof review audit-2" in done.stdout
    assert (
        len(read_audit(here / "audit-2").issues) == 40
        and (here / "audit-2" / "label-studio.json").exists()
    )
    if taken == "by a review":
        assert {name: (here / "audit" / name).read_bytes() for name in before} == before
    else:
        assert [(path.name, path.read_text()) for path in here.glob("audit/*")] == [
            ("issues.csv", "another's")
        ]


# --- decisions on an audit that another one replaces ----------------------------------------------


def decide(folder: Path, *rows: int) -> bytes:
    """Accept what the audit suggests for these rows of the source."""
    known = read_audit(folder).issues.set_index("row")[["id", "given_label", "suggested_label"]]
    log = DecisionLog(folder / "decisions.csv")
    for row in rows:
        id, given, suggested = known.loc[row]
        log.add(Decision(row, id, given, "accept", suggested))
    log.close()
    return (folder / "decisions.csv").read_bytes()


def write_animals(names: list[int], labels: dict[int, str] | None = None) -> tuple[str, ...]:
    """A table with the animals ``names``, every third of which is a cat, and the command that
    audits it.
    """
    given = [(labels or {}).get(name, ("cat", "dog", "owl")[name % 3]) for name in names]
    pd.DataFrame({"name": [f"n{name}" for name in names], "x": names, "y": given}).to_csv(
        "t.csv", index=False
    )
    np.save("p.npy", np.eye(3)[[name % 3 for name in names]] * 0.85 + 0.05)
    return ("t.csv", "--label", "y", "--pred-probs", "p.npy", "--force")


def aside(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.glob("decisions-*.csv")]


def test_decisions_by_number_are_not_carried_to_other_rows(here: Path) -> None:
    rows = [*range(60)]
    assert run(*write_animals(rows)).exit_code == 0
    decided = decide(here / "audit", 9, 12, 15)
    assert run(*write_animals(rows), "--seed", "1").exit_code == 0  # the same rows: they stay
    assert (here / "audit" / "decisions.csv").read_bytes() == decided and not aside(here / "audit")
    assert run(*write_animals(rows), "--id", "name").exit_code == 0  # they have names now
    named = read_decisions(find_decisions(here / "audit"))
    assert {row: word.id for row, word in named.items()} == {9: "n9", 12: "n12", 15: "n15"}
    assert aside(here / "audit") == [decided]
    (here / "audit" / "decisions.csv").unlink()
    assert run(*write_animals(rows)).exit_code == 0
    assert decide(here / "audit", 9, 12, 15) == decided
    del rows[3:6]  # so that rows 9, 12 and 15 have their old labels and are other rows
    done = run(*write_animals(rows))
    assert (
        done.exit_code == 0
        and "3 of 3 decisions on the earlier audit are carried over" in done.stderr
    )
    assert aside(here / "audit") == [decided] and {
        *read_decisions(find_decisions(here / "audit"))
    } == {6, 9, 12}
    assert CliRunner().invoke(app, ["apply", "audit"]).exit_code == 0
    before, after = (
        pd.read_csv(name).set_index("name")["y"] for name in ("t.csv", "corrected.csv")
    )
    assert set(before.index[before != after]) == {"n9", "n12", "n15"}


def test_decisions_on_rows_that_changed_stay_behind(here: Path) -> None:
    assert run(*write_animals([*range(60)])).exit_code == 0
    decided = decide(here / "audit", 9, 12, 15)
    done = run(*write_animals([*range(100, 160)]))
    assert (
        done.exit_code == 0
        and "The decisions on the earlier audit are now in audit/decisions-" in done.stderr
    )
    assert "--id" in done.stderr and len(done.stderr.splitlines()[-1:]) == 1
    assert aside(here / "audit") == [decided] and not find_decisions(here / "audit").exists()
    refused = CliRunner().invoke(app, ["apply", "audit"])
    assert refused.exit_code == 2 and "noiseproof review audit" in refused.stderr


def test_decisions_by_id_go_with_their_rows(here: Path) -> None:
    rows = [*range(60)]
    assert run(*write_animals(rows), "--id", "name").exit_code == 0
    decided = decide(here / "audit", 9, 12, 15, 18)
    rows = [*range(12), *range(13, 60)]  # 12 is gone, 18 has another label by now
    done = run(*write_animals(rows, {18: "dog"}), "--id", "name")
    assert "2 of 4 decisions on the earlier audit are carried over" in done.stderr
    assert aside(here / "audit") == [decided]
    found = read_decisions(find_decisions(here / "audit"))
    assert {(word.row, word.id, word.given_label) for word in found.values()} == {
        (9, "n9", "cat"),
        (14, "n15", "cat"),
    }
    assert CliRunner().invoke(app, ["apply", "audit"]).exit_code == 0
    before, after = (
        pd.read_csv(name).set_index("name")["y"] for name in ("t.csv", "corrected.csv")
    )
    assert set(before.index[before != after]) == {"n9", "n15"}
    assert run(*write_animals(rows[::-1]), "--id", "name").exit_code == 0
    assert {word.id for word in read_decisions(find_decisions(here / "audit")).values()} == {
        "n9",
        "n15",
    }
    decided = (here / "audit" / "decisions.csv").read_bytes()
    # rows by class: labels that are the same however a class is sorted
    order = sorted(rows, key=lambda name: name % 3)
    assert run(*write_animals(order), "--id", "name").exit_code == 0
    assert run(*write_animals([*order[:20][::-1], *order[20:]]), "--id", "name").exit_code == 0
    found = read_decisions(find_decisions(here / "audit"))
    names = pd.read_csv("t.csv")["name"]
    assert {word.id for word in found.values()} == {"n9", "n15"}
    assert all(names[word.row] == word.id for word in found.values())


def test_ids_that_name_several_rows_carry_nothing(here: Path) -> None:
    twice = ("t.csv", "--label", "y", "--pred-probs", "p.npy", "--force", "--id", "pair")
    rows = [*range(60)]
    write_animals(rows)
    pd.read_csv("t.csv").assign(pair=[name % 30 for name in rows]).to_csv("t.csv", index=False)
    assert run(*twice).exit_code == 0
    decided = decide(here / "audit", 9)
    write_animals(rows[10:])  # of the pair 9 and 39 one is left, with the label that the other had
    pd.read_csv("t.csv").assign(pair=[name % 30 for name in rows[10:]]).to_csv("t.csv", index=False)
    assert run(*twice).exit_code == 0
    assert aside(here / "audit") == [decided] and not find_decisions(here / "audit").exists()


@pytest.mark.parametrize("damage", ["config.json", "decisions.csv", "another audit"])
def test_decisions_that_nobody_can_place_are_moved_aside(here: Path, damage: str) -> None:
    rows = [*range(60)]
    assert run(*write_animals(rows), "--id", "name").exit_code == 0
    decided = decide(here / "audit", 9)
    find_decisions(here / "audit").unlink()  # the database: the CSV file counts
    if damage == "another audit":
        decided = decided.replace(b"9,n9", b"9,n8")
    elif damage == "decisions.csv":
        decided += b'1,5" pipe,cat,keep,cat\n'
    else:
        (here / "audit" / "config.json").unlink()
    (here / "audit" / "decisions.csv").write_bytes(decided)
    assert run(*write_animals(rows[1:]), "--id", "name").exit_code == 0
    assert aside(here / "audit") == [decided] and not find_decisions(here / "audit").exists()


def test_decisions_on_pictures_go_with_their_files(here: Path) -> None:
    for i in range(40):
        path = here / "photos" / ("cat", "dog")[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 5 * i, dtype=np.uint8)).save(path)
    for left in (40, 39):
        np.save("p.npy", np.eye(2)[[0] * (left - 20) + [1] * 20] * 0.8 + 0.1)
        assert run("photos", "--pred-probs", "p.npy", "--force").exit_code == 0
        if left == 40:
            decide(here / "audit", 3, 30)
            (here / "photos" / "cat" / "00.png").unlink()
    found = read_decisions(find_decisions(here / "audit"))
    assert {row: word.id for row, word in found.items()} == {2: "cat/06.png", 29: "dog/21.png"}
    decided = (here / "audit" / "decisions.csv").read_bytes()
    # the same names, and who knows whether the same pictures
    (here / "photos").rename(here / "others")
    assert run("others", "--pred-probs", "p.npy", "--force").exit_code == 0
    assert decided in aside(here / "audit") and not find_decisions(here / "audit").exists()


def test_predictions_of_another_model_need_no_training(here: Path) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 300)
    p = np.eye(3)[y] * 0.85 + 0.05
    given = y.copy()
    given[:15] = (y[:15] + 1) % 3
    np.save("y.npy", given)
    np.save("p.npy", p)
    summary = run_json("--labels", "y.npy", "--pred-probs", "p.npy", "--classes", "x,y,z")
    table = pd.read_csv("audit/issues.csv")
    assert sorted(table.loc[table["is_label_issue"], "row"]) == list(range(15))
    assert table["neighbour_agreement"].isna().all() and table["outlier_score"].isna().all()
    assert summary["rows"] == 300 and set(table["given_label"]) == {"x", "y", "z"}
    config = json.loads(Path("audit/config.json").read_text())
    assert config["kind"] == "predictions" and config["mode"] == "predictions"
    assert config["pred_probs"] == str(here / "p.npy") and config["labels"] == str(here / "y.npy")


def test_the_goal_sets_the_cut(here: Path) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 300)
    np.save("p.npy", np.eye(3)[y] * 0.85 + 0.05)
    np.save("y.npy", np.where(random.random(300) < 0.1, (y + 1) % 3, y))
    given = ("--labels", "y.npy", "--pred-probs", "p.npy", "--force")
    assert run_json(*given, "--goal", "budget=7")["issues"] == 7
    table = pd.read_csv("audit/issues.csv")
    assert table["is_label_issue"].tolist() == [True] * 7 + [False] * 293
    assert json.loads(Path("audit/config.json").read_text())["goal"] == "budget=7"
    few, many = (run_json(*given, "--goal", f"recall={share}")["issues"] for share in (0.2, 0.9))
    assert 0 < few < many
    before = Path("audit/issues.csv").read_bytes()
    refused = run(*given, "--goal", "precision=2")
    assert refused.exit_code == 2 and refused.stdout == "" and "Traceback" not in refused.stderr
    for words in ("precision=0.9", "(0, 1]", "got 'precision=2'"):
        assert words in refused.stderr
    assert Path("audit/issues.csv").read_bytes() == before


def test_the_report_says_what_it_assumes_and_how_to_measure_instead(here: Path) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 40)
    np.save("p.npy", np.eye(3)[y] * 0.85 + 0.05)
    np.save("y.npy", y)
    result = run("--labels", "y.npy", "--pred-probs", "p.npy", "--out", "my audit")
    assert result.exit_code == 0
    assert (
        "The share of wrong labels is estimated as in other data with real mistakes. "
        "25 answers measure it and set the cut: noiseproof review 'my audit' --measure 25\n"
        in result.stdout
    )
    np.save("y.npy", random.permutation(y))  # nothing is estimated, so nothing is assumed
    assert (
        "estimated as in other data"
        not in run("--labels", "y.npy", "--pred-probs", "p.npy", "--out", "other").stdout
    )


def test_pictures_with_exports(here: Path) -> None:
    random = np.random.default_rng(0)
    for k, name in enumerate(("dark", "light")):
        (here / "photos" / name).mkdir(parents=True)
        for i in range(20):
            shade = 200 * (k if i or k else 1)  # dark/0 is light
            pixels = (shade + random.integers(0, 50, (24, 24, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(here / "photos" / name / f"{i}.png")
    (here / "photos" / "light" / "broken.png").write_text("not a picture")
    summary = run_json("photos", "--export", "label-studio,fiftyone", *QUICK)
    assert [s["reason"] for s in summary["skipped"]] == [
        "not a readable picture (UnidentifiedImageError)"
    ]
    tasks = json.loads(Path("audit/label-studio.json").read_text())
    assert len(tasks) == summary["issues"]
    labels = json.loads(Path("audit/fiftyone/labels.json").read_text())["labels"]
    files = list(Path("audit/fiftyone/data").iterdir())
    assert len(labels) == len(files) == 40 and all(file.exists() for file in files)
    table = pd.read_csv("audit/issues.csv")
    assert table["id"].iloc[0] == "dark/0.png"
    Path("audit/label-studio.json").write_text("old")
    run_json("photos", "--fast", "--export", "label-studio,fiftyone", "--force", *QUICK)
    assert Path("audit/label-studio.json").read_text() != "old"


def test_texts_groups_and_times(here: Path) -> None:
    random = np.random.default_rng(0)
    words = {"good": ["sun", "joy", "warm", "smile"], "bad": ["rain", "grief", "cold", "tears"]}
    rows = []
    for i in range(120):
        mood = "good" if i % 2 else "bad"
        said = " ".join(random.choice(words[mood], 5)) + f" word{random.integers(30)}"
        rows.append((said, mood if i else "good", i // 3, f"2021-01-{1 + i % 28:02d}"))
    pd.DataFrame(rows, columns=["said", "mood", "who", "when"]).to_csv("t.csv", index=False)
    arguments = (
        "t.csv",
        "--label",
        "mood",
        "--text",
        "said",
        "--groups",
        "who",
        "--time",
        "when",
        *QUICK,
    )
    summary = run_json(*arguments)
    table = pd.read_csv("audit/issues.csv")
    assert table["row"].iloc[0] == 0 and bool(table["is_label_issue"].iloc[0])
    assert summary["rows"] == 120


def test_skipped_rows_are_shown(here: Path) -> None:
    random = np.random.default_rng(0)
    y = np.array(["a", "b"] * 40, dtype=object)
    table = pd.DataFrame({"x": np.where(y == "a", 0.0, 5.0) + random.normal(size=80), "y": y})
    table.loc[3, "y"] = np.nan
    table.loc[7, "y"] = "only one"
    table.loc[9, "x"] = np.nan
    table.to_csv("d.csv", index=False)
    result = run("d.csv", "--label", "y", "--fast", *QUICK)
    assert result.exit_code == 0, result.output
    assert "skipped: 1 row (3): no label" in result.stdout
    assert (
        "skipped: 1 row (7): the only row of its class: there is nothing to compare it with"
        in result.stdout
    )
    assert "note: 1 missing number in column 'x' was filled with its median" in result.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 elsewhere")
def test_pictures_whose_names_are_no_utf8_are_shown(here: Path) -> None:
    for i in range(40):
        path = here / "photos" / ("cat", "dog")[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 5 * i, dtype=np.uint8)).save(path)
    os.rename(
        here / "photos" / "cat" / "00.png", os.fsencode(here / "photos" / "cat") + b"/caf\xe9.png"
    )
    np.save("p.npy", np.eye(2)[[0] * 20 + [1] * 20] * 0.8 + 0.1)
    result = run("photos", "--pred-probs", "p.npy")
    assert result.exit_code == 0, result.output
    assert "skipped: 1 row (cat/caf\\udce9.png): file name is not UTF-8" in result.stdout
    assert len(read_audit(here / "audit").issues) == 39


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["t.csv"], "Expected --label, the name of the column with the given labels, got none."),
        (
            ["t.csv", "--label", "kind", "--engine", "cluster"],
            "Expected an engine of local, ray, got 'cluster'.",
        ),
        (
            ["t.csv", "--label", "kind", "--address", "auto"],
            "Expected the engine ray with --address, got local",
        ),
        (
            ["t.csv", "--label", "kinds"],
            "Expected a column 'kinds' in {}/t.csv, found none. Did you mean 'kind'?",
        ),
        (
            ["t.csv", "--label", "kind", "--text", "words"],
            "Expected a column 'words' in {}/t.csv, found none. There",
        ),
        (
            ["t.csv", "--label", "kind", "--id", "name"],
            "Expected the columns 'name' in the table, there are 'x', 'kind'",
        ),
        (
            ["t.csv", "--label", "kind", "--groups", "kind"],
            "Expected each column in one role, got 'kind' in two.",
        ),
        (
            ["t.csv", "--label", "2", "--no-header"],
            "Expected a column '2' in {}/t.csv, found none. There are '0', '1'.",
        ),
        (
            ["u.csv", "--label", "kind"],
            "Expected a column 'kind' in {}/u.csv, found none. There are 'x', 'y'.",
        ),
        (
            ["t.csv", "--label", "kind", "--labels", "y.npy"],
            "Expected labels at y.npy, found no such file.",
        ),
        (
            ["t.csv", "--label", "kind", "--pred-probs", "p.npy"],
            "Expected pred_probs at p.npy, found no such file.",
        ),
        (
            ["gone.csv", "--label", "kind"],
            "Expected a file or a folder to audit at {}/gone.csv, found none.",
        ),
        (
            ["x.npy", "--label", "kind"],
            "Expected no columns for {}/x.npy, got 'label'. Only tables have columns.",
        ),
        (
            [],
            (
                "Expected data to audit, or both --labels and --pred-probs (or --embeddings), got"
                " none."
            ),
        ),
        (
            ["t.csv", "--label", "kind", "--export", "paper"],
            (
                "Expected --export of label-studio, argilla, cvat, fiftyone, coco, imagefolder, got"
                " paper."
            ),
        ),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: str
) -> None:
    (tmp_path / "t.csv").write_text("x,kind\n1,a\n2,b\n")
    (tmp_path / "u.csv").write_bytes("x;y\n1;a\n2;b\n".encode("utf-16"))
    (tmp_path / "x.npy").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert f"noiseproof: {error.format(tmp_path)}" in result.output


def test_an_unknown_method_is_refused_before_the_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("x,kind\n1,a\n2,b\n")
    monkeypatch.setattr("noiseproof.audit.read_rows", None)
    result = run(
        tmp_path / "t.csv", "--label", "kind", "--method", "gcee", "--out", tmp_path / "audit"
    )
    assert result.exit_code == 2 and "Unknown method 'gcee'. Did you mean 'gce'" in result.output


@pytest.mark.parametrize(
    ("options", "models"),
    [
        (("--model", "trees"), {"boosting", "forest", "extra", "neighbours"}),
        (("--model", "network"), {"network", "linear", "neighbours"}),
        (("--estimator", "sklearn.naive_bayes:GaussianNB"), {"estimator", "neighbours"}),
    ],
)
def test_models_are_chosen_and_named(
    options: tuple[str, ...], models: set[str], here: Path
) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 2))
    rows = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in x]
    Path("t.csv").write_text("\n".join(["a,b,y", *rows]))
    result = run("t.csv", "--label", "y", "--epochs", "2", *options)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("models: ")]
    assert {part.split()[0] for part in line.removeprefix("models: ").split(", ")} == models
    config = json.loads(Path("audit/config.json").read_text())
    assert {model["name"] for model in config["models"]} == models
    assert {config["model"], config["estimator"]} >= {options[1]}


def test_an_audit_again_learns_the_decisions(digits: tuple[Path, np.ndarray], here: Path) -> None:
    run_json(digits[0], "--label", "digit", "--id", "name", "--model", "network", *QUICK)
    before = read_audit("audit")
    log, truth = DecisionLog("audit/decisions.csv"), load_digits().target
    for row, id, given, suggested in before.issues[
        ["row", "id", "given_label", "suggested_label"]
    ].values[:60]:
        true = f"a {truth[int(id.removeprefix('digit-'))]}"
        choice = "keep" if true == given else "accept" if true == suggested else "other"
        log.add(Decision(row, id, given, choice, true))
    log.close()
    result = run(
        "audit", "--again", "--device", "cpu", "--threads", "1", "--export", "label-studio"
    )
    assert result.exit_code == 0, result.output
    after = read_audit("audit")
    assert after.config["again"] == 1 and after.config["command"] == before.config["command"]
    assert (
        "note: Audited again with 60 decisions" in result.stdout
        and "next: noiseproof review audit" in result.stdout
    )
    assert Path("audit/label-studio.json").exists()
    old, new = (
        audit.issues.set_index("row")["label_quality"].sort_index() for audit in (before, after)
    )
    assert (old != new).mean() > 0.9
    decided = {id for _, id, *_ in read_decisions("audit/decisions.csv").values()}
    assert not decided & {
        line.split()[0] for line in result.stdout.splitlines() if line.startswith("digit-")
    }
    left = after.issues["is_label_issue"] & ~after.issues["row"].isin(
        list(read_decisions("audit/decisions.csv"))
    )
    assert f"undecided: {left.sum()} of {after.summary['issues']} issues" in result.stdout
    assert run_json("audit", "--again", "--device", "cpu")["rows"] == 600


def test_other_issues_are_shown_by_need_for_action_and_fixed_in_a_copy(here: Path) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 240)
    table = pd.DataFrame(
        {"a": random.normal(size=240) + 2 * y, "b": random.random(240), "one": 7, "kind": y + 10}
    )
    table["late"] = y * 3
    table.iloc[:200].to_csv("train.csv", index=False)
    table.iloc[190:].to_csv("test.csv", index=False)
    arguments = (
        "train.csv",
        "--label",
        "kind",
        "--test",
        "test.csv",
        "--fast",
        "--model",
        "trees",
        "--device",
        "cpu",
    )
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    first = next(
        i
        for i, line in enumerate(lines)
        if line.startswith("columns: Column 'one' is 7 in all of 200 rows.")
    )
    assert lines[first].endswith("[apply --fix columns]")
    overlap = next(line for line in lines if line.startswith("test-overlap: "))
    assert "10 of 50 rows of the test set (20.0%)" in overlap and overlap.endswith(
        "[apply --fix test-overlap]"
    )
    assert any(
        line.startswith("leakage: Column 'late' alone predicts 100.0% of the labels")
        for line in lines
    )
    absent = next(line for line in lines if line.startswith("not found: "))
    assert {"order", "drift", "mixed", "spelling"} <= {
        *absent.removeprefix("not found: ").split(", ")
    }

    def apply(*more: str) -> Result:
        return CliRunner().invoke(app, ["apply", "audit", *more])

    result = apply("--fix", "columns, leakage,test-overlap", "--out", "fixed.csv")
    assert result.exit_code == 0, result.output
    assert "expected:" not in result.stdout  # nothing was decided
    assert (
        "fixed columns: column 'one' left out\nfixed leakage: column 'late' left out"
        in result.stdout
    )
    pd.testing.assert_frame_equal(
        pd.read_csv("fixed.csv"), pd.read_csv("train.csv")[["a", "b", "kind"]].iloc[:190]
    )
    listed = pd.read_csv("fixed-review.csv")
    assert listed["row"].tolist() == [*range(190, 200)] and {*listed["note"]} == {
        "left out by --fix test-overlap"
    }
    for wrong, words in (
        (("--fix", "columns", "--retrain"), "Expected --fix or --retrain"),
        (("--fix", "slice"), "by a command."),
        ((), "Expected decisions in"),
    ):
        result = apply(*wrong, "--out", "other.csv")
        assert (
            result.exit_code == 2
            and words in " ".join(result.output.split())
            and not Path("other.csv").exists()
        )
    assert run("train.csv", "--label", "kind", "--issues", "leak", "--out", "b").exit_code == 2
    assert "leakage" in run_json(
        *arguments[:3], "--fast", "--model", "trees", "--issues", "leakage", "--out", "c"
    )
