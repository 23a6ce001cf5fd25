"""Commands that list what is registered: losses, noises, models, features, methods, strategies."""

from typing import Annotated, Any, cast

import typer

from noiseproof.cli.main import LISTS, TRAINING, app
from noiseproof.cli.options import names, option
from noiseproof.cli.show import (
    AsJson,
    describe,
    echo,
    examples,
    list_registered,
    pairs,
    plain,
    refusals,
    say,
    show,
    show_json,
    signature,
    words,
)

HEAD_CLASSES = 10  # of the linear head that the listed weights of a model include


@app.command(
    epilog=examples("losses", "losses --presets", "losses --json | jq '.[].name'"),
    rich_help_panel=LISTS,
)
@refusals()
def losses(
    presets: Annotated[
        bool, option("List the settings of the papers instead.", "--presets")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List every loss with its parameters, formula, paper and equation.

    p is the probability of the label. `NAME:key=value,…` sets parameters, `2*a + b` adds losses,
    `NAME@PAPER` is a paper's own setting. Defaults are those in a sum; alone, `ln`, `nal` or `elr`
    are methods with others.
    """
    from noiseproof.losses import LOSSES, describe
    from noiseproof.papers import loss_presets

    listed: list[Any]
    if presets:
        listed = [
            {"preset": f"{loss}@{paper}", "holds_for": data, "loss": spec}
            for loss, paper, data, spec in loss_presets()
        ]
        cells = [[one["preset"], pairs(one["holds_for"]), one["loss"]] for one in listed]
        head = ["preset", "holds for", "loss"]
    else:
        listed = [describe(name) for name in sorted(LOSSES)]
        cells = [
            [one["name"], pairs(one["parameters"]), one["formula"], one["source"]] for one in listed
        ]
        head = ["name", "parameters", "formula", "source"]
    if as_json:
        return show_json(listed)
    return show(head, cells)


@app.command(
    epilog=examples(
        "calibrate gce --classes 1000",
        "calibrate agce:a=0.1,q=0.1 --classes 200 --like 10 --free a,q",
        "calibrate '10*nce + 0.1*agce:a=1.8,q=3' --classes 200 --free nce.factor",
    ),
    rich_help_panel=TRAINING,
)
@refusals({"num_classes": "--classes"})
def calibrate(
    loss: Annotated[
        str,
        typer.Argument(
            help="The loss as it works for --like classes: gce, agce:a=0.6,q=0.6, …",
            autocompletion=names("losses"),
        ),
    ],
    classes: Annotated[int, option("The number of classes to calibrate for.")],
    like: Annotated[int, option("The number of classes that the loss is known to work for.")] = 100,
    free: Annotated[
        str | None,
        option("The parameter to solve for (q), or a pair to get the curve of (a,q)."),
    ] = None,
) -> None:
    """Compute a loss's parameters for another number of classes, without training.

    They give an untrained network the same average error as before (bias paper, section 3.3). Where
    no solution learns, or only slowly, by the verdict of `noiseproof analyze fit`, the loss stays
    as it is if it does, else the nearest is given.
    """
    from noiseproof.losses import calibrate, expected_margin, get_loss, logit_bias

    before = get_loss(loss)
    solved: Any = None
    if free:
        solved = tuple(words(free))
        if len(solved) == 1:
            solved = solved[0]
    fit = calibrate(before, classes, like, free=solved)
    bias = max(0.0, logit_bias(classes))
    same = "" if fit.note else f", the same as {before} at {like} classes"
    meaning = "none: the label's mean probability is above 0.15"
    if bias:
        meaning = "ε for any loss: the label's mean probability is 0.15"
    rows = [
        (name, plain(value), f"{plain(before.hyperparameters[name])} at {like} classes")
        for name, value in fit.params.items()
    ]
    rows += [
        ("average error", plain(fit.error), f"⟨δ_k⟩(0){same} (bias paper, Eq. 3)"),
        ("logit bias", plain(bias), f"{meaning} (bias paper, Eq. 4)"),
        (
            "expected margin",
            plain(expected_margin(classes)),
            "E[Δ_y] before training, exact (curriculum paper, Eq. 4)",
        ),
    ]
    if fit.note:
        say(fit.note)
    show((f"at {classes} classes", "value", "meaning"), rows)
    if fit.curve:
        echo()
        points = [[plain(value) for value in point.values()] for point in fit.curve]
        show(list(fit.curve[0]), points)


@app.command(epilog=examples("noises", "noises --json | jq '.[].name'"), rich_help_panel=LISTS)
@refusals()
def noises(as_json: AsJson = False) -> None:
    """List every noise model with its parameters.

    `NAME:key=value,…` sets parameters; `noiseproof data show digits --noise symmetric:rate=0.4`
    shows the result.
    """
    from noiseproof.noise import NOISES

    list_registered(NOISES, as_json)


@app.command(epilog=examples("models", "models --json | jq '.[].name'"), rich_help_panel=LISTS)
@refusals()
def models(as_json: AsJson = False) -> None:
    """List every backbone with its number of weights, its features and its parameters."""
    import torch

    from noiseproof.models import MODELS

    described = [describe(MODELS, name) for name in sorted(MODELS)]
    rows = []
    for model in described:
        model |= {"weights": None, "features": None}
        weights, features = "", ""
        if not model["required"]:
            with torch.device("meta"):  # shapes alone: nothing is allocated or drawn
                backbone = MODELS.create(model["name"])
            count = sum(p.numel() for p in backbone.parameters())
            count += (backbone.num_features + 1) * HEAD_CLASSES
            model |= {"weights": count, "features": backbone.num_features}
            weights, features = f"{count:,}", str(backbone.num_features)
        rows.append((model["name"], weights, features, signature(model), model["summary"]))
    if as_json:
        return show_json(described)
    head = ("name", f"weights, {HEAD_CLASSES} classes", "features", "parameters", "what it is")
    return show(head, rows)


@app.command(epilog=examples("features", "features --json | jq '.[].name'"), rich_help_panel=LISTS)
@refusals()
def features(as_json: AsJson = False) -> None:
    """List the features of texts and pictures that `audit --features NAME` takes, and what is
    installed.

    `A + B` joins features. Pretrained ones are named with the licence and the checksum of their
    weights.
    """
    from noiseproof.data.features import FEATURES, get_extractor

    described: list[dict[str, Any]] = []
    rows = []
    for name in sorted(FEATURES):
        kind = cast(Any, FEATURES[name])
        licence, checksum = "", ""
        if kind.is_available() and not kind.loads_by_name:
            weights = get_extractor(name, kind.kind).weights()
            if weights is not None:
                licence, checksum = weights.licence, weights.sha256
        described.append(
            {
                "name": name,
                "for": kind.kind,
                "installed": kind.is_available(),
                "install": kind.extra,
                "summary": kind.summary,
                "licence": licence or None,
                "sha256": checksum or None,
            }
        )
        spelling = f"{name}:NAME" if kind.loads_by_name else name
        state = "yes" if kind.is_available() else f"no, see noiseproof doctor: {kind.extra}"
        rows.append((spelling, kind.kind, state, licence, checksum[:16], kind.summary))
    if as_json:
        return show_json(described)
    return show(("name", "for", "installed", "licence", "SHA-256", "what it is"), rows)


@app.command(epilog=examples("methods", "methods --json | jq '.[].name'"), rich_help_panel=LISTS)
@refusals()
def methods(as_json: AsJson = False) -> None:
    """List every named method: what it is made of, and its parameters.

    Any loss or sum of losses is a method too; `METHOD@PAPER` has a paper's hyperparameters for the
    data at hand, and `METHOD & STRATEGY` adds a strategy.
    """
    from noiseproof.train import METHODS

    list_registered(METHODS, as_json)


@app.command(
    epilog=examples("strategies", "strategies --json | jq '.[].name'"), rich_help_panel=LISTS
)
@refusals()
def strategies(as_json: AsJson = False) -> None:
    """List every strategy, which `METHOD & STRATEGY:key=value` adds to a method, with its
    parameters.
    """
    from noiseproof.strategies import STRATEGIES

    list_registered(STRATEGIES, as_json)
