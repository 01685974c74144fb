"""The files that a command line names: files, whole folders, standard input. Reads folders; checks nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.errors import Exit, Refused
from harness.findings import Finding, Fix, Place
from harness.spec.source import MAX_BYTES

ENDINGS = (".yaml", ".yml", ".json")
_NOT_ENTERED = frozenset(("node_modules", "__pycache__", "site-packages", "venv", "build", "dist"))


class Collected(NamedTuple):
    """What is to be checked, in the order given, once each; `passed_over` are files in folders that are something
    else; `problems` are folders that cannot be read or hold nothing.
    """

    files: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    problems: tuple[Finding, ...] = ()


def collect(arguments: Sequence[str]) -> Collected:
    """Files as they are; of folders, everything below that looks like a run spec or a DeepSpeed configuration.

    Hidden folders, virtual environments and `node_modules` are not entered, links to folders not followed.
    """
    files: dict[str, str] = {}
    passed_over: dict[str, str] = {}
    problems: list[Finding] = []
    for argument in arguments:
        if argument == "-" or not os.path.isdir(argument):  # noqa: PTH112  (pathlib would drop a leading `./`)
            files.setdefault(_identity(argument), argument)
            continue
        before = len(files)
        found = False
        for path in _below(argument, problems):
            if _is_ours(path):
                found = True
                files.setdefault(_identity(path), path)
            else:
                passed_over.setdefault(_identity(path), path)
        if not found and len(files) == before and not problems:
            problems.append(_nothing_in(argument))
    others = tuple(path for key, path in passed_over.items() if key not in files)
    return Collected(tuple(files.values()), others, tuple(problems))


def _identity(path: str) -> str:
    return path if path == "-" else os.path.realpath(path)


def _below(folder: str, problems: list[Finding]) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        message = f"folder `{error.filename}` cannot be read: {reason}"
        problems.append(
            Finding("SP001", "error", message, place=Place(str(error.filename), 1, 1), fix=Fix("check the path"))
        )

    for here, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if _is_entered(here, name))
        for name in sorted(names):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield os.path.join(here, name)  # noqa: PTH118


def _is_entered(here: str, name: str) -> bool:
    if name.startswith(".") or name in _NOT_ENTERED:
        return False
    return not os.path.exists(os.path.join(here, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118


def _is_ours(path: str) -> bool:
    from harness.spec.sniff import is_ours
    from harness.spec.source import read_text

    try:
        if not os.path.isfile(path) or os.path.getsize(path) > MAX_BYTES:  # noqa: PTH113, PTH202
            return False
        return is_ours(read_text(path), path)
    except (Refused, OSError) as error:
        # What cannot be opened at all may be what was meant; what is no text is not.
        return isinstance(error, Refused) and error.code is Exit.USAGE


def _nothing_in(folder: str) -> Finding:
    return Finding(
        "SP001",
        "error",
        f"no run spec and no DeepSpeed configuration is below `{folder}`",
        place=Place(folder, 1, 1),
        notes=("files that end in .yaml, .yml or .json are looked at; hidden folders are not entered",),
        fix=Fix("name the file itself, which is then checked whatever it looks like"),
    )
