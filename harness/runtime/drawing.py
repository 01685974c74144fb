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

from harness.runtime.data import Drawn, TrainData
from harness.runtime.state import Position


class DrawnAhead:
    """Draws the batches of `train` for a rank whose tensors are on `device`, one step ahead."""

    def __init__(self, train: TrainData, device: torch.device) -> None:
        self._train, self._device = train, device
        self._worker: ThreadPoolExecutor | None = None
        self._next: tuple[Position, Future[Drawn]] | None = None

    def step(self, position: Position, *, ahead: bool = True) -> Drawn:
        """`TrainData.step`, which is waited for only where it is not done yet; `ahead`: another step will follow.

        A position that is not the one after the last is drawn now. What drawing raises, this raises.
        """
        if self._next is None or self._next[0] != position:
            self._next = self._begin(position)
        drawn = self._next[1].result()
        self._next = self._begin(drawn.position) if ahead else None
        return drawn

    def close(self) -> None:
        """Draw nothing more ahead; waits for nothing."""
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
        self._worker = self._next = None

    def _begin(self, position: Position) -> tuple[Position, Future[Drawn]]:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "draw", initializer=_on_device, initargs=(self._device,))
        return position, self._worker.submit(self._draw, position)

    def _draw(self, position: Position) -> Drawn:
        drawn = self._train.step(position)
        if self._device.type == "cpu":
            return drawn
        return replace(drawn, micro_batches=[batch.pinned() for batch in drawn.micro_batches])


def _on_device(device: torch.device) -> None:
    """A new thread is on device 0, where pinning would open a context for every rank of the host."""
    if device.type != "cpu":
        module: Any = getattr(torch, device.type)
        module.set_device(device)
