# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules: the share of time that stages wait, as a formula and as a simulation.

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
    """The passes of one stage in order: a warm-up of forwards, then one backward and one forward in turn."""
    num_warmup = min(stages - stage - 1, micro_batches)
    order: list[tuple[Literal["forward", "backward"], int]] = [
        ("forward", micro_batch) for micro_batch in range(num_warmup)
    ]
    for micro_batch in range(micro_batches):
        if micro_batch + num_warmup < micro_batches:
            order.append(("forward", micro_batch + num_warmup))
        order.append(("backward", micro_batch))
    return order


def simulate_schedule(
    forward: Sequence[float], backward: Sequence[float], micro_batches: int, latency: float = 0.0
) -> float:
    """Seconds until every stage has done its last backward; each pass waits for the one that it depends on.

    `forward` and `backward`: seconds a micro-batch, stage by stage. `latency`: seconds of one message.
    """
    stages = len(forward)
    schedules = [schedule_1f1b(stages, stage, micro_batches) for stage in range(stages)]
    end_times: dict[tuple[str, int, int], float] = {}
    clock, position = [0.0] * stages, [0] * stages
    while any(position[stage] < len(schedules[stage]) for stage in range(stages)):
        for stage, schedule in enumerate(schedules):
            while position[stage] < len(schedule):
                kind, micro_batch = schedule[position[stage]]
                dependency = (
                    ("forward", stage - 1, micro_batch) if kind == "forward" else ("backward", stage + 1, micro_batch)
                )
                is_free = dependency[1] < 0 or dependency[1] >= stages
                if not is_free and dependency not in end_times:
                    break
                start = clock[stage] if is_free else max(clock[stage], end_times[dependency] + latency)
                clock[stage] = start + (forward if kind == "forward" else backward)[stage]
                end_times[(kind, stage, micro_batch)] = clock[stage]
                position[stage] += 1
    return max(clock)
