"""Backbones and features of the real timm, in the environment that runs the tests: its torchvision
has to fit torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from noiseproof.data import from_arrays
from noiseproof.data.pictures import encode_pictures
from noiseproof.models import get_model
from noiseproof.train import Settings, prepare, train

try:
    import timm
except Exception as error:  # without timm, or with a torchvision that was built for another torch
    pytest.skip(f"timm cannot be imported here: {type(error).__name__}", allow_module_level=True)

pytestmark = pytest.mark.integration
NAMES = ("resnet18", "mobilenetv3_small_100", "vgg11", "vit_tiny_patch16_224", "convnext_atto")
PHOTOS = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), np.uint8)


@pytest.mark.parametrize("name", NAMES)
def test_a_backbone_gives_the_features_of_timms_own_model(name: str) -> None:
    backbone = get_model(f"timm:{name}", generator=torch.Generator().manual_seed(0)).eval()
    own = timm.create_model(name, pretrained=False, num_classes=0).eval()
    own.load_state_dict(backbone.model.state_dict())
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        features = backbone(x)
        assert torch.equal(features, own(x)) and features.shape == (2, backbone.num_features)


def test_random_weights_follow_the_generator() -> None:
    draw = lambda seed: get_model("timm:resnet18", generator=torch.Generator().manual_seed(seed))  # noqa: E731
    first, again, other = (draw(seed).model.conv1.weight for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_checkpoint_with_its_classifier_is_the_backbone_of_pictures(tmp_path: Path) -> None:
    torch.manual_seed(3)
    whole = timm.create_model("resnet18", pretrained=False, num_classes=7).eval()
    torch.save(whole.state_dict(), tmp_path / "mine.pth")
    backbone = get_model(f"timm:resnet18,checkpoint_path={tmp_path / 'mine.pth'}").eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(whole.get_classifier()(backbone(x)), whole(x))
    features, _ = encode_pictures(
        torch.from_numpy(PHOTOS), f"timm:resnet18,checkpoint_path={tmp_path / 'mine.pth'}"
    )
    assert (
        features.shape == (len(PHOTOS), 512)
        and np.isfinite(features).all()
        and features.std(0).max() > 0
    )


def test_a_run_trains_a_backbone_of_timm() -> None:
    task = prepare(from_arrays(PHOTOS, np.arange(24) % 2, test=(PHOTOS, np.arange(24) % 2)))
    settings = Settings(model="timm:resnet18", epochs=2, batch_size=8, optimizer="sgd:lr=0.01")
    once, again = (train(task, "gce", settings, seed=0).last["train_loss"] for _ in range(2))
    assert once == again
