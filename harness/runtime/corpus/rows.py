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

from harness.runtime.corpus.packing import WINDOW, pack
from harness.runtime.corpus.split import HeldOut
from harness.runtime.corpus.store import Growing, forget

_TOKENS = 1 << 20
"""Tokens in memory at once, or so many rows' worth where rows are long."""
_FEWEST_ROWS = 256
_LOOK_BACK = 1 << 16


@dataclass(frozen=True)
class Records:
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
class Written:
    """What a part of a group holds: rows (0: a stream of text), documents, tokens, tokens that are trained on."""

    rows: int
    documents: int
    tokens: int
    trained: int
    sha256: str


def write_stream(
    records: Records, held: HeldOut, path: Path, tokenizer: Any, seen: np.ndarray, *, train: bool
) -> Written:
    """Write one part of a text as a stream of ids; `seen` counts them by id."""
    starts, documents = records.starts, len(records.lengths)
    with Growing(path, records.ids.dtype) as out:
        if held.cut is not None:
            spans, documents = _cut_spans(records, held, starts, tokenizer), documents if train else 1
            pieces = spans[0] if train else spans[1]
        elif train:
            pieces, documents = _between(held.chosen, starts), documents - len(held.chosen)
        else:
            pieces, documents = [(int(starts[i]), int(starts[i + 1])) for i in held.chosen], len(held.chosen)
        for first, last in pieces:
            if first < 0:  # the end-of-text token that a cut has left to the other part
                out.append(np.array([last], dtype=records.ids.dtype))
                seen[last] += 1
                continue
            for at in range(first, last, _TOKENS):
                chunk = records.ids[at : min(last, at + _TOKENS)]
                out.append(chunk)
                seen += np.bincount(chunk, minlength=len(seen))
                forget(records.ids)
        return Written(0, documents, out.count, out.count, out.sha256)


def _between(chosen: np.ndarray, starts: np.ndarray) -> list[tuple[int, int]]:
    """The spans that the chosen documents leave."""
    edges = [0, *(int(i) for i in chosen), len(starts) - 1]
    begins = [0, *(int(i) + 1 for i in chosen)]
    return [(int(starts[b]), int(starts[e])) for b, e in zip(begins, edges[1:], strict=True) if e > b]


def _cut_spans(
    records: Records, held: HeldOut, starts: np.ndarray, tokenizer: Any
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(training, held-out) spans when the tail of one document is held out, from a line's start where there is one."""
    chosen = held.cut or 0
    first, last = int(starts[chosen]), int(starts[chosen + 1])
    end = tokenizer.eos_token_id
    text = last - first - (end is not None)
    wanted = max(1, round(held.wanted * text / max(1, int(records.sizes[chosen]))))
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
    records: Records, which: np.ndarray, path: Path, capacity: int, seen: np.ndarray, *, packing: bool
) -> Written:
    """Write these records as rows of at most `capacity` tokens, longer ones in pieces. `seen` counts, by id, what is
    trained on.
    """
    stem = path.with_suffix("")
    masked = records.trained is not None
    documents = tokens = trained_tokens = rows = 0
    digest = hashlib.sha256()
    with (
        Growing(path, records.ids.dtype) as ids_out,
        Growing(stem.with_suffix(stem.suffix + ".trained.npy"), np.bool_) as trained_out,
        Growing(stem.with_suffix(stem.suffix + ".docs.npy"), np.int64) as docs_out,
        Growing(stem.with_suffix(stem.suffix + ".rows.npy"), np.int64) as rows_out,
        Growing(stem.with_suffix(stem.suffix + ".counts.npy"), np.int32) as counts_out,
    ):
        for starts, lengths in _windows(records, which, capacity):
            starts, lengths = _teaching(records, starts, lengths)  # noqa: PLW2901
            order, edges = pack(lengths, capacity) if packing else _one_each(len(lengths))
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
            forget(records.ids, records.trained)
        docs_out.append(np.array([tokens]))
        rows_out.append(np.array([documents]))
        for out in (ids_out, trained_out, docs_out, rows_out):
            digest.update(out.sha256.encode())
    if not masked:
        trained_out.path.unlink()
    return Written(rows, documents, tokens, trained_tokens, digest.hexdigest())


def _one_each(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(count), np.arange(count + 1)


def _windows(records: Records, which: np.ndarray, capacity: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(starts, lengths) of pieces of at most `capacity` tokens, a bounded number of tokens at a time."""
    starts, most = records.starts, max(_TOKENS, _FEWEST_ROWS * capacity)
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


def _teaching(records: Records, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without the pieces of long documents in which nothing is trained on."""
    if records.trained is None:
        good = lengths > 1
    else:
        good = np.array(
            [bool(records.trained[s + 1 : s + n].any()) for s, n in zip(starts, lengths, strict=True)], bool
        )
    return starts[good], lengths[good]
