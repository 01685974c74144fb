"""All ranks beside each other: every few steps each sends a dozen numbers to rank 0, which looks for slow ones a step
later, so that nobody waits for them.

Who is slow is decided in `harness.runtime.telemetry.stragglers`; here is what the numbers are and how they get there.
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
from harness.runtime.telemetry.memory_usage import major_page_faults, memory_usage
from harness.runtime.telemetry.stragglers import RankSample, StragglerChange, StragglerDetector
from harness.runtime.topology import Topology
from harness.spec.sections.telemetry_spec import TelemetrySpec
from harness.units import format_seconds

_DATA_SPAN = "data"
_MAX_RANKS_WRITTEN_EVERY_TIME = 64
_COLUMNS = (
    "seconds",
    "data",
    "compute",
    "compute_waits",
    "loop",
    "loop_waits",
    "io",
    "work",
    "faults",
    "host",
    "device",
)


class RankStats:
    """Counts the steps of this rank, and compares it with the others when it is time to."""

    def __init__(
        self,
        spec: TelemetrySpec,
        ranks: Distributed,
        topology: Topology,
        *,
        on_device: bool,
        log: Callable[[str], None],
    ) -> None:
        self.gather_steps = spec.gather_steps if ranks.world_size > 1 else None
        self._ranks, self._on_device, self._log = ranks, on_device, log
        self._window: list[tuple[StepTimes, float, float]] = []
        self._pending_gather: tuple[int, int, Callable[[], list[list[float]]]] | None = None
        self._steps_since_gather = self._num_gathers = 0
        self._page_faults_before = major_page_faults()
        self.hosts: list[str] = ranks.all_gather_object(socket.gethostname())
        inside = ranks.world_size // topology.pipeline_parallel_size
        self._stages = [rank // inside for rank in range(ranks.world_size)]
        self._detector = StragglerDetector(self.hosts, self._stages, spec.straggler_threshold)

    def reset_page_faults(self) -> None:
        """Pages that a save or an evaluation has read are not those of steps."""
        self._page_faults_before = major_page_faults()

    def is_due(self, step: int) -> bool:
        """Do the ranks compare themselves after this step?"""
        return self.gather_steps is not None and step % self.gather_steps == 0

    def record_step(self, step: int, found: StepTimes, io_seconds: float, flops: float, *, comm_measured: bool) -> None:
        """One more step of this rank. A collective begins where it is time for one, which every rank knows by the step.

        `io`: seconds that it was blocked by swapping; `work`: floating-point operations of its own rows.
        """
        if self.gather_steps is None:
            return
        self._steps_since_gather += 1
        if comm_measured:
            self._window.append((found, io_seconds, flops))
        if not self.is_due(step):
            return
        rows = [_to_row(*kept) for kept in self._window]
        mine = [median(column) for column in zip(*rows, strict=True)] if rows else [math.nan] * 8
        now, faults = memory_usage(), major_page_faults()
        mine += [(faults - self._page_faults_before) / self._steps_since_gather, float(now["memory_host_bytes"])]
        read = self._ranks.gather_to_main_async([*mine, float(now.get("memory_gpu_peak_bytes", 0))])
        self._pending_gather = step, self._steps_since_gather, read
        self._steps_since_gather, self._window, self._page_faults_before = 0, [], faults

    def process_pending(self, metrics: MetricsWriter) -> None:
        """Look at what has come from the ranks since the last step, if anything."""
        if self._pending_gather is None:
            return
        (step, steps, read), self._pending_gather = self._pending_gather, None
        everyone = read()
        if everyone and not any(math.isnan(row[0]) for row in everyone):
            self._compare_ranks(step, steps, everyone, metrics)

    def _compare_ranks(
        self, step: int, steps: int, everyone: Sequence[Sequence[float]], metrics: MetricsWriter
    ) -> None:
        """On rank 0: write what was said, and tell what has changed."""
        columns = dict(zip(_COLUMNS, zip(*everyone, strict=True), strict=True))
        looks = self._to_samples(columns)
        if self._num_gathers % max(1, self._ranks.world_size // _MAX_RANKS_WRITTEN_EVERY_TIME) == 0:
            metrics.write("ranks", step=step, steps=steps, **_to_line(columns, looks))
        self._num_gathers += 1
        for change in self._detector.update(steps, looks):
            _report_change(step, change, metrics, self._log)

    def _to_samples(self, columns: dict[str, Sequence[float]]) -> list[RankSample]:
        """On a device a collective takes time on the stream even where nobody waits: as much as it takes of the rank of
        the stage that comes last. On a CPU what a collective takes cannot be told from waiting, and counts as that.
        """
        least = [0.0] * self._ranks.world_size
        if self._on_device:
            lowest: dict[int, float] = {}
            for stage, waits in zip(self._stages, columns["compute_waits"], strict=True):
                lowest[stage] = min(waits, lowest.get(stage, math.inf))
            least = [lowest[stage] for stage in self._stages]
        return [
            RankSample(data, max(0.0, compute - waits + base), io, max(0.0, loop - loop_waits), work, faults)
            for data, compute, waits, base, io, loop, loop_waits, work, faults in zip(
                columns["data"],
                columns["compute"],
                columns["compute_waits"],
                least,
                columns["io"],
                columns["loop"],
                columns["loop_waits"],
                columns["work"],
                columns["faults"],
                strict=True,
            )
        ]


def _to_row(found: StepTimes, io: float, work: float) -> list[float]:
    """In the order of `_NAMES`, without pages and memory."""
    parts, waits = found.span_seconds, found.comm_seconds
    return [
        found.seconds,
        parts[_DATA_SPAN] - waits[_DATA_SPAN],
        sum(parts.values()) - parts[_DATA_SPAN],
        sum(waits.values()) - waits[_DATA_SPAN] - waits[LOOP_SPAN],
        found.loop_seconds,
        waits[LOOP_SPAN],
        io,
        work,
    ]


def _to_line(columns: dict[str, Sequence[float]], looks: Sequence[RankSample]) -> dict[str, Any]:
    seconds = {
        "seconds": columns["seconds"],
        "busy": [look.busy for look in looks],
        "data": [look.data for look in looks],
        "compute": [look.compute for look in looks],
        "io": [look.io for look in looks],
        "host": [look.host for look in looks],
    }
    line: dict[str, Any] = {name: [round(v, 6) for v in values] for name, values in seconds.items()}
    line["work"] = [float(f"{look.work:.4g}") for look in looks]
    line["memory_host_bytes"] = [int(v) for v in columns["host"]]
    if any(columns["device"]):
        line["memory_gpu_peak_bytes"] = [int(v) for v in columns["device"]]
    return line


def _report_change(step: int, change: StragglerChange, metrics: MetricsWriter, say: Callable[[str], None]) -> None:
    found = change.straggler
    metrics.write(
        "straggler",
        step=step,
        state="named" if change.is_active else "gone",
        ranks=list(found.ranks),
        host=found.host,
        whole_host=found.whole_host,
        slower=round(found.slowdown, 4),
        seconds=round(found.lost_seconds, 6),
        cause=found.cause,
        evidence=found.evidence,
    )
    if change.is_active:
        much = f"{found.slowdown:.0%} slower than its peers and costs {format_seconds(found.lost_seconds)} a step"
        say(f"warning: {found.name} is {much}: it {found.evidence}")
    else:
        say(f"{found.name} is no longer slower than its peers")
