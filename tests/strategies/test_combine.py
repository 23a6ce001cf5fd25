"""What cannot be trained together is refused when the line is read, with a remedy."""

from __future__ import annotations

import warnings

import pytest
import torch

from noiseproof.data import get_dataset
from noiseproof.train import Settings, Task, get_method, prepare

SETTINGS = Settings(epochs=20, model="mlp:hidden=[8]")
REFUSED = [
    ("ce & sln & sln:sigma=0.1", "Expected each strategy once"),
    ("ce & momentum & gp", "Expected one model to predict"),
    ("(gce) & dividemix", "Expected the loss `ce` for dividemix"),
    ("ls & promix", "Expected the loss `ce` for promix"),
    ("2*ce & progressive-mixmatch:start=1", "Expected the loss `ce` for progressive-mixmatch"),
    ("ce & sigua-bc", "the loss `backward` for sigua-bc, got `ce`. Use sigua"),
    ("ce + backward:T=10 & sigua-bc", "the loss `backward` for sigua-bc"),
    ("ln & crowd-layer", "a loss of logits alone for crowd-layer, got `ln"),
    ("ce & sparse-noise", r"a loss that learns noise for sparse-noise, got `ce`. Use \(sop\)"),
    ("(sop)", "Name a strategy that adds it, such as sparse-noise"),
    ("ce & target-memory", r"reads the memory of target-memory, .*Use \(elr\)"),
    ("gce & exchanged-memory", "reads the memory of exchanged-memory"),
    ("ce & estimate-transition:warmup=2", "`forward` or `backward` to estimate T for, got `ce`"),
    ("peer:prior=none + (forward:T=10) & estimate-transition:warmup=2", "Expected"),
    ("(cr) + (forward:T=10) & estimate-transition:warmup=2", "makes them more certain"),
    ("pes & class-balanced:total=100", "class-balanced before `progressive-stopping"),
    ("ce & progressive-stopping:start=2 & freeze", "weights that progressive-stopping can draw"),
    ("ce & progressive-stopping:start=2 & small-loss:forget=0.2", "no selection together with"),
    ("co-teaching & progressive-stopping:start=1", "no selection together with"),
    ("pes:head_epochs=19", "to end before the run, got 29 epochs. Lower them, or train longer"),
    ("sop+ & mixup", "single rows for sparse-noise.*got `mixup.*Leave one out"),
    ("ce & consistency & mixup", "single rows for consistency, got `mixup.*Leave one out"),
    ("ce & crowd-layer & mixup", "single rows for crowd-layer"),
    ("ce & prune:start=1 & sln:sigma=0.1", "no noise on targets from the `start` of prune"),
    ("ce & small-loss:forget=0.2 & sln:sigma=0.32", "at most the size of a label .*got `sln"),
    ("ce & sigua:forget=0.2 & noise-f:sigma=0.32", "at most the size of a label .*got `noise-f"),
    ("(backward:T=10) & sigua-bc & noise-theta", "together with sigua-bc that changes .*`noise-"),
    ("(backward:T=10) & sigua-bc & prune:start=1", "together with sigua-bc that changes"),
    ("dividemix & sln", "makes steps of its own, got `sln.* end it before"),
    ("dividemix:warmup=2 & sln:until=3", "makes steps of its own, got `sln"),
    ("ce & dividemix & label-correction:start=0", "steps of its own, got `label-correction"),
    ("promix & mixup", "together with promix, which makes steps of its own, got `mixup"),
    ("pes-semi & sln", "together with progressive-mixmatch, .*got `sln"),
    ("mae* & mixup", "one class per row.*Use the loss without remargin, or leave mixup out"),
    ("ln & sln", "takes probabilities. Use .*ce, or leave sln out"),
    ("sln-mo-lc:start=20", "`start` of label-correction below the 20 epochs .*, got 20. Lower"),
    ("nal@nal:dataset=cifar10", "`start` of estimated-targets below"),
    ("tgce:start=20", "`start` of prune below"),
    ("sln-sigua:start=25", "`start` of sigua below"),
    ("backward & sigua-bc:warmup=20", "Expected"),
    ("forward:warmup=20", "`warmup` of estimate-transition below"),
    ("dividemix:warmup=20", "`warmup` of dividemix below"),
    ("promix:guess_from=20", "`guess_from` of promix below"),
    ("ce & freeze:until=20", "`until` of freeze below"),
    ("pes:start=20,head_epochs=0,block_epochs=0", "`start` of progressive-stopping below"),
    ("peer:warmup=20", "`warmup` of peer below the 20 epochs"),
    ("ce & crowd-layer:kind=vector", "Expected `kind`"),
    ("ce & consistency:lambda_b=-1", "Expected `lambda_b`"),
]
ALLOWED = [
    "gce & exchanged-memory:reweigh=true",
    "ce & sln:sigma=1,until=2 & small-loss:forget=0.2,start=2",
    "ce & sigua:forget=0.2 & sln:sigma=0.31",
    "ce & prune:start=1 & sln:sigma=0.1,until=1",
    "ce & sln:until=1 & dividemix:warmup=1",
    "(backward:T=10) & sigua-bc & momentum & sln:sigma=0",
    "pes:start=none",
]


@pytest.fixture(scope="module")
def task() -> Task:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    return Task(task.train.subset(torch.arange(64)), test=task.test, dataset="digits")


@pytest.mark.parametrize(("line", "why"), REFUSED)
def test_what_cannot_be_trained_together_is_refused(task: Task, line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        get_method(line, task, SETTINGS)


@pytest.mark.parametrize("line", ALLOWED)
def test_what_can_be_trained_together_runs_without_a_warning(task: Task, line: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_method(line, task, SETTINGS)


def test_a_pair_that_was_never_tested_runs_with_a_warning(task: Task) -> None:
    with pytest.warns(UserWarning, match="`crowd-layer.* was not tested together"):
        get_method("ce & momentum & crowd-layer", task, SETTINGS)
