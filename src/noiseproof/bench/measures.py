"""What tables report beyond the metrics of an epoch: sample weights of the whole training, annotators' likelihood."""

from __future__ import annotations

from pathlib import Path

from noiseproof.bench.experiment import Experiment
from noiseproof.bench.results import Json
from noiseproof.strategies import predict_log_probs
from noiseproof.train import Result, Task


def measure(experiment: Experiment, outcome: Result, task: Task, folder: Path, data_dir: str | None) -> Json:
    """The ``measures`` of a finished run by name, from ``folder`` of results; None for what could not be measured.

    ``sample-weights`` are ``alpha`` and ``snr`` of the curriculum paper at the end of training, over all epochs.
    ``annotators`` is ``annotator_nll`` of CIFAR-10N's three labels of each training row (LN paper, Table 4).
    """
    measured: Json = {}
    if experiment.records_samples:
        measured |= _sample_weights(folder / "runs" / experiment.key, len(outcome.metrics))
    if "annotators" in experiment.measures:
        from noiseproof.analysis.after.calibration import annotator_nll  # it needs pandas, which training does not
        from noiseproof.analysis.after.predictions import cifar10n_annotations

        annotations = cifar10n_annotations(experiment.load(data_dir).train.y, data_dir)[task.train.index.cpu().numpy()]
        log_probs = predict_log_probs(outcome.run, task.train.x)
        measured["annotator_nll"] = annotator_nll(annotations, log_probs.double().exp().cpu().numpy())
    return measured


def _sample_weights(folder: Path, epochs: int) -> Json:
    from noiseproof.analysis.during.samples import sample_weights
    from noiseproof.analysis.runs import open_run

    run = open_run(folder)
    if len(run.sample_epochs) != epochs:  # it began without recording samples
        return {"alpha": None, "snr": None}
    last = sample_weights(run).iloc[-1]
    return {name: float(last[name]) for name in ("alpha", "snr")}
