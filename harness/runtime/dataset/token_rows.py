# SPDX-License-Identifier: Apache-2.0
"""Stored records into the rows of training: a stream of text, later cut in blocks, or rows of whole documents.

A group of rows is a few mapped files: `NAME.npy` has the ids; where documents are rows, `NAME.docs.npy` has the first
id of each document, `NAME.rows.npy` the first document of each row (both with an end), `NAME.counts.npy` how many
tokens of each row are predicted, and `NAME.trained.npy` the mask of those, where it is not all but a document's first.
Rows of preferences have `NAME.chosen.npy`: the first so many tokens of each row, the rest are another sequence.
`NAME.values.npy` has margins or labels, as many for each row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.runtime.dataset.bin_packing import WINDOW, pack_best_fit
from harness.runtime.dataset.eval_split import EvalSplit
from harness.runtime.dataset.mmap_array import AppendArray, release_pages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CHUNK_TOKENS = 1 << 20
"""Tokens in memory at once; at least `_MIN_ROWS` rows, where rows are long."""
_MIN_ROWS = 256
_LOOK_BACK = 1 << 16


@dataclass(frozen=True)
class TokenRecords:
    """All usable records of a group, in the order of their sources. `ids` and `trained` are flat."""

    ids: np.ndarray
    trained: np.ndarray | None
    lengths: np.ndarray
    sizes: np.ndarray
    num_chosen: np.ndarray | None = None
    values: np.ndarray | None = None
    """Both as in `TokenizedBatch`."""

    @property
    def starts(self) -> np.ndarray:
        """The first id of each record, and the end."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])


@dataclass(frozen=True, slots=True)
class RowStats:
    """Counts of a part of a group: rows (0: a stream of text), documents (one that is cut into pieces counts once),
    tokens, tokens to train on.
    """

    rows: int
    documents: int
    tokens: int
    trained_tokens: int
    sha256: str


def write_stream(
    records: TokenRecords,
    split: EvalSplit,
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    token_counts: np.ndarray,
    *,
    train: bool,
) -> RowStats:
    """Write one part of a text as a stream of ids, and add them to `token_counts` by id."""
    starts, documents = records.starts, len(records.lengths)
    with AppendArray(path, records.ids.dtype) as out:
        if split.cut_document is not None:
            train_spans, eval_spans = _cut_spans(records, split, starts, tokenizer)
            spans, documents = (train_spans, documents) if train else (eval_spans, 1)
        elif train:
            spans, documents = _spans_between(split.documents, starts), documents - len(split.documents)
        else:
            spans, documents = [(int(starts[i]), int(starts[i + 1])) for i in split.documents], len(split.documents)
        for first, last in spans:
            if first < 0:  # an end-of-text token, whose original the cut leaves to the other part
                out.append(np.array([last], dtype=records.ids.dtype))
                token_counts[last] += 1
                continue
            for at in range(first, last, _CHUNK_TOKENS):
                chunk = records.ids[at : min(last, at + _CHUNK_TOKENS)]
                out.append(chunk)
                token_counts += np.bincount(chunk, minlength=len(token_counts))
                release_pages(records.ids)
        return RowStats(0, documents, out.count, out.count, out.sha256)


def _spans_between(documents: np.ndarray, starts: np.ndarray) -> list[tuple[int, int]]:
    """The spans of all other documents."""
    firsts = [0, *(int(i) + 1 for i in documents)]
    ends = [*(int(i) for i in documents), len(starts) - 1]
    return [(int(starts[first]), int(starts[end])) for first, end in zip(firsts, ends, strict=True) if end > first]


def _cut_spans(
    records: TokenRecords, split: EvalSplit, starts: np.ndarray, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(training, held-out) spans when the tail of one document is held out, from a line's start where there is one."""
    document, eos = split.cut_document or 0, tokenizer.eos_token_id
    first, last = int(starts[document]), int(starts[document + 1])
    cut = _find_cut(records, split, first, last, tokenizer)
    eos_span = [(-1, eos)] if eos is not None else []
    train_spans = [(0, first + cut), *eos_span, (last, int(starts[-1]))]
    return [span for span in train_spans if span[0] < 0 or span[1] > span[0]], [(first + cut, last)]


def _find_cut(
    records: TokenRecords, split: EvalSplit, first: int, last: int, tokenizer: PreTrainedTokenizerBase
) -> int:
    """The tokens of the cut document that stay in the training part: up to the start of a line where there is one."""
    num_tokens = last - first - (tokenizer.eos_token_id is not None)
    num_held_out = max(1, round(split.cut_chars * num_tokens / max(1, int(records.sizes[split.cut_document or 0]))))
    limit = max(0, num_tokens - num_held_out)
    for i in range(limit - 1, max(0, limit - _LOOK_BACK) - 1, -1):
        if str(tokenizer.decode([int(records.ids[first + i])])).endswith("\n"):
            return i + 1
    return limit


def cut_record(
    records: TokenRecords, split: EvalSplit, tokenizer: PreTrainedTokenizerBase
) -> tuple[TokenRecords, EvalSplit]:
    """A single record as two, of which the second is held out; unchanged where the split cuts none."""
    if split.cut_document is None:
        return records, split
    total = int(records.lengths[0])
    cut = _find_cut(records, split, 0, total, tokenizer)
    lengths = np.array([cut, total - cut], dtype=np.int64)
    sizes = np.array([int(records.sizes[0]) - round(split.cut_chars), round(split.cut_chars)], dtype=np.int64)
    held_out = EvalSplit(np.array([1], dtype=np.int64))
    return TokenRecords(records.ids, records.trained, lengths, sizes), held_out


def write_rows(
    records: TokenRecords,
    indices: np.ndarray,
    path: Path,
    capacity: int,
    token_counts: np.ndarray,
    *,
    packing: bool,
    keeps_all: bool = False,
) -> RowStats:
    """Write these records as rows of at most `capacity` tokens, longer ones in pieces. Adds the tokens to train on to
    `token_counts`, by id. `keeps_all`: rows without a token to predict, too, whose label is in another file.
    """
    stem = path.with_suffix("")
    has_mask = records.trained is not None
    documents = pieces = tokens = trained_tokens = rows = 0
    last_record = -1
    digest = hashlib.sha256()
    with (
        AppendArray(path, records.ids.dtype) as ids_out,
        AppendArray(stem.with_suffix(stem.suffix + ".trained.npy"), np.bool_) as trained_out,
        AppendArray(stem.with_suffix(stem.suffix + ".docs.npy"), np.int64) as docs_out,
        AppendArray(stem.with_suffix(stem.suffix + ".rows.npy"), np.int64) as rows_out,
        AppendArray(stem.with_suffix(stem.suffix + ".counts.npy"), np.int32) as counts_out,
    ):
        for starts, lengths, numbers in _iter_windows(records, indices, capacity):
            is_kept = np.ones(len(starts), np.bool_) if keeps_all else _has_targets(records, starts, lengths)
            starts, lengths, numbers = starts[is_kept], lengths[is_kept], numbers[is_kept]  # noqa: PLW2901
            documents += int(np.count_nonzero(np.diff(numbers, prepend=last_record)))
            last_record = int(numbers[-1]) if len(numbers) else last_record
            order, edges = pack_best_fit(lengths, capacity) if packing else _unpacked_order(len(lengths))
            starts, lengths = starts[order], lengths[order]  # noqa: PLW2901
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            positions = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
            ids = records.ids[positions]
            trained = records.trained[positions] if records.trained is not None else np.ones(len(ids), dtype=np.bool_)
            trained[offsets[:-1]] = False  # no token before a document predicts its first token
            counts = np.add.reduceat(trained, offsets[edges[:-1]], dtype=np.int64) if len(edges) > 1 else np.empty(0)
            ids_out.append(ids)
            if has_mask:
                trained_out.append(trained)
            docs_out.append(offsets[:-1] + tokens)
            rows_out.append(edges[:-1] + pieces)
            counts_out.append(counts)
            token_counts += np.bincount(ids[trained], minlength=len(token_counts))
            tokens, pieces, rows = tokens + len(ids), pieces + len(lengths), rows + len(edges) - 1
            trained_tokens += int(trained.sum())
            release_pages(records.ids, records.trained)
        docs_out.append(np.array([tokens]))
        rows_out.append(np.array([pieces]))
        for out in (ids_out, trained_out, docs_out, rows_out):
            digest.update(out.sha256.encode())
    if not has_mask:
        trained_out.path.unlink()
    return RowStats(rows, documents, tokens, trained_tokens, digest.hexdigest())


def _unpacked_order(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(count), np.arange(count + 1)


def _iter_windows(
    records: TokenRecords, indices: np.ndarray, capacity: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(starts, lengths, indices of their records) of pieces of at most `capacity` tokens, a bounded number of tokens at
    a time.
    """
    starts, max_tokens = records.starts, max(_CHUNK_TOKENS, _MIN_ROWS * capacity)
    at = 0
    while at < len(indices):
        window = indices[at : at + WINDOW]
        lengths = np.asarray(records.lengths[window])
        count = max(1, int(np.searchsorted(np.cumsum(lengths), max_tokens, side="right")))
        window, lengths = window[:count], lengths[:count]
        at += count
        num_pieces = -(-lengths // capacity)
        piece = np.arange(num_pieces.sum()) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
        piece_starts = np.repeat(starts[window], num_pieces) + piece * capacity
        piece_lengths = np.minimum(np.repeat(lengths, num_pieces) - piece * capacity, capacity)
        piece_records = np.repeat(window, num_pieces)
        for first in range(0, len(piece_starts), WINDOW):  # one huge document may have many pieces
            part = slice(first, first + WINDOW)
            yield piece_starts[part], piece_lengths[part], piece_records[part]


def _has_targets(records: TokenRecords, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """True for pieces with a token to train on: those of long documents may have none."""
    if records.trained is None:
        return lengths > 1
    return np.array([bool(records.trained[s + 1 : s + n].any()) for s, n in zip(starts, lengths, strict=True)], bool)
