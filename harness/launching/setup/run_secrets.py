# SPDX-License-Identifier: Apache-2.0
"""Secrets in `launch.env`: no file of the run directory shows them but one, which only the user can read.

Ranks on this machine inherit them. For ranks on other hosts DeepSpeed would write them into a command line that every
user of the host can list; the ranks read them from `secrets.json` instead, which the launch removes at its end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.facts.secret_names import is_secret
from harness.launching.setup.environment import Variable
from harness.secret_text import HIDDEN

SECRETS_FILE = "secrets.json"
EXACT_FILES = ("spec.resolved.json", "ds_config.json")
"""The ranks read these and hosts compare them: they are written as they are. The first is made without the secrets."""
_MIN_LENGTH = 5
"""A shorter value is not searched for in texts: it may be any word of them."""


def find_secrets(variables: Sequence[Variable]) -> tuple[Variable, ...]:
    """The variables of the spec that hold secrets."""
    return tuple(v for v in variables if v.origin == "launch.env" and is_secret(v.name, v.value))


def hide_secrets(text: str, secrets: Sequence[Variable]) -> str:
    """A text without the values of secrets, as they are and as JSON and YAML write them."""
    for value in sorted((v.value for v in secrets if len(v.value) >= _MIN_LENGTH), key=len, reverse=True):
        for written in dict.fromkeys((value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])):
            text = text.replace(written, HIDDEN)
    return text


def render_secrets(secrets: Sequence[Variable]) -> str:
    """The content of `secrets.json`."""
    return json.dumps({v.name: v.value for v in secrets}) + "\n"
