# SPDX-License-Identifier: Apache-2.0
"""The telemetry of a run, as the training loop calls it: a step starts, a step ends, a pause, a flush.

The figures of a `step` line come together here. The modules of this package measure them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from harness.runtime.nonfinite_policy import nonfinite_loss_error
from harness.runtime.progress_display import ProgressDisplay
from harness.runtime.run_context import RunContext
from harness.runtime.step_timer import StepTimer, compute_step_times
from harness.runtime.telemetry.flops_counter import FlopsCounter, make_flops_counter
from harness.runtime.telemetry.log_interval import LogInterval, flops_fields, throughput_fields
from harness.runtime.telemetry.memory_usage import memory_usage
from harness.runtime.telemetry.nvme_usage import NvmeUsage
from harness.runtime.telemetry.peak_flops import DevicePeak, find_device_peak
from harness.runtime.telemetry.pending_steps import PendingRow, PendingStep, make_pending_row
from harness.runtime.telemetry.profiler import StepProfiler, write_comms_summary
from harness.runtime.telemetry.rank_stats import RankStats
from harness.runtime.telemetry.run_header import run_header_fields
from harness.runtime.telemetry.step_recorder import StepRecorder
from harness.runtime.telemetry.trackers.tracker_threads import Trackers
from harness.runtime.train_state import TrainState

_MAX_FLUSH_DELAY_SECONDS = 0.5
"""Longest delay of a line on a CPU. Lines of short steps that are written together cost half as much."""


class Telemetry:
    """The telemetry of one run. All ranks call the same methods at the same steps."""

    def __init__(self, context: RunContext, display: ProgressDisplay) -> None:
        self._context, self._display = context, display
        run_config, run_dir, spec = context.run_config, context.run_dir.root, context.run_config.run.spec
        self._spec, self._logging_steps = spec.telemetry, spec.logging.logging_steps
        self.timer = StepTimer()
        self.device_peak: DevicePeak = find_device_peak(spec)
        self.flops_counter: FlopsCounter = make_flops_counter(
            spec, context.config, context.engine.module, context.train_data.dataset
        )
        self.rank_stats = RankStats(
            spec.telemetry,
            context.distributed,
            context.topology,
            on_device=self.timer.on_device,
            log=display.print_line,
        )
        self.trackers = Trackers(spec.telemetry, run_dir, run_config.run.name, context.metrics, display.print_line)
        context.metrics.close_callbacks.append(lambda: self.trackers.close(self._last_step_written))
        self.profiler = StepProfiler(spec.telemetry, context.distributed, run_dir, context.metrics)
        self._recorder = StepRecorder(self.timer, (spec.telemetry.gather_steps or 10) // 2)
        # On a device the line of a step is written when the next step is under way, so that nothing waits for it.
        self._lag_steps = int(self.timer.on_device and not spec.telemetry.synchronize)
        self._max_flush_delay = 0.0 if self.timer.on_device else _MAX_FLUSH_DELAY_SECONDS
        self._pending_steps: list[PendingStep] = []
        self._flushed_at = 0.0
        self._interval = LogInterval()
        self._nvme_usage = NvmeUsage(run_config.ds_config)
        self._last_step_written = 0

    def run_header_fields(self) -> dict[str, Any]:
        """Fields of the line `run`."""
        run, clock = self._context.run_config.run, "device" if self.timer.on_device else "host"
        steps = {"logging_steps": self._logging_steps, "gather_steps": self.rank_stats.gather_steps}
        header = run_header_fields(run, self._context.topology, self.flops_counter, self.device_peak)
        return {"hosts": self.rank_stats.hosts, "clock": clock, **steps, **header}

    def start_step(self, step: int) -> None:
        """Step `step` starts."""
        self.profiler.start_if_due(step)
        self._recorder.start(self._interval)

    def end_step(
        self,
        state: TrainState,
        losses: torch.Tensor,
        learning_rate: float,
        row_indices: np.ndarray,
        *,
        skipped: bool,
        write_row: bool,
    ) -> None:
        """The step that led to `state` has ended. Raises UserError on all ranks for a nonfinite loss (OP113)."""
        row = make_pending_row(self._context, state, losses, learning_rate, skipped=skipped) if write_row else None
        self.rank_stats.process_pending(self._context.metrics)
        trace = self._recorder.record(state.step, self._interval)
        self._pending_steps.append(PendingStep(trace, row_indices, row))
        self._recorder.enable_comm_timer(state.step)
        num_ready = len(self._pending_steps) - self._lag_steps
        if num_ready > 0:
            self._check_loss(self._pending_steps[num_ready - 1])
            now = time.perf_counter()
            if (
                self.rank_stats.is_due(self._pending_steps[num_ready - 1].trace.step)
                or now - self._flushed_at >= self._max_flush_delay
            ):
                self._flush_steps(num_ready)
                self._flushed_at = now
        if self.profiler.starts_or_stops_after(state.step):
            self._update_profiler(state.step)

    def _update_profiler(self, step: int, *, is_last: bool = False) -> None:
        with self.pause("profile"):
            table = self.profiler.stop_if_due(step, last=is_last)
            if table is not None:
                self._display.print_line(f"profile written: {table}")
            if not is_last:
                self.profiler.start_if_due(step + 1)

    def finish(self, step: int) -> None:
        """Training has ended in order after this step. A collective."""
        self.flush()
        self._update_profiler(step, is_last=True)
        self._recorder.stop()
        write_comms_summary(self._context.run_dir.root, self._context.distributed, enabled=self._spec.comms_logger)

    def flush(self) -> None:
        """Write the pending lines, once the device has passed their steps: before a save, an evaluation, the end."""
        for pending in self._pending_steps[-1:] if self._lag_steps else ():
            self._check_loss(pending)
        self._flush_steps(len(self._pending_steps))
        self.rank_stats.process_pending(self._context.metrics)

    def flush_without_sync(self) -> None:
        """Training ends on an error: write the pending lines without other ranks, and not at all on a device."""
        if not self.timer.on_device:
            self._flush_steps(len(self._pending_steps), local_only=True)

    @contextmanager
    def pause(self, kind: str) -> Iterator[None]:
        """The time inside belongs to no step. `kind`: `checkpoint`, `evaluation` or `profile`."""
        self.flush()
        with self._recorder.pause(kind):
            try:
                yield
            finally:
                self.rank_stats.reset_page_faults()

    def _check_loss(self, pending: PendingStep) -> None:
        """Read the loss, once the device has passed the step. Raises UserError on all ranks for a nonfinite loss."""
        row = pending.row
        if row is None:
            return
        geometry = self._context.train_data.geometry
        pending.loss = row.read_loss()[0] / (geometry.accumulation_steps * geometry.data_parallel_size)
        error = None if row.skipped else nonfinite_loss_error(pending.loss, pending.trace.step)
        if error:
            self._flush_steps(self._pending_steps.index(pending))
            self._pending_steps.clear()
            raise error

    def _flush_steps(self, count: int, *, local_only: bool = False) -> None:
        """Count the first `count` pending steps, compare ranks, write lines. A collective where a comparison is due."""
        steps, self._pending_steps = self._pending_steps[:count], self._pending_steps[count:]
        rank = self._context.train_data.data_parallel_rank
        for pending in steps:
            trace, row_indices = pending.trace, pending.row_indices
            self.timer.wait_for(trace.end_mark)
            times = compute_step_times(trace, self.timer)
            self._interval.add(trace, times, self.flops_counter.count(row_indices))
            if not local_only:
                flops = self.flops_counter.count(row_indices[:, rank : rank + 1]).hardware_flops
                self.rank_stats.record_step(
                    trace.step, times, trace.io_seconds, flops, comm_measured=trace.comm_measured
                )
            if pending.row is not None:
                self._write_row(pending.row, pending.loss)

    def _write_row(self, row: PendingRow, loss: float | None) -> None:
        state = row.state
        interval, self._interval = self._interval, LogInterval()
        if not self._context.distributed.is_main_process:
            return
        flops: dict[str, Any] = {}
        if self.flops_counter.sizes:
            flops = flops_fields(interval, self._context.distributed.world_size, self.device_peak.flops)
        line: dict[str, Any] = {
            "step": state.step,
            "loss": loss,
            "learning_rate": float(row.learning_rate),
            "grad_norm": None if row.read_grad_norm is None else row.read_grad_norm()[0],
            "loss_scale": row.loss_scale,
            "tokens": state.tokens,
            "samples": state.samples,
            **throughput_fields(interval),
            **flops,
            **memory_usage(),
            **self._nvme_usage.fields(interval),
            "skipped": row.skipped_steps,
        }
        self._last_step_written = state.step
        self._context.metrics.write("step", **line)
        self.trackers.report_failures(state.step)
        self._display.show_step(line)
