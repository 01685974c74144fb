# SPDX-License-Identifier: Apache-2.0
"""Installed packages: where a new Python finds each, its release, and the places that it hides. It imports none."""

from __future__ import annotations

import re
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

from harness.interpreter import find_each_module, find_new_module

_VERSION_FILES = ("git_version_info_installed.py", "version.py", "__init__.py")
"""Files in which DeepSpeed, torch and others write their release, for a source tree that has no metadata."""
_VERSION_LINE = re.compile(r"^(?:__version__|version)(?:: \w+)? *= *['\"]([^'\"]+)['\"]", re.MULTILINE)


class Installation(NamedTuple):
    """A package that a new Python imports."""

    name: str
    folder: Path
    """Its own folder; below an archive where it is imported from one."""
    version: str | None
    """None where neither metadata nor its files say it."""

    def find_hidden(self) -> tuple[Path, ...]:
        """Other installations of the same package, which are never imported."""
        folders = [_folder_of(spec) for spec in find_each_module(self.name)]
        return tuple(dict.fromkeys(each for each in folders if each and each.resolve() != self.folder.resolve()))


def find_installation(name: str) -> Installation | None:
    """The installation that a new Python imports as `name`; None where it finds none, or a folder without a module."""
    spec = find_new_module(name)
    folder = None if spec is None else _folder_of(spec)
    return None if folder is None else Installation(name, folder, _read_version(name, folder))


def find_version(distribution: str) -> str | None:
    """The release that is imported, else that of the metadata; None where it is not installed."""
    installation = find_installation(distribution)
    if installation is not None and installation.version is not None:
        return installation.version
    # Its import takes longer than everything above.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None if installation is None else "unknown"


def _folder_of(spec: ModuleSpec) -> Path | None:
    return Path(spec.origin).parent if spec.origin and spec.submodule_search_locations else None


def _read_version(name: str, folder: Path) -> str | None:
    """By the name of a metadata folder next to it, by the metadata of its place, or by a file of its own."""
    metadata = [file.name for file in folder.parent.glob(f"{name}-*.dist-info")]
    if len(metadata) == 1:
        return metadata[0].removeprefix(f"{name}-").removesuffix(".dist-info")
    from importlib.metadata import distributions

    for distribution in distributions(name=name):
        places = [Path(str(distribution.locate_file(name))).resolve()]
        url = re.search(r'"url": *"file://([^"]+)"', distribution.read_text("direct_url.json") or "")
        if folder.resolve() in places or (url and folder.resolve().is_relative_to(Path(url[1]).resolve())):
            return distribution.version
    for file in _VERSION_FILES:
        if (folder / file).is_file():
            match = _VERSION_LINE.search((folder / file).read_text(encoding="utf-8", errors="replace"))
            if match:
                return match[1]
    version_file = folder.parent / "version.txt"  # of a clone of DeepSpeed
    return version_file.read_text(encoding="utf-8").strip() or None if version_file.is_file() else None
