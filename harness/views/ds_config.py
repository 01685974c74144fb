# SPDX-License-Identifier: Apache-2.0
"""A rendered DeepSpeed JSON: its keys with their reasons, and the diff of a file against it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from harness.render import DSConfig


def render_reasons(config: DSConfig) -> str:
    """One line per key: its value, and the reason for it."""
    values = {key: json.dumps(_value_at(config.config, key)) for key in config.reasons}
    key_width = max(map(len, values), default=0)
    value_width = max(map(len, values.values()), default=0)
    return "\n".join(
        f"{key.ljust(key_width)}  {values[key].ljust(value_width)}  {reason}" for key, reason in config.reasons.items()
    )


def render_config_diff(old: str, new: str, name: str) -> str:
    """A unified diff of the file's text and the rendered one."""
    import difflib

    return "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), name, "rendered", lineterm=""))


def _value_at(config: Mapping[str, object], key: str) -> object:
    """The value of a dotted key, whose names may have dots themselves."""
    value: object = config
    parts = key.split(".")
    while parts and isinstance(value, Mapping):
        ends = [end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in value]
        if not ends:
            return None
        value, parts = value[".".join(parts[: ends[0]])], parts[ends[0] :]
    return value
