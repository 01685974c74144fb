# SPDX-License-Identifier: Apache-2.0
"""Fixes of a file as a unified diff."""

from __future__ import annotations

from harness.views.style import escape_unprintable


def format_diff(file: str, before: str, after: str) -> str:
    """The change as a unified diff that `patch -p1` and `git apply` take."""
    from difflib import unified_diff

    name = escape_unprintable(file.removeprefix("./").lstrip("/"))
    lines = unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
