# SPDX-License-Identifier: Apache-2.0
"""Prefetch of the next step's batch: a thread loads it while this step computes.

The batch of a step is a pure function of its position, so the prefetch changes nothing but the time of the load: no
rank waits for a page of a token file that comes over the network, for the order of a new epoch or for padding. For a
device it also pins the rows: a copy from pageable memory makes the host wait for all pending work of the device.
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
    """Loads the batches of `train_data` for a rank whose tensors are on `device`, one step ahead."""

    def __init__(self, train_data: TrainData, device: torch.device) -> None:
        self._train_data, self._device = train_data, device
        self._executor: ThreadPoolExecutor | None = None
        self._pending: tuple[DataPosition, Future[StepBatch]] | None = None

    def next_batch(self, position: DataPosition, *, prefetch: bool = True) -> StepBatch:
        """`TrainData.batch_at` of this position, from the thread. `prefetch`: another step will follow.

        A position other than the prefetched one is loaded now. An error of the load is raised here.
        """
        if self._pending is None or self._pending[0] != position:
            self._pending = self._submit(position)
        batch = self._pending[1].result()
        self._pending = self._submit(batch.next_position) if prefetch else None
        return batch

    def close(self) -> None:
        """Stop the prefetch, without waiting for it."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._pending = None

    def _submit(self, position: DataPosition) -> tuple[DataPosition, Future[StepBatch]]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "draw", initializer=_set_thread_device, initargs=(self._device,))
        return position, self._executor.submit(self._load_batch, position)

    def _load_batch(self, position: DataPosition) -> StepBatch:
        batch = self._train_data.batch_at(position)
        if self._device.type == "cpu":
            return batch
        return replace(batch, micro_batches=[micro_batch.pin_memory() for micro_batch in batch.micro_batches])


def _set_thread_device(device: torch.device) -> None:
    """Leave device 0, the default of a new thread: pinning there would open a context for every rank of the host."""
    if device.type != "cpu":
        module: Any = getattr(torch, device.type)
        module.set_device(device)
