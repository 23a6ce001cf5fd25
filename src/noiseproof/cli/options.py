"""Options that several commands of training share, as annotated types."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from noiseproof.cli.completion import names


def on_training(text: str, **options: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Training", **options)


def on_machine(text: str, flag: str | None = None, **options: Any) -> Any:
    return typer.Option(*([flag] if flag else []), help=text, rich_help_panel="Machine", **options)


# The run

Dataset = Annotated[
    str, typer.Option(help="A dataset of `noiseproof data list`, or your own.", autocompletion=names("datasets"))
]
Noise = Annotated[
    str, typer.Option(help="Noise to add to the training labels: symmetric:rate=0.4, …", autocompletion=names("noises"))
]
Method = Annotated[
    str, typer.Option(help="A method of `noiseproof methods`, or any loss.", autocompletion=names("methods"))
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of noise, held-out rows, weights, batches and method.")]
Out = Annotated[
    str | None, typer.Option(help="Folder of record and checkpoints, by default one in runs/; none: no files.")
]
Resume = Annotated[bool, typer.Option(help="Continue an earlier run in that folder.")]
Samples = Annotated[bool, typer.Option("--samples", help="Record margin, weights and prediction of every sample.")]
Log = Annotated[
    list[str] | None,
    typer.Option(
        help="Also log to csv, tensorboard, mlflow or wandb; repeatable.",
        autocompletion=names(more=("csv", "tensorboard", "mlflow", "wandb")),
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only estimate time and memory.")]
Foreign = Annotated[
    str | None,
    typer.Option(help="The dataset from which open-set noise takes images.", autocompletion=names("datasets")),
]

# Training

Protocol = Annotated[
    str | None,
    on_training(
        "Train as this paper does on this dataset: ln, sln, bias, nal, curriculum.", autocompletion=names("protocols")
    ),
]
Model = Annotated[str | None, on_training("A backbone of `noiseproof models`.", autocompletion=names("models"))]
Epochs = Annotated[int | None, on_training("Passes over the data.", min=1)]
BatchSize = Annotated[str | None, on_training("Rows of a step, or full.")]
Optimizer = Annotated[str | None, on_training("sgd:lr=0.05,momentum=0.9, adam:lr=1e-3, …")]
Schedule = Annotated[str | None, on_training("constant, step:at=[0.5,0.75], exponential, cosine, linear.")]
Clip = Annotated[float | None, on_training("Largest gradient norm; 0 for any. By default 5 for ln, any for others.")]
Finetune = Annotated[
    str | None,
    on_training("Of a pretrained --model: frozen trains its head alone, probe the head and then all, whole all."),
]
Validation = Annotated[float, on_training("Share of the noisy rows to hold out.", min=0)]

# Machine

Accelerator = Annotated[str, on_machine("auto, cpu or cuda.", autocompletion=names(more=("auto", "cpu", "cuda")))]
AnyAccelerator = Annotated[
    str, on_machine("auto, cpu, cuda or mps.", autocompletion=names(more=("auto", "cpu", "cuda", "mps")))
]
Devices = Annotated[int, on_machine("Processes on each machine.", min=1)]
Nodes = Annotated[int, on_machine("Number of machines.", min=1)]
Strategy = Annotated[str, on_machine("auto, ddp or fsdp (experimental).")]
Precision = Annotated[str, on_machine("32, bf16 or 64.", autocompletion=names(more=("32", "bf16", "64")))]
Threads = Annotated[int | None, on_machine("Threads of each process, by default as many as a step occupies.", min=1)]
Compile = Annotated[bool, on_machine("Train through torch.compile: a slow start, faster steps.", flag="--compile")]
Readers = Annotated[int, on_machine("Processes that read files.", flag="--workers", min=0)]
CheckpointSteps = Annotated[int | None, on_machine("Also save after this number of steps.", min=1)]
Workers = Annotated[int | None, on_machine("Number of processes, by default as many as fit.", min=1)]

# Sweeps

Engine = Annotated[str, typer.Option(help="local, processes or ray.")]
ResultsDir = Annotated[str, typer.Option("--results", help="Folder of the results, one file per run.")]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Cells of a table with this name (dataset, method, …); repeated: and; a comma: or."),
]
TableSeeds = Annotated[int | None, typer.Option(min=1, help="Seeds of a table's cells, by default the paper's number.")]
AllPrecision = Annotated[str | None, typer.Option(help="32, bf16 or 64, for all runs, whatever the file gives.")]
AllEpochs = Annotated[
    int | None, typer.Option(min=1, help="Epochs of a table's cells, where those of the protocol are not wanted.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Start failed runs again.")]
