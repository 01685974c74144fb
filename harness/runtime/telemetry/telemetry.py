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
from typing import Any, Protocol

import numpy as np
import torch

from harness.runtime.metrics import Metrics
from harness.runtime.policies import not_a_number
from harness.runtime.progress import Display
from harness.runtime.ranks import Ranks, to_host
from harness.runtime.rundir import RunDir
from harness.runtime.state import State
from harness.runtime.telemetry.device import Peak, find_peak
from harness.runtime.telemetry.gathering import Gathering
from harness.runtime.telemetry.interval import Interval, flops, speed
from harness.runtime.telemetry.memory import memory
from harness.runtime.telemetry.profiling import Profile, write_communication
from harness.runtime.telemetry.start import facts
from harness.runtime.telemetry.swapping import SWAPPED, bytes_in, uses_nvme
from harness.runtime.telemetry.trackers import Trackers
from harness.runtime.telemetry.waiting import METER, Seconds, watch_collectives
from harness.runtime.telemetry.watch import Raw, Stopwatch, figures
from harness.runtime.telemetry.work import Work, open_work
from harness.runtime.topology import Topology

_NVME_EVERY_SECONDS = 30.0
_PATIENCE_SECONDS = 0.5
"""So long a line may wait for others on a CPU: written together, short steps cost half as much, in warm caches."""


class Measured(Protocol):
    """What is measured: a job of the loop."""

    orders: Any
    run_dir: RunDir
    ranks: Ranks
    topology: Topology
    config: Any
    engine: Any
    train: Any
    metrics: Metrics


@dataclass(slots=True)
class _Order:
    """A line that is to be written once the device has passed its step."""

    state: State
    rate: float
    skipped: bool
    loss: Callable[[], list[float]]
    norm: Callable[[], list[float]] | None
    scale: float | None
    engine_skipped: int


@dataclass(slots=True)
class _Taken:
    """A step that is over for the host, and not counted yet."""

    raw: Raw
    rows: np.ndarray
    order: _Order | None
    loss: float | None = None


class Telemetry:
    """Of one run, on every rank: all call the same methods at the same steps."""

    def __init__(self, job: Measured, screen: Display) -> None:
        self._job, self._screen = job, screen
        spec = job.orders.run.spec
        self._spec, self._every = spec.telemetry, spec.logging.logging_steps
        self.watch = Stopwatch()
        self.peak: Peak = find_peak(spec)
        self.work: Work = open_work(spec, job.config, job.engine.module, job.train.sequences)
        self.gathering = Gathering(
            spec.telemetry, job.ranks, job.topology, on_device=self.watch.on_device, say=screen.say
        )
        self.trackers = Trackers(spec.telemetry, job.run_dir.root, job.orders.run.name, job.metrics, screen.say)
        job.metrics.closers.append(lambda: self.trackers.close(self._step))
        self.profile = Profile(spec.telemetry, job.ranks, job.run_dir.root, job.metrics)
        watch_collectives()
        # A line of a step on a device is read when the next step is on its way, so that nothing waits for it.
        self._late = int(self.watch.on_device and not spec.telemetry.synchronize)
        self._patience = 0.0 if self.watch.on_device else _PATIENCE_SECONDS
        self._taken: list[_Taken] = []
        self._settled_at = 0.0
        self._interval = Interval()
        self._paused: Seconds = defaultdict(float)
        self._before = _counters()
        self._nvme: list[Path] = uses_nvme(job.orders.ds_config)
        self._nvme_bytes, self._nvme_at = 0, -_NVME_EVERY_SECONDS
        self._last: Any = None
        self._step = 0

    def facts(self) -> dict[str, Any]:
        """For the line `run`."""
        run, clock = self._job.orders.run, "device" if self.watch.on_device else "host"
        steps = {"logging_steps": self._every, "gather_steps": self.gathering.every}
        about = facts(run, self._job.topology, self.work, self.peak)
        return {"hosts": self.gathering.hosts, "clock": clock, **steps, **about}

    def begin(self, step: int) -> None:
        """Step `step` begins; the first one here, all others where the one before has ended."""
        self.profile.before(step)
        if self._last is None:
            self._pauses()
            METER.take()
            self._before, self._last = _counters(), self.watch.edge()
            self._time_collectives(0)

    def _time_collectives(self, step: int) -> None:
        """In the step after `step`: on a CPU in every one, since it costs nothing there, else in some."""
        METER.on = not self.watch.on_device or step % max(1, (self._spec.gather_steps or 10) // 2) == 0

    def end(
        self, state: State, losses: torch.Tensor, rate: float, rows: np.ndarray, *, skipped: bool, logged: bool
    ) -> None:
        """The step that led to `state` is over. Raises Refused on all ranks for a loss that is none (OP113)."""
        order = self._order(state, losses, rate, skipped=skipped) if logged else None
        self.gathering.take(self._job.metrics)
        self._taken.append(_Taken(self._raw(state.step), rows, order))
        self._time_collectives(state.step)
        ready = len(self._taken) - self._late
        if ready > 0:
            self._judge(self._taken[ready - 1])
            now = time.perf_counter()
            if self.gathering.due(self._taken[ready - 1].raw.step) or now - self._settled_at >= self._patience:
                self._settle(ready)
                self._settled_at = now
        if self.profile.due(state.step):
            self._profiled(state.step)

    def _profiled(self, step: int, *, last: bool = False) -> None:
        with self.paused("profile"):
            table = self.profile.after(step, last=last)
            if table is not None:
                self._screen.say(f"profile written: {table}")
            if not last:
                self.profile.before(step + 1)

    def finish(self, step: int) -> None:
        """Training has ended in order with this step. A collective."""
        self.flush()
        self._profiled(step, last=True)
        METER.on = False
        write_communication(self._job.run_dir.root, self._job.ranks, asked=self._spec.comms_logger)

    def flush(self) -> None:
        """Tell what is left to tell, once the device has come so far: before a save, an evaluation or the end."""
        for taken in self._taken[-1:] if self._late else ():
            self._judge(taken)
        self._settle(len(self._taken))
        self.gathering.take(self._job.metrics)

    def abandon(self) -> None:
        """Training ends out of order: tell what waits to be told, without asking the others or the device."""
        if not self.watch.on_device:
            self._settle(len(self._taken), alone=True)

    @contextmanager
    def paused(self, kind: str) -> Iterator[None]:
        """What happens inside is no part of a step: `checkpoint`, `evaluation` or `profile`."""
        self.flush()
        METER.on, on, began = False, METER.on, time.perf_counter()
        try:
            yield
        finally:
            METER.on, self._before = on, _counters()
            self.gathering.after_pause()
            self._paused[kind] += time.perf_counter() - began

    def _order(self, state: State, losses: torch.Tensor, rate: float, *, skipped: bool) -> _Order:
        """Start what the line needs of the device and of the others."""
        engine = self._job.engine
        norm: Any = engine.get_global_grad_norm()
        read: Callable[[], list[float]] | None = None
        if torch.is_tensor(norm):
            read = to_host(norm.detach().double().reshape(1))
        elif norm is not None:
            read = partial(list, (float(norm),))
        return _Order(
            state,
            rate,
            skipped,
            self._job.ranks.sum_later(losses),
            read,
            float(engine.optimizer.cur_scale) if engine.fp16_enabled() else None,
            int(engine.skipped_steps),
        )

    def _raw(self, step: int) -> Raw:
        """The step as the host knows it; the next one starts where it ends."""
        start, self._last = self._last, self.watch.edge()
        paused = self._pauses() if self._paused else 0.0
        spans = self.watch.take()
        waited, waits = METER.take()
        now = _counters()
        io, read, written = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        return Raw(step, start, self._last, paused, spans, waited, waits, METER.on, io, int(read), int(written))

    def _pauses(self) -> float:
        """Seconds of what has gone on between two steps, which the next line tells."""
        for kind, seconds in self._paused.items():
            self._interval.paused[kind] += seconds
        total = sum(self._paused.values())
        self._paused.clear()
        return total

    def _judge(self, taken: _Taken) -> None:
        """Read the step's loss, once the device has passed it. Raises Refused, on all ranks, for one that is none."""
        order = taken.order
        if order is None:
            return
        shape = self._job.train.shape
        taken.loss = order.loss()[0] / (shape.accumulation * shape.ranks)
        lost = None if order.skipped else not_a_number(taken.loss, taken.raw.step)
        if lost:
            self._settle(self._taken.index(taken))
            self._taken.clear()
            raise lost

    def _settle(self, count: int, *, alone: bool = False) -> None:
        """The device has passed so many steps: count them, compare ranks, write their lines. A collective at some."""
        settled, self._taken = self._taken[:count], self._taken[count:]
        rank = self._job.train.rank
        for taken in settled:
            raw, rows = taken.raw, taken.rows
            self.watch.wait_for(raw.end)
            found = figures(raw, self.watch)
            self._interval.add(raw, found, self.work.of(rows))
            if not alone:
                own = self.work.of(rows[:, rank : rank + 1]).executed
                self.gathering.step(raw.step, found, raw.io, own, measured=raw.measured)
            if taken.order is not None:
                self._tell(taken.order, taken.loss)

    def _tell(self, order: _Order, loss: float | None) -> None:
        state = order.state
        interval, self._interval = self._interval, Interval()
        if not self._job.ranks.is_first:
            return
        line: dict[str, Any] = {
            "step": state.step,
            "loss": loss,
            "learning_rate": float(order.rate),
            "grad_norm": None if order.norm is None else order.norm()[0],
            "loss_scale": order.scale,
            "tokens": state.tokens,
            "samples": state.samples,
            **speed(interval),
            **(flops(interval, self._job.ranks.world, self.peak.flops) if self.work.sizes else {}),
            **memory(),
            **self._swapping(interval),
            "skipped": order.engine_skipped,
        }
        self._step = state.step
        self._job.metrics.write("step", **line)
        self.trackers.tell(state.step)
        self._screen.step(line)

    def _swapping(self, interval: Interval) -> dict[str, Any]:
        if not self._nvme:
            return {}
        now = time.monotonic()
        if now - self._nvme_at >= _NVME_EVERY_SECONDS:
            self._nvme_bytes, self._nvme_at = bytes_in(self._nvme), now
        return {
            "seconds_io": round(interval.io / interval.steps, 6),
            "nvme_bytes": self._nvme_bytes,
            "nvme_read_bytes": round(interval.read / interval.steps),
            "nvme_write_bytes": round(interval.written / interval.steps),
        }


def _counters() -> tuple[float, int, int]:
    """What only ever grows: seconds blocked and bytes moved by swapping."""
    return SWAPPED.seconds, SWAPPED.read, SWAPPED.written
