# SPDX-License-Identifier: Apache-2.0
"""A pool of tokenizer processes. Small data uses none: this process is done before a pool has started."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor

from harness.errors import UserError
from harness.findings import Finding
from harness.runtime.dataset.record import RawRecord
from harness.runtime.dataset.tokenization import TokenizedBatch

_MIN_PARALLEL_BYTES = 256 << 20
_MAX_WORKERS = 8
Encoder = Callable[[Sequence[RawRecord]], TokenizedBatch]
"""A `RecordTokenizer` or a `PreferenceTokenizer`."""
_encoder: Encoder | None = None


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
