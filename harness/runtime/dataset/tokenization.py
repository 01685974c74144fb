# SPDX-License-Identifier: Apache-2.0
"""Records into token ids and the mask of those to train on, in batches, in this process or in several."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from harness.runtime.dataset.chat_templates import end_at_eos, render_chat, require_template
from harness.runtime.dataset.json_readers import parse_json_line
from harness.runtime.dataset.record import BadRecord, RawRecord
from harness.runtime.dataset.record_formats import Example, PromptCompletion, RecordColumns, TextRecord, parse_example
from harness.runtime.dataset.unused_columns import find_unused_columns
from harness.runtime.user_errors import user_error
from harness.spec.run_spec import RunSpec
from harness.spec.sections.data_spec import CHAT_FORMATS, DataSpec

_PART_CHARACTERS = 1 << 20
"""Of a text that is tokenized at once: 200 MB while it is, where each character is a token."""
_MAX_CHARACTERS = 4 << 20
"""Of a chat, or of a prompt with its completion."""
_TOKEN_CHARACTERS = 16
"""No tokenizer has longer tokens on average."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class RenderedText:
    """A record as text, and the spans of characters to train on; None: all of it."""

    text: str
    spans: list[tuple[int, int]] | None
    prefix_ids: tuple[int, ...] = ()
    """Ids before the text."""
    append_eos: bool = True
    """The end-of-text token follows."""
    has_special_tokens: bool = False
    """Text that looks like a special token is one: the template wrote it."""


@dataclass(slots=True)
class TokenizedBatch:
    """A batch. `ids` and `trained` are flat; `lengths` split them into records of `sizes` characters; a negative length
    belongs to a text that continues in the next record. `bad_records`: (number of the record, reason).
    """

    ids: np.ndarray
    trained: np.ndarray | None
    lengths: np.ndarray
    sizes: np.ndarray
    bad_records: list[tuple[int, BadRecord]] = field(default_factory=list)
    cut_lengths: list[int] = field(default_factory=list)
    """Of each truncated record, before truncation."""
    left_out_lengths: list[int] = field(default_factory=list)
    """Of each record that is left out for its length, or because the tokens to train on are cut off."""
    unused_columns: Counter[str] = field(default_factory=Counter)
    """Records with text in a column that nothing reads, by column."""
    num_chosen: np.ndarray | None = None
    """Of preferences: the tokens of each record that are its chosen or desirable answer with its prompt; the rest are
    the rejected or undesirable one with the same prompt.
    """
    values: np.ndarray | None = None
    """(records, width) in fp32: what the loss takes of a record beside its tokens, a margin or labels."""


class RecordTokenizer:
    """Turns the raw records of one source into ids. `rows`: records become rows of their own, not a stream of text."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, data: DataSpec, columns: RecordColumns, *, rows: bool
    ) -> None:
        self._tokenizer, self._data, self._columns, self._rows = tokenizer, data, columns, rows
        self._dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
        self._eos_ids = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self._bos_ids = _bos_ids(tokenizer)
        self._excess = data.excess_length_strategy or ("split" if columns.format == "text" else "truncate")

    @property
    def has_loss_mask(self) -> bool:
        """Are some tokens excluded from the loss?"""
        if self._columns.format == "text":
            return False
        chats = self._columns.format in CHAT_FORMATS
        return bool(self._data.assistant_only_loss) if chats else self._data.completion_only_loss

    def __call__(self, batch: Sequence[RawRecord]) -> TokenizedBatch:
        """Ids of all usable records. Raises UserError where the tokenizer or its template cannot be used."""
        rendered: list[tuple[int, RenderedText]] = []
        unused: Counter[str] = Counter()
        bad: list[tuple[int, BadRecord]] = []
        for raw in batch:
            try:
                for text in self._split(self._render(self._parse_record(raw, unused))):
                    check_characters(text.text)
                    rendered.append((raw.number, text))
            except BadRecord as error:
                bad.append((raw.number, error))
        result = self._build_batch(rendered, bad)
        result.unused_columns = unused
        return result

    def encode(self, example: Example) -> tuple[np.ndarray, np.ndarray]:
        """(ids, mask of trained tokens) of one record at full length. Raises as above, and BadRecord."""
        rendered = self._render(example)
        check_characters(rendered.text)
        if len(rendered.text) > _MAX_CHARACTERS:
            raise BadRecord("too-long", f"has {len(rendered.text):,} characters, more than {_MAX_CHARACTERS:,}")
        return self._tokenize_together([rendered])[0]

    def _parse_record(self, raw: RawRecord, unused: Counter[str]) -> Example:
        """The record in its format; adds the columns that it does not read to `unused`. Raises BadRecord."""
        value = raw.value
        if isinstance(value, BadRecord):
            raise value
        if isinstance(value, str):
            if not value:
                raise BadRecord("empty", "is empty")
            return TextRecord(value, raw.is_last)
        record = parse_json_line(value) if isinstance(value, bytes) else value
        example = parse_example(record, self._columns)
        unused.update(find_unused_columns(record, self._columns))
        return example

    def _render(self, example: Example) -> RenderedText:
        if isinstance(example, TextRecord):
            return RenderedText(example.text, None, append_eos=example.is_last)
        if isinstance(example, PromptCompletion):
            text = example.prompt + example.completion
            spans = [(len(example.prompt), len(text))] if self.has_loss_mask else None
            return RenderedText(text, spans, self._bos_ids)
        assistant_only = self._data.assistant_only_loss
        text, spans = render_chat(self._tokenizer, example, assistant_only=bool(assistant_only))
        if assistant_only == "to-eos" and isinstance(self._tokenizer.eos_token, str):
            spans = end_at_eos(text, spans, self._tokenizer.eos_token)
        return RenderedText(text, spans if self.has_loss_mask else None, append_eos=False, has_special_tokens=True)

    def _split(self, record: RenderedText) -> list[RenderedText]:
        """The record in parts that a tokenizer takes in bounded memory. Raises BadRecord for a long one that is no
        text.
        """
        if len(record.text) <= _PART_CHARACTERS:
            return [record]
        if self._columns.format != "text":
            if len(record.text) > _MAX_CHARACTERS:
                raise BadRecord("too-long", f"has {len(record.text):,} characters, more than {_MAX_CHARACTERS:,}")
            return [record]
        is_cut = self._rows and self._excess != "split"  # then the first `max_length` tokens alone count
        size = max(_PART_CHARACTERS, _TOKEN_CHARACTERS * self._data.max_length) if is_cut else _PART_CHARACTERS
        parts = list(_iter_parts(record.text, size))
        if is_cut:
            return [replace(record, text=parts[0])]
        return [replace(record, text=p, append_eos=record.append_eos and p is parts[-1]) for p in parts]

    def _build_batch(
        self, rendered: list[tuple[int, RenderedText]], bad: list[tuple[int, BadRecord]]
    ) -> TokenizedBatch:
        parts: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        lengths: list[int] = []
        sizes: list[int] = []
        cut_lengths: list[int] = []
        left_out_lengths: list[int] = []
        for (number, text), (ids, trained) in zip(rendered, self._tokenize([r for _, r in rendered]), strict=True):
            full_length = len(ids)
            try:
                ids, trained = self._fit_length(ids, trained)  # noqa: PLW2901
            except BadRecord as error:
                bad.append((number, error))
                left_out_lengths.append(full_length)
                continue
            parts.append(ids)
            masks.append(trained)
            lengths.append(len(ids) if text.append_eos or text.has_special_tokens else -len(ids))
            sizes.append(len(text.text))
            if len(ids) < full_length:
                cut_lengths.append(full_length)
        flat = np.concatenate(parts) if parts else np.empty(0, self._dtype)
        mask = (np.concatenate(masks) if masks else np.empty(0, np.bool_)) if self.has_loss_mask else None
        bad.sort(key=lambda pair: pair[0])
        counts = (np.array(lengths, np.int64), np.array(sizes, np.int64))
        return TokenizedBatch(flat, mask, *counts, bad, cut_lengths, left_out_lengths)

    def _tokenize(self, rendered: list[RenderedText]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids, mask of trained tokens) of each, at full length. A tokenizer takes some hundred bytes a token while it
        works, so that it gets a few texts at a time.
        """
        tokens: list[tuple[np.ndarray, np.ndarray]] = []
        first = size = 0
        for index, text in enumerate(rendered):
            size += len(text.text)
            if size >= _PART_CHARACTERS or index + 1 == len(rendered):
                tokens += self._tokenize_together(rendered[first : index + 1])
                first, size = index + 1, 0
        return tokens

    def _tokenize_together(self, rendered: list[RenderedText]) -> list[tuple[np.ndarray, np.ndarray]]:
        needs_offsets = self.has_loss_mask
        if needs_offsets and not self._tokenizer.is_fast:
            raise user_error(
                "MD126",
                "the tokenizer gives no character offsets of its tokens, so the loss cannot be masked",
                key="model.tokenizer",
                fix="use one with a `tokenizer.json`, or train on every token: `data.assistant_only_loss: false`",
            )
        encoding = self._tokenizer(
            [r.text for r in rendered],
            add_special_tokens=False,
            split_special_tokens=not rendered[0].has_special_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=needs_offsets,
            verbose=False,
        )
        tokens = []
        for i, text in enumerate(rendered):
            end = self._eos_ids if text.append_eos else ()
            ids = np.array([*text.prefix_ids, *encoding["input_ids"][i], *end], dtype=self._dtype)
            trained = np.ones(len(ids), dtype=np.bool_)
            if text.spans is not None:
                offsets = np.array(encoding["offset_mapping"][i], dtype=np.int64).reshape(-1, 2)
                trained[: len(text.prefix_ids)] = False
                trained[len(text.prefix_ids) : len(ids) - len(end)] = _tokens_in_spans(offsets, text.spans)
            tokens.append((ids, trained))
        return tokens

    def _fit_length(self, ids: np.ndarray, trained: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids, mask), truncated where they are too long. Raises BadRecord where the length is refused or no
        token is trained on.
        """
        limit, is_cut = self._data.max_length, False
        if not self._rows:
            return ids, trained
        if len(ids) > limit and self._excess != "split":
            if self._excess in ("drop", "raise"):
                raise BadRecord("too-long", f"has {len(ids)} tokens, `data.max_length` is {limit}")
            ids, trained, is_cut = ids[:limit], trained[:limit], True
        if not trained[1:].any():
            reason = (
                f"nothing of its first {limit} tokens is trained on" if is_cut else "none of its tokens is trained on"
            )
            raise BadRecord("nothing-to-train-on", reason)
        return ids, trained


def _iter_parts(text: str, size: int) -> Iterator[str]:
    """Parts of at most `size` characters, which end before a blank or a line's end where there is one."""
    at = 0
    while len(text) - at > size:
        cut = max(text.rfind(" ", at + size // 2, at + size), text.rfind("\n", at + size // 2, at + size))
        cut = cut if cut > at else at + size
        yield text[at:cut]
        at = cut
    yield text[at:]


def check_characters(text: str) -> None:
    """Raises BadRecord for half of a surrogate pair, which JSON can write and no tokenizer takes."""
    if not text.isascii() and _SURROGATE.search(text):
        raise BadRecord("bad-utf-8", "has half of a surrogate pair, which is no character")


def _tokens_in_spans(offsets: np.ndarray, spans: list[tuple[int, int]]) -> np.ndarray:
    """The mask of tokens whose first character is in one of the spans. `offsets`: (first, end) of each token."""
    if not spans:
        return np.zeros(len(offsets), dtype=np.bool_)
    starts, ends = np.array(spans, dtype=np.int64).T
    span = np.searchsorted(starts, offsets[:, 0], side="right") - 1
    in_span: np.ndarray = (span >= 0) & (offsets[:, 0] < ends[np.maximum(span, 0)])
    return in_span


def _bos_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The beginning-of-text token, where the tokenizer puts one before a prompt."""
    bos = tokenizer.bos_token_id
    return (bos,) if bos is not None and tokenizer("")["input_ids"][:1] == [bos] else ()


def tokenize_prompts(tokenizer: PreTrainedTokenizerBase, spec: RunSpec) -> list[list[int]]:
    """The tokens of each of `eval.samples`. Raises UserError (MD127) for chats without a template."""
    return [_tokenize(tokenizer, prompt, spec) for prompt in spec.eval.samples]


def _tokenize(tokenizer: PreTrainedTokenizerBase, prompt: str, spec: RunSpec) -> list[int]:
    """The prompt as it is, or as a user's turn. One without a token begins with the end of text, as documents do."""
    if spec.eval.sample_format == "chat":
        require_template(tokenizer, "eval.samples")
        turns = [{"role": "user", "content": prompt}]
        prompt = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    ids = list(tokenizer(prompt, add_special_tokens=spec.eval.sample_format == "text")["input_ids"])
    return ids or [int(tokenizer.eos_token_id or 0)]
