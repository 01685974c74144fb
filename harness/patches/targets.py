# SPDX-License-Identifier: Apache-2.0
"""Targets of patches: definitions in other packages, found in their source files. Imports none of these packages."""

from __future__ import annotations

import ast
import hashlib
import json
from functools import cache
from typing import Any, Literal, NamedTuple

from harness.interpreter import read_module_source

TargetState = Literal["as tested", "changed", "missing"]
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Target(NamedTuple):
    """A function, method, class, variable or imported name that a patch replaces or relies on.

    `name` is `module:qualified.name`; `digest` the beginning of the SHA-256 of its syntax tree without docstrings, in
    the releases that the patch was tested with; `|` is between those of several. Without a digest the definition only
    has to exist.
    """

    name: str
    digest: str = ""


def check_target(target: Target) -> TargetState:
    """Is the installed definition the one that the patch was tested with?"""
    digest = compute_digest(target.name)
    if digest is None:
        return "missing"
    return "as tested" if digest in target.digest.split("|") or not target.digest else "changed"


@cache
def compute_digest(name: str) -> str | None:
    """The digest of an installed definition, `module:qualified.name`; None if there is no definition of that name."""
    module, _, qualified_name = name.partition(":")
    tree = _parse_module(module)
    node = None if tree is None else _find_definition(tree, qualified_name.split("."))
    if node is None:
        return None
    return hashlib.sha256(json.dumps(_simplify(node)).encode()).hexdigest()[:16]


def forget_modules() -> None:
    """Free the syntax trees that `compute_digest` keeps for its next call, tens of MiB; the digests stay."""
    _parse_module.cache_clear()


@cache
def _parse_module(module: str) -> ast.Module | None:
    text = read_module_source(module)
    return None if text is None else ast.parse(text)


def _find_definition(scope: ast.AST, path: list[str]) -> ast.AST | None:
    """The last definition of the name in the scope: conditional ones and assignments count too."""
    name, *rest = path
    matches = [node for node in _iter_statements(scope) if name in _names_of(node)]
    if not matches:
        return None
    return _find_definition(matches[-1], rest) if rest else matches[-1]


def _iter_statements(scope: ast.AST) -> list[ast.stmt]:
    """The statements of a body, and those below its `if`, `try` and `with`."""
    statements: list[ast.stmt] = []
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.stmt):
            statements.append(node)
        if not isinstance(node, _DEFINITIONS):
            statements += _iter_statements(node)
    return statements


def _names_of(statement: ast.stmt) -> set[str]:
    if isinstance(statement, _DEFINITIONS):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _simplify(node: Any) -> Any:
    """A syntax tree as lists, without places, docstrings and empty fields, which differ between releases of Python."""
    if isinstance(node, list):
        return [_simplify(item) for item in node]
    if not isinstance(node, ast.AST):
        return node if isinstance(node, str | int | float | bool | None) else repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
    if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    return [type(node).__name__, *([name, _simplify(value)] for name, value in sorted(fields.items()))]
