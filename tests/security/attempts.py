# SPDX-License-Identifier: Apache-2.0
"""Attacks on the harness, each a test that says what happened before and after.

`Attempt` decorates one test, or is the first argument of `attempt_param` in a parametrized one. Its arguments are
literals: `python -m tests.security.attempts` reads them from the source, because modules of other tiers import torch, and
prints `tests/security/ATTEMPTS.md`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])
FOLDER = Path(__file__).parent
GROUPS = {
    "I": "Input files",
    "O": "Printed text",
    "C": "Code by consent",
    "S": "Secrets, files, sockets and locks of a run",
    "W": "`report --watch` and pages",
    "K": "Checkpoints",
    "A": "The action and the pre-commit hook",
}
"""By the first letter of an id, in the order of the page."""


@dataclass(frozen=True)
class Attempt:
    """An attack and what came of it. `id` is a letter of `GROUPS` and a number."""

    id: str
    attack: str
    before: str
    """What happened at the version before the protection."""
    after: str
    """What happens now, as the test asserts it."""

    def __call__(self, test: Test) -> Test:
        """Name the attempt in the test's failures."""
        test.__doc__ = f"{self.id}: {self.attack}. Now: {self.after}"
        return test


def attempt_param(attempt: Attempt, *values: object) -> Any:
    """One case of a parametrized test, named like the attempt."""
    return pytest.param(*values, id=attempt.id)


def read_attempts() -> Iterator[tuple[Attempt, Path]]:
    """Every attempt in this folder, with its module. Raises ValueError where an argument is no literal."""
    names = [field.name for field in fields(Attempt)]
    for module in sorted(FOLDER.rglob("test_*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == Attempt.__name__:
                values = dict(zip(names, node.args, strict=False)) | {k.arg: k.value for k in node.keywords if k.arg}
                yield Attempt(**{name: ast.literal_eval(value) for name, value in values.items()}), module


def render_page() -> str:
    """The page of all attempts."""
    attempts = sorted(read_attempts(), key=lambda item: (list(GROUPS).index(item[0].id[0]), int(item[0].id[1:])))
    lines = [
        "# Attempts to break in",
        "",
        f"{len(attempts)} attacks, each a test in `tests/security/`. "
        "`python -m tests.security.attempts > tests/security/ATTEMPTS.md` writes this page.",
        "[security.md](../../docs/security.md) says what is trusted.",
    ]
    for letter, title in GROUPS.items():
        rows = [(a, m) for a, m in attempts if a.id.startswith(letter)]
        if rows:
            lines += ["", f"## {title}", "", "| | Attack | Before | Now | Test |", "| --- | --- | --- | --- | --- |"]
        lines += [
            f"| {a.id} | {_cell(a.attack)} | {_cell(a.before)} | {_cell(a.after)} | `{m.relative_to(FOLDER)}` |"
            for a, m in rows
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(render_page(), end="")
