"""Files that a configuration names: found from the current folder or from above the file that names them, and read.

Judges no key of theirs.
"""

from __future__ import annotations

from pathlib import Path as FilePath

from harness.errors import Refused
from harness.findings import Finding, Fix, Place
from harness.spec.load import Fragment
from harness.spec.source import BOM, Path, Source, decode, dotted, read_bytes, refuse


def find_beside(file: str, named: str) -> str | None:
    """A file that another one names: from where the command is given, as its program has it, or from a folder above the
    file that names it.
    """
    folders = [FilePath.cwd(), *FilePath(file).absolute().parents] if file != "-" else [FilePath.cwd()]
    candidates = [FilePath(named)] if FilePath(named).is_absolute() else [folder / named for folder in folders]
    return next((str(_short(path)) for path in candidates if _is_file(path)), None)


def _is_file(path: FilePath) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or a character that no path has
        return False


def _short(path: FilePath) -> FilePath:
    here = FilePath.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def not_here(source: Source, path: Path, named: str) -> Finding:
    """A file that is named and cannot be found: what it says was not looked at."""
    return Finding(
        "SP021",
        "warning",
        f"`{named}` is not found from here, so nothing in it was checked",
        dotted(path),
        source.place(path),
        notes=("looked for from the current folder, and from every folder above this file",),
        fix=Fix("run it where the path leads to the file, or check that file by itself"),
    )


def _known() -> frozenset[str]:
    from harness.facts.deepspeed_keys import block

    return frozenset(block("") or {})


def _no_configuration(file: str) -> Refused:
    """What is no configuration may be any file of this machine: nothing of it is quoted."""
    what = f"`{file}` is no DeepSpeed configuration: it has none of DeepSpeed's keys"
    return refuse("SP016", what, Place(file, 1, 1), "name a DeepSpeed JSON; `harness validate-config` tells what it is")


def read_json(file: str) -> Fragment:
    """A DeepSpeed JSON that another file names, as accelerate and the Trainer read it. Raises Refused."""
    from harness.spec import json_source, loaders

    content = read_bytes(file)
    text = decode(content, file)
    try:
        reading = json_source.parse_any(text, file)
    except Refused as refused:
        if not any(name in text for name in _known()):
            raise _no_configuration(file) from None
        place = refused.findings[0].place
        word = loaders.placeholder(text, place.line, place.column) if place else None
        raise Refused([loaders.template_finding(word, place)]) if word and place else refused from None
    if reading.source.data and not reading.source.data.keys() & _known():
        raise _no_configuration(file)
    template = loaders.template(reading)
    if template is not None:
        raise Refused([template])
    spelling = loaders.check(reading, "accelerate", bom=content.startswith(BOM))
    return Fragment(reading.source, (*reading.twice, *spelling))
