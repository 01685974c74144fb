# SPDX-License-Identifier: Apache-2.0
"""Columns with text that other training programs use, and that the format of the record does not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.findings import Finding, Fix
from harness.runtime.dataset.record_formats import RecordColumns, read_tools
from harness.spec.sections.data_spec import CHAT_FORMATS

_TEXT_COLUMNS = ("system", "system_prompt", "history", "tools", "functions", "query", "response", "chosen", "rejected")
"""Columns that change the text of a record in other programs. Not `prompt`: next to `messages` it repeats a turn."""


def find_unused_columns(record: Mapping[str, Any], columns: RecordColumns, *answers: str) -> list[str]:
    """The columns with text that the format does not read. One that is empty is not counted. `answers`: columns of
    preferences.
    """
    chat = columns.chat
    read = {columns.text, columns.prompt, columns.completion, columns.messages, *answers}
    if columns.format in CHAT_FORMATS:
        read |= {name for name in (chat.system, chat.input, chat.history) if name}
        if read_tools(record, chat.tools):
            read.add(chat.tools)
    return [name for name in _TEXT_COLUMNS if name not in read and record.get(name)]


def describe_unused_columns(counts: Mapping[str, int]) -> list[Finding]:
    """The warning MD130 with the number of records by column; none for no column."""
    if not counts:
        return []
    names = ", ".join(f"`{name}`" for name in counts)
    verb = "is" if len(counts) == 1 else "are"
    notes = tuple(f"`{name}` has text in {count:,} record{'' if count == 1 else 's'}" for name, count in counts.items())
    fix = Fix("write them as turns of `messages` (`system` as the first turn), or remove them")
    noun = "column" if len(counts) == 1 else "columns"
    return [Finding("MD130", "warning", f"{noun} {names} {verb} not used", key="data.train", notes=notes, fix=fix)]
