# SPDX-License-Identifier: Apache-2.0
"""Is the DeepSpeed JSON of a file what its spec renders to?"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from harness.file_io import read_regular
from harness.findings import Finding, Fix, Place
from harness.render.ds_config import DSConfig
from harness.spec.parse.source import MAX_BYTES


class FileComparison(NamedTuple):
    """The file's text, where it can be read, and the finding unless it is what the spec renders to."""

    text: str | None
    finding: Finding | None


def compare_with_file(config: DSConfig, file: Path, spec: str) -> FileComparison:
    """Compare the file with what the spec renders to; line ends do not count."""
    try:
        text = read_regular(file, MAX_BYTES).decode().replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        message = f"`{file}` cannot be compared: {getattr(error, 'strerror', None) or 'not UTF-8 text'}"
        fix = Fix(f"write it with `harness render {spec} --write`")
        return FileComparison(None, Finding("RN001", "error", message, place=Place(str(file), 1, 1), fix=fix))
    if text == config.json_text:
        return FileComparison(text, None)
    finding = Finding(
        "RN002",
        "error",
        f"`{file}` differs from what `{spec}` renders to",
        place=Place(str(file), _first_differing_line(text, config.json_text), 1),
        label="differs from here on",
        fix=Fix(f"run `harness render {spec} --write`"),
    )
    return FileComparison(text, finding)


def _first_differing_line(old: str, new: str) -> int:
    pairs = zip(old.splitlines(), new.splitlines(), strict=False)
    return next((n for n, (a, b) in enumerate(pairs, start=1) if a != b), min(old.count("\n"), new.count("\n")) + 1)
