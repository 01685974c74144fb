# SPDX-License-Identifier: Apache-2.0
"""Environment variables that hold a secret, by their name or by the form of their value."""

from __future__ import annotations

import re

from harness.secret_text import has_password

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
