# SPDX-License-Identifier: Apache-2.0
"""The notes of `harness adopt` on the run spec that it prints. Knows no format."""

from __future__ import annotations

from harness.convert.conversion import ConvertedSpec
from harness.views.style import escape_unprintable


def render_conversion_notes(adopted: ConvertedSpec, file: str) -> str:
    """One line per note, `file:line: text`, and their number."""
    count = len(adopted.notes)
    end = (
        f"{count} {'thing' if count == 1 else 'things'} not mapped, or set to a default"
        if count
        else "every key is mapped"
    )
    return "\n".join(escape_unprintable(line) for line in (*map(str, adopted.notes), f"Converted {file}: {end}."))
