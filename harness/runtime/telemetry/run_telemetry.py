# SPDX-License-Identifier: Apache-2.0
"""The telemetry of a run, as the training loop calls it: a step starts, a step ends, a pause, the end.

The figures of a `step` line come together here. The modules of this package measure them. Nothing here changes or ends
a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from harness.patches.timed_collectives import time_collectives
from harness.runtime.comm_timer import COMM_TIMER
from harness.runtime.distributed import AgreedUserError
from harness.runtime.micro_batch import StepBatch
from harness.runtime.nonfinite_policy import SkippedStep
from harness.runtime.progress_display import NoProgress, ProgressDisplay, make_progress_display
from harness.runtime.rank_status import Phase
from harness.runtime.step import MeanLoss
from harness.runtime.step_timer import StepTimer, compute_step_times
from harness.runtime.telemetry.flops_counter import FlopsCounter, make_flops_counter
from harness.runtime.telemetry.log_interval import LogInterval, flops_fields, throughput_fields
from harness.runtime.telemetry.memory_usage import MemoryPhases, NvmeUsage, memory_usage
from harness.runtime.telemetry.profiler import StepProfiler, write_comms_summary
from harness.runtime.telemetry.rank_stats import RankStats
from harness.runtime.telemetry.run_header import DevicePeak, find_device_peak, write_run_header
from harness.runtime.telemetry.step_recorder import PendingRow, PendingStep, StepRecorder, make_pending_row
from harness.runtime.telemetry.trackers.tracker_threads import Trackers
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import TrainState
from harness.units import format_trainable

PauseKind = Literal["checkpoint", "evaluation", "profile"]
_STATUS_PHASES: dict[PauseKind, Phase] = {"checkpoint": "save", "evaluation": "eval"}
_MAX_FLUSH_DELAY_SECONDS = 0.5
"""Longest delay of a line on a CPU. Lines of short steps that are written together cost half as much."""


class Telemetry:
    """The telemetry of one run. All ranks call the same methods at the same steps.

    As a context it writes the lines that are left on an error, and ends the display. `lag_steps` is 1 where the line of
    a step is written when the next step is under way, so that nothing waits for the device.
    """

    def __init__(self, ctx: TrainContext) -> None:
        self._ctx, self._memory_phases = ctx, MemoryPhases(ctx.distributed, ctx.metrics)
        self._memory_phases.record("load", 0)
        run_config, run_dir, spec = ctx.run_config, ctx.run_dir.root, ctx.run_config.run.spec
        self._spec = spec.telemetry
        self.timer = StepTimer()
        self.device_peak: DevicePeak = find_device_peak(spec)
        self.flops_counter: FlopsCounter = make_flops_counter(
            run_config.run, ctx.config, ctx.engine.module, ctx.train_data.dataset
        )
        self.rank_stats = RankStats(
            spec.telemetry, ctx.distributed, ctx.topology, on_device=self.timer.on_device, log=self.print_line
        )
        self.trackers = Trackers(spec.telemetry, run_dir, run_config.run.name, ctx.metrics, self.print_line)
        self.profiler = StepProfiler(spec.telemetry, ctx.distributed, run_dir, ctx.metrics)
        times_collectives = ctx.patches.is_applied("timed-collectives")
        if times_collectives:
            time_collectives(COMM_TIMER.time_call)
        comm_sample_steps = (spec.telemetry.gather_steps or 10) // 2
        self._recorder = StepRecorder(self.timer, comm_sample_steps, times_collectives=times_collectives)
        self.lag_steps = int(self.timer.on_device and not spec.telemetry.synchronize)
        self._max_flush_delay = 0.0 if self.timer.on_device else _MAX_FLUSH_DELAY_SECONDS
        self._pending_steps: list[PendingStep] = []
        self._flushed_at = 0.0
        self._interval = LogInterval()
        self._nvme_usage = NvmeUsage(run_config.ds_config, counts_traffic=ctx.patches.is_applied("nvme-counters"))
        self._display: ProgressDisplay = NoProgress(ctx.total_steps, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error: write the pending lines without the other ranks, up to a step whose loss is not finite. On a
        device only after an error that all ranks agree on; after another one it may never pass these steps.
        """
        if not self.timer.on_device or isinstance(error, AgreedUserError):
            self._flush_steps(len(list(takewhile(_is_finite, self._pending_steps))), local_only=True)
        self._display.close()

    def start_run(self, state: TrainState, resume: Path | None, attempt: int) -> None:
        """Start the display and the trackers, and write the line `run`. A collective."""
        if resume:
            self._memory_phases.record("resume", state.step)
        is_visible = self._ctx.distributed.is_main_process
        self._display = make_progress_display(self._ctx.total_steps, state.step, is_visible=is_visible)
        self.trackers.start()
        parameters, trainable = write_run_header(
            self._ctx,
            state,
            resume,
            attempt=attempt,
            hosts=self.rank_stats.hosts,
            clock="device" if self.timer.on_device else "host",
            gather_steps=self.rank_stats.gather_steps,
            flops_counter=self.flops_counter,
            device_peak=self.device_peak,
        )
        if trainable < parameters:
            self.print_line(f"trainable: {format_trainable(trainable, parameters)}")
        self._memory_phases.start_writing()
        self.rank_stats.reset_page_faults()

    def start_step(self, step: int) -> None:
        """Step `step` starts."""
        self.profiler.start_if_due(step)
        self._recorder.start(self._interval)

    def end_step(self, state: TrainState, batch: StepBatch, learning_rate: float, mean_loss: MeanLoss | None) -> None:
        """The step that led to `state` has ended. With `mean_loss` it has a line."""
        ctx, row = self._ctx, None
        if mean_loss is not None:
            read_metrics = ctx.objective.metrics.read_means_async(ctx.distributed)
            row = make_pending_row(ctx.engine, state, mean_loss, learning_rate, read_metrics)
        self.rank_stats.process_pending(self._ctx.metrics)
        trace = self._recorder.record(state.step, self._interval)
        self._pending_steps.append(PendingStep(trace, batch.row_indices, row))
        self._recorder.enable_comm_timer(state.step)
        num_ready = len(self._pending_steps) - self.lag_steps
        if num_ready > 0:
            now = time.perf_counter()
            if (
                self.rank_stats.is_due(self._pending_steps[num_ready - 1].trace.step)
                or now - self._flushed_at >= self._max_flush_delay
            ):
                self._flush_steps(num_ready)
                self._flushed_at = now
        if self.profiler.starts_or_stops_after(state.step):
            self._update_profiler(state.step)

    def record_memory(self, phase: Literal["step", "save"], step: int) -> None:
        """A phase has ended: its peak memory, the first time that it ends. A collective then."""
        self._memory_phases.record(phase, step, self._ctx.engine if phase == "step" else None)

    def print_line(self, text: str) -> None:
        """Show a line to the user."""
        self._display.print_line(text)

    def write_skip(self, state: TrainState, skipped: SkippedStep) -> None:
        """A line for a step that changed nothing."""
        self.flush()
        self._ctx.metrics.write("skip", step=state.step, ranks=skipped.nonfinite_ranks or None, skipped=state.skipped)
        self.print_line(skipped.message)

    def write_stop(self, step: int, reason: str) -> None:
        """A line for the end of training before its last step."""
        self.flush()
        self._ctx.metrics.write("stop", step=step, reason=reason)
        self.print_line(f"stopping at step {step}: {reason}")

    def finish_steps(self, step: int) -> None:
        """Training has ended in order after this step. A collective."""
        self.flush()
        self._update_profiler(step, is_last=True)
        self._recorder.stop()
        write_comms_summary(self._ctx.run_dir.root, self._ctx.distributed, enabled=self._spec.comms_logger)

    def flush(self) -> None:
        """Write the pending lines, once the device has passed their steps."""
        self._flush_steps(len(self._pending_steps))
        self.rank_stats.process_pending(self._ctx.metrics)

    @contextmanager
    def pause(self, kind: PauseKind) -> Iterator[None]:
        """The time inside belongs to no step, and to a phase of its own in the status."""
        self.flush()
        with ExitStack() as stack:
            stack.enter_context(self._recorder.pause(kind))
            stack.callback(self.rank_stats.reset_page_faults)
            if kind in _STATUS_PHASES:
                stack.enter_context(self._ctx.status.enter_phase(_STATUS_PHASES[kind]))
            yield

    def _update_profiler(self, step: int, *, is_last: bool = False) -> None:
        with self.pause("profile"):
            table = self.profiler.stop_if_due(step, last=is_last)
            if table is not None:
                self.print_line(f"profile written: {table}")
            if not is_last:
                self.profiler.start_if_due(step + 1)

    def _flush_steps(self, count: int, *, local_only: bool = False) -> None:
        """Count the first `count` pending steps, compare ranks, write lines. A collective where a comparison is due."""
        steps, self._pending_steps = self._pending_steps[:count], self._pending_steps[count:]
        rank = self._ctx.train_data.data_parallel_rank
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
                self._write_row(pending.row)

    def _write_row(self, row: PendingRow) -> None:
        state = row.state
        interval, self._interval = self._interval, LogInterval()
        if not self._ctx.distributed.is_main_process:
            return
        flops: dict[str, Any] = {}
        if self.flops_counter.sizes:
            flops = flops_fields(interval, self._ctx.distributed.world_size, self.device_peak.flops)
        line: dict[str, Any] = {
            "step": state.step,
            "loss": row.mean_loss.read(),
            "learning_rate": float(row.learning_rate),
            "grad_norm": None if row.read_grad_norm is None else row.read_grad_norm()[0],
            "loss_scale": row.loss_scale,
            "tokens": state.tokens,
            "predicted_tokens": state.predicted_tokens,
            "samples": state.samples,
            **throughput_fields(interval),
            **flops,
            **memory_usage(),
            **self._nvme_usage.fields(interval),
            "skipped": row.skipped_steps,
        }
        metrics = row.read_metrics()
        if metrics:
            line["metrics"] = metrics
        self._ctx.metrics.write("step", **line)
        self.rank_stats.report_own_gpu(state.step, self._ctx.metrics)
        self.trackers.report_failures(state.step)
        self._display.show_step(line)


def _is_finite(pending: PendingStep) -> bool:
    """False for a step whose loss is to be written and is not finite."""
    return pending.row is None or math.isfinite(pending.row.mean_loss.read())
