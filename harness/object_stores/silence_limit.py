# SPDX-License-Identifier: Apache-2.0
"""One request to a store, which ends with an error once it has moved no byte for too long, or when it is interrupted.

The packages of stores have no such limit: a store that accepts an upload and never answers holds it for ever.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from harness.object_stores.store_errors import StoreError

T = TypeVar("T")
OnBytes = Callable[[int], None]
"""Called with the bytes that were moved since the last call; fewer than none where a request begins again."""
SILENT_SECONDS = 60.0
"""The limit for a request that moves no byte."""
LISTING_SECONDS = 600.0
"""That for a listing, whose pages nobody counts."""
SLOWEST_BYTES_PER_SECOND = 2**20
"""The bytes between two reports of a package get this much more time."""
_POLL_SECONDS = 0.25


@dataclass(slots=True)
class Transfer:
    """The bytes of one request. `unreported`: how many a package may move before it reports them."""

    unreported: int = 0
    silent_seconds: float | None = None
    moved: int = 0
    _changed_at: float = field(default_factory=time.monotonic)

    def set_moved(self, moved: int) -> None:
        """So many bytes have been moved."""
        if moved != self.moved:
            self.moved, self._changed_at = moved, time.monotonic()

    def seconds_left(self) -> float:
        """Seconds in which a byte must move."""
        limit = SILENT_SECONDS if self.silent_seconds is None else self.silent_seconds
        return self._changed_at + limit + self.unreported / SLOWEST_BYTES_PER_SECOND - time.monotonic()


def run_with_limit(
    work: Callable[[], T], transfer: Transfer, is_interrupted: Callable[[], bool], on_bytes: OnBytes | None = None
) -> T:
    """`work()`, in a thread that is left behind where it does not end. `on_bytes` is called in this one.

    Raises what `work` raises, and StoreError: `silent`, or `interrupted`.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(_try(work)), name="store-request", daemon=True).start()
    start, reported, answer = time.monotonic(), 0, None
    while answer is None:
        if is_interrupted():
            raise StoreError("interrupted")
        with contextlib.suppress(queue.Empty):
            answer = answers.get(timeout=_POLL_SECONDS)
        if answer is None and transfer.seconds_left() < 0:
            moved = f", after {transfer.moved:,} bytes" if transfer.moved else ""
            seconds = time.monotonic() - start
            raise StoreError(
                "silent", detail=f"the store accepts a request and has not answered for {seconds:.0f} s{moved}"
            )
        if on_bytes is not None and transfer.moved != reported:
            on_bytes(transfer.moved - reported)
            reported = transfer.moved
    value, error = answer
    if error is None:
        return value  # type: ignore[return-value]
    if on_bytes is not None and reported:
        on_bytes(-reported)
    raise error


def wait_before_retry(seconds: float, is_interrupted: Callable[[], bool]) -> None:
    """Wait, less where it is interrupted."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not is_interrupted():
        time.sleep(min(left, _POLL_SECONDS))


def _try(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:
        return None, error
