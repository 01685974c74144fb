# SPDX-License-Identifier: Apache-2.0
"""Environment variables that choose code for a rank, its launcher or its compiler, each with the reason.

A spec may come from somebody else, so the user must allow these before a run starts. The list is
`environment_variables.txt`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from harness.entry_file import read_entries


class CodeVariable(NamedTuple):
    """Variables that choose code. `names` is a pattern of the whole name; `values` one of the values that do so."""

    names: str
    reason: str
    values: str


_VALUES = {"": r"(?s).", "any": "", "path or command": r"[^\w.+-]"}
"""Patterns that the file names by a word. A path or a command is not the name of a program or a library that is looked
for in the usual places.
"""
CODE_VARIABLES = tuple(
    CodeVariable(names, fields["reason"], _VALUES.get(values := fields.get("values", ""), values))
    for names, fields in read_entries(Path(__file__).with_suffix(".txt")).items()
)
"""Every variable that is known to make a rank, its launcher or its compiler run code of the value's choosing."""


def code_loading_reason(name: str, value: str) -> str | None:
    """The reason why this variable with this value chooses code; None where it does not."""
    for variable in CODE_VARIABLES:
        if re.fullmatch(variable.names, name):
            return variable.reason if re.search(variable.values, value) else None
    return None
