# SPDX-License-Identifier: Apache-2.0
"""The plan of a preparation: sources, formats and groups. Reads the first record of each source only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.runtime.dataset.chat_templates import require_template
from harness.runtime.dataset.data_sources import open_source
from harness.runtime.dataset.json_readers import parse_json_line
from harness.runtime.dataset.record import BadRecord, SourcePart
from harness.runtime.dataset.record_formats import ChatColumns, RecordColumns, detect_columns, detect_format
from harness.runtime.user_errors import user_error
from harness.spec.sections.data_spec import CHAT_FORMATS, DataSource, DataSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source with its parts; `columns`: the format of its records."""

    parts: tuple[SourcePart, ...]
    columns: RecordColumns
    key: str


@dataclass(frozen=True, slots=True)
class DataGroup:
    """Sources whose records share one layout. `stream`: one text, cut in blocks; else rows."""

    role: Literal["train", "eval"]
    index: int
    sources: tuple[PlannedSource, ...]
    stream: bool
    packed: bool
    weight: float | None

    @property
    def has_answers(self) -> bool:
        """Are its records preferences, or texts with labels?"""
        return all(source.columns.format in ("pairs", "labels", "classes") for source in self.sources)

    @property
    def is_text(self) -> bool:
        """Are all its records plain text?"""
        return all(source.columns.format == "text" for source in self.sources)

    @property
    def name(self) -> str:
        """The names of its first parts."""
        names = [part.name for source in self.sources for part in source.parts]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@dataclass(frozen=True, slots=True)
class DataPlan:
    """All groups, training first."""

    groups: tuple[DataGroup, ...]

    @property
    def size(self) -> int:
        """Bytes of all sources; 0 where the size of one is unknown."""
        sizes = [part.size for group in self.groups for source in group.sources for part in source.parts]
        return 0 if 0 in sizes else sum(sizes)

    @property
    def identity(self) -> list[Any]:
        """Everything that the result depends on, except tokenizer and settings."""
        return [
            [
                g.role,
                g.stream,
                g.weight,
                [[[p.identity for p in s.parts], list(_column_names(s.columns))] for s in g.sources],
            ]
            for g in self.groups
        ]


def _column_names(columns: RecordColumns) -> tuple[str, ...]:
    names = (columns.format, columns.text, columns.prompt, columns.completion, columns.messages)
    return names if columns.chat == ChatColumns() else (*names, repr(columns.chat))


def build_data_plan(
    data: DataSpec, tokenizer: PreTrainedTokenizerBase, hash_file: Callable[[Path], str], objective: str = "causal_lm"
) -> DataPlan:
    """Open all sources. Raises UserError (MD11x, MD127) for a missing source or an unknown format."""
    if not data.train:
        raise user_error(
            "MD117",
            "`data.train` is not set",
            key="data.train",
            fix="set `data.train` to files or to `builtin:python-docs`",
        )
    train = _plan_groups("train", data.train, data, tokenizer, hash_file, objective)
    held_out = _plan_groups("eval", data.eval or (), data, tokenizer, hash_file, objective)
    return DataPlan((*train, *held_out))


def _plan_groups(
    role: Literal["train", "eval"],
    sources: Sequence[DataSource],
    data: DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    hash_file: Callable[[Path], str],
    objective: str,
) -> list[DataGroup]:
    """A group for each weighted source. The others form two groups: streams of text, and rows."""
    weighted = role == "train" and any(source.weight is not None for source in sources)
    groups: dict[tuple[int, bool], list[PlannedSource]] = {}
    for i, source in enumerate(sources):
        if weighted and source.weight == 0:
            continue
        key = f"data.{role}"
        parts = tuple(open_source(source, key, streaming=data.streaming, hash_file=hash_file))
        columns = _detect_columns(source, parts, data, objective)
        if columns.format in CHAT_FORMATS:
            require_template(tokenizer, parts[0].name)
        stream = columns.format == "text" and not data.packing
        groups.setdefault((i if weighted else -1, stream), []).append(PlannedSource(parts, columns, key))
    return [
        DataGroup(role, index, tuple(planned_sources), stream, data.packing, sources[i].weight if weighted else None)
        for index, ((i, stream), planned_sources) in enumerate(groups.items())
    ]


def _detect_columns(source: DataSource, parts: Sequence[SourcePart], data: DataSpec, objective: str) -> RecordColumns:
    """The format: from the spec, else from the first record that can be read."""
    for part in parts:
        for raw in part.read(lambda _: None):
            try:
                value = parse_json_line(raw.value) if isinstance(raw.value, bytes) else raw.value
            except BadRecord:
                continue
            if isinstance(value, str):
                return detect_format("text", data, (), part.name, objective)
            if isinstance(value, dict):
                return detect_columns(source, data, list(value), part.name, objective)
    record_format = source.format or (data.format if data.format != "auto" else None)
    if record_format is None and objective == "causal_lm":
        record_format = "text"
    return detect_format(record_format, data, (), parts[0].name, objective)
