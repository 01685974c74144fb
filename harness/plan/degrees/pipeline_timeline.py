# SPDX-License-Identifier: Apache-2.0
"""Timeline of a pipeline step: every pass with its start and end, played through event by event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.plan.degrees.pass_sequence import Pass, StageOrder
from harness.plan.time.pipeline_schedule import PassCost


@dataclass(frozen=True, slots=True)
class TimelineBox:
    """One pass of one stage. Seconds from the start of the step."""

    stage: int
    work: Pass
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The boxes of a step, by stage and start."""

    stages: int
    boxes: tuple[TimelineBox, ...]

    @property
    def seconds(self) -> float:
        """Until the last pass is done."""
        return max(box.end for box in self.boxes)

    def busy_seconds(self, stage: int) -> float:
        """Seconds in which a stage works."""
        return sum(box.end - box.start for box in self.boxes if box.stage == stage)

    @property
    def bubble(self) -> float:
        """Seconds that the busiest stage waits."""
        return self.seconds - max(map(self.busy_seconds, range(self.stages)))


class StuckOrder(ValueError):
    """An order in which passes wait for each other."""


def simulate_timeline(orders: Sequence[StageOrder], costs: Sequence[PassCost], latency: float = 0.0) -> Timeline:
    """Play the orders through: a step of a stage starts when the one before it is done and all that it waits for.

    A forward waits for that of the chunk before, a backward for that of the chunk behind it and its own forward.
    `costs`: seconds of a pass, by stage (of one chunk where a stage has several). `latency`: seconds of a message
    between stages. Raises StuckOrder.
    """
    ends: dict[Pass, float] = {}
    last = max(step[0].position for order in orders for step in order)
    clock, place = [0.0] * len(orders), [0] * len(orders)
    boxes: list[list[TimelineBox]] = [[] for _ in orders]
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while place[stage] < len(order):
                step = order[place[stage]]
                ready = [_ready_time(each, last, ends, latency) for each in step]
                if None in ready:
                    break
                start = max([clock[stage], *(time for time in ready if time is not None)])
                for each in step:
                    end = start + _pass_seconds(each, costs[stage])
                    boxes[stage].append(TimelineBox(stage, each, start, end))
                    start = end
                ends.update(dict.fromkeys(step, start))
                clock[stage], place[stage], moved = start, place[stage] + 1, True
    if any(place[stage] < len(order) for stage, order in enumerate(orders)):
        raise StuckOrder("passes wait for each other")
    return Timeline(len(orders), tuple(box for stage in boxes for box in stage))


def _ready_time(each: Pass, last: int, ends: dict[Pass, float], latency: float) -> float | None:
    """Seconds at which what a pass waits for is there; None while it is not."""
    if each.kind == "weight":
        return ends.get(each._replace(kind="input"))
    if each.kind == "forward":
        if each.position == 0:
            return 0.0
        before = ends.get(each._replace(position=each.position - 1))
        return None if before is None else before + latency
    own = ends.get(each._replace(kind="forward"))
    if own is None or each.position == last:
        return own
    behind = each._replace(position=each.position + 1)
    done = ends.get(behind._replace(kind="backward"), ends.get(behind._replace(kind="input")))
    return None if done is None else max(own, done + latency)


def _pass_seconds(each: Pass, cost: PassCost) -> float:
    return {
        "forward": cost.forward,
        "backward": cost.backward,
        "input": cost.backward - cost.weight,
        "weight": cost.weight,
    }[each.kind]
