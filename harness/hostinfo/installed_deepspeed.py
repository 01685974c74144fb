# SPDX-License-Identifier: Apache-2.0
"""The installed DeepSpeed: its version and its files. Never imports it."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.interpreter import find_new_module


def installed_version() -> str | None:
    """The installed version by the name of its metadata folder (`importlib.metadata` takes longer to import than this
    to run).
    """
    for entry in sys.path:
        for folder in Path(entry or ".").glob("deepspeed-*.dist-info"):
            return folder.name.removeprefix("deepspeed-").removesuffix(".dist-info")
    if installed_source_folder() is None:
        return None
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("deepspeed")  # of `setup.py develop`, whose metadata folder has no version in its name
    except PackageNotFoundError:
        return None


def installed_source_folder() -> Path | None:
    """The folder of the installed DeepSpeed's files, editable or not; None when it is not installed."""
    spec = find_new_module("deepspeed")
    for location in spec.submodule_search_locations or () if spec is not None else ():
        if (Path(location) / "runtime" / "engine.py").is_file():
            return Path(location)
    return None
