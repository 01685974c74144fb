# SPDX-License-Identifier: Apache-2.0
"""Mutants of a module: one comparison, sum, condition, number or truth value changed; which tests see it says what they see.

`count_mutants(text)` and `mutate(text, number)` number them in the order of the text. `install(file, number)` makes this
process import one file with a mutant, whatever imports it first.
"""

from __future__ import annotations

import ast
import importlib.machinery
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

_COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult}


def _places(tree: ast.Module) -> Iterator[ast.AST]:
    """What can be changed, inside of functions alone: a module's tables are data."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in (inner for statement in function.body for inner in ast.walk(statement)):
                is_number = isinstance(node, ast.Constant) and isinstance(node.value, (bool, int))
                is_operation = isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED
                if is_number or is_operation or isinstance(node, (ast.Compare, ast.BoolOp)):
                    yield node


def count_mutants(text: str) -> int:
    """How many mutants a module has."""
    return sum(1 for _ in _places(ast.parse(text)))


def mutate(text: str, number: int) -> tuple[str, str]:
    """The text of the mutant, and in words what was changed in which line."""
    tree = ast.parse(text)
    node = list(_places(tree))[number]
    before = ast.unparse(node)
    if isinstance(node, ast.Compare):
        node.ops[0] = _COMPARED[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = _COMPUTED[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    return ast.unparse(tree), f"line {node.lineno}: `{before}` -> `{ast.unparse(node)}`"  # type: ignore[attr-defined]


def install(file: Path, number: int) -> str:
    """Import this file with a mutant from now on; in words what was changed."""
    text, words = mutate(file.read_text(encoding="utf-8"), number)
    load = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        if Path(loader.path) == file:
            return compile(text, loader.path, "exec", dont_inherit=True)
        return load(loader, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    return words
