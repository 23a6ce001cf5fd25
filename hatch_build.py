"""A wheel is small: its scripts and CUDA sources have no comments, and it is packed as tightly as a zip file can be.

Pages that are written from the scripts are smaller, too. Hatchling has no option for either. What Zopfli packs has the
format of zlib and is 3 % smaller; where there is no Zopfli, zlib packs.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

try:
    from zopfli.zlib import compress
except ImportError:  # on machines that it is not built for
    compress = zlib.compress

SOURCE = Path(__file__).parent / "src"


def without_comments(script: str) -> str:
    """``script`` without lines that are comments, and without comments behind code whose strings end on the line.

    A template of several lines stays as it is: what looks like a comment in it is text.
    """
    kept, is_text = [], False
    for line in script.split("\n"):
        if not is_text and line.lstrip().startswith("// "):
            continue
        code = re.sub(r"\s+// [^\"'`]*$", "", line)
        quotes = re.sub(r"\\.", "", code)
        is_open = is_text or any(quotes.count(quote) % 2 for quote in "\"'`")
        kept.append(line if is_open else code)
        is_text ^= quotes.count("`") % 2 == 1
    if is_text:
        raise ValueError("Expected each template of a script to end, got an odd number of backticks.")
    return "\n".join(kept)


class Tight:
    """A compressor of a zip file: what zlib's format has without its header and checksum."""

    def __init__(self, *options: object) -> None:
        self.content = b""

    def compress(self, content: bytes) -> bytes:
        self.content += content
        return b""

    def flush(self) -> bytes:
        packed: bytes = compress(self.content)
        return packed[2:-4]


class SmallWheel(BuildHookInterface):
    """Changes wheels alone; an editable install has the source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put files without comments in place of those of the source."""
        if self.target_name != "wheel" or version != "standard":
            return
        self.folder = tempfile.TemporaryDirectory()  # until the build ends
        paths = sorted(path for path in SOURCE.rglob("*") if path.suffix in (".js", ".cu"))
        for number, path in enumerate(paths):
            copy = Path(self.folder.name, str(number))
            copy.write_text(without_comments(path.read_text("utf-8")), "utf-8")
            build_data["force_include"][str(copy)] = path.relative_to(SOURCE).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Pack the same files again, more tightly."""
        if self.target_name != "wheel" or version != "standard":
            return
        with zipfile.ZipFile(artifact_path) as packed:
            files = [(info, packed.read(info)) for info in packed.infolist()]
        with patch.object(zipfile, "_get_compressor", Tight), zipfile.ZipFile(artifact_path, "w") as tighter:
            for info, content in files:
                tighter.writestr(info, content, zipfile.ZIP_DEFLATED)
