"""Which DeepSpeed is meant: the installed one, or the one that a user names. Never imports it."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

VERIFIED_RANGE = ("0.14.5", "0.19.8")
"""The releases between which the gates' ranges were looked up; `ASSUMED` is what they were run on."""
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
    """What to check against: the version asked for, else the installed one, else the one the gates were run on.

    Raises ValueError when `asked` is no version.
    """
    if requested is not None:
        parse_version(requested)
        return DeepSpeedTarget(requested.strip().removeprefix("v"), "asked for")
    found = installed_version()
    try:
        parse_version(found or "")
    except ValueError:
        found = None  # a build that calls itself something else is none that is known
    return (
        DeepSpeedTarget(found, "installed")
        if found
        else DeepSpeedTarget(FALLBACK_VERSION, "assumed, none is installed")
    )


def installed_version() -> str | None:
    """The installed version by the name of its metadata folder (`importlib.metadata` takes longer to import than this
    to run).
    """
    for entry in sys.path:
        for folder in Path(entry or ".").glob("deepspeed-*.dist-info"):
            return folder.name.removeprefix("deepspeed-").removesuffix(".dist-info")
    return None


def installed_source_folder() -> Path | None:
    """Where the installed DeepSpeed's files are, to look up citations; None when it is not installed."""
    for entry in sys.path:
        folder = Path(entry or ".") / "deepspeed"
        if (folder / "runtime" / "engine.py").is_file():
            return folder
    return None
