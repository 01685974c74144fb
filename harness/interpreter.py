"""This Python once more, for programs that the harness starts."""

from __future__ import annotations

import sys
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"
"""As `-P`, for a program that starts others by itself: Python 3.11 and later heed it, earlier ones ignore it."""


def python_command(*words: str) -> list[str]:
    """The command of this interpreter with these words, such as `-m`, `harness`.

    With `-c`, `-m` and `-` Python would look for modules in the current folder first, before the standard library: a
    `json.py` that lies there would run. `-P` keeps that folder out; PYTHONPATH counts as ever.
    """
    return [sys.executable, "-P", *words]


def remove_repeated_root() -> None:
    """Remove `sys.path[0]`, the folder of this package that a worker has put there, where it also comes later.

    It comes later where the package is installed: site-packages must not precede the standard library.
    """
    first, *others = sys.path
    if Path(first).resolve() in {Path(entry).resolve() for entry in others}:
        del sys.path[0]
