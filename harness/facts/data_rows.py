# SPDX-License-Identifier: Apache-2.0
"""The text files of this package: a row a line, rows of something below it by four blanks more, `#` for a comment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def read_rows(file: str) -> Iterator[tuple[int, str]]:
    """The depth of each row, 0 at the margin, and its text. `file`: beside this module."""
    for line in (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines():
        row = line.lstrip(" ")
        if row and not row.startswith("#"):
            yield (len(line) - len(row)) // 4, row
