# SPDX-License-Identifier: Apache-2.0
"""Tables that are text files: a line `NAME` begins an entry, indented lines `FIELD: TEXT` are its fields.

A text is one line, however long. A pattern that begins or ends with a space is written with `[ ]`. Lines that begin
with `#` are comments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_FIELD = re.compile(r" {4}([a-z][a-z_ ]*): (.+)")


def read_entries(file: Path) -> Mapping[str, Mapping[str, str]]:
    """The fields of each entry by its name, in the order of the file. Raises ValueError for a line of another form, and
    for a name or field that is written twice.
    """
    entries: dict[str, dict[str, str]] = {}
    fields: dict[str, str] | None = None
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        match = _FIELD.fullmatch(line)
        if match and fields is not None and match[1] not in fields:
            fields[match[1]] = match[2]
        elif not line.startswith(" ") and line not in entries:
            fields = entries[line] = {}
        else:
            raise ValueError(f"{file.name}: line {number} is neither a new name nor a new field: {line!r}")
    return entries
