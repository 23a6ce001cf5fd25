"""What runs measure and keep on request, against the analysis of a run's own files; data that is
sent on request.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from noiseproof.analysis import open_run
from noiseproof.analysis.after.cost import trials
from noiseproof.analysis.during.samples import sample_weights
from noiseproof.bench import load_experiments, read_results, run_all, status
from noiseproof.bench.experiment import BadExperiment, Experiment, check, with_data
from noiseproof.bench.results import is_complete
from noiseproof.bench.tables import load_table
from noiseproof.cli import app
from noiseproof.core.grammar import parse_call
from noiseproof.data import DATASETS, Dataset, Split
from noiseproof.papers import get_paper
from noiseproof.train import Settings, train

SHORT = Settings(epochs=3, model="mlp:hidden=[16]")
ONE = Experiment("digits", "symmetric:rate=0.4", "gce:q=0.7", seed=1, settings=SHORT)


def test_sample_weights_are_those_of_a_run_that_records_them(tmp_path: Path) -> None:
    asked = replace(ONE, measures="sample-weights")
    measured = run_all([asked], tmp_path / "results")[ONE.key]["measured"]
    train(ONE.make_task(), ONE.method, SHORT, seed=1, out=tmp_path / "alone", samples=True)
    table = sample_weights(open_run(tmp_path / "alone"))
    assert measured == {
        "alpha": pytest.approx(table["alpha"].iloc[-1]),
        "snr": pytest.approx(table["snr"].iloc[-1]),
    }
    assert not (tmp_path / "results" / "runs" / ONE.key / "samples").exists()  # measured, not kept


def test_a_result_without_what_is_asked_is_made_again(tmp_path: Path) -> None:
    (plain,) = run_all([ONE], tmp_path).values()
    assert plain["measured"] == {} and is_complete(tmp_path, ONE)
    asked = replace(ONE, measures="sample-weights")
    assert status([asked], tmp_path) == {asked: "to do"}
    (measured,) = run_all([asked], tmp_path).values()
    # one run, with all that is asked of it
    assert status([ONE, asked], tmp_path) == {asked: "done"}
    assert measured["last"]["test_accuracy"] == plain["last"]["test_accuracy"]
    (again,) = run_all([ONE, asked], tmp_path).values()
    assert again == measured  # nothing was trained


def test_a_run_that_could_not_be_measured_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(ONE, measures="sample-weights")

    def fails(*_: Any) -> Any:
        raise ValueError("no samples")

    with monkeypatch.context() as broken:
        broken.setattr("noiseproof.bench.engines.measure", fails)
        with pytest.raises(ValueError, match="no samples"):
            run_all([asked], tmp_path)
    assert status([asked], tmp_path) == {asked: "interrupted"}
    record = tmp_path / "runs" / ONE.key / "record.csv"
    before = record.read_text()
    (result,) = run_all([asked], tmp_path).values()
    # with the seconds of the first
    assert result["measured"]["snr"] > 0 and record.read_text() == before


def test_samples_and_weights_are_kept_for_figures(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        '[[experiment]]\ndataset = "digits"\nnoise = "symmetric:rate=0.4"\nmethod = ["ln:tau=0.25",'
        ' "ln:tau=0.5"]\nmodel = "mlp:hidden=[16]"\nepochs = 2\nsamples = true\nweights ='
        " true\naugment = false\n"
    )
    runs = load_experiments(path)
    results = run_all(runs, tmp_path / "results")
    opened = {run.method: open_run(tmp_path / "results" / "runs" / run.key) for run in runs}
    for run in runs:
        found = opened[run.method]
        assert found.sample_epochs == (1, 2)
        accuracy = (found.log_probs("test").argmax(1) == found.task.test.y.numpy()).mean()
        assert accuracy == pytest.approx(results[run.key]["last"]["test_accuracy"])
    (tried,) = trials(opened).values()  # τ = 0.5 is the default, and no part of the name of its run
    assert tried["tau"].tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'measures = "snr"',
            (
                "Expected `measures` of sample-weights (alpha, snr) or annotators (annotator_nll),"
                " got 'snr'."
            ),
        ),
        ('samples = "yes"', "samples"),
        (
            'measures = "annotators"',
            "Expected all rows of cifar10 to measure annotators' labels, got 'digits'.",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_line(line: str, message: str) -> None:
    with pytest.raises(
        BadExperiment, match=r"text.*1.*" + message[:20].replace("`", ".")
    ) as refused:
        load_experiments(f'[[experiment]]\ndataset = "digits"\n{line}\n')
    assert message in str(refused.value)


def test_annotators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over rows of the mean −log p of three labels, from probabilities of the same network
    by hand.
    """
    random = np.random.default_rng(0)
    x, y = (
        torch.from_numpy(random.integers(256, size=(60, 3, 8, 8), dtype=np.uint8)),
        torch.arange(60) % 3,
    )
    votes = random.integers(3, size=(60, 3))
    data = Dataset("cifar10", ("a", "b", "c"), Split(x, y), Split(x[:9], y[:9]), spec="cifar10")
    monkeypatch.setattr(
        DATASETS, "_factories", {**DATASETS._factories, "cifar10": lambda data_dir=None: data}
    )
    monkeypatch.setattr(
        "noiseproof.analysis.after.predictions.cifar10n_annotations", lambda clean, folder: votes
    )
    monkeypatch.setattr("noiseproof.bench.experiment.find", lambda *_, **__: tmp_path)
    run = Experiment("cifar10", settings=SHORT, validation=0.1, measures="annotators", weights=True)
    with pytest.raises(BadExperiment, match=r"labels, got rows = 30\.$"):
        check([replace(run, rows=30)])
    (result,) = run_all([run], tmp_path).values()
    found = open_run(tmp_path / "runs" / run.key)
    log_p = found.log_probs("train")
    rows = found.labels["index"].numpy()
    assert len(rows) == 54
    by_hand = np.mean(
        [-np.mean([log_p[i, vote] for vote in votes[row]]) for i, row in enumerate(rows)]
    )
    assert result["measured"]["annotator_nll"] == pytest.approx(by_hand, rel=1e-5)


# Data that its owners send on request


def picture(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20), (value, 255 - value, 40)).save(path)


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """Clothing1M, WebVision and ANIMAL-10N in their official layouts, a few pictures each."""
    clothing = tmp_path / "clothing1M"
    lists: dict[str, list[str]] = {}
    for kind, parts in (("noisy", ["train"]), ("clean", ["train", "val", "test"])):
        for part in parts:
            for number in range(28):
                name = f"images/{kind}_{part}/{number}.jpg"
                picture(clothing / name, number * 9)
                lists.setdefault(f"{kind}_label_kv.txt", []).append(f"{name} {number % 14}")
                lists.setdefault(f"{kind}_{part}_key_list.txt", []).append(name)
    for name, lines in lists.items():
        (clothing / name).write_text("\n".join(lines) + "\n")
    webvision = tmp_path / "webvision"
    (webvision / "info").mkdir(parents=True)
    (webvision / "info" / "synsets.txt").write_text(
        "".join(f"n{k:08} class {k}\n" for k in range(1000))
    )
    for file, folder in (("train_filelist_google.txt", ""), ("val_filelist.txt", "val_images_256")):
        names = [f"google/q{k}/{k}.jpg" if not folder else f"val{k}.jpg" for k in range(60)]
        for k, name in enumerate(names):
            picture(webvision / folder / name, k * 4)
        (webvision / "info" / file).write_text(
            "".join(f"{name} {k}\n" for k, name in enumerate(names))
        )
    for part in ("training", "testing"):
        for number in range(20):
            picture(tmp_path / "ANIMAL-10N" / part / f"{number % 10}_{number:06}.jpg", number * 12)
    return tmp_path


def tiny(run: Experiment) -> Experiment:
    settings = replace(run.settings, model="mlp:hidden=[4]", epochs=2, batch_size=8, clip=1.0)
    return replace(
        run, method=re.sub(r"(total|per_class)=\d+", r"\1=28", run.method), settings=settings
    )


@pytest.mark.parametrize(
    ("id", "words", "classes"),
    [
        ("ln-table2", ("CE", "Clothing1M"), 14),
        ("sln-table3", ("SLN", "standard"), 14),
        ("sln-table3", ("SLN", "balanced"), 14),
        ("bias-table3", ("CE", "top 5"), 1000),
        ("curriculum-table4", ("MAE scale", "50 classes"), 50),
    ],
)
def test_cells_run_where_the_official_tree_is(
    id: str, words: tuple[str, ...], classes: int, trees: Path
) -> None:
    (cell,) = load_table(id).only(*words).cells
    run = tiny(cell.experiment(0))
    (result,) = run_all([run], trees / "results", data_dir=trees).values()
    assert result["status"] == "done", result["error"]
    assert result[cell.epoch][cell.metric] is not None
    folder = trees / "results" / "runs" / run.key
    assert len(json.loads((folder / "run.json").read_text("utf-8"))["classes"]) == classes


def test_animal10n_runs_by_the_protocol_of_the_nal_paper(trees: Path) -> None:
    path = trees / "sweep.toml"
    path.write_text(
        '[[experiment]]\ndataset = "animal10n"\nprotocol = "nal"\nmethod ='
        ' "nal:lam=0.5,alpha=0.9,start=1,every=1"\nepochs = 2\nmodel = "mlp:hidden=[4]"\n'
    )
    shown = CliRunner().invoke(
        app, ["bench", "run", str(path), "--results", str(trees / "mine"), "--data-dir", str(trees)]
    )
    assert shown.exit_code == 0, shown.stderr
    (result,) = read_results(trees / "mine").values()
    assert result["status"] == "done" and result["experiment"]["settings"]["batch_size"] == 128


def test_cells_whose_data_is_not_there_are_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pictures(data_dir: Any = None) -> Dataset:
        x = torch.zeros(40, 3, 32, 32, dtype=torch.uint8)
        y = torch.arange(40) % 10
        return Dataset("cifar10", tuple("0123456789"), Split(x, y), Split(x, y), spec="cifar10")

    monkeypatch.setattr(DATASETS, "_factories", {**DATASETS._factories, "cifar10": pictures})
    command = ["bench", "run", "bias-table2", "--only", "cifar10", "--only", "CE", "--only", "0 %"]
    options = ["--seeds", "1", "--epochs", "1", "--dry-run", "--json", "--data-dir", str(tmp_path)]
    shown = CliRunner().invoke(app, [*command, *options])
    assert shown.exit_code == 0 and "Left out" not in shown.stderr
    (planned,) = json.loads(shown.stdout)
    assert planned["settings"]["epochs"] == 1
    table = load_table("ln-table2").only("CE", "worst,Clothing1M")
    there, absent = with_data(table.experiments([0]), tmp_path)
    assert [run.dataset for run in there] == ["cifar10"] and "Clothing1M" in absent["clothing1m"]
    with pytest.raises(FileNotFoundError, match="see https://github.com/Cysu/noisy_label"):
        with_data(table.only("Clothing1M").experiments([0]), tmp_path)
    asked = [Experiment(name) for name in ("clothing1m", "webvision")]
    with pytest.raises(FileNotFoundError, match="Cysu/noisy_label.*files of webvision"):
        with_data(asked, tmp_path)


def test_grids_of_clothing1m_and_the_nal_paper() -> None:
    """SLN paper, B.2, and NAL paper, B.4, typed again."""
    assert get_paper("sln").grids("clothing1m") == {
        "sln": "sln:sigma=[0.1,0.2,0.5],until=none,max_norm=none",
        "sln-mo-lc": (
            "sln-mo-lc:sigma=0.2,alpha=0.999,start=[1,5,9],soft=true,against=original,max_norm=none"
        ),
    }
    for dataset in ("cifar10", "cifar100", "animal10n", "clothing1m", "webvision"):
        (grid,) = get_paper("nal").grids(dataset).values()
        assert "lam=[0.01,0.05,0.1,0.5,5,10,50],alpha=[0.7,0.9,0.99]" in grid
        options = {"dataset": dataset} | ({"num_classes": 50} if dataset == "webvision" else {})
        presets = [p for p in get_paper("nal").method_presets if p.data.items() >= options.items()]
        params, preset = parse_call(grid)[1], parse_call(presets[0].spec)[1]
        assert all(params[key] == preset[key] for key in ("start", "every", "beta"))
