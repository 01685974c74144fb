# SPDX-License-Identifier: Apache-2.0
"""Environment variables that choose code for a rank, its launcher or its compiler, each with the reason; and those
that hold a secret, by their name or by the form of their value.

A spec may come from somebody else, so the user must allow the former before a run starts. The list is
`environment_variables.txt`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.facts.data_rows import read_rows
from harness.secret_text import has_password


class CodeVariable(NamedTuple):
    """Variables that choose code. `names` is a pattern of the whole name; `values` one of the values that do so."""

    names: str
    reason: str
    values: str


_VALUES = {"-": r"(?s).", "any": "", "command": r"[^\w.+-]"}
"""Patterns that the file names by a word. A path or a command is not the name of a program or a library that is looked
for in the usual places.
"""
CODE_VARIABLES = tuple(
    CodeVariable(names, reason, _VALUES.get(values, values))
    for _, row in read_rows("environment_variables.txt")
    for names, values, reason in [row.split(maxsplit=2)]
)
"""Every variable that is known to make a rank, its launcher or its compiler run code of the value's choosing."""


def code_loading_reason(name: str, value: str) -> str | None:
    """The reason why this variable with this value chooses code; None where it does not."""
    for variable in CODE_VARIABLES:
        if re.fullmatch(variable.names, name):
            return variable.reason if re.search(variable.values, value) else None
    return None


_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD_HASH|API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY|"
    r"ACCOUNT_?KEY|CREDENTIALS?|AUTH|COOKIE|WEBHOOK(_URL)?)$",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"^(hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|AKIA|ASIA|xox[abeoprs]-|AIza|eyJ[\w-]{8,}\.|nvapi-|dapi[0-9a-f])|"
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


def is_secret(name: str, value: str) -> bool:
    """Does this variable hold a token, a password or a key?"""
    return bool(value) and (_NAME.search(name) is not None or _VALUE.search(value) is not None or has_password(value))
