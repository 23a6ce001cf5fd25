"""How each paper trains on each dataset: model, epochs, batches, optimiser, schedule."""

from __future__ import annotations

from dataclasses import replace

from noiseproof.data.augment import SAME_IMAGES
from noiseproof.train.settings import Settings

PRETRAINED = "timm:resnet50.tv_in1k,pretrained=true"  # on ImageNet, with the weights that torchvision has


def _sgd(lr: float, weight_decay: float, momentum: float = 0.9, nesterov: bool = False) -> str:
    return f"sgd:lr={lr},momentum={momentum},nesterov={str(nesterov).lower()},weight_decay={weight_decay}"


def _protocols() -> dict[tuple[str, str], Settings]:
    found: dict[tuple[str, str], Settings] = {}

    def add(paper: str, datasets: str, model: str, epochs: int, batch_size: int, optimizer: str, schedule: str) -> None:
        for dataset in datasets.split():
            found[paper, dataset] = Settings(model, epochs, batch_size, optimizer, schedule)

    # LN paper, appendix C.1; the learning rate on CIFAR stays constant in its code, Clothing1M's falls at epoch 5.
    add("ln", "cifar10 cifar100", "wrn-28-2", 300, 128, _sgd(0.01, 5e-4, nesterov=True), "constant")
    add("ln", "clothing1m", PRETRAINED, 10, 32, _sgd(0.001, 1e-3, nesterov=True), "step:at=[5],factor=0.1")
    add("ln", "mnist", "lenet5", 100, 256, "adam:lr=0.001", "constant")
    for dataset in ("two-moons", "circles"):
        found["ln", dataset] = Settings("mlp-2x2000", 2000, "full", _sgd(0.0001, 0, momentum=0), "constant")

    # The SLN paper, appendices B.1 and B.2.
    add("sln", "cifar10 cifar100", "wrn-28-2-sln", 300, 128, _sgd(0.001, 5e-4), "constant")
    add("sln", "clothing1m", PRETRAINED, 10, 32, _sgd(0.001, 1e-3), "step:at=[5],factor=0.1")

    # bias paper, appendix 1: 200 epochs are in the caption of its Table 2 (CIFAR-100) and fit the drops at 100 and 150;
    # 198 on WebVision are what its cycles of the logit bias take.
    add("bias", "fashion-mnist cifar10", "resnet32", 200, 128, _sgd(0.1, 1e-4), "step:at=[100,150],factor=0.1")
    add("bias", "cifar100", "resnet34", 200, 128, _sgd(0.1, 1e-4), "step:at=[60,120,160],factor=0.2")
    add("bias", "webvision", "wrn-101-2", 198, 400, _sgd(0.1, 1e-4), "step:at=[66,132],factor=0.1")
    # Its MLP1024. The number of epochs is not stated: after 100 the rate has fallen to 0.6 % of its first value.
    add(
        "bias-mlp1024",
        "fashion-mnist cifar10",
        "mlp1024",
        100,
        32,
        "sgd:lr=0.001,momentum=0.95",
        "exponential:gamma=0.95",
    )

    # NAL paper, appendix B.3: 0.02 down to 0.001 (Clothing1M: 0.0001) every 10 epochs; ANIMAL-10N is in its code only.
    add("nal", "cifar10 cifar100", "resnet34:init=pytorch", 500, 64, _sgd(0.02, 1e-3), "cosine:low=0.05,every=10")
    add("nal", "clothing1m", "resnet50", 250, 64, _sgd(0.02, 1e-3), "cosine:low=0.005,every=10")
    add("nal", "webvision", "inception-resnet-v2", 500, 32, _sgd(0.02, 5e-4), "cosine:low=0.05,every=10")
    add("nal", "animal10n", "vgg19-bn", 100, 128, _sgd(0.1, 1e-3, momentum=0), "step:at=[50,75],factor=0.2")

    # curriculum paper, appendix B. It builds on the code of Zhou et al. (2021), where the gradient is clipped as well.
    add("curriculum", "mnist", "cnn4", 50, 128, _sgd(0.01, 1e-3), "cosine")
    add("curriculum", "cifar10", "cnn8", 120, 128, _sgd(0.01, 1e-4), "cosine")
    add("curriculum", "cifar100", "resnet34:init=apl", 200, 128, _sgd(0.1, 1e-5), "cosine")
    add("curriculum", "webvision", "resnet50", 250, 128, _sgd(0.2, 3e-5), "cosine")
    found["zhou2021", "cifar100"] = replace(found["curriculum", "cifar100"], clip=5.0)
    return found


PROTOCOLS: dict[tuple[str, str], Settings] = _protocols()


def protocol(paper: str, dataset: str) -> Settings:
    """The settings that ``paper`` trains with on ``dataset``, its model among them.

    CIFAR-10N and CIFAR-100N are trained on as CIFAR-10 and CIFAR-100. What is not part of a run's settings stays with
    you: the LN paper holds out 10 % of the noisy labels; on Clothing1M each epoch samples the given classes alike (the
    LN paper: 265 664 images in all, the SLN paper: 18 976 of each class, the NAL paper: 2000 batches); the bias paper
    takes the images that Google found of WebVision.

    >>> settings = protocol("sln", "cifar10")
    >>> settings.model, settings.epochs, settings.schedule
    ('wrn-28-2-sln', 300, 'constant')
    """
    found = PROTOCOLS.get((paper, SAME_IMAGES.get(dataset, dataset)))
    if found is None:
        known = ", ".join(f"{name}@{number}" for number, name in sorted(PROTOCOLS))
        raise ValueError(
            f"Expected a paper and a dataset that it trains on, got {dataset!r} of paper {paper!r}. There are: {known}."
        )
    return found
