"""What the loop asks of telemetry: a step begins, a step is over, something else goes on meanwhile, tell it now.

Every figure of a `step` line comes together here; how each is measured is in the files beside.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.runtime.comm_timer import COMM_TIMER, SecondsBySpan, instrument_collectives
from harness.runtime.context import RunContext
from harness.runtime.distributed import copy_to_host_async
from harness.runtime.nonfinite_policy import nonfinite_loss_error
from harness.runtime.progress_display import ProgressDisplay
from harness.runtime.step_timer import StepTimer, StepTrace, compute_step_times
from harness.runtime.telemetry.flops_counter import FlopsCounter, make_flops_counter
from harness.runtime.telemetry.log_interval import LogInterval, flops_fields, throughput_fields
from harness.runtime.telemetry.memory_usage import memory_usage
from harness.runtime.telemetry.nvme_io import NVME_COUNTERS, disk_usage, find_nvme_dirs
from harness.runtime.telemetry.peak_flops import DevicePeak, find_device_peak
from harness.runtime.telemetry.profiler import StepProfiler, write_comms_summary
from harness.runtime.telemetry.rank_stats import RankStats
from harness.runtime.telemetry.run_header import run_header_fields
from harness.runtime.telemetry.trackers import Trackers
from harness.runtime.train_state import TrainState

_DISK_USAGE_INTERVAL_SECONDS = 30.0
_MAX_FLUSH_DELAY_SECONDS = 0.5
"""So long a line may wait for others on a CPU: written together, short steps cost half as much, in warm caches."""


@dataclass(slots=True)
class _PendingRow:
    """A line that is to be written once the device has passed its step."""

    state: TrainState
    learning_rate: float
    skipped: bool
    read_loss: Callable[[], list[float]]
    read_grad_norm: Callable[[], list[float]] | None
    loss_scale: float | None
    skipped_steps: int


@dataclass(slots=True)
class _PendingStep:
    """A step that is over for the host, and not counted yet."""

    trace: StepTrace
    rows: np.ndarray
    pending_row: _PendingRow | None
    loss: float | None = None


class Telemetry:
    """Of one run, on every rank: all call the same methods at the same steps."""

    def __init__(self, job: RunContext, screen: ProgressDisplay) -> None:
        self._context, self._console = job, screen
        spec = job.run_config.run.spec
        self._spec, self._logging_steps = spec.telemetry, spec.logging.logging_steps
        self.timer = StepTimer()
        self.device_peak: DevicePeak = find_device_peak(spec)
        self.flops_counter: FlopsCounter = make_flops_counter(
            spec, job.config, job.engine.module, job.train_data.dataset
        )
        self.rank_stats = RankStats(
            spec.telemetry, job.distributed, job.topology, on_device=self.timer.on_device, log=screen.print_line
        )
        self.trackers = Trackers(
            spec.telemetry, job.run_dir.root, job.run_config.run.name, job.metrics, screen.print_line
        )
        job.metrics.close_callbacks.append(lambda: self.trackers.close(self._last_step_written))
        self.profiler = StepProfiler(spec.telemetry, job.distributed, job.run_dir.root, job.metrics)
        instrument_collectives()
        # A line of a step on a device is read when the next step is on its way, so that nothing waits for it.
        self._lag_steps = int(self.timer.on_device and not spec.telemetry.synchronize)
        self._max_flush_delay = 0.0 if self.timer.on_device else _MAX_FLUSH_DELAY_SECONDS
        self._pending_steps: list[_PendingStep] = []
        self._flushed_at = 0.0
        self._interval = LogInterval()
        self._pause_seconds: SecondsBySpan = defaultdict(float)
        self._nvme_counters_before = _read_nvme_counters()
        self._nvme_dirs: list[Path] = find_nvme_dirs(job.run_config.ds_config)
        self._nvme_bytes, self._nvme_read_at = 0, -_DISK_USAGE_INTERVAL_SECONDS
        self._last_mark: Any = None
        self._last_step_written = 0

    def run_header_fields(self) -> dict[str, Any]:
        """For the line `run`."""
        run, clock = self._context.run_config.run, "device" if self.timer.on_device else "host"
        steps = {"logging_steps": self._logging_steps, "gather_steps": self.rank_stats.gather_steps}
        about = run_header_fields(run, self._context.topology, self.flops_counter, self.device_peak)
        return {"hosts": self.rank_stats.hosts, "clock": clock, **steps, **about}

    def start_step(self, step: int) -> None:
        """Step `step` begins; the first one here, all others where the one before has ended."""
        self.profiler.start_if_due(step)
        if self._last_mark is None:
            self._pop_pauses()
            COMM_TIMER.pop_times()
            self._nvme_counters_before, self._last_mark = _read_nvme_counters(), self.timer.mark()
            self._enable_comm_timer(0)

    def _enable_comm_timer(self, step: int) -> None:
        """In the step after `step`: on a CPU in every one, since it costs nothing there, else in some."""
        COMM_TIMER.enabled = not self.timer.on_device or step % max(1, (self._spec.gather_steps or 10) // 2) == 0

    def end_step(
        self, state: TrainState, losses: torch.Tensor, rate: float, rows: np.ndarray, *, skipped: bool, write_row: bool
    ) -> None:
        """The step that led to `state` is over. Raises Refused on all ranks for a loss that is none (OP113)."""
        order = self._make_pending_row(state, losses, rate, skipped=skipped) if write_row else None
        self.rank_stats.process_pending(self._context.metrics)
        self._pending_steps.append(_PendingStep(self._collect_step_trace(state.step), rows, order))
        self._enable_comm_timer(state.step)
        ready = len(self._pending_steps) - self._lag_steps
        if ready > 0:
            self._check_loss(self._pending_steps[ready - 1])
            now = time.perf_counter()
            if (
                self.rank_stats.is_due(self._pending_steps[ready - 1].trace.step)
                or now - self._flushed_at >= self._max_flush_delay
            ):
                self._flush_steps(ready)
                self._flushed_at = now
        if self.profiler.starts_or_stops_after(state.step):
            self._update_profiler(state.step)

    def _update_profiler(self, step: int, *, is_last: bool = False) -> None:
        with self.pause("profile"):
            table = self.profiler.stop_if_due(step, last=is_last)
            if table is not None:
                self._console.print_line(f"profile written: {table}")
            if not is_last:
                self.profiler.start_if_due(step + 1)

    def finish(self, step: int) -> None:
        """Training has ended in order with this step. A collective."""
        self.flush()
        self._update_profiler(step, is_last=True)
        COMM_TIMER.enabled = False
        write_comms_summary(self._context.run_dir.root, self._context.distributed, enabled=self._spec.comms_logger)

    def flush(self) -> None:
        """Tell what is left to tell, once the device has come so far: before a save, an evaluation or the end."""
        for taken in self._pending_steps[-1:] if self._lag_steps else ():
            self._check_loss(taken)
        self._flush_steps(len(self._pending_steps))
        self.rank_stats.process_pending(self._context.metrics)

    def flush_without_sync(self) -> None:
        """Training ends out of order: tell what waits to be told, without asking the others or the device."""
        if not self.timer.on_device:
            self._flush_steps(len(self._pending_steps), local_only=True)

    @contextmanager
    def pause(self, kind: str) -> Iterator[None]:
        """What happens inside is no part of a step: `checkpoint`, `evaluation` or `profile`."""
        self.flush()
        COMM_TIMER.enabled, on, began = False, COMM_TIMER.enabled, time.perf_counter()
        try:
            yield
        finally:
            COMM_TIMER.enabled, self._nvme_counters_before = on, _read_nvme_counters()
            self.rank_stats.reset_page_faults()
            self._pause_seconds[kind] += time.perf_counter() - began

    def _make_pending_row(self, state: TrainState, losses: torch.Tensor, rate: float, *, skipped: bool) -> _PendingRow:
        """Start what the line needs of the device and of the others."""
        engine = self._context.engine
        norm: Any = engine.get_global_grad_norm()
        read: Callable[[], list[float]] | None = None
        if torch.is_tensor(norm):
            read = copy_to_host_async(norm.detach().double().reshape(1))
        elif norm is not None:
            read = partial(list, (float(norm),))
        return _PendingRow(
            state,
            rate,
            skipped,
            self._context.distributed.all_reduce_sum_async(losses),
            read,
            float(engine.optimizer.cur_scale) if engine.fp16_enabled() else None,
            int(engine.skipped_steps),
        )

    def _collect_step_trace(self, step: int) -> StepTrace:
        """The step as the host knows it; the next one starts where it ends."""
        start, self._last_mark = self._last_mark, self.timer.mark()
        paused = self._pop_pauses() if self._pause_seconds else 0.0
        spans = self.timer.pop_spans()
        waited, waits = COMM_TIMER.pop_times()
        now = _read_nvme_counters()
        io, read, written = (after - before for after, before in zip(now, self._nvme_counters_before, strict=True))
        self._nvme_counters_before = now
        return StepTrace(
            step, start, self._last_mark, paused, spans, waited, waits, COMM_TIMER.enabled, io, int(read), int(written)
        )

    def _pop_pauses(self) -> float:
        """Seconds of what has gone on between two steps, which the next line tells."""
        for kind, seconds in self._pause_seconds.items():
            self._interval.pause_seconds[kind] += seconds
        total = sum(self._pause_seconds.values())
        self._pause_seconds.clear()
        return total

    def _check_loss(self, taken: _PendingStep) -> None:
        """Read the step's loss, once the device has passed it. Raises Refused, on all ranks, for one that is none."""
        order = taken.pending_row
        if order is None:
            return
        shape = self._context.train_data.geometry
        taken.loss = order.read_loss()[0] / (shape.accumulation_steps * shape.data_parallel_size)
        lost = None if order.skipped else nonfinite_loss_error(taken.loss, taken.trace.step)
        if lost:
            self._flush_steps(self._pending_steps.index(taken))
            self._pending_steps.clear()
            raise lost

    def _flush_steps(self, count: int, *, local_only: bool = False) -> None:
        """The device has passed so many steps: count them, compare ranks, write their lines. A collective at some."""
        settled, self._pending_steps = self._pending_steps[:count], self._pending_steps[count:]
        rank = self._context.train_data.data_parallel_rank
        for taken in settled:
            raw, rows = taken.trace, taken.rows
            self.timer.wait_for(raw.end_mark)
            found = compute_step_times(raw, self.timer)
            self._interval.add(raw, found, self.flops_counter.count(rows))
            if not local_only:
                own = self.flops_counter.count(rows[:, rank : rank + 1]).hardware_flops
                self.rank_stats.record_step(raw.step, found, raw.io_seconds, own, comm_measured=raw.comm_measured)
            if taken.pending_row is not None:
                self._write_row(taken.pending_row, taken.loss)

    def _write_row(self, order: _PendingRow, loss: float | None) -> None:
        state = order.state
        interval, self._interval = self._interval, LogInterval()
        if not self._context.distributed.is_main_process:
            return
        line: dict[str, Any] = {
            "step": state.step,
            "loss": loss,
            "learning_rate": float(order.learning_rate),
            "grad_norm": None if order.read_grad_norm is None else order.read_grad_norm()[0],
            "loss_scale": order.loss_scale,
            "tokens": state.tokens,
            "samples": state.samples,
            **throughput_fields(interval),
            **(
                flops_fields(interval, self._context.distributed.world_size, self.device_peak.flops)
                if self.flops_counter.sizes
                else {}
            ),
            **memory_usage(),
            **self._nvme_fields(interval),
            "skipped": order.skipped_steps,
        }
        self._last_step_written = state.step
        self._context.metrics.write("step", **line)
        self.trackers.report_failures(state.step)
        self._console.show_step(line)

    def _nvme_fields(self, interval: LogInterval) -> dict[str, Any]:
        if not self._nvme_dirs:
            return {}
        now = time.monotonic()
        if now - self._nvme_read_at >= _DISK_USAGE_INTERVAL_SECONDS:
            self._nvme_bytes, self._nvme_read_at = disk_usage(self._nvme_dirs), now
        return {
            "seconds_io": round(interval.io_seconds / interval.steps, 6),
            "nvme_bytes": self._nvme_bytes,
            "nvme_read_bytes": round(interval.bytes_read / interval.steps),
            "nvme_write_bytes": round(interval.bytes_written / interval.steps),
        }


def _read_nvme_counters() -> tuple[float, int, int]:
    """What only ever grows: seconds blocked and bytes moved by swapping."""
    return NVME_COUNTERS.blocked_seconds, NVME_COUNTERS.bytes_read, NVME_COUNTERS.bytes_written
