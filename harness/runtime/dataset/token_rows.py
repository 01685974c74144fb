"""From stored records to what is drawn: a stream of text to be cut in blocks, or rows of whole documents.

A group of rows is a few mapped files: `NAME.npy` has the ids; where documents are rows, `NAME.docs.npy` has the first
id of each document, `NAME.rows.npy` the first document of each row (both with an end), `NAME.counts.npy` how many
tokens of each row are predicted, and `NAME.trained.npy` which those are, where not all of a document's but its first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.runtime.dataset.bin_packing import WINDOW, pack_best_fit
from harness.runtime.dataset.eval_split import EvalSplit
from harness.runtime.dataset.mmap_array import AppendArray, release_pages

_CHUNK_TOKENS = 1 << 20
"""Tokens in memory at once, or so many rows' worth where rows are long."""
_MIN_ROWS = 256
_LOOK_BACK = 1 << 16


@dataclass(frozen=True)
class TokenRecords:
    """All usable records of a group, in the order of their sources. `ids` and `trained` are flat."""

    ids: np.ndarray
    trained: np.ndarray | None
    lengths: np.ndarray
    sizes: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """Where each record begins, and the end."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])


@dataclass(frozen=True, slots=True)
class RowStats:
    """What a part of a group holds: rows (0: a stream of text), documents, tokens, tokens that are trained on."""

    rows: int
    documents: int
    tokens: int
    trained_tokens: int
    sha256: str


def write_stream(
    records: TokenRecords, held: EvalSplit, path: Path, tokenizer: Any, seen: np.ndarray, *, train: bool
) -> RowStats:
    """Write one part of a text as a stream of ids; `seen` counts them by id."""
    starts, documents = records.starts, len(records.lengths)
    with AppendArray(path, records.ids.dtype) as out:
        if held.cut_document is not None:
            spans, documents = _cut_spans(records, held, starts, tokenizer), documents if train else 1
            pieces = spans[0] if train else spans[1]
        elif train:
            pieces, documents = _spans_between(held.documents, starts), documents - len(held.documents)
        else:
            pieces, documents = [(int(starts[i]), int(starts[i + 1])) for i in held.documents], len(held.documents)
        for first, last in pieces:
            if first < 0:  # the end-of-text token that a cut has left to the other part
                out.append(np.array([last], dtype=records.ids.dtype))
                seen[last] += 1
                continue
            for at in range(first, last, _CHUNK_TOKENS):
                chunk = records.ids[at : min(last, at + _CHUNK_TOKENS)]
                out.append(chunk)
                seen += np.bincount(chunk, minlength=len(seen))
                release_pages(records.ids)
        return RowStats(0, documents, out.count, out.count, out.sha256)


def _spans_between(chosen: np.ndarray, starts: np.ndarray) -> list[tuple[int, int]]:
    """The spans that the chosen documents leave."""
    edges = [0, *(int(i) for i in chosen), len(starts) - 1]
    begins = [0, *(int(i) + 1 for i in chosen)]
    return [(int(starts[b]), int(starts[e])) for b, e in zip(begins, edges[1:], strict=True) if e > b]


def _cut_spans(
    records: TokenRecords, held: EvalSplit, starts: np.ndarray, tokenizer: Any
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(training, held-out) spans when the tail of one document is held out, from a line's start where there is one."""
    chosen = held.cut_document or 0
    first, last = int(starts[chosen]), int(starts[chosen + 1])
    end = tokenizer.eos_token_id
    text = last - first - (end is not None)
    wanted = max(1, round(held.cut_chars * text / max(1, int(records.sizes[chosen]))))
    limit = max(0, text - wanted)
    low = max(0, limit - _LOOK_BACK)
    cut = limit
    for i in range(limit - 1, low - 1, -1):
        if tokenizer.decode([int(records.ids[first + i])]).endswith("\n"):
            cut = i + 1
            break
    added = [(-1, end)] if end is not None else []
    kept = [(0, first + cut), *added, (last, int(starts[-1]))]
    return [span for span in kept if span[0] < 0 or span[1] > span[0]], [(first + cut, last)]


def write_rows(
    records: TokenRecords, which: np.ndarray, path: Path, capacity: int, seen: np.ndarray, *, packing: bool
) -> RowStats:
    """Write these records as rows of at most `capacity` tokens, longer ones in pieces. `seen` counts, by id, what is
    trained on.
    """
    stem = path.with_suffix("")
    masked = records.trained is not None
    documents = tokens = trained_tokens = rows = 0
    digest = hashlib.sha256()
    with (
        AppendArray(path, records.ids.dtype) as ids_out,
        AppendArray(stem.with_suffix(stem.suffix + ".trained.npy"), np.bool_) as trained_out,
        AppendArray(stem.with_suffix(stem.suffix + ".docs.npy"), np.int64) as docs_out,
        AppendArray(stem.with_suffix(stem.suffix + ".rows.npy"), np.int64) as rows_out,
        AppendArray(stem.with_suffix(stem.suffix + ".counts.npy"), np.int32) as counts_out,
    ):
        for starts, lengths in _iter_windows(records, which, capacity):
            starts, lengths = _drop_untrained(records, starts, lengths)  # noqa: PLW2901
            order, edges = pack_best_fit(lengths, capacity) if packing else _unpacked_order(len(lengths))
            starts, lengths = starts[order], lengths[order]  # noqa: PLW2901
            places = np.concatenate([[0], np.cumsum(lengths)])
            taken = np.repeat(starts - places[:-1], lengths) + np.arange(places[-1])
            ids = records.ids[taken]
            trained = records.trained[taken] if records.trained is not None else np.ones(len(ids), dtype=np.bool_)
            trained[places[:-1]] = False  # nothing comes before a document that could predict its first token
            counts = np.add.reduceat(trained, places[edges[:-1]], dtype=np.int64) if len(edges) > 1 else np.empty(0)
            ids_out.append(ids)
            if masked:
                trained_out.append(trained)
            docs_out.append(places[:-1] + tokens)
            rows_out.append(edges[:-1] + documents)
            counts_out.append(counts)
            seen += np.bincount(ids[trained], minlength=len(seen))
            tokens, documents, rows = tokens + len(ids), documents + len(lengths), rows + len(edges) - 1
            trained_tokens += int(trained.sum())
            release_pages(records.ids, records.trained)
        docs_out.append(np.array([tokens]))
        rows_out.append(np.array([documents]))
        for out in (ids_out, trained_out, docs_out, rows_out):
            digest.update(out.sha256.encode())
    if not masked:
        trained_out.path.unlink()
    return RowStats(rows, documents, tokens, trained_tokens, digest.hexdigest())


def _unpacked_order(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(count), np.arange(count + 1)


def _iter_windows(records: TokenRecords, which: np.ndarray, capacity: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(starts, lengths) of pieces of at most `capacity` tokens, a bounded number of tokens at a time."""
    starts, most = records.starts, max(_CHUNK_TOKENS, _MIN_ROWS * capacity)
    at = 0
    while at < len(which):
        part = which[at : at + WINDOW]
        lengths = np.asarray(records.lengths[part])
        fits = max(1, int(np.searchsorted(np.cumsum(lengths), most, side="right")))
        part, lengths = part[:fits], lengths[:fits]
        at += fits
        pieces = -(-lengths // capacity)
        nth = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begin = np.repeat(starts[part], pieces) + nth * capacity
        long = np.minimum(np.repeat(lengths, pieces) - nth * capacity, capacity)
        for first in range(0, len(begin), WINDOW):  # one huge document may have many pieces
            yield begin[first : first + WINDOW], long[first : first + WINDOW]


def _drop_untrained(records: TokenRecords, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without the pieces of long documents in which nothing is trained on."""
    if records.trained is None:
        good = lengths > 1
    else:
        good = np.array(
            [bool(records.trained[s + 1 : s + n].any()) for s, n in zip(starts, lengths, strict=True)], bool
        )
    return starts[good], lengths[good]
