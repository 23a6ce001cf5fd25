"""Commands that list what is registered: losses, noises, models, features, methods, strategies."""

from typing import Annotated, Any, cast

import typer

from noiseproof.cli.main import LISTS, TRAINING, app
from noiseproof.cli.options import names
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
)


@app.command(
    epilog=examples("losses", "losses --presets", "losses --json | jq '.[].name'"),
    rich_help_panel=LISTS,
)
@refusals()
def losses(
    presets: Annotated[
        bool, typer.Option("--presets", help="List the settings of the papers instead.")
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

    if presets:
        if as_json:
            return show_json(
                [
                    {"preset": f"{a}@{b}", "holds_for": data, "loss": c}
                    for a, b, data, c in loss_presets()
                ]
            )
        rows = [
            (f"{loss}@{paper}", pairs(data), spec) for loss, paper, data, spec in loss_presets()
        ]
        return show(("preset", "holds for", "loss"), rows)
    described = [describe(name) for name in sorted(LOSSES)]
    if as_json:
        return show_json(described)
    cells = [
        [loss["name"], pairs(loss["parameters"]), loss["formula"], loss["source"]]
        for loss in described
    ]
    return show(("name", "parameters", "formula", "source"), cells)


@app.command(
    epilog=examples(
        "calibrate gce --classes 1000",
        "calibrate agce:a=0.1,q=0.1 --classes 200 --like 10 --free a,q",
        "calibrate '10*nce + 0.1*agce:a=1.8,q=3' --classes 200 --free nce.factor --json",
        "calibrate gce --classes 1000 --like 10 --sigma 0.5",
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
    classes: Annotated[int, typer.Option(help="The number of classes to calibrate for.")],
    like: Annotated[
        int, typer.Option(help="The number of classes that the loss is known to work for.")
    ] = 100,
    free: Annotated[
        str | None,
        typer.Option(help="The parameter to solve for (q), or a pair to get the curve of (a,q)."),
    ] = None,
    sigma: Annotated[
        float, typer.Option(help="Standard deviation of the untrained network's logits.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Compute a loss's parameters for another number of classes, without training.

    They give an untrained network the same average error as before (bias paper, section 3.3). Where
    no solution learns, or only slowly, by the verdict of `noiseproof analyze fit`, the loss stays
    as it is if it does, else the nearest is given.
    """
    from noiseproof.losses import calibrate, expected_margin, get_loss, logit_bias

    before = get_loss(loss)
    names: Any = tuple(name.strip() for name in free.split(",")) if free else None
    fit = calibrate(
        before, classes, like, free=names[0] if names and len(names) == 1 else names, sigma=sigma
    )
    bias, margin = max(0.0, logit_bias(classes, sigma=sigma)), expected_margin(classes, sigma=sigma)
    if as_json:
        return show_json(
            {
                "loss": fit.loss and str(fit.loss),
                "params": fit.params,
                "curve": fit.curve,
                "classes": classes,
                "like": {"loss": str(before), "classes": like},
                "sigma": sigma,
                "average_error": fit.error,
                "logit_bias": bias,
                "expected_margin": margin,
                "note": fit.note,
            }
        )
    same = "" if fit.note else f", the same as {before} at {like} classes"
    what = (
        f"{'ε for any loss' if bias else 'none'}: the label's mean probability is"
        f" {'above ' * (not bias)}0.15"
    )
    rows = [
        *(
            (k, plain(v), f"{plain(before.hyperparameters[k])} at {like} classes")
            for k, v in fit.params.items()
        ),
        ("average error", plain(fit.error), f"⟨δ_k⟩(0){same} (bias paper, Eq. 3)"),
        ("logit bias", plain(bias), f"{what} (bias paper, Eq. 4)"),
        (
            "expected margin",
            plain(margin),
            "E[Δ_y] before training, exact (curriculum paper, Eq. 4)",
        ),
    ]
    if fit.note:
        say(fit.note)
    show((f"at {classes} classes", "value", "meaning"), rows)
    if fit.curve:
        echo()
        show(
            list(fit.curve[0]), [[plain(value) for value in point.values()] for point in fit.curve]
        )
    return None


@app.command(epilog=examples("noises", "noises --json | jq '.[].name'"), rich_help_panel=LISTS)
@refusals()
def noises(as_json: AsJson = False) -> None:
    """List every noise model with its parameters.

    `NAME:key=value,…` sets parameters; `noiseproof data show digits --noise symmetric:rate=0.4`
    shows the result.
    """
    from noiseproof.noise import NOISES

    list_registered(NOISES, as_json)


@app.command(epilog=examples("models", "models --classes 100 --json"), rich_help_panel=LISTS)
@refusals()
def models(
    classes: Annotated[
        int, typer.Option(min=2, help="Classes of the linear head that the weights include.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """List every backbone with its number of weights, its features and its parameters."""
    import torch

    from noiseproof.models import MODELS

    described = [describe(MODELS, name) for name in sorted(MODELS)]
    for model in described:
        model |= {"classes": classes, "weights": None, "features": None}
        if not model["required"]:
            with torch.device("meta"):  # shapes alone: nothing is allocated or drawn
                backbone = MODELS.create(model["name"])
            model["features"] = backbone.num_features
            model["weights"] = (
                sum(p.numel() for p in backbone.parameters())
                + (backbone.num_features + 1) * classes
            )
    if as_json:
        return show_json(described)
    rows = [
        (
            model["name"],
            f"{model['weights']:,}" if model["weights"] else "",
            str(model["features"] or ""),
            signature(model),
            model["summary"],
        )
        for model in described
    ]
    return show(
        ("name", f"weights, {classes} classes", "features", "parameters", "what it is"), rows
    )


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
    for name in sorted(FEATURES):
        cls: Any = FEATURES[name]
        weights = (
            get_extractor(name, cls.kind).weights()
            if cls.is_available() and not cls.loads_by_name
            else None
        )
        described.append(
            {
                "name": name,
                "for": cls.kind,
                "installed": cls.is_available(),
                "install": cls.extra,
                "summary": cls.summary,
                "licence": weights and weights.licence,
                "sha256": weights and weights.sha256,
            }
        )
    if as_json:
        return show_json(described)
    rows = []
    for thing in described:
        name = (
            f"{thing['name']}:NAME"
            if cast(Any, FEATURES[thing["name"]]).loads_by_name
            else thing["name"]
        )
        state = "yes" if thing["installed"] else f"no, see noiseproof doctor: {thing['install']}"
        rows.append(
            (
                name,
                thing["for"],
                state,
                thing["licence"] or "",
                (thing["sha256"] or "")[:16],
                thing["summary"],
            )
        )
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
