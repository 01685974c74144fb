# SPDX-License-Identifier: Apache-2.0
"""The command of this Python, for programs that the harness starts."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"
"""Like `-P`, for a program that starts other Pythons: version 3.11 and later read it, earlier ones ignore it."""


def python_command(*arguments: str) -> list[str]:
    """The command of this interpreter with arguments such as `-m`, `harness`.

    With `-c`, `-m` and `-` Python searches the current folder for modules before the standard library: a `json.py`
    there would run. `-P` keeps that folder out of the path; PYTHONPATH stays.
    """
    return [sys.executable, "-P", *arguments]


def remove_repeated_root() -> None:
    """Remove `sys.path[0]`, the folder of this package that a worker has put there, where it also comes later.

    It comes later where the package is installed: site-packages must not precede the standard library.
    """
    first, *others = sys.path
    if Path(first).resolve() in {Path(entry).resolve() for entry in others}:
        del sys.path[0]


def find_new_module(name: str) -> ModuleSpec | None:
    """Where a new Python would find this top-level module, which is not imported; editable installations have finders
    of their own. `importlib.util.find_spec` answers from `sys.modules`.
    """
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None)
        if spec is not None:
            return spec
    return None
