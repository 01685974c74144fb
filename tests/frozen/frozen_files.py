# SPDX-License-Identifier: Apache-2.0
"""The frozen versions, and what their files may name."""

from __future__ import annotations

import re
from pathlib import Path

FROZEN = Path(__file__).resolve().parent
NEUTRAL = ("/tmp/frozen", "/opt/harness", "/home/user", "/bin/sh")  # noqa: S108
"""Absolute paths that the frozen files may have."""


def frozen_versions() -> list[str]:
    """The versions that are frozen, in the order of their names."""
    return sorted(path.name for path in FROZEN.iterdir() if path.is_dir() and path.name[0].isdigit())


def frozen_runs(version: str) -> dict[str, Path]:
    """The name of each frozen spec of a version -> its run directory."""
    folder = FROZEN / version
    return {spec.stem: next((folder / "runs").glob(f"{spec.stem}-2*")) for spec in sorted(folder.glob("*.yaml"))}


def foreign_paths(folder: Path) -> list[str]:
    """Lines `file: path` of every absolute path in a text below the folder that is not neutral."""
    pattern = re.compile(r"(?<![\w.<>:/-])/(?:[\w.+-]+/)+[\w.+-]+")
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        paths = dict.fromkeys(pattern.findall(read_text(path) or ""))
        lines += [f"{path.relative_to(folder)}: {name}" for name in paths if not name.startswith(NEUTRAL)]
    return lines


def read_text(path: Path) -> str | None:
    """The text of a file; None for one that is no text, such as tensors."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return None
