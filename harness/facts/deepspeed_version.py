# SPDX-License-Identifier: Apache-2.0
"""The DeepSpeed version that a spec is checked against: the one that the user names, else the installed one, which is
never imported.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from harness.errors import ExitCode, user_error
from harness.findings import Finding, Fix
from harness.hostinfo.installed_packages import find_installation, find_version

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
    installed = installed_version() or ""
    try:
        parse_version(installed)
    except ValueError:  # none, or a build with another version text
        return DeepSpeedTarget(FALLBACK_VERSION, "assumed, none is installed")
    return DeepSpeedTarget(installed, "installed")


def installed_version() -> str | None:
    """The installed version; None when DeepSpeed is not installed, or does not say it."""
    folder = installed_source_folder()
    return None if folder is None else find_version("deepspeed")


def installed_source_folder() -> Path | None:
    """The folder of the installed DeepSpeed's files, editable or not; None when it is not installed."""
    found = find_installation("deepspeed")
    return found.folder if found is not None and (found.folder / "runtime" / "engine.py").is_file() else None


def parse_target(version: str | None) -> DeepSpeedTarget:
    """The DeepSpeed to check against. Raises UserError when `--deepspeed-version` is no version."""
    try:
        return resolve_target(version)
    except ValueError as error:
        raise user_error(
            "SP011", f"--deepspeed-version: {error}", fix="write it as `0.19.8`", code=ExitCode.USAGE
        ) from None


def check_release_verified(deepspeed: DeepSpeedTarget) -> list[Finding]:
    """EN020 where the gates were not verified for this release."""
    first, last = map(parse_version, VERIFIED_RANGE)
    if first <= deepspeed.version <= last:
        return []
    message = f"the gates were not verified for DeepSpeed {deepspeed.text} ({deepspeed.origin})"
    verified = f"they were verified from {VERIFIED_RANGE[0]} to {VERIFIED_RANGE[1]}"
    note = f"{verified}; the rules of the nearest release apply"
    return [Finding("EN020", "info", message, notes=(note,), fix=Fix("check the findings yourself"))]
