"""The designed sample of an audit in its folder: which rows people are asked about."""

import json

import numpy as np

from noiseproof.audit.files import DESIGN, Audit
from noiseproof.core.files import check_files, replacing_all
from noiseproof.judge.measure.design import Design
from noiseproof.judge.measure.estimate import Population

FORMAT = 1


def open_design(audit: Audit, *, seed: int = 0) -> Design:
    """The design in the folder of an audit; drawn and written where there is none."""
    if (design := read_design(audit)) is not None:
        return design
    design = Design.draw(audit, seed)
    content = {"format": FORMAT, "seed": seed, "prior": design.prior.round(6).tolist()}
    description, strata = DESIGN
    with replacing_all(audit.folder) as part:
        with open(part(strata), "wb") as file:
            np.save(file, design.strata)
        part(description).write_text(json.dumps(content) + "\n", encoding="utf-8")
    return design


def read_design(audit: Audit) -> Design | None:
    """The design in the folder of an audit, None where nothing was measured."""
    description, strata_file = DESIGN
    path = audit.folder / description
    check_files(audit.folder, *DESIGN)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
        strata = np.load(path.with_name(strata_file), allow_pickle=False)
        design = Design(content["seed"], strata, np.array(content["prior"]))
        if content["format"] != FORMAT or len(strata) != audit.summary["source_rows"]:
            raise ValueError("a sample of other rows")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"Expected the sample of this audit in {path} and {strata_file}, got {error}. Move"
            " both files and the decisions away to measure again."
        ) from error
    return design


def read_population(audit: Audit) -> Population | None:
    """The rows of an audit by the design in its folder, None where nothing was measured."""
    design = read_design(audit)
    return None if design is None else Population.of(audit, design)
