# SPDX-License-Identifier: Apache-2.0
"""The DeepSpeed version that a spec is checked against: the one that the user names, else the installed one."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from harness.hostinfo.installed_deepspeed import installed_version

VERIFIED_RANGE = ("0.14.5", "0.19.8")
"""The releases that the gates' ranges were looked up in; they were run on `FALLBACK_VERSION`."""
FALLBACK_VERSION = "0.19.8"

Version = tuple[int, ...]


class DeepSpeedTarget(NamedTuple):
    """The DeepSpeed that a spec is checked against."""

    text: str
    origin: str

    @property
    def version(self) -> Version:
        """`text` as numbers, to compare with."""
        return parse_version(self.text)


@cache
def parse_version(text: str) -> Version:
    """`0.19.8+cu128` as (0, 19, 8). Raises ValueError for what is no version."""
    match = re.fullmatch(
        r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:\.?(?:a|b|rc|post|dev)\d+)*(?:\+[\w.-]+)?", text.strip()
    )
    if match is None:
        raise ValueError(f"`{text}` is not a version such as `{FALLBACK_VERSION}`")
    return tuple(int(part or 0) for part in match.groups())


def resolve_target(requested: str | None = None) -> DeepSpeedTarget:
    """The version to check against: the requested one, else the installed one, else the one that the gates were run on.

    Raises ValueError when `requested` is no version.
    """
    if requested is not None:
        parse_version(requested)
        return DeepSpeedTarget(requested.strip().removeprefix("v"), "requested")
    installed = installed_version()
    try:
        parse_version(installed or "")
    except ValueError:
        installed = None  # a build with another version text is unknown
    return (
        DeepSpeedTarget(installed, "installed")
        if installed
        else DeepSpeedTarget(FALLBACK_VERSION, "assumed, none is installed")
    )
