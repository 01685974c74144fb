# SPDX-License-Identifier: Apache-2.0
"""The command of this Python, for programs that the harness starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
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
    """Where a new Python would find this module, by all its finders: folders, archives, editable installations of any
    kind. Imports nothing, not even the packages above it. `importlib.util.find_spec` imports these, and answers from
    `sys.modules`.
    """
    spec, path, parts = None, None, name.split(".")
    for depth, part in enumerate(parts, start=1):
        full_name = ".".join(parts[:depth])
        found = (finder.find_spec(full_name, path) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is None or depth == len(parts):
            return spec
        path = _search_path(spec, part, path)
        if path is None:
            return None
    return None


def find_each_module(name: str) -> list[ModuleSpec]:
    """Every place where a new Python would find this top-level module if it were alone, the first found first."""
    found = []
    for finder in sys.meta_path:
        if finder is PathFinder:
            found += [PathFinder.find_spec(name, [entry]) for entry in sys.path]
        else:
            found.append(finder.find_spec(name, None))
    return [spec for spec in found if spec is not None]


def read_module_source(name: str) -> str | None:
    """The text of this module; None where it is not found, or is found without a text."""
    spec = find_new_module(name)
    read = getattr(spec.loader, "get_source", None) if spec is not None else None
    text = read(name) if read is not None else None
    return text if isinstance(text, str) else None


def _search_path(spec: ModuleSpec, part: str, above: Sequence[str] | None) -> Sequence[str] | None:
    """Where the modules below a package are. The path of a namespace would ask its parent in `sys.modules`."""
    if spec.origin is None and above is not None:
        return [str(Path(entry, part)) for entry in above if Path(entry, part).is_dir()]
    locations = spec.submodule_search_locations
    return None if locations is None else list(locations)
