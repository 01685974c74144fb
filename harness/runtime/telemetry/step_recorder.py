# SPDX-License-Identifier: Apache-2.0
"""Traces of steps, as the host knows them: marks, spans, collectives, pauses and NVMe traffic."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from harness.runtime.comm_timer import COMM_TIMER, SecondsBySpan
from harness.runtime.distributed import copy_to_host_async
from harness.runtime.engine_protocol import Engine, LossScaledOptimizer
from harness.runtime.nvme_io import NVME_COUNTERS
from harness.runtime.step import MeanLoss
from harness.runtime.step_timer import StepTimer, StepTrace
from harness.runtime.telemetry.log_interval import LogInterval
from harness.runtime.train_state import TrainState


class StepRecorder:
    """Records a trace of each step. On a device it times the collectives of every `comm_sample_steps`-th step; without
    `times_collectives` of none.
    """

    def __init__(self, timer: StepTimer, comm_sample_steps: int, *, times_collectives: bool) -> None:
        self._timer, self._comm_sample_steps = timer, max(1, comm_sample_steps)
        self._times_collectives = times_collectives
        self._pause_seconds: SecondsBySpan = defaultdict(float)
        self._nvme_counters_before = _read_nvme_counters()
        self._last_mark: Any = None

    def start(self, interval: LogInterval) -> None:
        """Start the first step. Later steps start where the step before has ended."""
        if self._last_mark is not None:
            return
        self._pop_pauses(interval)
        COMM_TIMER.pop_times()
        self._nvme_counters_before, self._last_mark = _read_nvme_counters(), self._timer.mark()
        self.enable_comm_timer(0)

    def enable_comm_timer(self, step: int) -> None:
        """Time the collectives of the step after `step`. On a CPU every step is timed, since that costs nothing."""
        is_sampled = not self._timer.on_device or step % self._comm_sample_steps == 0
        COMM_TIMER.enabled = self._times_collectives and is_sampled

    def record(self, step: int, interval: LogInterval) -> StepTrace:
        """The trace of the step that has ended. Its pauses count in `interval`."""
        start, self._last_mark = self._last_mark, self._timer.mark()
        pause_seconds = self._pop_pauses(interval) if self._pause_seconds else 0.0
        spans = self._timer.pop_spans()
        host_comm_seconds, comm_spans = COMM_TIMER.pop_times()
        counters, before = _read_nvme_counters(), self._nvme_counters_before
        io_seconds, bytes_read, bytes_written = (b - a for a, b in zip(before, counters, strict=True))
        self._nvme_counters_before = counters
        return StepTrace(
            step,
            start,
            self._last_mark,
            pause_seconds,
            spans,
            host_comm_seconds,
            comm_spans,
            COMM_TIMER.enabled,
            io_seconds,
            int(bytes_read),
            int(bytes_written),
        )

    @contextmanager
    def pause(self, kind: str) -> Iterator[None]:
        """The time inside belongs to no step."""
        COMM_TIMER.enabled, was_enabled, start = False, COMM_TIMER.enabled, time.perf_counter()
        try:
            yield
        finally:
            COMM_TIMER.enabled, self._nvme_counters_before = was_enabled, _read_nvme_counters()
            self._pause_seconds[kind] += time.perf_counter() - start

    def stop(self) -> None:
        """Time no more collectives."""
        COMM_TIMER.enabled = False

    def _pop_pauses(self, interval: LogInterval) -> float:
        """Move the pauses to the interval. Returns their seconds."""
        for kind, seconds in self._pause_seconds.items():
            interval.pause_seconds[kind] += seconds
        total = sum(self._pause_seconds.values())
        self._pause_seconds.clear()
        return total


def _read_nvme_counters() -> tuple[float, int, int]:
    """(seconds blocked, bytes read, bytes written) by swapping since the start of the process."""
    return NVME_COUNTERS.blocked_seconds, NVME_COUNTERS.bytes_read, NVME_COUNTERS.bytes_written


@dataclass(slots=True)
class PendingRow:
    """The values of a line. To read the loss or the gradient norm waits for the device."""

    state: TrainState
    learning_rate: float
    mean_loss: MeanLoss
    read_metrics: Callable[[], dict[str, float | None]]
    read_grad_norm: Callable[[], list[float]] | None
    loss_scale: float | None
    skipped_steps: int


@dataclass(slots=True)
class PendingStep:
    """A step with its rows of data, and with the values of its line where it has one."""

    trace: StepTrace
    row_indices: np.ndarray
    row: PendingRow | None


def make_pending_row(
    engine: Engine,
    state: TrainState,
    mean_loss: MeanLoss,
    learning_rate: float,
    read_metrics: Callable[[], dict[str, float | None]],
) -> PendingRow:
    """Start the copies to the host that the line needs."""
    grad_norm: Any = engine.get_global_grad_norm()
    read_grad_norm: Callable[[], list[float]] | None = None
    if torch.is_tensor(grad_norm):
        read_grad_norm = copy_to_host_async(grad_norm.detach().double().reshape(1))
    elif grad_norm is not None:
        read_grad_norm = partial(list, (float(grad_norm),))
    return PendingRow(
        state,
        learning_rate,
        mean_loss,
        read_metrics,
        read_grad_norm,
        float(cast("LossScaledOptimizer", engine.optimizer).loss_scale) if engine.fp16_enabled() else None,
        int(engine.skipped_steps),
    )
