# SPDX-License-Identifier: Apache-2.0
"""A DeepSpeed configuration as a Python dict, pasted from a script or a tutorial. It is parsed, and never run."""

from __future__ import annotations

import ast
import json
import warnings

from harness.errors import UserError
from harness.findings import Place
from harness.spec.parse.source import input_error

_MAX_LENGTH = 200_000


def find_python_dict(text: str, file: str) -> UserError | None:
    """The error that the text is a Python dict: assigned to a name, or with `True`, `False` or `None`. None for
    anything else, JSON with comments or single quotes too.
    """
    body = _parse(text)
    for statement in body:
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)) else None
        if not isinstance(value, ast.Dict) or not value.keys:
            continue
        name = _name_of(statement)
        if name is None and not any(
            isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))
            for node in ast.walk(value)
        ):
            return None
        shown = f" (`{name} = {{...}}`)" if name else ""
        title = (
            f"write it by `json.dump({name or 'config'}, open('ds_config.json', 'w'), indent=2)` and check that file"
        )
        place = Place(file, statement.lineno, statement.col_offset + 1)
        return input_error("SP002", f"this is a Python dict{shown}, not JSON", place, title)
    return None


def _parse(text: str) -> list[ast.stmt]:
    if len(text) > _MAX_LENGTH or _is_json(text):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _name_of(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign):
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else "config"
