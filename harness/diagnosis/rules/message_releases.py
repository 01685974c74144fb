# SPDX-License-Identifier: Apache-2.0
"""The releases of DeepSpeed whose files contain a message, from 0.14.5 on.

`python benchmarks/log_catalogue.py --write` reads the archives of the releases for `catalogue/releases.json`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

RELEASES_FILE = Path(__file__).parent.parent / "catalogue" / "releases.json"


def releases_of(pattern: str) -> tuple[str, str] | None:
    """The first and last release that print the message of a row or signature; None if DeepSpeed does not print it."""
    ends = load_releases().get(pattern)
    return (ends[0], ends[1]) if ends else None


@cache
def load_releases() -> dict[str, list[str]]:
    """[first, last release] by the pattern of a row."""
    table: dict[str, list[str]] = json.loads(RELEASES_FILE.read_text(encoding="utf-8"))
    return table
