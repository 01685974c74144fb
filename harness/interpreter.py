# SPDX-License-Identifier: Apache-2.0
"""The command of this Python, for programs that the harness starts, and how these import."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def freeze_imports() -> Iterator[None]:
    """Import modules in this context without garbage collections; later ones look through nothing that it leaves behind
    until someone calls `gc.unfreeze`.

    After torch, DeepSpeed and transformers a full collection takes 0.5 s, and a rank made ten while it imported them
    and built its engine.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def find_new_module(name: str) -> ModuleSpec | None:
    """The place at which a new Python would find this module, by all its finders: folders, archives, editable
    installations of any kind. Imports nothing, not even the packages above it. `importlib.util.find_spec` imports
    these, and answers from `sys.modules`.
    """
    path, parts = None, name.split(".")
    for depth in range(1, len(parts)):
        path = _search_path(".".join(parts[:depth]), path)
        if not path:
            return None
    return _ask_finders(name, path)


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


def _ask_finders(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    found = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def _search_path(package: str, path: Sequence[str] | None) -> Sequence[str]:
    """Where the modules below a package are, whose own place `path` is."""
    try:
        spec = _ask_finders(package, path)
    except KeyError:  # a namespace inside a package, which asks for its parent in `sys.modules`
        folder = package.rpartition(".")[2]
        return [str(Path(entry, folder)) for entry in path or () if Path(entry, folder).is_dir()]
    return list(spec.submodule_search_locations or ()) if spec is not None else ()
