# SPDX-License-Identifier: Apache-2.0
"""Statistics of all ranks: every few steps each rank sends a dozen numbers to rank 0, which compares them a step later,
so that no rank waits for them.

`harness.runtime.telemetry.stragglers` detects slow ranks. This module collects and sends the numbers.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from harness.runtime.comm_timer import LOOP_SPAN
from harness.runtime.distributed import Distributed
from harness.runtime.metrics import MetricsWriter
from harness.runtime.step_timer import StepTimes
from harness.runtime.telemetry.gpu_reports import GpuReports
from harness.runtime.telemetry.gpu_watch import GpuWatch, OwnGpu, find_own_gpu, pack_reading, packed_use
from harness.runtime.telemetry.memory_usage import major_page_faults, memory_usage
from harness.runtime.telemetry.stragglers import RankSample, StragglerChange, StragglerDetector
from harness.runtime.topology import Topology
from harness.spec.sections.telemetry_spec import TelemetrySpec
from harness.units import format_seconds

_DATA_SPAN = "data"
_MAX_RANKS_WRITTEN_EVERY_TIME = 64
_MAX_LOG_LINES = 8
"""Stragglers that are logged at once."""
_COLUMNS = tuple("seconds data compute compute_waits loop loop_waits io work faults host device".split())


class RankStats:
    """Counts the steps of this rank, and compares the ranks every `gather_steps` steps."""

    def __init__(
        self,
        spec: TelemetrySpec,
        distributed: Distributed,
        topology: Topology,
        *,
        on_device: bool,
        log: Callable[[str], None],
    ) -> None:
        self.gather_steps = spec.gather_steps if distributed.world_size > 1 else None
        self._distributed, self._on_device, self._log = distributed, on_device, log
        self._window: list[tuple[StepTimes, float, float]] = []
        self._pending_gather: tuple[int, int, Callable[[], list[list[float]]]] | None = None
        self._steps_since_gather = self._num_gathers = 0
        self._page_faults_before = major_page_faults()
        own_gpu = find_own_gpu()
        rank_rows = distributed.all_gather_object((socket.gethostname(), tuple(own_gpu or ())))
        self.hosts: list[str] = [host for host, _ in rank_rows]
        gpus = [OwnGpu(*gpu) if gpu else None for _, gpu in rank_rows]
        self._gpu_watch = GpuWatch(own_gpu) if own_gpu is not None else None
        self._gpu_reports = GpuReports(self.hosts, gpus) if any(gpus) else None
        self._is_gpu_failure_logged = False
        ranks_per_stage = distributed.world_size // topology.pipeline_parallel_size
        self._stages = [rank // ranks_per_stage for rank in range(distributed.world_size)]
        self._detector = StragglerDetector(self.hosts, self._stages, spec.straggler_threshold)
        if self._gpu_reports is not None:
            self._detector.explain_gpu = self._gpu_reports.explain_slow_rank

    def reset_page_faults(self) -> None:
        """Ignore the page faults up to here: of loading, a save or an evaluation."""
        self._page_faults_before = major_page_faults()

    def is_due(self, step: int) -> bool:
        """Are the ranks compared after this step?"""
        return self.gather_steps is not None and step % self.gather_steps == 0

    def record_step(self, step: int, times: StepTimes, io_seconds: float, flops: float, *, comm_measured: bool) -> None:
        """Record a step of this rank, and start the gather where one is due, the same on every rank.

        `io_seconds`: seconds that swapping blocked it; `flops`: floating-point operations of its own rows.
        """
        if self.gather_steps is None:
            return
        self._steps_since_gather += 1
        if comm_measured:
            self._window.append((times, io_seconds, flops))
        if not self.is_due(step):
            return
        rows = [_to_row(*entry) for entry in self._window]
        values = [median(column) for column in zip(*rows, strict=True)] if rows else [math.nan] * 8
        memory, faults = memory_usage(), major_page_faults()
        values += [(faults - self._page_faults_before) / self._steps_since_gather, float(memory["memory_host_bytes"])]
        values.append(float(memory.get("memory_gpu_peak_bytes", 0)))
        if self._gpu_reports is not None:
            values += self._read_own_gpu()
        read_rows = self._distributed.gather_to_main_async(values)
        self._pending_gather = step, self._steps_since_gather, read_rows
        self._steps_since_gather, self._window, self._page_faults_before = 0, [], faults

    def report_own_gpu(self, step: int, metrics: MetricsWriter) -> None:
        """Report the GPU of rank 0 with a line of its own, where ranks are not compared."""
        if self.gather_steps is None and self._gpu_watch is not None:
            others = [pack_reading(None)] * (self._distributed.world_size - 1)
            self._write_gpu_lines(step, [self._read_own_gpu(), *others], metrics)

    def _read_own_gpu(self) -> list[float]:
        """The last reading of this rank's GPU, packed; an empty reading for a rank on a CPU."""
        if self._gpu_watch is None:
            return pack_reading(None)
        self._gpu_watch.poll()
        if self._gpu_watch.words and not self._is_gpu_failure_logged:
            self._is_gpu_failure_logged = True
            self._log(f"the health of the GPU is not read in this run: {self._gpu_watch.words}")
        return pack_reading(self._gpu_watch.reading)

    def _write_gpu_lines(self, step: int, rows: Sequence[Sequence[float]], metrics: MetricsWriter) -> None:
        for line in self._gpu_reports.update(rows, self._log) if self._gpu_reports else ():
            metrics.write("gpu", step=step, **line)

    def process_pending(self, metrics: MetricsWriter) -> None:
        """Compare the ranks, if a gather has ended."""
        if self._pending_gather is None:
            return
        (step, steps, read_rows), self._pending_gather = self._pending_gather, None
        rank_rows = read_rows()
        if rank_rows and not any(math.isnan(row[0]) for row in rank_rows):
            self._compare_ranks(step, steps, rank_rows, metrics)

    def _compare_ranks(
        self, step: int, steps: int, rank_rows: Sequence[Sequence[float]], metrics: MetricsWriter
    ) -> None:
        """On rank 0: write the line `ranks`, and report changes of stragglers."""
        use: dict[str, list[float | None]] = {}
        if self._gpu_reports is not None:
            packed = [row[len(_COLUMNS) :] for row in rank_rows]
            use = packed_use(packed)
            self._write_gpu_lines(step, packed, metrics)
        values = zip(*(row[: len(_COLUMNS)] for row in rank_rows), strict=True)
        columns: dict[str, Sequence[float]] = dict(zip(_COLUMNS, values, strict=True))
        samples = self._to_samples(columns)
        if self._num_gathers % max(1, self._distributed.world_size // _MAX_RANKS_WRITTEN_EVERY_TIME) == 0:
            metrics.write("ranks", step=step, steps=steps, **_to_line(columns, samples), **use)
        self._num_gathers += 1
        changes = self._detector.update(steps, samples)
        for number, change in enumerate(changes):
            _report_change(step, change, metrics, self._log if number < _MAX_LOG_LINES else None)
        if len(changes) > _MAX_LOG_LINES:
            self._log(f"{len(changes) - _MAX_LOG_LINES} more of these, see `straggler` in metrics.jsonl")

    def _to_samples(self, columns: dict[str, Sequence[float]]) -> list[RankSample]:
        """The samples of all ranks. On a device a collective takes time on the stream even if no rank waits: as much as
        on the last rank of the stage. On a CPU the time of a collective counts as waiting.
        """
        min_waits = [0.0] * self._distributed.world_size
        if self._on_device:
            min_by_stage: dict[int, float] = {}
            for stage, waits in zip(self._stages, columns["compute_waits"], strict=True):
                min_by_stage[stage] = min(waits, min_by_stage.get(stage, math.inf))
            min_waits = [min_by_stage[stage] for stage in self._stages]
        return [
            RankSample(data, max(0.0, compute - waits + min_wait), io, max(0.0, loop - loop_waits), work, faults)
            for data, compute, waits, min_wait, io, loop, loop_waits, work, faults in zip(
                columns["data"],
                columns["compute"],
                columns["compute_waits"],
                min_waits,
                columns["io"],
                columns["loop"],
                columns["loop_waits"],
                columns["work"],
                columns["faults"],
                strict=True,
            )
        ]


def _to_row(times: StepTimes, io_seconds: float, flops: float) -> list[float]:
    """The first values of `_COLUMNS`, without faults and memory."""
    parts, waits = times.span_seconds, times.comm_seconds
    return [
        times.seconds,
        parts[_DATA_SPAN] - waits[_DATA_SPAN],
        sum(parts.values()) - parts[_DATA_SPAN],
        sum(waits.values()) - waits[_DATA_SPAN] - waits[LOOP_SPAN],
        times.loop_seconds,
        waits[LOOP_SPAN],
        io_seconds,
        flops,
    ]


def _to_line(columns: dict[str, Sequence[float]], samples: Sequence[RankSample]) -> dict[str, Any]:
    seconds = {
        "seconds": columns["seconds"],
        "busy": [sample.busy for sample in samples],
        "data": [sample.data for sample in samples],
        "compute": [sample.compute for sample in samples],
        "io": [sample.io for sample in samples],
        "host": [sample.host for sample in samples],
    }
    line: dict[str, Any] = {name: [round(v, 6) for v in values] for name, values in seconds.items()}
    line["work"] = [float(f"{sample.work:.4g}") for sample in samples]
    line["memory_host_bytes"] = [int(v) for v in columns["host"]]
    if any(columns["device"]):
        line["memory_gpu_peak_bytes"] = [int(v) for v in columns["device"]]
    return line


def _report_change(
    step: int, change: StragglerChange, metrics: MetricsWriter, log: Callable[[str], None] | None
) -> None:
    straggler = change.straggler
    metrics.write(
        "straggler",
        step=step,
        state="named" if change.is_active else "gone",
        ranks=list(straggler.ranks),
        host=straggler.host,
        whole_host=straggler.whole_host,
        slower=round(straggler.slowdown, 4),
        seconds=round(straggler.lost_seconds, 6),
        busy=round(straggler.busy_seconds, 6),
        peers=round(straggler.peer_seconds, 6),
        cause=straggler.cause,
        evidence=straggler.evidence,
    )
    if log is None:
        return
    if change.is_active:
        busy, peers = format_seconds(straggler.busy_seconds), format_seconds(straggler.peer_seconds)
        figures = f"{straggler.slowdown:.0%} slower than its peers, {busy} a step against {peers}, without waiting"
        log(f"warning: {straggler.name} is {figures}: it {straggler.evidence}")
    else:
        log(f"{straggler.name} is no longer slower than its peers")
