"""Human labels and files of labels: the real ones, and broken, hostile and odd ones."""

import contextlib
import os
import pickle
import re
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from noiseproof.noise import NoisyLabels, get_noise
from noiseproof.noise.classwise import CIFAR100_SUPERCLASS
from noiseproof.noise.human import majority_vote, read_columns, worst_label

ROOT = Path(__file__).parents[2]


def real(name: str) -> Path:
    """A real file under $NOISEPROOF_DATA or beside the checkout."""
    for folder in (os.environ.get("NOISEPROOF_DATA"), ROOT.parent / "shared" / "data"):
        if folder and (path := Path(folder) / name).is_file():
            return path
    pytest.skip(f"{name} not found: set NOISEPROOF_DATA to a folder that has it")


def column(path: Path, name: str) -> torch.Tensor:
    return torch.as_tensor(np.asarray(read_columns(path)[name]).astype(np.int64))


# --- CIFAR-N ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "flipped"),
    [
        ("cifar10n:which=clean", 0),
        ("cifar10n:which=aggregate", 9.01),
        ("cifar10n:which=random1", 17.23),
        ("cifar10n:which=random2", 18.12),
        ("cifar10n:which=random3", 17.64),
        ("cifar10n:which=worst", 40.21),
        ("cifar100n", 40.20),
        ("cifar100n:which=clean", 0),
    ],
)
def test_cifar_n_rates(spec: str, flipped: float, monkeypatch: pytest.MonkeyPatch) -> None:
    path = real("cifar-n/CIFAR-100_human.pt" if "100" in spec else "cifar-n/CIFAR-10_human.pt")
    clean = column(path, "clean_label")
    noisy = get_noise(spec, folder=path.parent).corrupt(clean)
    assert round(100 * noisy.rate, 2) == flipped
    assert torch.equal(noisy.clean, clean)
    assert f"realised rate {flipped:.2f} % (no nominal rate)" in str(noisy)
    monkeypatch.setenv("NOISEPROOF_DATA", str(path.parents[1]))  # found in its folder cifar-n too
    assert torch.equal(get_noise(spec).corrupt(clean).given, noisy.given)


def test_cifar10n_aggregate_and_worst_are_what_the_annotators_say() -> None:
    path = real("cifar-n/CIFAR-10_human.pt")
    clean = column(path, "clean_label")
    three = ["random_label1", "random_label2", "random_label3"]
    votes = torch.stack([column(path, name) for name in three], 1)
    agree = (votes[:, :1] == votes[:, 1:]).any(1) | (votes[:, 1] == votes[:, 2])
    assert int((~agree).sum()) == 3041  # three-way ties
    aggregate = column(path, "aggre_label")
    vote = get_noise(
        "file", path=path, given=three, clean="clean_label", annotators="vote"
    ).corrupt(clean)
    assert torch.equal(vote.given[agree], aggregate[agree])
    assert torch.equal(vote.given[~agree], votes[~agree, 0])  # ties: the earliest annotator
    worst = get_noise("file", path=path, given=three, annotators="worst").corrupt(clean)
    assert torch.equal(worst.is_flipped, column(path, "worse_label") != clean)
    every = get_noise("file", path=path, given=three, annotators="all").corrupt(clean)
    assert torch.equal(every.given.view(-1, 3), votes)
    assert torch.equal(every.index, torch.arange(50_000).repeat_interleave(3))
    assert torch.equal(every.clean, clean[every.index])


def test_cifar100n_coarse_labels_confirm_the_superclasses() -> None:
    path = real("cifar-n/CIFAR-100_human.pt")
    assert torch.equal(
        torch.tensor(CIFAR100_SUPERCLASS)[column(path, "clean_label")],
        column(path, "clean_coarse_label"),
    )


def test_cifar_n_in_another_order_is_refused() -> None:
    path = real("cifar-n/CIFAR-10_human.pt")
    clean = column(path, "clean_label")
    noise = get_noise("cifar10n:which=worst", folder=path.parent)
    with pytest.raises(
        ValueError,
        match=r"CIFAR-10_human.pt to be those of the data, \d+ of 50000 rows differ, first row",
    ):
        noise.corrupt(clean.flip(0))
    with pytest.raises(
        ValueError,
        match=r"Expected 45000 labels .* got 50000. Corrupt the whole training set before",
    ):
        noise.corrupt(clean[:45_000])


def test_cifar_n_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOISEPROOF_DATA", raising=False)
    with pytest.raises(ValueError, match="Set `folder` or the variable NOISEPROOF_DATA"):
        get_noise("cifar10n:which=worst").corrupt([0])
    with pytest.raises(
        FileNotFoundError, match=rf"CIFAR-100_human.pt in {re.escape(str(tmp_path))}.*github"
    ):
        get_noise("cifar100n", folder=tmp_path).corrupt([0])
    with pytest.raises(
        ValueError, match="clean, aggregate, random1, random2, random3, worst, got 'worse'"
    ):
        get_noise("cifar10n:which=worse")
    with pytest.raises(ValueError, match="made for 10 classes, got 100"):
        get_noise("cifar10n:which=worst").corrupt([0], num_classes=100)
    with pytest.raises(TypeError, match="no transition matrix"):
        get_noise("cifar100n").transition(100)


def test_official_layout_without_the_official_files(tmp_path: Path) -> None:
    """The same keys and NumPy arrays as the official file, written by today's NumPy."""
    clean = np.arange(20) % 10
    labels = {
        "clean_label": clean,
        "worse_label": (clean + 1) % 10,
        "random_label1": clean.tolist(),
    }
    torch.save(labels, tmp_path / "CIFAR-10_human.pt")
    assert get_noise("cifar10n:which=worst", folder=tmp_path).corrupt(clean).rate == 1.0
    assert get_noise("cifar10n:which=random1", folder=tmp_path).corrupt(clean).rate == 0.0
    with pytest.raises(
        ValueError,
        match=r"Expected a column 'aggre_label' in .*CIFAR-10_human.pt, got 'clean_label'",
    ):
        get_noise("cifar10n:which=aggregate", folder=tmp_path).corrupt(clean)


# --- the SLN paper's files
# ----------------------------------------------------------------------------------------------


def sln(name: str) -> NoisyLabels:
    path = real(f"sln-labels/{name}.csv")
    return get_noise("file", path=path).corrupt(column(path, "label"))


def test_sln_symmetric() -> None:
    noisy = sln("CIFAR10-sym0.4")
    assert round(100 * noisy.rate, 2) == 40.03
    rates = 1 - noisy.transition().diagonal()
    assert round(100 * float(rates.min()), 1) == 38.7 and round(100 * float(rates.max()), 1) == 41.2
    assert round(100 * sln("CIFAR100-sym0.4").rate, 2) == 39.88


def test_sln_asymmetric_files_use_our_maps() -> None:
    noisy = sln("CIFAR10-asym0.4")
    assert round(100 * noisy.rate, 1) == 20.3
    for name, spec in (
        ("CIFAR10-asym0.4", "asymmetric-cifar10:rate=1"),
        ("CIFAR100-asym0.4", "asymmetric-next:rate=1"),
    ):
        noisy = sln(name)
        ours = get_noise(spec).corrupt(noisy.clean, generator=0)
        flipped = noisy.is_flipped
        assert torch.equal(noisy.given[flipped], ours.given[flipped])
    assert round(100 * noisy.rate, 2) == 40.01


def test_sln_dependent_files_have_exact_counts() -> None:
    for name, low, high in (("CIFAR10-dependent0.4", 24, 66), ("CIFAR100-dependent0.4", 9, 92)):
        noisy = sln(name)
        assert int(noisy.is_flipped.sum()) == 20_000
        rates = 100 * (1 - noisy.transition().diagonal())
        assert round(float(rates.min())) == low and round(float(rates.max())) == high


# --- files of one's own -------------------------------------------------------------------------

TABLE = [[0, 1, 1], [2, 2, 0], [1, 0, 2], [-1, 2, -1]]  # four rows, three annotators, −1: no label
TRUTH = [1, 2, 1, 2]


@pytest.fixture
def annotated(tmp_path: Path) -> dict[str, Path]:
    """The same table in each format."""
    paths = {suffix: tmp_path / f"labels.{suffix}" for suffix in ("csv", "npy", "pt")}
    cells = [",".join("" if label < 0 else str(label) for label in row) for row in TABLE]
    paths["csv"].write_text(
        "\ufeffname, ann,bob,cid\n" + "".join(f"x{i},{row}\n" for i, row in enumerate(cells))
    )
    np.save(paths["npy"], np.array(TABLE, dtype=np.int16))
    torch.save(torch.tensor(TABLE), paths["pt"])
    return paths


@pytest.mark.parametrize("suffix", ["csv", "npy", "pt"])
def test_several_annotators(annotated: dict[str, Path], suffix: str) -> None:
    options = {
        "path": annotated[suffix],
        **({"given": ["ann", "bob", "cid"]} if suffix == "csv" else {}),
    }
    vote = get_noise("file", **options, annotators="vote").corrupt(TRUTH)
    assert vote.given.tolist() == [1, 2, 1, 2]
    worst = get_noise("file", **options, annotators="worst").corrupt(TRUTH)
    assert worst.given.tolist() == [0, 0, 0, 2]
    every = get_noise("file", **options, annotators="all").corrupt(TRUTH)
    assert every.given.tolist() == [0, 1, 1, 2, 2, 0, 1, 0, 2, 2]
    assert every.index.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert every.clean.tolist() == [TRUTH[i] for i in every.index]
    assert every.rate == 0.4
    with pytest.raises(
        ValueError,
        match=rf"labels.{suffix} has 3 labels per row. Set `annotators` to vote, all or worst",
    ):
        get_noise("file", **options).corrupt(TRUTH)


def test_votes_and_worst_labels() -> None:
    assert majority_vote(
        torch.tensor([[2, 1, 1, 2], [0, 1, 2, 3], [-1, -1, 3, 0], [-1] * 4])
    ).tolist() == [2, 0, 3, -1]
    assert majority_vote(torch.tensor([[4], [0]])).tolist() == [4, 0]
    assert worst_label(
        torch.tensor([[1, -1], [-1, 2], [1, 3]]), torch.tensor([1, 0, 1])
    ).tolist() == [1, 2, 3]


def test_one_column_of_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("label\r\n0\r\n 2.0\r\n1\r\n")
    assert get_noise(f"file:path={path}").corrupt([0, 1, 2]).given.tolist() == [0, 2, 1]
    path.write_text("y;x,other\n1,cat\n0,dog\n")
    assert get_noise("file", path=path, given="y;x").corrupt([0, 1]).given.tolist() == [1, 0]
    path.write_text("label,label_noisy\n0,1\n1,1\n")
    noisy = get_noise(f"file:path={path}").corrupt([0, 1])
    assert noisy.given.tolist() == [1, 1]
    with pytest.raises(
        ValueError, match="1 of 2 rows differ, first row 0: 0 in the file, 1 in the data"
    ):
        get_noise(f"file:path={path}").corrupt([1, 1])


def test_named_tensors_of_a_pt_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.pt"
    torch.save(
        {"given": torch.tensor([1, 0], dtype=torch.uint8), "truth": torch.tensor([0, 0])}, path
    )
    assert get_noise(f"file:path={path},given=given,clean=truth").corrupt(
        [0, 0], num_classes=2
    ).given.tolist() == [1, 0]
    with pytest.raises(
        ValueError, match="Expected `given` to name the labels of .*labels.pt. It has given, truth"
    ):
        get_noise(f"file:path={path}").corrupt([0, 0])
    torch.save({"a": torch.tensor([1, 0]), "b": torch.tensor([1])}, path)
    with pytest.raises(
        ValueError,
        match="Expected 2 labels in 'b' of .*labels.pt, one for each row of the data, got 1",
    ):
        get_noise("file", path=path, given=["a", "b"], annotators="vote").corrupt([0, 1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected the first line of .* to name its columns"),
        ("0,1\n1,1\n0,0\n", "Expected the first line of .* to name its columns, each once, got"),
        ("a,a\n1,1\n0,0\n", "to name its columns, each once"),
        ("a\n", r"Expected shape \(N,\) or \(N, A\) in 'a' of"),
        ("a\n1\n", "Expected 2 labels in 'a' of .*labels.csv, one for each row of the data, got 1"),
        ("a\n1\n2\n", "Expected labels in 0 … 1 in .*labels.csv, got 2 in row 1"),
        ("a\n1\n-2\n", "Expected labels in 0 … 1 in .*labels.csv, got -2 in row 1"),
        (
            "a\n1\ncat\n",
            "Expected an integer in 'a' of .*labels.csv, row 1, got 'cat'. Encode the classes",
        ),
        ("a\n1\n0.5\n", "Expected an integer in 'a' of .*labels.csv, row 1, got '0.5'"),
        (
            "a,b\n1,1\n0",
            "Expected 2 cells in line 3 of .*labels.csv, got 1. If the file is truncated, download",
        ),
        ('a\n1\n"0', "Expected .*labels.csv to be CSV in UTF-8"),
        ("b,c\n1,1\n0,0\n", "Expected `given` to name the labels of .*labels.csv. It has b, c"),
        ("label_noisy,b\n1,1\n ,0\n", "Expected labels in 0 … 1 in .*labels.csv, got -1 in row 1"),
    ],
)
def test_bad_csv_files_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        get_noise(f"file:path={path}").corrupt([0, 1])


def test_other_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "float.npy", [0.0, 1.0])
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2), int))
    np.save(tmp_path / "object.npy", np.array([{}, {}]), allow_pickle=True)
    (tmp_path / "latin.csv").write_bytes(b"na\xefve\n1\n0\n")
    (tmp_path / "labels.txt").write_text("0\n1\n")
    torch.save({"labels": ["cat", "dog"]}, tmp_path / "words.pt")
    torch.save(torch.tensor([0.0, 1.0]), tmp_path / "float.pt")
    for name, message in (
        ("float.npy", "Expected integers in 'labels' of .*float.npy, got float64"),
        (
            "cube.npy",
            r"Expected shape \(N,\) or \(N, A\) in 'labels' of .*cube.npy, got \(2, 2, 2\)",
        ),
        ("object.npy", "object.npy to hold an array of integers and nothing else"),
        ("latin.csv", "latin.csv to be CSV in UTF-8"),
        ("labels.txt", "a .csv, .npy or .pt file, got .*labels.txt"),
        ("words.pt", "Expected integers in 'labels' of .*words.pt, got list"),
        ("float.pt", "Expected integers in 'labels' of .*float.pt, got float32"),
    ):
        with pytest.raises(ValueError, match=message):
            get_noise("file", path=tmp_path / name).corrupt([0, 1])
    with pytest.raises(FileNotFoundError, match="nowhere.csv, got none"):
        get_noise("file", path=tmp_path / "nowhere.csv").corrupt([0, 1])
    with pytest.raises(ValueError, match="vote, all, worst, got 'mean'"):
        get_noise("file:path=x.csv,annotators=mean")
    (tmp_path / "labels.csv").write_text("a\n0\n1\n")
    with pytest.raises(ValueError, match="Expected a column 'c' in .*labels.csv, got 'a'"):
        get_noise("file", path=tmp_path / "labels.csv", given="c").corrupt([0, 1])


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_truncated_files_are_refused_by_name(tmp_path: Path, keep: float) -> None:
    labels = np.arange(2_000) % 10
    np.save(tmp_path / "labels.npy", labels)
    torch.save({"clean_label": labels, "worse_label": labels}, tmp_path / "CIFAR-10_human.pt")
    rows = "".join(f"{label},{label}\n" for label in labels)
    (tmp_path / "labels.csv").write_text("label,label_noisy\n" + rows)
    noises = {
        "labels.npy": get_noise("file", path=tmp_path / "labels.npy"),
        "CIFAR-10_human.pt": get_noise("cifar10n:which=worst", folder=tmp_path),
        "labels.csv": get_noise("file", path=tmp_path / "labels.csv"),
    }
    for name, noise in noises.items():
        assert noise.corrupt(labels).rate == 0
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
        with pytest.raises(ValueError, match=name):
            noise.corrupt(labels)


# --- hostile files ------------------------------------------------------------------------------


class Hostile:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.victim,))


def test_hostile_files_run_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    pickle.loads(pickle.dumps(Hostile(victim)))
    assert victim.exists()  # the attack works where it is let in …
    victim.unlink()
    attack = {"clean_label": Hostile(victim), "worse_label": Hostile(victim)}
    torch.save(attack, tmp_path / "CIFAR-10_human.pt")
    torch.save(np.array([Hostile(victim)], dtype=object), tmp_path / "zipped.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(attack, protocol=2))
    np.save(tmp_path / "array.npy", np.array([Hostile(victim)], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"CIFAR-10_human.pt to hold tensors"):
        get_noise("cifar10n:which=worst", folder=tmp_path).corrupt([0])
    for name in ("zipped.pt", "plain.pt", "array.npy"):
        with pytest.raises(ValueError, match=name):
            get_noise("file", path=tmp_path / name).corrupt([0])
    assert not victim.exists()  # … and not here


def saved(path: Path, program: bytes, **files: bytes) -> Path:
    """A file as ``torch.save`` writes them, around any pickle and any storages."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"data.pkl": program, "version": b"3\n", **files}.items():
            archive.writestr(f"archive/{name}", content)
    return path


def tensor(size: int, stride: int, offset: int = 0) -> bytes:
    """The opcodes of a tensor of one dimension in a storage of four int64, the file data/0."""
    storage = b"(U\x07storagectorch\nLongStorage\nU\x010U\x03cpuK\x04tQ"
    numbers = b"J%bJ%b\x85J%b\x85" % tuple(
        n.to_bytes(4, "little", signed=True) for n in (offset, size, stride)
    )
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + numbers + b"\x89}tR."


def array(
    kind: bytes, shape: bytes, flags: bytes = b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00"
) -> bytes:
    """The opcodes of a NumPy array of 16 bytes; ``flags`` end the state of its dtype."""
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    dtype = (
        b"cnumpy\ndtype\n(U"
        + bytes([len(kind)])
        + kind
        + b"K\x00K\x01tR(K\x03U\x01<NNN"
        + flags
        + b"tb"
    )
    return (
        empty
        + b"(K\x01"
        + shape
        + dtype
        + b"\x89c_codecs\nencode\n(X\x10\x00\x00\x00"
        + bytes(16)
        + b"U\x06latin1tRtb."
    )


WELL_FORMED = {
    "tensor": (tensor(4, 1), [1, 2, 3, 4]),
    "every second": (tensor(2, 2, 1), [2, 4]),
    "array": (array(b"i8", b"(K\x02t"), [0, 0]),
    # the flags of an array of objects: NumPy's own unpickling takes the bytes for addresses and
    # crashes
    "object flags": (array(b"i8", b"(K\x02t", b"K\x08K\x08K\x3f"), [0, 0]),
}
NOTHING_ELSE = "tensors, arrays or lists of integers and nothing else"
FORGED = {
    "tensor past its storage": (tensor(5, 1), NOTHING_ELSE),
    "tensor before its storage": (tensor(4, 1, -1), NOTHING_ELSE),
    "gigabytes of zero stride": (tensor(2**31 - 1, 0), "got 2147483647"),
    "array of objects": (array(b"O8", b"(K\x02t"), NOTHING_ELSE),
    "array of records": (array(b"i8,O", b"(K\x01t"), NOTHING_ELSE),
    "array larger than its bytes": (array(b"i8", b"(J\xff\xff\xff\x7ft"), NOTHING_ELSE),
    "array without numbers": (b"cnumpy.core.multiarray\n_reconstruct\n)R.", NOTHING_ELSE),
    "list of itself": (b"}U\x01a]q\x00(h\x00h\x00es.", "got list"),
    "not a pickle": (b"labels", NOTHING_ELSE),
    "nothing": (b"", NOTHING_ELSE),
}


@pytest.mark.parametrize("case", [*WELL_FORMED, *FORGED])
def test_forged_files_are_integers_or_refused(tmp_path: Path, case: str) -> None:
    numbers = np.array([1, 2, 3, 4], dtype="<i8").tobytes()
    program, expected = {**WELL_FORMED, **FORGED}[case]
    path = saved(tmp_path / "labels.pt", b"\x80\x02" + program, **{"data/0": numbers})
    noise = get_noise("file", path=path)
    if isinstance(expected, list):
        assert noise.corrupt(expected).given.tolist() == expected
    else:
        with pytest.raises(ValueError, match=rf"labels\.pt.*{expected}"):
            noise.corrupt([1, 2, 3, 4])


HEADERS = {
    "terabytes": "{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,)}",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
    "brackets": "(" * 5_000,
    "words": "labels",
}


@pytest.mark.parametrize("header", HEADERS)
def test_forged_npy_headers_are_refused_by_name(tmp_path: Path, header: str) -> None:
    text = HEADERS[header].encode()
    path = tmp_path / "labels.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8))
    with pytest.raises(ValueError, match=r"labels\.npy to hold an array of integers"):
        get_noise("file", path=path).corrupt([0])
    with pytest.raises(ValueError, match=r"labels\.npy to hold a square matrix"):
        get_noise("matrix", T=path)


@given(st.data())
def test_damaged_files_end_in_a_value_error(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.pt"
        torch.save({"a": torch.tensor([1, 0]), "b": np.array([1, 0]), "c": [1, 0]}, path)
        with zipfile.ZipFile(path) as archive:
            program = bytearray(archive.read("labels/data.pkl"))
        for _ in range(data.draw(st.integers(1, 4))):
            program[data.draw(st.integers(0, len(program) - 1))] = data.draw(st.integers(0, 255))
        saved(path, bytes(program), **{"data/0": bytes(16)})
        for column in "abc":
            with contextlib.suppress(ValueError):
                get_noise("file", path=path, given=column).corrupt([1, 0])
