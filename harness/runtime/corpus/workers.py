"""Several processes that turn records into ids, or none: small data is done before they have started."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from harness.errors import Refused
from harness.findings import Finding
from harness.runtime.corpus.encode import Encoded, Encoder
from harness.runtime.corpus.record import Raw

_WORTH_IT = 256 << 20
_MOST = 8
_encoder: Encoder | None = None


class Workers:
    """`map` gives results in the order of the batches, with a few batches under way at once.

    `asked` is `data.num_proc`; without it the bytes of the data decide.
    """

    def __init__(self, encoder: Encoder, asked: int | None, size: int) -> None:
        self._encoder = encoder
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._count = asked or (min(cores, _MOST) if size >= _WORTH_IT else 1)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        if self._count > 1:
            # not forked: the ranks have threads and process groups that a child must not have
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self._count, mp_context=context, initializer=_begin, initargs=(self._encoder,)
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, batches: Iterator[list[Raw]]) -> Iterator[Encoded]:
        """The ids of each batch. Raises Refused."""
        if self._pool is None:
            yield from map(self._encoder, batches)
            return
        waiting: deque[Future[Any]] = deque()
        for batch in batches:
            waiting.append(self._pool.submit(_encode, batch))
            if len(waiting) > 2 * self._count:
                yield _taken(waiting.popleft())
        while waiting:
            yield _taken(waiting.popleft())


def _begin(encoder: Encoder) -> None:
    global _encoder  # noqa: PLW0603  (once a process)
    _encoder = encoder
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """A parent that is killed cannot tell its children, which would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode(batch: list[Raw]) -> Encoded | list[Finding]:
    if _encoder is None:
        raise RuntimeError("the worker was not begun")
    try:
        return _encoder(batch)
    except Refused as refused:
        return list(refused.findings)


def _taken(future: Future[Any]) -> Encoded:
    result = future.result()
    if isinstance(result, list):
        raise Refused(result)
    return result  # type: ignore[no-any-return]
