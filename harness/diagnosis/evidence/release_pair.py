# SPDX-License-Identifier: Apache-2.0
"""Two packages whose releases do not fit: which one asks for a name, which one lacks it, and, where a release of the
latter is installed here that has the name, that the job's own was older. Reads sources and imports nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from harness.diagnosis.diagnosis_types import STANDARD, Frame, LogEvent
from harness.facts.deepspeed_version import parse_version
from harness.hostinfo.installed_packages import find_installation, find_version
from harness.interpreter import find_new_module, read_module_source

_ASKED = (
    re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'"),
    re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'"),
    re.compile(r"^(?:ModuleNotFound|Import)Error: No module named '(?P<module>\w+(?:\.\w+)*)\.(?P<name>\w+)'"),
)
_CALL = re.compile(r"^TypeError: (?P<callee>[\w.]+)\(\) got an unexpected keyword argument '(?P<name>\w+)'")
_OF_DEEPSPEED = re.compile(
    r"AttributeError: '(?P<class>DeepSpeed\w*|(?:FP16|BF16)_\w+|PipelineEngine)' object has no attribute "
    r"'(?P<name>\w+)'"
)
_READERS = ("accelerate", "transformers", "peft", "trl", "lightning")
_CAUSES = frozenset(("", "LG064", "LG089", "LG096", "LG149", "LG226", "LG227"))
"""Causes of names that are not there; the others know more."""
_PACKAGES = frozenset(
    "torch transformers accelerate peft trl datasets huggingface_hub deepspeed bitsandbytes safetensors tokenizers "
    "triton torchvision torchao vllm lightning pytorch_lightning".split()
)
"""Packages whose sources are read."""
_FILE = re.compile(
    rf"(?:(?:site|dist)-packages/|(?:^|/)(?=(?:{'|'.join(sorted(_PACKAGES))})/))(?P<path>[A-Za-z]\w*/\S*)\.py$"
)
_LAST_PACKAGE = re.compile(
    r"the package whose file (?:is last in the traceback|the traceback ends in)|the (?:importing|calling) package|"
    r"the last package in the traceback|the file that is last in the traceback|"
    r"the (?:code|package) that (?:imports|uses) it"
)
"""How the catalogue speaks of it."""
_LOADERS = ("__getattr__", "_get_module", "import_module", "_handle_fromlist")
_DEPTH = 4
"""Modules that a name is followed through."""


class ReleasePair(NamedTuple):
    """`caller` asks `called` for `name`. The caller is empty for a script, or for a log without frames."""

    caller: str
    called: str
    name: str


def name_older(event: LogEvent, versions: Mapping[str, str]) -> LogEvent:
    """The event, told as a package that is too old for its caller, where the release that is installed here has the
    name that the job's lacked; itself where that is not so, or where the log names a release that is not older.
    """
    if event.cause not in _CAUSES or event.level != "root":
        return event
    if (match := _OF_DEEPSPEED.search(event.text)) and not event.frames and (reader := _find_reader(match["name"])):
        title = f"`{reader}` asks DeepSpeed's `{match['class']}` for `{match['name']}`, which it does not have: their "
        change = f"install a newer `{reader}` (`pip install -U {reader}`), or a DeepSpeed from its time"
        return replace(event, cause="LG227", title=f"{title}releases do not fit", change=change, sure=False)
    pair = _find_pair(event)
    if pair is None or pair.called == pair.caller:
        return event
    release = find_version(pair.called) or ""
    if pair.called in versions and parse_version(versions[pair.called]) >= parse_version(release):
        return event
    caller = f"`{pair.caller}`" if pair.caller else "the code that asks for it"
    title = (
        f"`{pair.called}` is too old for {caller}: it has no `{pair.name}`, which {pair.called} {release} has; "
        "their releases do not fit"
    )
    change = f"install a newer {pair.called} (`pip install -U {pair.called}`), or a release of {caller} from its time"
    change = event.change if f"`{pair.name}`" in event.change else change  # which says since when it has the name
    return replace(event, cause="LG089" if event.cause == "LG089" else "LG227", title=title, change=change)


def name_last_package(text: str, frames: Sequence[Frame]) -> str:
    """A title or a change with the name of the package whose file is last in the traceback, where it speaks of it."""
    caller = _find_caller(frames).partition(".")[0]
    return _LAST_PACKAGE.sub(lambda m: f"`{caller}`{' expects' * m[0].endswith(' it')}", text) if caller else text


def _find_pair(event: LogEvent) -> ReleasePair | None:
    """The pair whose called package has the name in the release that is installed here."""
    caller = _find_caller(event.frames)
    for pattern in _ASKED:
        if match := pattern.search(event.text):
            called = match["module"].partition(".")[0]
            is_bare = match["module"] == called and not caller and pattern is _ASKED[1]  # a file hides it
            has_name = called in _PACKAGES and not is_bare and _has_name(match["module"], match["name"])
            return ReleasePair(caller.partition(".")[0], called, match["name"]) if has_name else None
    if (match := _CALL.match(event.text)) and caller.partition(".")[0] in _PACKAGES:
        owner, definition = _find_definition(caller, match["callee"].partition(".")[0])
        method = match["callee"].partition(".")[2] or "__init__"
        if isinstance(definition, ast.ClassDef):
            definition = next((n for n in definition.body if isinstance(n, ast.FunctionDef) and n.name == method), None)
        arguments = definition.args if isinstance(definition, ast.FunctionDef) else None
        if arguments and match["name"] in {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}:
            return ReleasePair(caller.partition(".")[0], owner.partition(".")[0], match["name"])
    return None


def _find_reader(name: str) -> str:
    """The package that reads an attribute of this name; empty where DeepSpeed itself does, and where none is known."""
    for package in ("deepspeed", *_READERS):
        found = find_installation(package)
        pattern = "**/*.py" if package != "transformers" else "[!m]*/[!m]*.py"
        files = (*found.folder.glob("*.py"), *found.folder.glob(pattern)) if found is not None else ()
        if any(f".{name}".encode() in file.read_bytes() for file in files):
            return package if package != "deepspeed" else ""
    return ""


def _find_caller(frames: Sequence[Frame]) -> str:
    """The module that asks: that of the innermost frame that loads no module for another one; empty for a script."""
    for frame in reversed(frames):
        file = frame.file.replace("\\", "/")
        if STANDARD.search(file) or frame.function in _LOADERS:
            continue
        match = _FILE.search(file)
        return match["path"].removesuffix("/__init__").replace("/", ".") if match else ""
    return ""


def _has_name(module: str, name: str) -> bool:
    """Does a module that is installed here have this name, or a module of it below?"""
    source = read_module_source(module) or ""
    if re.search(rf"\b{name}\b", source) or find_new_module(f"{module}.{name}") is not None:
        return True
    starred = re.findall(r"^from (\.[\w.]+) import \*", source, re.MULTILINE)
    below = (read_module_source(f"{module}{path}") or "" for path in starred if not path.startswith(".."))
    return any(re.search(rf"\b{name}\b", text) for text in below)


def _find_definition(module: str, name: str, depth: int = _DEPTH) -> tuple[str, ast.stmt | None]:
    """The module that defines a name which a module has, and the definition there; None where it is not found."""
    source = read_module_source(module) if depth else None
    for node in ast.walk(ast.parse(source)) if source else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            is_package = read_module_source(f"{module}.__init__") is not None
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            found = _find_definition(".".join([*base, *filter(None, [node.module])]), name, depth - 1)
            if found[1] is not None:
                return found
    return module, None
