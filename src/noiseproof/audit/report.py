"""The report of an audit: what a notebook shows, and what is saved and exported."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noiseproof.audit.decisions import write_csv
from noiseproof.audit.exchange import TOOLS
from noiseproof.audit.exchange.base import exported_rows
from noiseproof.audit.figures import FIGURES, as_html, as_text
from noiseproof.audit.files import LOCK, check_folder
from noiseproof.audit.renewal import renew_decisions
from noiseproof.audit.result import AuditResult, write_audit
from noiseproof.core.files import Lock, replacing
from noiseproof.core.lazy import provided
from noiseproof.data.sources import PathLike

log = logging.getLogger("noiseproof")


@dataclass(frozen=True, eq=False, repr=False)
class LabelReport(AuditResult):
    """The result of an audit: issues of every type for each row, and a summary of the dataset."""

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def figure(self, name: str) -> Any:
        """Return a matplotlib figure, which a notebook shows.

        Args:
            name: ``quality`` (histogram with the cut), ``confusions`` (pairs of classes) or
                ``classes``.
        """
        import matplotlib.pyplot  # noqa: F401  # notebooks show figures once it is imported

        if name not in FIGURES:
            raise ValueError(f"Expected a figure of {', '.join(FIGURES)}, got {name!r}.")
        return FIGURES[name](self)

    def review(self, folder: PathLike = "audit", **options: Any) -> Any:
        """Open the review page of this audit, in a notebook inline; see
        `noiseproof.review.session.open_review`.
        """
        return provided("review").open_review(self, folder, **options)

    def save(
        self,
        folder: PathLike,
        *,
        force: bool = False,
        csv_safe: bool = True,
        tell: Callable[[str], None] = log.warning,
    ) -> list[Path]:
        """Write the files of the audit (docs/audit_files.md).

        A folder that is not empty is refused; ``force`` replaces these files and keeps all others,
        but for decisions on an earlier audit there: they stay with their rows, or move to another
        file, which ``tell`` reports. With ``csv_safe``, cells of issues.csv that a spreadsheet
        would take for formulas get an apostrophe.
        """
        target = check_folder(folder, force=force)
        lock = Lock(target / LOCK)
        try:
            if not lock.held:
                raise FileExistsError(
                    f"Expected a folder of this audit alone, another one writes to {target}."
                )
            check_folder(folder, force=force)  # another one may just have finished
            renewal = renew_decisions(target, self) if force else None
            written = write_audit(target, self, csv_safe=csv_safe)
            if renewal is not None:
                message, path, decisions = renewal
                if decisions:  # by the numbers of rows in this audit, so they come after it
                    write_csv(decisions, path)
                tell(message)
        finally:
            lock.release()
        return written

    def export(
        self, tool: str, path: PathLike, *, all_rows: bool | None = None, force: bool = False
    ) -> Path:
        """Write what another tool imports: label-studio, argilla, cvat, fiftyone, coco or
        imagefolder.

        The first three get issues alone by default, the others all rows. An existing file, or a
        folder that holds files, is refused, unless ``force``.
        """
        chosen = TOOLS[tool]()
        target = Path(path)
        chosen.check(self.data.source)
        if chosen.listing:
            check_folder(target, force=force)
        rows = list(exported_rows(self, chosen.takes_all_rows if all_rows is None else all_rows))
        files = chosen.files(self.data, target, rows)
        for file in files:
            if file.exists() and not force:
                raise FileExistsError(f"Expected a new file, {file} exists. Choose another name.")
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as part:
                part.write_text(text, encoding="utf-8")
        return target if chosen.listing else next(iter(files))
