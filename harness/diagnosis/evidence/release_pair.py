# SPDX-License-Identifier: Apache-2.0
"""Two packages whose releases do not fit: which one asks for a name, which one lacks it, and, where a release of the
latter is installed here that has the name, that the job's own was older. Reads sources and imports nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.diagnosis.diagnosis_types import STANDARD, Frame, LogEvent
from harness.facts.deepspeed_version import parse_version
from harness.hostinfo.installed_packages import find_installation, find_version
from harness.interpreter import find_new_module, read_module_source

_OF_MODULE = re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'")
_ASKED = (
    re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'"),
    re.compile(r"^(?:ModuleNotFound|Import)Error: No module named '(?P<module>\w+(?:\.\w+)*)\.(?P<name>\w+)'"),
    _OF_MODULE,
)
_CALL = re.compile(
    r"^TypeError: (?P<callee>\w+)(?:\.(?P<method>\w+))?\(\) got an unexpected keyword argument '(?P<name>\w+)'"
)
_OF_DEEPSPEED = re.compile(r"AttributeError: '(?:DeepSpeed|FP16_|BF16_)\w*' object has no attribute '(?P<name>\w+)'")
_DISTINCT = re.compile(r"(?!_)(?=.*(?:[a-z]_[a-z]|[a-z][A-Z]))\w{8,}")
"""A name of two words, which hardly two packages have."""
_READERS = ("accelerate", "transformers", "peft", "trl", "lightning")
_PACKAGES = (*_READERS, *"torch datasets huggingface_hub deepspeed bitsandbytes triton torchao vllm".split())
"""Packages whose sources are read."""
_CAUSES = ("", "LG064", "LG089", "LG096", "LG149", "LG226", "LG227")
"""Causes of names that are not there; the others know more."""
_FILE = re.compile(rf"(?:(?:site|dist)-packages/|(?:^|/)(?=(?:{'|'.join(_PACKAGES)})/))(?P<path>[A-Za-z]\w*/\S*)\.py$")
_LAST_PACKAGE = re.compile(
    r"the package whose file (?:is last in the traceback|the traceback ends in)|the last package in the traceback|"
    r"the file that is last in the traceback|the (?:importing|calling) package(?= expects)|"
    r"the (?:code|package) that (?:imports|uses) it(?=$|[,;:])"
)
"""How the catalogue speaks of it."""
_LOADERS = ("__getattr__", "_get_module", "import_module", "_handle_fromlist")


def name_older(event: LogEvent, versions: Mapping[str, str]) -> LogEvent:
    """The event, told as a package that is too old for its caller, where the release that is installed here has the
    name that the job's lacked; itself where that is not so, or where the log names a release that is not older.
    """
    if event.cause not in _CAUSES or event.level != "root":
        return event
    module = find_caller(event.frames)
    called, name = _find_asked(event.text, module)
    release = find_version(called) if called not in ("", module.partition(".")[0]) else None
    if not release or (called in versions and parse_version(versions[called]) >= parse_version(release)):
        return event
    asker = f"`{module.partition('.')[0]}`" if module else "the code that asks for it"
    title = f"`{called}` is too old for {asker}: it has no `{name}`, which {called} {release} has"
    change = f"install a newer {called} (`pip install -U {called}`), or a release of {asker} from its time"
    change = event.change if f"`{name}`" in event.change else change  # which says since when it has the name
    cause, sure = event.cause if event.cause == "LG089" else "LG227", event.sure and called in versions
    title += "; their releases do not fit"
    return replace(event, cause=cause, title=title, change=change, sure=sure, proves_change=sure)


def name_last_package(text: str, frames: Sequence[Frame]) -> str:
    """A title or a change with the name of the package whose file is last in the traceback, where it speaks of it."""
    caller = find_caller(frames).partition(".")[0]
    return _LAST_PACKAGE.sub(lambda m: f"`{caller}`{' expects' * m[0].endswith(' it')}", text) if caller else text


def find_reader(text: str) -> str:
    """The package that reads an attribute which an engine or optimizer of DeepSpeed does not have, by its message;
    empty where DeepSpeed itself does, where none is known, and for other messages.
    """
    match = _OF_DEEPSPEED.search(text)
    return _find_package(rf"\.{match['name']}\b", ("deepspeed", *_READERS)).removeprefix("deepspeed") if match else ""


def find_definer(function: str, argument: str, *, takes: bool) -> tuple[str, str]:
    """(package, its release) of the first package that is installed here and defines this function, if it takes the
    argument, or does not, as asked; empty texts for others, and for a name that several packages may have.
    """
    if not _DISTINCT.fullmatch(function):
        return "", ""
    package = _find_package(rf"\ndef {function}\(", ("torch.nn", "deepspeed", *_READERS))
    has_it = bool(package) and bool(_find_package(rf"\ndef {function}\([^)]*(?:\b{argument}\b|\*\*)", (package,)))
    name = package.partition(".")[0]
    return (name, find_version(name) or "") if package and has_it is takes else ("", "")


def _find_package(pattern: str, packages: Sequence[str]) -> str:
    """The first of these packages that is installed here and whose sources match; empty without one."""
    for package in packages:
        found = find_installation(package)
        below = "**/*.py" if package != "transformers" else "[!m]*/[!m]*.py"  # not the models
        files = (*found.folder.glob("*.py"), *found.folder.glob(below)) if found is not None else ()
        if any(re.search(pattern, file.read_text(encoding="utf-8", errors="replace")) for file in files):
            return package
    return ""


def _find_asked(text: str, caller: str) -> tuple[str, str]:
    """(package, name) of a message where the release that is installed here has that name; empty texts without one."""
    for pattern in _ASKED:
        if match := pattern.search(text):
            called = match["module"].partition(".")[0]
            is_hidden = pattern is _OF_MODULE and match["module"] == called and not caller  # by a file of its name
            has_name = not is_hidden and find_version(called) is not None and _has_name(match["module"], match["name"])
            return (called, match["name"]) if has_name else ("", "")
    if (match := _CALL.match(text)) and caller:
        method = rf"class {match['callee']}\b[\s\S]{{0,9999}}?def {match['method'] or '__init__'}|def {match['callee']}"
        others = [name for name in _READERS if not caller.startswith(name)]
        called = _find_package(rf"(?:{method})\([^)]*\b{match['name']}\b", others)
        return called, match["name"]
    return "", ""


def find_caller(frames: Sequence[Frame]) -> str:
    """The module that asks: that of the innermost frame that loads no module for another one; empty for a script."""
    files = ((frame.file.replace("\\", "/"), frame.function) for frame in reversed(frames))
    asking = next((file for file, name in files if not STANDARD.search(file) and name not in _LOADERS), "")
    match = _FILE.search(asking)
    return match["path"].removesuffix("/__init__").replace("/", ".") if match else ""


def _has_name(module: str, name: str) -> bool:
    """Does a module that is installed here have this name, or a module of it below?"""
    source = read_module_source(module) or ""
    starred = re.findall(r"^from (\.\w[\w.]*) import \*", source, re.MULTILINE)
    sources = (source, *(read_module_source(f"{module}{path}") or "" for path in starred))
    return find_new_module(f"{module}.{name}") is not None or any(re.search(rf"\b{name}\b", each) for each in sources)
