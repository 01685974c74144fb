"""From records to ids, and which of them are trained on. Works on batches, in this process or in several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.runtime.corpus.files import parse
from harness.runtime.corpus.formats import Columns, Example, Pair, Text, example
from harness.runtime.corpus.record import BadRecord, Raw
from harness.runtime.corpus.templates import write
from harness.runtime.refusals import refusal
from harness.spec.sections.data import DataSpec


@dataclass(frozen=True, slots=True)
class Rendered:
    """A record as text, and the spans of its characters that are trained on; None: all of it."""

    text: str
    spans: list[tuple[int, int]] | None
    head: tuple[int, ...] = ()
    """Ids before the text."""
    end: bool = True
    """The end-of-text token follows."""
    special: bool = False
    """What looks like a special token is one: the template wrote it."""


@dataclass(slots=True)
class Encoded:
    """A batch. `ids` and `trained` are flat, `lengths` cut them into records of `sizes` characters; a negative length
    belongs to a text that goes on in the next record. `bad`: (number of the record, why).
    """

    ids: np.ndarray
    trained: np.ndarray | None
    lengths: np.ndarray
    sizes: np.ndarray
    bad: list[tuple[int, BadRecord]] = field(default_factory=list)
    truncated: int = 0


class Encoder:
    """Turns the raw records of one source into ids. `rows`: records become rows of their own, not a stream of text."""

    def __init__(self, tokenizer: Any, data: DataSpec, columns: Columns, *, rows: bool) -> None:
        self._tokenizer, self._data, self._columns, self._rows = tokenizer, data, columns, rows
        self._dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
        self._end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self._head = _head(tokenizer)
        self._excess = data.excess_length_strategy or ("split" if columns.format == "text" else "truncate")

    @property
    def masked(self) -> bool:
        """Is there anything that is not trained on?"""
        if self._columns.format == "text":
            return False
        chats = self._columns.format in ("messages", "sharegpt")
        return self._data.assistant_only_loss if chats else self._data.completion_only_loss

    def __call__(self, batch: Sequence[Raw]) -> Encoded:
        """Ids of all records that can be used. Raises Refused where the tokenizer or its template cannot be."""
        rendered: list[tuple[int, Rendered]] = []
        bad: list[tuple[int, BadRecord]] = []
        for raw in batch:
            try:
                rendered.append((raw.number, self._render(self._read(raw))))
            except BadRecord as why:
                bad.append((raw.number, why))
        return self._pack(rendered, bad)

    def _read(self, raw: Raw) -> Example:
        value = raw.value
        if isinstance(value, BadRecord):
            raise value
        if isinstance(value, str):
            if not value:
                raise BadRecord("empty", "is empty")
            return Text(value, raw.ends)
        return example(parse(value) if isinstance(value, bytes) else value, self._columns)

    def _render(self, given: Example) -> Rendered:
        if isinstance(given, Text):
            return Rendered(given.text, None, end=given.ends)
        if isinstance(given, Pair):
            text = given.prompt + given.completion
            spans = [(len(given.prompt), len(text))] if self.masked else None
            return Rendered(text, spans, self._head)
        assistant_only = self._data.assistant_only_loss
        text, spans = write(self._tokenizer, given, assistant_only=assistant_only)
        return Rendered(text, spans if self.masked else None, end=False, special=True)

    def _pack(self, rendered: list[tuple[int, Rendered]], bad: list[tuple[int, BadRecord]]) -> Encoded:
        parts: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        lengths: list[int] = []
        sizes: list[int] = []
        truncated = 0
        for (number, one), (ids, trained) in zip(rendered, self._encode([r for _, r in rendered]), strict=True):
            try:
                ids, trained, cut = self._fit(ids, trained)  # noqa: PLW2901
            except BadRecord as why:
                bad.append((number, why))
                continue
            parts.append(ids)
            masks.append(trained)
            lengths.append(len(ids) if one.end or one.special else -len(ids))
            sizes.append(len(one.text))
            truncated += cut
        flat = np.concatenate(parts) if parts else np.empty(0, self._dtype)
        mask = (np.concatenate(masks) if masks else np.empty(0, np.bool_)) if self.masked else None
        bad.sort(key=lambda pair: pair[0])
        return Encoded(flat, mask, np.array(lengths, np.int64), np.array(sizes, np.int64), bad, truncated)

    def _encode(self, rendered: list[Rendered]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids, which are trained on) of each, uncut."""
        if not rendered:
            return []
        want_offsets = self.masked
        if want_offsets and not self._tokenizer.is_fast:
            raise refusal(
                "MD126",
                "the tokenizer does not say which characters its tokens are from, so that nothing can be masked",
                key="model.tokenizer",
                fix="use one with a `tokenizer.json`, or train on every token: `data.assistant_only_loss: false`",
            )
        given = self._tokenizer(
            [r.text for r in rendered],
            add_special_tokens=False,
            split_special_tokens=not rendered[0].special,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=want_offsets,
            verbose=False,
        )
        out = []
        for i, one in enumerate(rendered):
            end = self._end if one.end else ()
            ids = np.array([*one.head, *given["input_ids"][i], *end], dtype=self._dtype)
            trained = np.ones(len(ids), dtype=np.bool_)
            if one.spans is not None:
                offsets = np.array(given["offset_mapping"][i], dtype=np.int64).reshape(-1, 2)
                trained[: len(one.head)] = False
                trained[len(one.head) : len(ids) - len(end)] = _inside(offsets, one.spans)
            out.append((ids, trained))
        return out

    def _fit(self, ids: np.ndarray, trained: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """A record as it will be used. Raises BadRecord for one that is too long or teaches nothing."""
        limit, cut = self._data.max_length, False
        if not self._rows:
            return ids, trained, False
        if len(ids) > limit and self._excess != "split":
            if self._excess in ("drop", "raise"):
                raise BadRecord("too-long", f"has {len(ids)} tokens, `data.max_length` is {limit}")
            ids, trained, cut = ids[:limit], trained[:limit], True
        if not trained[1:].any():
            why = f"nothing of its first {limit} tokens is trained on" if cut else "none of its tokens is trained on"
            raise BadRecord("nothing-to-train-on", why)
        return ids, trained, cut


def _inside(offsets: np.ndarray, spans: list[tuple[int, int]]) -> np.ndarray:
    """Which tokens, given as (first, behind the last character), begin in one of the spans."""
    if not spans:
        return np.zeros(len(offsets), dtype=np.bool_)
    starts, ends = np.array(spans, dtype=np.int64).T
    which = np.searchsorted(starts, offsets[:, 0], side="right") - 1
    return (which >= 0) & (offsets[:, 0] < ends[np.maximum(which, 0)])


def _head(tokenizer: Any) -> tuple[int, ...]:
    """The beginning-of-text token, where the tokenizer puts one before a prompt."""
    bos = tokenizer.bos_token_id
    return (bos,) if bos is not None and tokenizer("")["input_ids"][:1] == [bos] else ()
