# SPDX-License-Identifier: Apache-2.0
"""Source files of installed packages with one definition renamed or changed, as another release could have it.

They are written below an overlay folder, in the packages' layout. On `sys.path` they are found before the installed
files; `OverlayFinder` makes Python import them as well.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

PACKAGES = ("deepspeed", "cpuinfo")
"""What `OverlayFinder` imports from an overlay."""
PREFIX = "renamed_"
CHANGE = "_changed_by_another_release = True"


def find_source(module: str) -> Path:
    """The installed file of a module, found without an import. Raises StopIteration where there is none."""
    relative = Path(*module.split("."))
    files = (Path(entry or ".", name) for entry in sys.path for name in (f"{relative}.py", relative / "__init__.py"))
    return next(file for file in files if file.is_file())


def rename_definition(source: str, qualified_name: str) -> str:
    """The source with every definition of this name renamed, and its uses left as they are."""
    name = qualified_name.rpartition(".")[2]
    lines = source.splitlines(keepends=True)
    for node in find_definitions(source, qualified_name):
        for index in range(node.lineno - 1, node.end_lineno):
            before = lines[index]
            replacement = (
                f"{name} as {PREFIX}{name}" if isinstance(node, ast.Import | ast.ImportFrom) else PREFIX + name
            )
            lines[index] = re.sub(rf"\b{name}\b(?!\.)", replacement, before, count=1)
            if lines[index] != before:
                break
    return "".join(lines)


def change_definition(source: str, qualified_name: str) -> str:
    """The source with one more statement in a function or class, or with another value or import of this name."""
    lines = source.splitlines(keepends=True)
    node = find_definitions(source, qualified_name)[-1]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        first = node.body[1 if ast.get_docstring(node) is not None and len(node.body) > 1 else 0]
        line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", ()))])
        indent = lines[line - 1][: first.col_offset]
        lines.insert(line - 1, f"{indent}{CHANGE}\n")
    elif isinstance(node, ast.Import | ast.ImportFrom):
        lines[node.end_lineno - 1] = lines[node.end_lineno - 1].rstrip("\n") + ", sys as _changed\n"
    else:
        lines[node.end_lineno - 1] = lines[node.end_lineno - 1].rstrip("\n") + " or 0\n"
    return "".join(lines)


def find_definitions(source: str, qualified_name: str) -> list[Any]:
    """The statements that define a name, in the order of the file. Raises AssertionError where there is none."""
    scopes: list[ast.AST] = [_parse(source)]
    for name in qualified_name.split("."):
        scopes = [node for scope in scopes for node in _walk_scope(scope) if name in _defined_names(node)]
    assert scopes, f"no definition of {qualified_name}"
    return scopes


@cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


def _walk_scope(scope: ast.AST) -> Iterable[ast.stmt]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _walk_scope(node)


def _defined_names(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name for alias in node.names}
        case ast.Assign():
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def write_source(overlay: Path, installed: Path, source: str) -> Path:
    """Write the source of an installed file at its place in the overlay."""
    file = overlay / installed.relative_to(_root_of(installed))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    return file


def _root_of(installed: Path) -> Path:
    """The innermost entry: an environment may be in the folder of the project, which is an entry, too."""
    return max(
        (Path(entry) for entry in sys.path if entry and installed.is_relative_to(entry)), key=lambda p: len(p.parts)
    )


def rename_everywhere(overlay: Path, targets: Iterable[str], kept_names: Collection[str]) -> None:
    """Rename the definitions of these targets (`module:qualified.name`) and all their uses in `PACKAGES`, as another
    release would. `kept_names` are still there when the module runs. Of other packages the definition alone is renamed.
    """
    by_module = defaultdict(set)
    for target in targets:
        module, _, qualified_name = target.partition(":")
        by_module[module].add(qualified_name)
    ours = {module: names for module, names in by_module.items() if module.partition(".")[0] in PACKAGES}
    words = {name.rpartition(".")[2] for names in ours.values() for name in names} - set(kept_names)
    pattern = re.compile(rf"\b({'|'.join(sorted(words))})\b")
    for package in PACKAGES if words else ():
        for file, source in read_sources(package).items():
            renamed = pattern.sub(rf"{PREFIX}\1", source)
            if renamed != source:
                write_source(overlay, file, renamed)
    for module, names in by_module.items():
        installed = find_source(module)
        written = overlay / installed.relative_to(_root_of(installed))
        for name in sorted(names):
            if module not in ours or name.rpartition(".")[2] in kept_names:
                source = (written if written.is_file() else installed).read_text(encoding="utf-8")
                rename = _rename_with_alias if module in ours else rename_definition
                write_source(overlay, installed, rename(source, name))


def _rename_with_alias(source: str, qualified_name: str) -> str:
    node = find_definitions(source, qualified_name)[-1]
    lines = rename_definition(source, qualified_name).splitlines(keepends=True)
    lines.insert(node.end_lineno, f'{" " * node.col_offset}vars()["{node.name}"] = {PREFIX}{node.name}\n')
    return "".join(lines)


@cache
def read_sources(package: str) -> dict[Path, str]:
    """All source files of an installed package."""
    folder = find_source(package).parent
    return {file: file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py"))}


class OverlayFinder(MetaPathFinder):
    """Imports the modules of an overlay with its source; the other modules of a package are the installed ones.

    `__file__` is the installed file: DeepSpeed finds the sources of its ops next to it, and would compile them again.
    """

    def __init__(self, overlay: Path) -> None:
        self.overlay = overlay

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """The installed module's spec, with a loader that reads the overlay."""
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        relative = self.overlay.joinpath(*fullname.split("."))
        file = next((f for f in (relative.with_suffix(".py"), relative / "__init__.py") if f.is_file()), None)
        if file is None:
            return None
        entries = [entry for entry in sys.path if entry != str(self.overlay)] if path is None else path
        spec = PathFinder.find_spec(fullname, entries)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _OverlayLoader(fullname, spec.origin, file)
        spec.cached = None
        return spec


class _OverlayLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, file: Path) -> None:
        super().__init__(fullname, path)
        self._file = file

    def get_code(self, fullname: str) -> Any:
        """Compiled from the overlay, never from a cache."""
        return compile(self._file.read_bytes(), self.get_filename(fullname), "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - a loader's own signature
        """That of the overlay."""
        return self._file.read_text(encoding="utf-8")
