"""Experiments as data: keys, grids, and refusals with the block in the file."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from noiseproof.bench import BadExperiment, Experiment, check, load_experiments
from noiseproof.bench.experiment import OUTSIDE_KEY, RESULT_VERSION, folder_digest
from noiseproof.core import plugins
from noiseproof.core.grammar import format_call
from noiseproof.data import DATASETS, Dataset, Split, corrupt, get_dataset
from noiseproof.data.augment import augmentation
from noiseproof.losses import LOSSES
from noiseproof.models import MODELS
from noiseproof.noise import NOISES
from noiseproof.papers import loss_presets, method_presets
from noiseproof.strategies import STRATEGIES
from noiseproof.train import Settings, prepare
from noiseproof.train.methods import METHODS
from noiseproof.train.protocols import protocol

SMALL = Settings(model="mlp:hidden=[8]", epochs=2)
ONE = Experiment(
    "digits", "symmetric:rate=0.4", "gce:q=0.7", seed=3, settings=SMALL, validation=0.1
)


def test_the_key_is_the_digest_of_the_canonical_json() -> None:
    what = {
        "dataset": "digits",
        "noise": "symmetric:rate=0.4",
        "method": "gce",
        "seed": 3,
        "noise_seed": 3,
        "validation": 0.1,
        "paper": None,
        "foreign": None,
        "rows": None,
        "version": RESULT_VERSION,
        "precision": "32",
        "augment": True,
        "settings": {
            "model": "mlp:hidden=[8]",
            "epochs": 2,
            "batch_size": 128,
            "clip": None,
            "drop_last": False,
            "optimizer": "sgd:lr=0.05,momentum=0.9,nesterov=true,weight_decay=5e-4",
            "schedule": "cosine",
            "compile": False,
        },
    }
    text = json.dumps(what, sort_keys=True, separators=(",", ":"))
    assert ONE.key == hashlib.sha256(text.encode()).hexdigest()[:16]


CHANGES: dict[str, Any] = {
    "dataset": "two-moons",
    "noise": "none",
    "method": "ce",
    "seed": 4,
    "settings": replace(SMALL, epochs=3),
    "validation": 0.2,
    "paper": "ln",
    "noise_seed": 0,
    "foreign": "cifar100",
    "rows": 100,
    "precision": "bf16",
    "augment": False,
}


def test_every_field_is_in_the_key() -> None:
    assert CHANGES.keys() | set(OUTSIDE_KEY) == {f.name for f in fields(Experiment)}
    keys = {ONE.key, *(replace(ONE, **{name: value}).key for name, value in CHANGES.items())}
    assert len(keys) == 1 + len(CHANGES)


@pytest.mark.parametrize("name", Settings().as_dict())
def test_every_setting_that_matters_is_in_the_key(name: str) -> None:
    others: dict[str, Any] = {
        "model": "lenet5",
        "epochs": 3,
        "batch_size": "full",
        "optimizer": "adam:lr=0.1",
        "schedule": "constant",
        "clip": 1,
        "drop_last": True,
        "compile": True,
    }
    assert replace(ONE, settings=replace(SMALL, **{name: others[name]})).key != ONE.key


@pytest.mark.parametrize(
    "same",
    [
        replace(ONE, noise_seed=3),
        replace(ONE, seed=3.0),  # type: ignore[arg-type]
        replace(ONE, settings=replace(SMALL, workers=4, checkpoint_steps=7, checkpoint_seconds=1)),
        replace(ONE, settings=replace(SMALL, epochs=2.0)),  # type: ignore[arg-type]
        replace(ONE, method="gce"),
        replace(ONE, method=" gce : q = 0.70 "),
        replace(ONE, noise="symmetric:count=draws,rate=.4"),
        replace(ONE, samples=True, weights=True, measures="sample-weights annotators"),
    ],
)
def test_what_changes_no_result_changes_no_key(same: Experiment) -> None:
    assert same.key == ONE.key


def test_what_is_said_beside_a_default_stays_in_the_key() -> None:
    unlike = [
        "gce:q=0.71",
        "gce:q=0.7,shift=1",
        "gce & sln",
        "gce + mae",
        "2*gce",
        "gce@bias",
        "tgce",
        "tgce:start=3",
    ]
    assert len({replace(ONE, method=method).key for method in ("gce", *unlike)}) == 1 + len(unlike)


@pytest.mark.parametrize("name", METHODS)
def test_every_default_may_be_spelled_out(name: str) -> None:
    own = METHODS.parameters(name)
    if not any(value is inspect.Parameter.empty for value in own.values()):
        # others follow the data
        said = {key: value for key, value in own.items() if not callable(value)}
        assert replace(ONE, method=format_call(name, said)).key == replace(ONE, method=name).key


def test_defaults_change_only_with_the_version_of_results() -> None:
    """Results of ``gce`` are those of its defaults: where they or presets change, raise the version
    and this digest.
    """
    every = {
        f"{registry.kind} {name}": {
            key: "follows the data" if callable(value) else str(value)
            for key, value in registry.parameters(name).items()
        }
        for registry in (DATASETS, NOISES, METHODS, LOSSES, STRATEGIES, MODELS)
        for name in registry
        if name not in plugins.MODULES
    }
    presets = sorted(str(tuple(preset)) for preset in (*loss_presets(), *method_presets()))
    text = json.dumps([RESULT_VERSION, every, presets], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "4a6d1f8042098327"


def test_a_file_that_changes_between_two_sweeps_is_another_run(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("x,y\n1,0\n")
    mine = replace(ONE, dataset=f"table:table={table},label=y")
    before = mine.key
    table.write_text("x,y\n1,1\n")
    os.utime(table, (1, 1))
    assert mine.key != before


def test_official_files_are_the_same_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "labels").mkdir()
    np.save(tmp_path / "labels" / "mine.npy", np.zeros(3))
    official = replace(ONE, noise="file:path=labels/mine.npy")
    before = official.key
    monkeypatch.chdir(tmp_path)
    assert official.key != before  # a file of one's own
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path))
    assert official.key == before


@pytest.mark.parametrize("field", ["foreign", "noise"])
def test_files_of_other_images_and_in_a_folder_are_in_the_key(field: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"1")
    spec = f"folder:path={tmp_path}" if field == "foreign" else f"file:path=a.npy,folder={tmp_path}"
    one = replace(ONE, **{field: spec})
    before = one.key
    (tmp_path / "a.npy").write_bytes(b"12")
    folder_digest.cache_clear()
    assert one.key != before


def test_a_key_follows_what_files_hold_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(dataset: str = "table:table=mine.csv,label=y", noise: str = "none") -> str:
        return replace(ONE, dataset=dataset, noise=noise).key

    missing = key()
    for folder, text in (("a", "x,y\n1,0\n"), ("b", "x,y\n1,0\n"), ("c", "x,y\n1,1\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.csv").write_text(text)
    keys = []
    for folder in "abc":
        monkeypatch.chdir(tmp_path / folder)
        keys.append(key())
    assert keys[0] == keys[1] != keys[2] and missing not in keys
    np.save("n.npy", np.zeros(3))
    before = key("digits", "file:path=n.npy")
    np.save("n.npy", np.ones(3))
    assert key("digits", "file:path=n.npy") != before
    # A folder, by the names and sizes of its files: one that moves to another class has another
    # label.
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
    picture = tmp_path / "pictures" / "cat" / "1.png"
    picture.write_bytes(b"1")
    before = key(f"folder:path={tmp_path / 'pictures'}")
    assert key(f"folder:path={tmp_path / 'pictures'}") == before
    picture.rename(tmp_path / "pictures" / "dog" / "1.png")
    folder_digest.cache_clear()  # as every sweep does
    assert key(f"folder:path={tmp_path / 'pictures'}") != before
    # A column that is called as some folder is no folder, and an endless word is none, either.
    before = key("table:table=mine.csv,label=target")
    (tmp_path / "c" / "target").mkdir()
    assert (
        key("table:table=mine.csv,label=target") == before
        and len(key(f"table:table={'a' * 300}")) == 16
    )
    again = Experiment.from_dict(
        replace(ONE, dataset="table:table=mine.csv").as_dict(), "0123456789abcdef"
    )
    assert again.key == "0123456789abcdef"  # of the driver, whatever the file holds by now


def test_what_needs_held_out_rows_is_tried_with_and_without() -> None:
    check([replace(ONE, method="ce & early-stopping", validation=0.1)])
    with pytest.raises(BadExperiment, match="Expected noisy labels held out for early-stopping"):
        check(
            [replace(ONE, method="ce & early-stopping", validation=share) for share in (0.1, 0.0)]
        )


def test_precision_is_a_word_or_a_number_and_32_is_what_was_before() -> None:
    assert replace(ONE, precision="32").key == replace(ONE, precision=32).key == ONE.key  # type: ignore[arg-type]
    text = (
        '[[experiment]]\ndataset = "digits"\nmodel = "mlp:hidden=[8]"\nprecision = [32, "bf16"]\n'
    )
    assert [experiment.precision for experiment in load_experiments(text)] == ["32", "bf16"]
    with pytest.raises(BadExperiment, match="Expected a precision of 32, bf16, 64, got '16'"):
        load_experiments(text.replace('"bf16"', '"16"'))
    before = ONE.as_dict()
    del before["precision"]  # a result that was written before there was any
    assert Experiment.from_dict(before) == ONE


def test_an_experiment_survives_json() -> None:
    assert Experiment.from_dict(json.loads(json.dumps(ONE.as_dict()))) == ONE


def test_the_task_has_the_noise_of_its_own_seed_and_the_first_rows() -> None:
    data = get_dataset("digits")
    task = replace(ONE, noise_seed=7, rows=500).make_task()
    x, y = data.train.x[:500], data.train.y[:500]  # type: ignore[index]
    first = replace(data, train=Split(x, y, y))
    expected = prepare(first, "symmetric:rate=0.4", seed=7, validation=0.1)
    assert (
        len(task.train) == 450 and task.validation is not None and expected.validation is not None
    )
    assert torch.equal(task.train.given, expected.train.given)
    assert torch.equal(task.validation.index, expected.validation.index)
    assert not torch.equal(task.train.given, replace(ONE, rows=500).make_task().train.given)


def test_a_task_is_prepared_as_its_paper_does_with_foreign_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images, labels = (
        torch.randint(0, 256, (300, 3, 32, 32), dtype=torch.uint8),
        torch.arange(300) % 10,
    )
    data = Dataset(
        "cifar10", tuple("abcdefghij"), Split(images, labels, labels), Split(images, labels, labels)
    )
    monkeypatch.setattr(
        "noiseproof.bench.experiment.get_dataset",
        lambda spec, data_dir=None: replace(data, name=spec),
    )
    open_set = replace(
        ONE,
        dataset="cifar10",
        noise="open-set:rate=0.4",
        foreign="cifar100",
        rows=100,
        validation=0,
    )
    for paper in ("ln", "bias"):
        made = replace(open_set, paper=paper).without_method.make_task()
        assert made.augment == augmentation("cifar10", paper) and len(made.train) == 100
    with pytest.raises(ValueError, match="foreign"):
        replace(open_set, foreign=None).make_task()


def test_a_matrix_in_a_file_is_in_the_key_and_a_list_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(name: str) -> str:
        return replace(ONE, noise=f"matrix:T={tmp_path / name}").key

    keys = []
    for matrix in (np.eye(10), np.full((10, 10), 0.1), np.eye(10)):
        np.save(tmp_path / "T.npy", matrix)
        np.savetxt(tmp_path / "T.csv", matrix, delimiter=",")
        keys.append((key("T.npy"), key("T.csv")))
    assert keys[0] == keys[2] and len({*keys[0], *keys[1]}) == 4
    short, long = (replace(ONE, noise=f"matrix:T={np.eye(n).tolist()}") for n in (2, 30))
    before = short.key, long.key
    (tmp_path / str(np.eye(2).tolist())).write_text("no matrix")
    monkeypatch.chdir(tmp_path)
    assert (short.key, long.key) == before


def test_what_lies_in_linked_folders_is_in_the_key(tmp_path: Path) -> None:
    """As the loader reads it: a part and a class may be links. A link to a folder around it ends
    nowhere.
    """
    store, images = tmp_path / "store", tmp_path / "images"
    for name in ("cat", "dog"):
        (store / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (8, 8)).save(store / name / f"{name}{i}.png")
    images.mkdir()
    (images / "train").symlink_to(store)
    (store / "dog" / "around").symlink_to(tmp_path)
    one = replace(ONE, dataset=f"folder:path={images},size=8", noise="none", validation=0.0)

    def counts() -> tuple[str, list[int]]:
        folder_digest.cache_clear()
        return one.key, one.make_task().train.given.bincount().tolist()

    before = counts()
    assert counts() == before and before[1] == [3, 3]
    (store / "cat" / "cat0.png").rename(store / "dog" / "cat0.png")
    after = counts()
    assert after[0] != before[0] and after[1] == [2, 4]


def test_a_folder_without_links_has_the_digest_that_it_always_had(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/.hidden/1.png", "a.txt", "a/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "c.png").symlink_to("a/1.png")
    (tmp_path / "broken.png").symlink_to("nowhere")
    expected = [("a.txt", 5), ("a/1.png", 7), ("b/.hidden/1.png", 15), ("b/2.png", 7), ("c.png", 7)]
    assert folder_digest(str(tmp_path)) == hashlib.sha256(repr(expected).encode()).hexdigest()


def test_the_file_of_labels_that_is_read_is_the_one_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path itself, where there is one, and only else under the folder."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    one = replace(ONE, noise="file:path=mine.npy,folder=folder", validation=0.0)
    seen = []
    for number, path in enumerate(("folder/mine.npy", "mine.npy", "folder/mine.npy", "mine.npy")):
        np.save(path, np.full(1437, number))
        seen.append((one.key, int(one.make_task().train.given[0])))
    assert [label for _, label in seen] == [0, 1, 1, 3]
    keys = [key for key, _ in seen]
    assert keys[1] == keys[2] and len(set(keys)) == 3


# Files

GRID = """# a comment
[[experiment]]
dataset = "digits"
noise = ["none", "symmetric:rate=0.4"]
method = [
    "ce",
    "gce:q=0.7",  # the paper's
]
model = "mlp:hidden=[8]"
epochs = 2
seed = [0, 1]

[[experiment]]
dataset = "digits"
noise_seed = 0
validation = 0.1
workers = 2
drop_last = true
"""


def test_a_block_is_the_product_of_its_lists() -> None:
    found = load_experiments(GRID)
    expected = [
        Experiment("digits", noise, method, seed, SMALL)
        for noise in ("none", "symmetric:rate=0.4")
        for method in ("ce", "gce:q=0.7")
        for seed in (0, 1)
    ]
    assert found[:-1] == expected
    assert found[-1] == Experiment(
        "digits", noise_seed=0, validation=0.1, settings=Settings(workers=2, drop_last=True)
    )


def test_a_protocol_is_a_papers_settings_and_preparation() -> None:
    (found,) = load_experiments(
        '[[experiment]]\ndataset = "circles"\nprotocol = "ln"\nepochs = 5\n'
    )
    assert found.settings == replace(protocol("ln", "circles"), epochs=5)
    assert found.paper == "ln"


@pytest.mark.parametrize(
    "old, new, block, message",
    [
        ('"gce:q=0.7"', '"gce:q=1.3"', 1, "Expected `q` in (0, 1], got 1.3"),
        (
            '"gce:q=0.7"',
            '"ln:tau=[0.5,1]"',
            1,
            "Expected `tau` in (0, inf), got [0.5, 1].",
        ),
        ('"gce:q=0.7"', '"ce, gce:q=0.1"', 1, "Expected one method, got 2: ce and gce:q=0.1."),
        (
            "rate=0.4",
            "rate=[0.2,0.4]",
            1,
            "Expected `rate` in [0, 1], got [0.2, 0.4].",
        ),
        (
            '"none"',
            "0.4",
            1,
            "Expected a noise model with its rate, got 0.4. Write symmetric:rate=0.4.",
        ),
        (
            "[0, 1]",
            '"0,1,2"',
            1,
            "Expected `seed` to be an integer of at least 0, got '0,1,2'",
        ),
        (
            "epochs = 2",
            "lr = 0.1",
            1,
            """Unknown key 'lr'. Write optimizer = "sgd:lr=0.1,momentum=0.9".""",
        ),
        ("epochs = 2", 'loss = "gce"', 1, """Unknown key 'loss'. Write method = "gce"."""),
        ('"gce:q=0.7"', '"ce gce"', 1, "Unknown method 'ce gce'."),
        ('"gce:q=0.7"', '"gcee"', 1, "Unknown method 'gcee'. Did you mean 'gce'"),
        ('"gce:q=0.7"', '"gce & mixupp"', 1, "Unknown strategy 'mixupp'"),
        ('"gce:q=0.7"', "7", 1, "Expected `method` to be a word or a spec, got 7"),
        ('"ce"', '"ce:w=1"', 1, "parameters of the method 'ce'"),
        ("rate=0.4", "rate=1.4", 1, "got 1.4"),
        ('"none"', '"nothing"', 1, "Unknown noise model 'nothing'"),
        ('"none"', '"chen:rate=0.4"', 1, "which needs the predictions"),
        ('"none"', '"asymmetric-superclass:rate=0.4"', 1, "100"),
        ("mlp:hidden=[8]", "mlq", 1, "Unknown model 'mlq'"),
        (
            "mlp:hidden=[8]",
            "mlp:hidden=[8],in_features=3",
            1,
            "Expected in_features=64 for inputs of shape (1, 8, 8)",
        ),
        ("epochs = 2", "epochs = 0", 1, "Expected `epochs` to be an integer of at least 1, got 0"),
        ("epochs = 2", "epochs = [1, -2]", 1, "got -2"),
        ("epochs = 2", 'optimizer = "sgd:lr=-1"', 1, "got -1"),
        ("epochs = 2", "epoch = 2", 1, "Unknown key 'epoch'. Did you mean 'epochs'"),
        ("epochs = 2", 'protocol = "curriculum"', 1, "got 'digits' of paper 'curriculum'"),
        ("epochs = 2", "rows = 10000", 1, "Expected at most 1437 `rows`, got 10000"),
        ("epochs = 2", "validation = 1e-6", 1, "Expected rows in both parts"),
        (
            '"gce:q=0.7"',
            '"ce & early-stopping"',
            1,
            "Expected noisy labels held out for early-stopping, got none.",
        ),
        (
            '"gce:q=0.7"',
            '"ce & sigua-bc"',
            1,
            "Expected the loss `backward` for sigua-bc, got `ce`",
        ),
        (
            '"gce:q=0.7"',
            '"ln & sln"',
            1,
            "Expected a loss whose targets may be numbers, negative ones too for `sln",
        ),
        ('"gce:q=0.7",  # the', '# "gcx"\n    "gcx", # the', 1, "Unknown method 'gcx'"),
        (
            "drop_last = true\n",
            'drop_last = "false"\n',
            2,
            "Expected `drop_last` to be true or false",
        ),
        ("[0, 1]", "[]", 1, "Expected values for `seed`, got an empty list."),
        ("[0, 1]", '[0, "one"]', 1, "Expected `seed` to be an integer of at least 0, got 'one'"),
        ("[0, 1]", "[\n  0,\n  -1]", 1, "got -1"),
        ("noise_seed = 0", "noise_seed = -1", 2, "noise_seed"),
        ("validation = 0.1", "validation = 1.0", 2, "Expected `validation` in [0, 1), got 1.0"),
        ('dataset = "digits"\nnoise_seed', "noise_seed", 2, "Expected a `dataset`"),
        (
            'dataset = "digits"\nnoise_seed',
            'dataset = "digit"\nnoise_seed',
            2,
            "Unknown dataset 'digit'",
        ),
        (
            'dataset = "digits"\nnoise_seed',
            'dataset = "mnist"\nnoise_seed',
            2,
            "Expected the files of mnist",
        ),
        (
            "noise_seed = 0",
            'noise = "open-set:rate=0.4"\nforeign = "mnist"',
            2,
            "Expected the files of mnist",
        ),
        ("noise_seed = 0", 'noise = "open-set:rate=0.4"', 2, "Expected `foreign` images"),
        (
            "noise_seed = 0",
            'foreign = "digits"',
            2,
            "Expected open-set noise with `foreign`, which gives it images, ",
        ),
        (
            "noise_seed = 0",
            'paper = "999"',
            2,
            (
                "Expected a `paper` of bias, bias-mlp1024, curriculum, ln, nal, pes, pes-semi,"
                " promix, sln, sop, sop+, zhou2021, got '999'."
            ),
        ),
        ("noise_seed = 0", 'paper = ["ln",\n  "lnx"]', 2, "zhou2021, got 'lnx'."),
        (
            "drop_last = true",
            "[other]\nx = 1",
            0,
            "Expected [[experiment]] blocks, in two brackets, and nothing else",
        ),
        ("workers = 2", "workers = ", 0, "Expected TOML"),
    ],
)
def test_a_refusal_names_file_block_and_remedy(
    old: str, new: str, block: int, message: str, tmp_path: Path
) -> None:
    assert old in GRID
    path = tmp_path / "sweep.toml"
    path.write_text(GRID.replace(old, new, 1))
    with pytest.raises(BadExperiment) as refused:
        load_experiments(path, data_dir=tmp_path)
    place = f"{path}, [[experiment]] {block}" if block else f"{path}: "
    assert str(refused.value).startswith(place)
    assert message in str(refused.value)
    if message.startswith("Unknown"):  # for which no data is needed
        with pytest.raises(BadExperiment) as unchecked:
            load_experiments(path, check_runs=False)
        assert str(unchecked.value) == str(refused.value)


def test_a_file_of_other_bytes_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes("# für".encode("latin-1"))
    with pytest.raises(BadExperiment, match=r"latin.toml: Expected TOML in UTF-8, got: "):
        load_experiments(tmp_path / "latin.toml")


def test_no_blocks_are_refused_too(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(BadExperiment, match="empty.toml: Expected .*experiment.* got none"):
        load_experiments(tmp_path / "empty.toml")


def test_chens_noise_comes_from_a_file_as_its_refusal_says(tmp_path: Path) -> None:
    with pytest.raises(
        BadExperiment, match="instance.averaged_predictions.*numpy.save.*file:path=FILE.npy"
    ):
        check([replace(ONE, noise="chen:rate=0.4")])
    data, probs = (
        get_dataset("digits"),
        torch.rand(1437, 10, generator=torch.Generator().manual_seed(0)).softmax(1),
    )
    given = corrupt(data, "chen:rate=0.4", features=probs).given
    np.save(tmp_path / "chen.npy", given.numpy())
    runs = [
        replace(ONE, noise=f"file:path={tmp_path / 'chen.npy'}", seed=seed, validation=0.0)
        for seed in (0, 1)
    ]
    check(runs)
    for run in runs:
        task = run.make_task()
        assert torch.equal(task.train.given, given) and task.train.rate == pytest.approx(
            0.4, abs=1 / 1437
        )


def test_other_images_may_stand_beside_a_grid_of_noise_of_which_one_is_open_set() -> None:
    text = (
        '[[experiment]]\ndataset = "digits"\nnoise = ["none", "open-set:rate=0.4"]\nforeign ='
        ' "digits"\n'
    )
    assert [found.foreign for found in load_experiments(text)] == ["digits", "digits"]
    with pytest.raises(
        BadExperiment,
        match=r"^text, \[\[experiment\]\] 1: Expected open-set noise .*got none, symmetric. Leave",
    ):
        load_experiments(text.replace("open-set:", "symmetric:"))


def test_experiments_made_in_python_are_refused_by_field() -> None:
    with pytest.raises(BadExperiment, match="Unknown method") as refused:
        check([ONE, replace(ONE, method="never")])
    assert (refused.value.field, refused.value.experiment) == (
        "method",
        replace(ONE, method="never"),
    )
    with pytest.raises(
        BadExperiment, match="Expected a loss for which a head gives all it needs"
    ) as refused:
        check([replace(ONE, method="nal:lam=1 + ln")])
    assert refused.value.field == "method"
    with pytest.raises(BadExperiment, match="Expected a `paper` of bias, .*, got '999'") as refused:
        check([replace(ONE, paper="999")])
    assert refused.value.field == "paper"


# What editors and calendars put into files


def test_seeds_are_what_they_are_or_refused() -> None:
    assert replace(ONE, seed=2**53 + 1).seed == 2**53 + 1
    assert replace(ONE, seed=2**53 + 1).key != replace(ONE, seed=2**53).key
    for name in ("seed", "noise_seed"):
        with pytest.raises(ValueError, match=f"Expected `{name}` below 2"):
            replace(ONE, **{name: 2**63})


def test_a_pinned_experiment_keeps_its_key(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("x,y\n1,0\n2,1\n")
    one = replace(ONE, dataset=f"table:table={table},label=y")
    pinned = one.pinned()
    pinned.check_unchanged()
    table.write_text("x,y\n1,0\n2,0\n")
    assert pinned == one and pinned.key == pinned.pinned().key != one.key
    with pytest.raises(BadExperiment, match="as they were when this sweep began"):
        pinned.check_unchanged()
