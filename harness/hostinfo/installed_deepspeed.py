# SPDX-License-Identifier: Apache-2.0
"""The installed DeepSpeed: its version and its files. Never imports it."""

from __future__ import annotations

import sys
from pathlib import Path


def installed_version() -> str | None:
    """The installed version by the name of its metadata folder (`importlib.metadata` takes longer to import than this
    to run).
    """
    for entry in sys.path:
        for folder in Path(entry or ".").glob("deepspeed-*.dist-info"):
            return folder.name.removeprefix("deepspeed-").removesuffix(".dist-info")
    return None


def installed_source_folder() -> Path | None:
    """The folder of the installed DeepSpeed's files, to look up citations; None when it is not installed."""
    for entry in sys.path:
        folder = Path(entry or ".") / "deepspeed"
        if (folder / "runtime" / "engine.py").is_file():
            return folder
    return None
