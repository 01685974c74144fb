# SPDX-License-Identifier: Apache-2.0
"""Lines of the answers about machines and lengths: hours as a range, texts cut and wrapped to a width."""

from __future__ import annotations

import textwrap

from harness.views.plan_numbers import format_time_range


def format_hours_range(hours: tuple[float, float]) -> str:
    """`2.3 to 3.6 h`, `10 to 16 days`."""
    return format_time_range((hours[0] * 3600, hours[1] * 3600))


def cut_text(text: str, room: int) -> str:
    """The text in so many characters."""
    return text if len(text) <= room else text[: room - 3] + "..."


def wrap_lines(lines: list[str], width: int) -> list[str]:
    """Sentences in lines of this width; what goes on is indented."""
    room = max(width, 60)
    return [
        textwrap.fill(line, room, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for line in lines
    ]
