"""How each paper trains on each dataset: model, epochs, batches, optimiser, schedule."""

from functools import cache

from noiseproof.data.augment import SAME_IMAGES
from noiseproof.papers import PAPERS, get_paper
from noiseproof.train.settings import Settings


@cache
def protocols() -> dict[tuple[str, str], Settings]:
    """Return all protocols, by paper and dataset.

    Some papers have several, or repeat another's (``zhou2021``).
    """
    return {
        key: Settings(**values)
        for name in PAPERS
        for key, values in get_paper(name).protocols.items()
    }


def protocol(paper: str, dataset: str) -> Settings:
    """Return the settings with which ``paper`` trains on ``dataset``, its model among them.

    CIFAR-10N and CIFAR-100N are trained on as CIFAR-10 and CIFAR-100. What is not part of a run's
    settings, such as how an epoch samples Clothing1M, is in docs/bench.md.

    >>> settings = protocol("sln", "cifar10")
    >>> settings.model, settings.epochs, settings.schedule
    ('wrn-28-2-sln', 300, 'constant')
    """
    settings = protocols().get((paper, SAME_IMAGES.get(dataset, dataset)))
    if settings is None:
        known = ", ".join(f"{dataset}@{paper}" for paper, dataset in sorted(protocols()))
        raise ValueError(
            f"Expected a paper and a dataset that it trains on, got {dataset!r} of paper {paper!r}."
            f" There are: {known}."
        )
    return settings
