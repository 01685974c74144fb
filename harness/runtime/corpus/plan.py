"""What will be read and how it is grouped, before anything is read but the first record of each source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.runtime.corpus.files import parse
from harness.runtime.corpus.formats import Columns, recognise
from harness.runtime.corpus.record import BadRecord, Part
from harness.runtime.corpus.sources import open_parts
from harness.runtime.corpus.templates import require_template
from harness.runtime.refusals import refusal
from harness.spec.sections.data import DataSource, DataSpec


@dataclass(frozen=True, slots=True)
class Source:
    """A source with its parts; `columns` is what its records are read as."""

    parts: tuple[Part, ...]
    columns: Columns
    key: str


@dataclass(frozen=True, slots=True)
class Group:
    """Sources whose records are laid out together. `stream`: as one text, cut in blocks; else as rows."""

    role: Literal["train", "eval"]
    index: int
    sources: tuple[Source, ...]
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

    groups: tuple[Group, ...]

    @property
    def size(self) -> int:
        """Bytes to be read; 0 where one of them does not say."""
        sizes = [part.size for group in self.groups for source in group.sources for part in source.parts]
        return 0 if 0 in sizes else sum(sizes)

    @property
    def identity(self) -> list[Any]:
        """All that the result depends on beside tokenizer and settings."""
        return [
            [g.role, g.stream, g.weight, [[[p.identity for p in s.parts], list(_names(s.columns))] for s in g.sources]]
            for g in self.groups
        ]


def _names(columns: Columns) -> tuple[str, ...]:
    return (columns.format, columns.text, columns.prompt, columns.completion, columns.messages)


def make_plan(data: DataSpec, tokenizer: Any, hash_file: Callable[[Path], str]) -> DataPlan:
    """Open all sources. Raises Refused (MD11x, MD127) for what is not there or cannot be told."""
    if not data.train:
        raise refusal(
            "MD117",
            "`data.train` is not set",
            key="data.train",
            fix="set `data.train` to files or to `builtin:python-docs`",
        )
    train = _groups("train", data.train, data, tokenizer, hash_file)
    held = _groups("eval", data.eval or (), data, tokenizer, hash_file)
    return DataPlan((*train, *held))


def _groups(
    role: Literal["train", "eval"],
    given: Sequence[DataSource],
    data: DataSpec,
    tokenizer: Any,
    hash_file: Callable[[Path], str],
) -> list[Group]:
    """Weighted sources each for themselves; of the others all texts together, and all that are no texts."""
    weighted = role == "train" and any(source.weight is not None for source in given)
    together: dict[tuple[int, bool], list[Source]] = {}
    for i, source in enumerate(given):
        if weighted and source.weight == 0:
            continue
        key = f"data.{role}"
        parts = tuple(open_parts(source, key, streaming=data.streaming, hash_file=hash_file))
        columns = _columns(source, parts, data)
        if columns.format in ("messages", "sharegpt"):
            require_template(tokenizer, parts[0].name)
        stream = columns.format == "text" and not data.packing
        together.setdefault((i if weighted else -1, stream), []).append(Source(parts, columns, key))
    return [
        Group(
            role,
            index,
            tuple(sources),
            stream,
            data.packing,
            given[place].weight if weighted else None,
        )
        for index, ((place, stream), sources) in enumerate(together.items())
    ]


def _columns(source: DataSource, parts: Sequence[Part], data: DataSpec) -> Columns:
    """The format, from the first record that can be read where the spec does not say it."""
    for part in parts:
        for raw in part.read(lambda _: None):
            try:
                value = parse(raw.value) if isinstance(raw.value, bytes) else raw.value
            except BadRecord:
                continue
            if isinstance(value, str):
                return recognise("text", data, (), part.name)
            if isinstance(value, dict):
                return recognise(source.format, data, list(value), part.name)
    chosen = source.format or (data.format if data.format != "auto" else "text")
    return recognise(chosen, data, (), parts[0].name)
