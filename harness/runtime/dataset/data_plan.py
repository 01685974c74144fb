"""What will be read and how it is grouped, before anything is read but the first record of each source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.runtime.dataset.chat_templates import require_template
from harness.runtime.dataset.data_sources import open_source
from harness.runtime.dataset.file_readers import parse_json_line
from harness.runtime.dataset.record import BadRecord, SourcePart
from harness.runtime.dataset.record_formats import RecordColumns, detect_format
from harness.runtime.user_errors import user_error
from harness.spec.sections.data_spec import DataSource, DataSpec


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source with its parts; `columns` is what its records are read as."""

    parts: tuple[SourcePart, ...]
    columns: RecordColumns
    key: str


@dataclass(frozen=True, slots=True)
class DataGroup:
    """Sources whose records are laid out together. `stream`: as one text, cut in blocks; else as rows."""

    role: Literal["train", "eval"]
    index: int
    sources: tuple[PlannedSource, ...]
    stream: bool
    packed: bool
    weight: float | None

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
        """Bytes to be read; 0 where one of them does not say."""
        sizes = [part.size for group in self.groups for source in group.sources for part in source.parts]
        return 0 if 0 in sizes else sum(sizes)

    @property
    def identity(self) -> list[Any]:
        """All that the result depends on beside tokenizer and settings."""
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
    return (columns.format, columns.text, columns.prompt, columns.completion, columns.messages)


def build_data_plan(data: DataSpec, tokenizer: Any, hash_file: Callable[[Path], str]) -> DataPlan:
    """Open all sources. Raises Refused (MD11x, MD127) for what is not there or cannot be told."""
    if not data.train:
        raise user_error(
            "MD117",
            "`data.train` is not set",
            key="data.train",
            fix="set `data.train` to files or to `builtin:python-docs`",
        )
    train = _plan_groups("train", data.train, data, tokenizer, hash_file)
    held = _plan_groups("eval", data.eval or (), data, tokenizer, hash_file)
    return DataPlan((*train, *held))


def _plan_groups(
    role: Literal["train", "eval"],
    given: Sequence[DataSource],
    data: DataSpec,
    tokenizer: Any,
    hash_file: Callable[[Path], str],
) -> list[DataGroup]:
    """Weighted sources each for themselves; of the others all texts together, and all that are no texts."""
    weighted = role == "train" and any(source.weight is not None for source in given)
    together: dict[tuple[int, bool], list[PlannedSource]] = {}
    for i, source in enumerate(given):
        if weighted and source.weight == 0:
            continue
        key = f"data.{role}"
        parts = tuple(open_source(source, key, streaming=data.streaming, hash_file=hash_file))
        columns = _detect_columns(source, parts, data)
        if columns.format in ("messages", "sharegpt"):
            require_template(tokenizer, parts[0].name)
        stream = columns.format == "text" and not data.packing
        together.setdefault((i if weighted else -1, stream), []).append(PlannedSource(parts, columns, key))
    return [
        DataGroup(
            role,
            index,
            tuple(sources),
            stream,
            data.packing,
            given[place].weight if weighted else None,
        )
        for index, ((place, stream), sources) in enumerate(together.items())
    ]


def _detect_columns(source: DataSource, parts: Sequence[SourcePart], data: DataSpec) -> RecordColumns:
    """The format, from the first record that can be read where the spec does not say it."""
    for part in parts:
        for raw in part.read(lambda _: None):
            try:
                value = parse_json_line(raw.value) if isinstance(raw.value, bytes) else raw.value
            except BadRecord:
                continue
            if isinstance(value, str):
                return detect_format("text", data, (), part.name)
            if isinstance(value, dict):
                return detect_format(source.format, data, list(value), part.name)
    chosen = source.format or (data.format if data.format != "auto" else "text")
    return detect_format(chosen, data, (), parts[0].name)
