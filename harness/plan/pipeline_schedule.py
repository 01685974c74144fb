"""Pipeline schedules: the share of time that stages wait, in closed form and played through instruction by instruction.

The order is that of DeepSpeed's `TrainSchedule` (runtime/pipe/schedule.py), 1F1B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Schedule = Literal["naive", "1f1b"]


def bubble_fraction(schedule: Schedule, stages: int, micro_batches: int) -> float:
    """Share of a batch's time in which a stage waits, with equal stages.

    naive: one micro-batch is in the pipeline at a time, (p - 1) / p. 1F1B: (p - 1) / (m + p - 1), GPipe's share with
    less memory (arXiv 2104.04473, section 2.2).
    """
    if schedule == "naive":
        return (stages - 1) / stages
    return (stages - 1) / (micro_batches + stages - 1)


def micro_batches_in_flight(stages: int, stage: int, micro_batches: int) -> int:
    """Micro-batches whose activations stage 0, 1, ... holds at most: min(p - stage, m)."""
    return min(stages - stage, micro_batches)


def schedule_1f1b(stages: int, stage: int, micro_batches: int) -> list[tuple[Literal["forward", "backward"], int]]:
    """What one stage computes, in order: a warm-up of forwards, then one backward and one forward in turn."""
    ahead = min(stages - stage - 1, micro_batches)
    order: list[tuple[Literal["forward", "backward"], int]] = [("forward", i) for i in range(ahead)]
    for i in range(micro_batches):
        if i + ahead < micro_batches:
            order.append(("forward", i + ahead))
        order.append(("backward", i))
    return order


def simulate_schedule(
    forward: Sequence[float], backward: Sequence[float], micro_batches: int, latency: float = 0.0
) -> float:
    """Seconds until every stage has done its last backward, each instruction waiting for what it needs.

    `forward` and `backward`: seconds a micro-batch, stage by stage. `latency`: seconds of one message.
    """
    stages = len(forward)
    orders = [schedule_1f1b(stages, stage, micro_batches) for stage in range(stages)]
    done: dict[tuple[str, int, int], float] = {}
    clock, position = [0.0] * stages, [0] * stages
    while any(position[stage] < len(orders[stage]) for stage in range(stages)):
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                kind, micro = order[position[stage]]
                before = ("forward", stage - 1, micro) if kind == "forward" else ("backward", stage + 1, micro)
                outside = before[1] < 0 or before[1] >= stages
                if not outside and before not in done:
                    break
                start = clock[stage] if outside else max(clock[stage], done[before] + latency)
                clock[stage] = start + (forward if kind == "forward" else backward)[stage]
                done[(kind, stage, micro)] = clock[stage]
                position[stage] += 1
    return max(clock)
