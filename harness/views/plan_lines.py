# SPDX-License-Identifier: Apache-2.0
"""Lines of the answers about machines and lengths: hours as a range, texts cut and wrapped to a width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.search.alternatives import title_of
from harness.plan.settings.checkpointed_layers import describe_checkpointing
from harness.plan.settings.plan_settings import PlanSettings
from harness.views.plan_numbers import format_size, format_time_range, parallel_terms

_IN_TERM = "\N{NO-BREAK SPACE}"
"""For a space inside a term that is not to be divided between two lines, such as `micro-batch 2`."""


def format_hours_range(hours: tuple[float, float]) -> str:
    """`2.3 to 3.6 h`, `10 to 16 days`."""
    return format_time_range((hours[0] * 3600, hours[1] * 3600))


def cut_text(text: str, room: int) -> str:
    """The text in so many characters."""
    return text if len(text) <= room else text[: room - 3] + "..."


def align_columns(rows: Sequence[tuple[str, ...]], first: int, width: int) -> list[str]:
    """The rows of a table, its heads first. The first column has `first` characters, the last what is left of the
    width, or is left out; others are as wide as their texts, and left out where all of them are `-`.
    """
    columns = [column for column in zip(*rows, strict=True) if any(text != "-" for text in column[1:])]
    sizes = [max(map(len, column)) for column in columns[1:-1]]
    gap = 2 if first + sum(sizes) + 2 * len(sizes) <= width else 1
    lines = []
    for name, *texts, last in zip(*columns, strict=True):
        line = f"{name:<{first}}" + "".join(f"{text:>{size + gap}}" for text, size in zip(texts, sizes, strict=True))
        room = width - len(line) - 2
        lines.append(f"{line}  {cut_text(last, room)}" if room > len("ZeRO-3, 1 x 8") else line)
    return lines


def wrap_lines(lines: list[str], width: int) -> list[str]:
    """Sentences in lines of this width; what goes on is indented."""
    room = max(width, 60)
    return [
        textwrap.fill(line, room, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for line in lines
    ]


def wrap_terms(text: str, width: int, start: str = "") -> list[str]:
    """Lines of whole words and terms; what is aligned in the first of them stays so."""
    lines = textwrap.wrap(text, max(width, 22), subsequent_indent=start, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_IN_TERM, " ") for line in lines]


def name_of_choice(settings: PlanSettings) -> str:
    """Stage, offload, parallel sizes, micro-batch and checkpointing."""
    return name_as_terms(settings).replace(_IN_TERM, " ")


def name_as_terms(settings: PlanSettings) -> str:
    """The same for `wrap_terms`, which divides no term between two lines."""
    parts = [*title_of(settings).split(", "), *parallel_terms(settings), f"micro-batch {settings.rows}"]
    terms = [*parts, describe_checkpointing(settings, "checkpointing")]
    return ", ".join(term.replace(" ", _IN_TERM) for term in terms)


def name_largest(memory: MemoryEstimate, count: int = 2) -> str:
    """The largest parts of a GPU's peak: `44.0 GiB logits, then 20.1 GiB parameters gathered at once`."""
    items = [item for item in memory.items_of("gpu") if memory.gpu_peak_phase in item.phases]
    largest = sorted(items, key=lambda item: -item.bytes)[:count]
    return ", then ".join(f"{format_size(item.bytes)} {item.description}" for item in largest)
