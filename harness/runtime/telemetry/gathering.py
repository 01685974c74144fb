"""All ranks beside each other: every few steps each sends a dozen numbers to rank 0, which looks for slow ones a step
later, so that nobody waits for them.

Who is slow is decided in `harness.plan.stragglers`; here is what the numbers are and how they get there.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from harness.plan.stragglers import Change, Detector, Look
from harness.runtime.metrics import Metrics
from harness.runtime.ranks import Ranks
from harness.runtime.telemetry.memory import memory, page_faults
from harness.runtime.telemetry.waiting import LOOP
from harness.runtime.telemetry.watch import Figures
from harness.runtime.topology import Topology
from harness.spec.sections.telemetry import TelemetrySpec
from harness.units import format_seconds

_DATA = "data"
_WRITTEN_IN_FULL = 64
_NAMES = ("seconds", "data", "compute", "compute_waits", "loop", "loop_waits", "io", "work", "faults", "host", "device")


class Gathering:
    """Counts the steps of this rank, and compares it with the others when it is time to."""

    def __init__(
        self, spec: TelemetrySpec, ranks: Ranks, topology: Topology, *, on_device: bool, say: Callable[[str], None]
    ) -> None:
        self.every = spec.gather_steps if ranks.world > 1 else None
        self._ranks, self._on_device, self._say = ranks, on_device, say
        self._kept: list[tuple[Figures, float, float]] = []
        self._coming: tuple[int, int, Callable[[], list[list[float]]]] | None = None
        self._steps = self._times = 0
        self._faults = page_faults()
        self.hosts: list[str] = ranks.gather(socket.gethostname())
        inside = ranks.world // topology.pipeline_size
        self._stages = [rank // inside for rank in range(ranks.world)]
        self._detector = Detector(self.hosts, self._stages, spec.straggler_threshold)

    def after_pause(self) -> None:
        """Pages that a save or an evaluation has read are not those of steps."""
        self._faults = page_faults()

    def due(self, step: int) -> bool:
        """Do the ranks compare themselves after this step?"""
        return self.every is not None and step % self.every == 0

    def step(self, step: int, found: Figures, io: float, work: float, *, measured: bool) -> None:
        """One more step of this rank. A collective begins where it is time for one, which every rank knows by the step.

        `io`: seconds that it was blocked by swapping; `work`: floating-point operations of its own rows.
        """
        if self.every is None:
            return
        self._steps += 1
        if measured:
            self._kept.append((found, io, work))
        if not self.due(step):
            return
        rows = [_row(*kept) for kept in self._kept]
        mine = [median(column) for column in zip(*rows, strict=True)] if rows else [math.nan] * 8
        now, faults = memory(), page_faults()
        mine += [(faults - self._faults) / self._steps, float(now["memory_host_bytes"])]
        read = self._ranks.to_first_later([*mine, float(now.get("memory_gpu_peak_bytes", 0))])
        self._coming = step, self._steps, read
        self._steps, self._kept, self._faults = 0, [], faults

    def take(self, metrics: Metrics) -> None:
        """Look at what has come from the ranks since the last step, if anything."""
        if self._coming is None:
            return
        (step, steps, read), self._coming = self._coming, None
        everyone = read()
        if everyone and not any(math.isnan(row[0]) for row in everyone):
            self._look(step, steps, everyone, metrics)

    def _look(self, step: int, steps: int, everyone: Sequence[Sequence[float]], metrics: Metrics) -> None:
        """On rank 0: write what was said, and tell what has changed."""
        columns = dict(zip(_NAMES, zip(*everyone, strict=True), strict=True))
        looks = self._looks(columns)
        if self._times % max(1, self._ranks.world // _WRITTEN_IN_FULL) == 0:
            metrics.write("ranks", step=step, steps=steps, **_line(columns, looks))
        self._times += 1
        for change in self._detector.see(steps, looks):
            _tell(step, change, metrics, self._say)

    def _looks(self, columns: dict[str, Sequence[float]]) -> list[Look]:
        """On a device a collective takes time on the stream even where nobody waits: as much as it takes of the rank of
        the stage that comes last. On a CPU what a collective takes cannot be told from waiting, and counts as that.
        """
        least = [0.0] * self._ranks.world
        if self._on_device:
            lowest: dict[int, float] = {}
            for stage, waits in zip(self._stages, columns["compute_waits"], strict=True):
                lowest[stage] = min(waits, lowest.get(stage, math.inf))
            least = [lowest[stage] for stage in self._stages]
        return [
            Look(data, max(0.0, compute - waits + base), io, max(0.0, loop - loop_waits), work, faults)
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


def _row(found: Figures, io: float, work: float) -> list[float]:
    """In the order of `_NAMES`, without pages and memory."""
    parts, waits = found.parts, found.communication
    return [
        found.seconds,
        parts[_DATA] - waits[_DATA],
        sum(parts.values()) - parts[_DATA],
        sum(waits.values()) - waits[_DATA] - waits[LOOP],
        found.loop,
        waits[LOOP],
        io,
        work,
    ]


def _line(columns: dict[str, Sequence[float]], looks: Sequence[Look]) -> dict[str, Any]:
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


def _tell(step: int, change: Change, metrics: Metrics, say: Callable[[str], None]) -> None:
    found = change.straggler
    metrics.write(
        "straggler",
        step=step,
        state="named" if change.named else "gone",
        ranks=list(found.ranks),
        host=found.host,
        whole_host=found.whole_host,
        slower=round(found.slower, 4),
        seconds=round(found.seconds, 6),
        cause=found.cause,
        evidence=found.evidence,
    )
    if change.named:
        much = f"{found.slower:.0%} slower than its peers and costs {format_seconds(found.seconds)} a step"
        say(f"warning: {found.name} is {much}: it {found.evidence}")
    else:
        say(f"{found.name} is no longer slower than its peers")
