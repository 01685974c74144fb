# SPDX-License-Identifier: Apache-2.0
"""Terms of distributed training, for `harness explain TERM`, read from `assets/terms.txt`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from textwrap import fill

from harness.entry_file import read_entries


@cache
def _terms() -> Mapping[str, Mapping[str, str]]:
    return read_entries(Path(__file__).with_name("assets") / "terms.txt")


def render_term(word: str, width: int = 120) -> str | None:
    """The paragraph of a term and the command that shows it; None for another word."""
    key = word.strip().lower().replace(" ", "-")
    for name, term in _terms().items():
        if key in (name, name.replace("_", "-"), *filter(None, term.get("spellings", "").split(", "))):
            return f"{word}\n\n{fill(term['text'], width)}\n\nShown by: {term['command']}"
    return None
