# SPDX-License-Identifier: Apache-2.0
"""The files that a command line names: files, whole folders, standard input. Reads folders; checks nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix, Place
from harness.spec.parse.source import MAX_BYTES

EXTENSIONS = (".yaml", ".yml", ".json")
_SKIPPED_FOLDERS = frozenset(("node_modules", "__pycache__", "site-packages", "venv", "build", "dist"))


class DiscoveredFiles(NamedTuple):
    """The files to check, in the order of the command line, each once. `passed_over` are files in folders that hold
    something else; `problems` are folders that cannot be read or are empty.
    """

    files: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    problems: tuple[Finding, ...] = ()


def discover_files(arguments: Sequence[str]) -> DiscoveredFiles:
    """Files as they are; of folders, everything below that looks like a run spec or a DeepSpeed configuration.

    Hidden folders, virtual environments and `node_modules` are not entered, links to folders not followed.
    """
    files: dict[str, str] = {}
    passed_over: dict[str, str] = {}
    problems: list[Finding] = []
    for argument in arguments:
        if argument == "-" or not os.path.isdir(argument):  # noqa: PTH112  (pathlib would drop a leading `./`)
            files.setdefault(_real_path(argument), argument)
            continue
        before = len(files)
        has_config = False
        for path in _walk_folder(argument, problems):
            if _looks_like_config(path):
                has_config = True
                files.setdefault(_real_path(path), path)
            else:
                passed_over.setdefault(_real_path(path), path)
        if not has_config and len(files) == before and not problems:
            problems.append(_empty_folder_finding(argument))
    others = tuple(path for key, path in passed_over.items() if key not in files)
    return DiscoveredFiles(tuple(files.values()), others, tuple(problems))


def _real_path(path: str) -> str:
    return path if path == "-" else os.path.realpath(path)


def _walk_folder(folder: str, problems: list[Finding]) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        message = f"folder `{error.filename}` cannot be read: {reason}"
        problems.append(
            Finding("SP001", "error", message, place=Place(str(error.filename), 1, 1), fix=Fix("check the path"))
        )

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if _should_enter(parent, name))
        for name in sorted(names):
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                yield os.path.join(parent, name)  # noqa: PTH118


def _should_enter(parent: str, name: str) -> bool:
    if name.startswith(".") or name in _SKIPPED_FOLDERS:
        return False
    return not os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118


def _looks_like_config(path: str) -> bool:
    from harness.spec.config_format import looks_like_config
    from harness.spec.parse.source import read_text

    try:
        if not os.path.isfile(path) or os.path.getsize(path) > MAX_BYTES:  # noqa: PTH113, PTH202
            return False
        return looks_like_config(read_text(path), path)
    except (UserError, OSError) as error:
        # What cannot be opened at all may be what was meant; what is no text is not.
        return isinstance(error, UserError) and error.code is ExitCode.USAGE


def _empty_folder_finding(folder: str) -> Finding:
    return Finding(
        "SP001",
        "error",
        f"there is no run spec and no DeepSpeed configuration below `{folder}`",
        place=Place(folder, 1, 1),
        notes=("only .yaml, .yml and .json files are read; hidden folders are skipped",),
        fix=Fix("name the file itself, which is then checked whatever its content"),
    )
