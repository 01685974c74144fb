# SPDX-License-Identifier: Apache-2.0
"""No text is printed with the braces of an f-string that has lost its `f`. Needs nothing; two seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.markdown_blocks import ROOT

FILES = [*(ROOT / "harness").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
FIELD = re.compile(r"\{(?P<expression>[^{}\n!:]+)(![rsa])?(?P<format>:[^{}\n]*)?\}")


def lost_fields(source: str) -> Iterator[tuple[int, str]]:
    """(line, field) of each plain text with a field of names that the module binds. At the top level of a module a
    plain name is a template's.
    """
    tree = ast.parse(source)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {"len", "str"}
    filled, at_top = set[int](), set[int]()
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_formatted = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
            "format",
            "format_map",
            "replace",
        )
        if isinstance(node, ast.JoinedStr) or is_docstring or is_formatted:
            filled |= {id(inner) for inner in ast.walk(node)}
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            at_top |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or id(node) in filled:
            continue
        for field in FIELD.finditer(node.value):
            try:
                expression = ast.parse(field["expression"].strip(), mode="eval").body
            except SyntaxError:
                continue
            names = {inner.id for inner in ast.walk(expression) if isinstance(inner, ast.Name)}
            is_template = id(node) in at_top and isinstance(expression, ast.Name)
            if names and names <= bound and not is_template:
                yield node.lineno, field[0]


def test_every_f_string_has_its_f() -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{line}: {field}"
        for path in FILES
        for line, field in lost_fields(path.read_text(encoding="utf-8"))
    ]
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ('LIMIT = 0.2\ndef f():\n    return "more than {100 * LIMIT:.0f} %"', ["{100 * LIMIT:.0f}"]),
        ('def f(name):\n    return "no " "{name!r}"', ["{name!r}"]),
        ('def f(name):\n    return "{name}".format(name=name)', []),
        ('name = 1\nTEMPLATE = "{name}"', []),
        ('def f(name):\n    return f"{name}" "{other}"', []),
    ],
)
def test_a_lost_f_is_found(source: str, fields: list[str]) -> None:
    assert [field for _, field in lost_fields(source)] == fields
