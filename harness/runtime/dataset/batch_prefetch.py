"""The next step's rows, drawn by a thread while this step is computed.

What a step needs is a pure function of its position, so nothing changes but when it is drawn: no rank waits for a page
of a token file that comes over the network, for the order of a new epoch or for rows that are filled up. For a device
the rows are pinned as well: a copy from ordinary pages makes the host wait for all that the device has still to do.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from harness.runtime.dataset.sampler import TrainData
from harness.runtime.micro_batch import StepBatch
from harness.runtime.train_state import DataPosition


class BatchPrefetcher:
    """Draws the batches of `train` for a rank whose tensors are on `device`, one step ahead."""

    def __init__(self, train_data: TrainData, device: torch.device) -> None:
        self._train_data, self._device = train_data, device
        self._executor: ThreadPoolExecutor | None = None
        self._pending: tuple[DataPosition, Future[StepBatch]] | None = None

    def next_batch(self, position: DataPosition, *, prefetch: bool = True) -> StepBatch:
        """`TrainData.step`, which is waited for only where it is not done yet; `ahead`: another step will follow.

        A position that is not the one after the last is drawn now. What drawing raises, this raises.
        """
        if self._pending is None or self._pending[0] != position:
            self._pending = self._submit(position)
        drawn = self._pending[1].result()
        self._pending = self._submit(drawn.next_position) if prefetch else None
        return drawn

    def close(self) -> None:
        """Draw nothing more ahead; waits for nothing."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._pending = None

    def _submit(self, position: DataPosition) -> tuple[DataPosition, Future[StepBatch]]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "draw", initializer=_set_thread_device, initargs=(self._device,))
        return position, self._executor.submit(self._load_batch, position)

    def _load_batch(self, position: DataPosition) -> StepBatch:
        drawn = self._train_data.batch_at(position)
        if self._device.type == "cpu":
            return drawn
        return replace(drawn, micro_batches=[batch.pin_memory() for batch in drawn.micro_batches])


def _set_thread_device(device: torch.device) -> None:
    """A new thread is on device 0, where pinning would open a context for every rank of the host."""
    if device.type != "cpu":
        module: Any = getattr(torch, device.type)
        module.set_device(device)
