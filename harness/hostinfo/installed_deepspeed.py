# SPDX-License-Identifier: Apache-2.0
"""The installed DeepSpeed: its version and its files. Never imports it."""

from __future__ import annotations

from pathlib import Path

from harness.hostinfo.installed_packages import find_installation, find_version


def installed_version() -> str | None:
    """The installed version; None when DeepSpeed is not installed, or does not say it."""
    folder = installed_source_folder()
    return None if folder is None else find_version("deepspeed")


def installed_source_folder() -> Path | None:
    """The folder of the installed DeepSpeed's files, editable or not; None when it is not installed."""
    found = find_installation("deepspeed")
    return found.folder if found is not None and (found.folder / "runtime" / "engine.py").is_file() else None
