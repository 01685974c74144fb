# SPDX-License-Identifier: Apache-2.0
"""The notes of `harness adopt` on the run spec that it prints. Knows no format."""

from __future__ import annotations

from harness.convert.conversion import ConvertedSpec
from harness.views.style import escape_unprintable


def render_conversion_notes(adopted: ConvertedSpec, file: str) -> str:
    """A line a note, `file:line: words`, and how many."""
    count = len(adopted.notes)
    end = (
        f"{count} {'thing' if count == 1 else 'things'} not mapped or chosen here" if count else "everything is mapped"
    )
    return "\n".join(escape_unprintable(line) for line in (*map(str, adopted.notes), f"Adopted {file}: {end}."))
