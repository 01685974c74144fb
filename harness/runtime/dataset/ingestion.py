# SPDX-License-Identifier: Apache-2.0
"""Reads the records of a group and stores their token ids; bad ones go to the log of bad records.

Small data uses no pool of tokenizer processes: this process is done before a pool has started.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import UserError
from harness.findings import Finding
from harness.run.resolved_run import ResolvedRun
from harness.runtime.dataset.bad_records import BadRecordLog
from harness.runtime.dataset.data_plan import DataGroup
from harness.runtime.dataset.label_records import LabelSet, LabelTokenizer
from harness.runtime.dataset.mmap_array import AppendArray
from harness.runtime.dataset.preference_records import PreferenceTokenizer
from harness.runtime.dataset.progress_bar import ProgressDisplay
from harness.runtime.dataset.record import RawRecord, SourcePart
from harness.runtime.dataset.record_formats import RecordColumns
from harness.runtime.dataset.token_rows import TokenRecords
from harness.runtime.dataset.tokenization import RecordTokenizer, TokenizedBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MIN_PARALLEL_BYTES = 256 << 20
_MAX_WORKERS = 8
Encoder = Callable[[Sequence[RawRecord]], TokenizedBatch]
"""A `RecordTokenizer` or a `PreferenceTokenizer`."""
_encoder: Encoder | None = None
_BATCH_BYTES = 1 << 18
_BATCH_RECORDS = 1024


@dataclass(frozen=True)
class IngestedGroup:
    """The stored records of a group, and the number of truncated ones. `long_lengths`: of these before truncation, and
    of records that are left out for their length. `unused_columns`: records with text that nothing reads, by column.
    """

    records: TokenRecords
    truncated: int
    long_lengths: LengthHistogram
    unused_columns: Counter[str]


@contextmanager
def ingest_group(
    group: DataGroup,
    tokenizer: PreTrainedTokenizerBase,
    run: ResolvedRun,
    folder: Path,
    bad_records: BadRecordLog,
    display: ProgressDisplay,
    labels: LabelSet | None = None,
) -> Iterator[IngestedGroup]:
    """The records, mapped from temporary files in `folder`, which are removed on exit. `labels` are those of
    `objective: classification`. Raises UserError.
    """
    data = run.spec.data
    encoders = [
        _make_tokenizer(source.columns, tokenizer, run, labels, rows=not group.stream) for source in group.sources
    ]
    has_mask = any(encoder.has_loss_mask for encoder in encoders)
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    names: dict[str, Any] = {
        "ids": dtype,
        "trained": np.bool_,
        "lengths": np.int64,
        "sizes": np.int64,
        "num_chosen": np.int64,
    }
    names["values"] = np.float32
    files = {name: AppendArray(folder / f".{name}.npy", kind) for name, kind in names.items()}
    truncated = 0
    long_lengths = LengthHistogram()
    unused_columns: Counter[str] = Counter()
    try:
        for source, encoder in zip(group.sources, encoders, strict=True):
            with TokenizerPool(encoder, data.num_proc, sum(part.size for part in source.parts)) as workers:
                for part in source.parts:
                    documents = _DocumentSizes(files)
                    for encoded in workers.map(_iter_batches(part, display)):
                        for number, bad in encoded.bad_records:
                            bad_records.add(part, number, bad, source.key)
                        _append_ids(encoded, files, has_mask=has_mask)
                        documents.add_batch(encoded)
                        display.add_records(len(encoded.lengths), sum(bad_records.counts.values()))
                        bad_records.check(len(encoded.lengths) + len(encoded.bad_records), is_last=False)
                        truncated += len(encoded.cut_lengths)
                        long_lengths.add([*encoded.cut_lengths, *encoded.left_out_lengths])
                        unused_columns += encoded.unused_columns
                    documents.finish_document()
        bad_records.check(0, is_last=True)
        arrays = {name: file.open_mapped() for name, file in files.items()}
        trained = arrays["trained"] if has_mask else None
        num_chosen = arrays["num_chosen"] if group.has_answers else None
        flat, lengths = arrays["values"], arrays["lengths"]
        values = flat.reshape(len(lengths), -1) if len(flat) else None
        records = TokenRecords(arrays["ids"], trained, lengths, arrays["sizes"], num_chosen, values)
        yield IngestedGroup(records, truncated, long_lengths, unused_columns)
    finally:
        for file in files.values():
            file.close()
            file.path.unlink(missing_ok=True)


def _append_ids(encoded: TokenizedBatch, files: dict[str, AppendArray], *, has_mask: bool) -> None:
    files["ids"].append(encoded.ids)
    if has_mask:
        trained = encoded.trained if encoded.trained is not None else np.ones(len(encoded.ids), dtype=np.bool_)
        files["trained"].append(trained)
    if encoded.num_chosen is not None:
        files["num_chosen"].append(encoded.num_chosen)
    if encoded.values is not None:
        files["values"].append(encoded.values.reshape(-1))


def _make_tokenizer(
    columns: RecordColumns, tokenizer: PreTrainedTokenizerBase, run: ResolvedRun, labels: LabelSet | None, *, rows: bool
) -> RecordTokenizer | PreferenceTokenizer | LabelTokenizer:
    data = run.spec.data
    if labels is not None:
        return LabelTokenizer(tokenizer, data, columns, labels)
    if columns.format in ("pairs", "labels"):
        margin = run.spec.reward.margin_column if run.spec.objective == "reward" else None
        return PreferenceTokenizer(tokenizer, data, has_labels=columns.format == "labels", margin_column=margin)
    return RecordTokenizer(tokenizer, data, columns, rows=rows)


class _DocumentSizes:
    """Lengths and sizes, where a long text comes in several parts."""

    def __init__(self, files: dict[str, AppendArray]) -> None:
        self._files, self._length, self._size = files, 0, 0

    def add_batch(self, encoded: TokenizedBatch) -> None:
        """Add the records of a batch."""
        if not self._length and (encoded.lengths >= 0).all():
            self._files["lengths"].append(encoded.lengths)
            self._files["sizes"].append(encoded.sizes)
            return
        for length, size in zip(encoded.lengths.tolist(), encoded.sizes.tolist(), strict=True):
            self._length, self._size = self._length + abs(length), self._size + size
            if length >= 0:
                self.finish_document()

    def finish_document(self) -> None:
        """End the current document."""
        if self._length:
            self._files["lengths"].append(np.array([self._length]))
            self._files["sizes"].append(np.array([self._size]))
            self._length = self._size = 0


def _iter_batches(part: SourcePart, display: ProgressDisplay) -> Iterator[list[RawRecord]]:
    """Batches of about 256 KiB, at most a thousand records: tokenization takes a few hundred bytes per token."""
    batch: list[RawRecord] = []
    num_bytes = 0

    def on_bytes_read(count: int) -> None:
        nonlocal num_bytes
        num_bytes += count

    for raw in part.read(on_bytes_read):
        batch.append(raw)
        if num_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_RECORDS:
            display.add_bytes(num_bytes)
            yield batch
            batch, num_bytes = [], 0
    display.add_bytes(num_bytes)
    if batch:
        yield batch


class LengthHistogram:
    """Counts of records by length."""

    def __init__(self) -> None:
        self._counts = np.zeros(64, dtype=np.int64)

    def add(self, lengths: np.ndarray | Sequence[int]) -> None:
        """Count records of these lengths."""
        self._counts += _count_lengths(lengths)

    def replace(self, length: int, count: int, lengths: LengthHistogram) -> None:
        """Count those of `lengths` for `count` records of one length."""
        self._counts += lengths._counts - count * _count_lengths([length])

    @property
    def counts(self) -> tuple[int, ...]:
        """The entries up to the last one that is not zero."""
        return tuple(int(count) for count in np.trim_zeros(self._counts, "b"))


def _count_lengths(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    values = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    return np.bincount(np.ceil(np.log2(values)).astype(np.int64), minlength=64)


class TokenizerPool:
    """`map` returns results in the order of the batches, with a few batches in flight.

    `num_proc` is `data.num_proc`; without it the bytes of the data decide.
    """

    def __init__(self, encoder: Encoder, num_proc: int | None, size: int) -> None:
        self._encoder = encoder
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._count = num_proc or (min(cores, _MAX_WORKERS) if size >= _MIN_PARALLEL_BYTES else 1)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> TokenizerPool:
        if self._count > 1:
            # no fork: the ranks have threads and process groups that a child must not inherit
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self._count, mp_context=context, initializer=_init_worker, initargs=(self._encoder,)
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, batches: Iterator[list[RawRecord]]) -> Iterator[TokenizedBatch]:
        """The ids of each batch. Raises UserError."""
        if self._pool is None:
            yield from map(self._encoder, batches)
            return
        pending: deque[Future[TokenizedBatch | list[Finding]]] = deque()
        for batch in batches:
            pending.append(self._pool.submit(_tokenize_batch, batch))
            if len(pending) > 2 * self._count:
                yield _result_of(pending.popleft())
        while pending:
            yield _result_of(pending.popleft())


def _init_worker(encoder: Encoder) -> None:
    global _encoder  # noqa: PLW0603  (once a process)
    _encoder = encoder
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit with the parent: a killed parent cannot stop its children, which would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tokenize_batch(batch: list[RawRecord]) -> TokenizedBatch | list[Finding]:
    if _encoder is None:
        raise RuntimeError("the worker was not started")
    try:
        return _encoder(batch)
    except UserError as error:
        return list(error.findings)


def _result_of(future: Future[TokenizedBatch | list[Finding]]) -> TokenizedBatch:
    result = future.result()
    if isinstance(result, list):
        raise UserError(result)
    return result
