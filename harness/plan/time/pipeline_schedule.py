# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules in closed form: how long a stage waits, and how many micro-batches it holds.

`harness.plan.degrees.pass_sequence` has the order of the passes, and `pipeline_timeline` next to it plays them through;
the tests hold both against these forms. The 1F1B order is that of DeepSpeed (runtime/pipe/schedule.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Schedule = Literal["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of a micro-batch on a stage: forward, whole backward, and the part of that for the weights."""

    forward: float = 1.0
    backward: float = 2.0
    weight: float = 1.0


def bubble_seconds(
    schedule: Schedule, stages: int, micro_batches: int, virtual_stages: int = 1, cost: PassCost | None = None
) -> float:
    """Seconds that a stage waits in a step, with equal stages (p), m micro-batches, F forward, B backward, W weights.

    * naive, one micro-batch in the pipeline at a time: (p - 1) m (F + B)
    * GPipe (arXiv 1811.06965) and 1F1B (arXiv 2104.04473, section 2.2.1): (p - 1)(F + B)
    * interleaved 1F1B with v chunks a stage (arXiv 2104.04473, section 2.2.2): (p - 1)(F + B) / v
    * ZB-H1 (arXiv 2401.10241, table 1, where B is without W): (p - 1)(F + B - 2 W)
    * DualPipe (arXiv 2412.19437, table 2): (p / 2 - 1)(F&B + B - 3 W), here with F&B = F + B
    """
    cost = cost or PassCost()
    both = cost.forward + cost.backward
    return {
        "naive": (stages - 1) * micro_batches * both,
        "gpipe": (stages - 1) * both,
        "1f1b": (stages - 1) * both,
        "interleaved": (stages - 1) * both / virtual_stages,
        "zb-h1": (stages - 1) * (both - 2 * cost.weight),
        "dualpipe": max(0.0, stages / 2 - 1) * (both + cost.backward - 3 * cost.weight),
    }[schedule]


def bubble_overhead(
    schedule: Schedule, stages: int, micro_batches: int, virtual_stages: int = 1, cost: PassCost | None = None
) -> float:
    """Seconds of waiting for each second of work: (p - 1) / m for 1F1B, (p - 1) / (v m) interleaved."""
    cost = cost or PassCost()
    waiting = bubble_seconds(schedule, stages, micro_batches, virtual_stages, cost)
    return waiting / (micro_batches * (cost.forward + cost.backward))


def bubble_fraction(
    schedule: Schedule, stages: int, micro_batches: int, virtual_stages: int = 1, cost: PassCost | None = None
) -> float:
    """Share of a batch's time in which a stage waits: (p - 1) / (m + p - 1) for 1F1B, (p - 1) / p for naive."""
    overhead = bubble_overhead(schedule, stages, micro_batches, virtual_stages, cost)
    return overhead / (1 + overhead)


def micro_batches_in_flight(
    stages: int, stage: int, micro_batches: int, schedule: Schedule = "1f1b", virtual_stages: int = 1
) -> float:
    """Micro-batches whose activations stage 0, 1, ... holds at most, in units of all layers of a stage.

    1F1B: min(p - stage, m). Interleaved: Megatron's warm-up of 2 (p - stage - 1) + (v - 1) p chunks and the one in
    turn, each 1 / v of a stage. ZB-H1 holds p on every stage until the weights' gradients are done. DualPipe holds
    p + 1 over the two stages of a rank (arXiv 2412.19437, table 2).
    """
    if schedule == "interleaved":
        chunks = 2 * (stages - stage - 1) + (virtual_stages - 1) * stages + 1
        return min(chunks, micro_batches * virtual_stages) / virtual_stages
    limit = {"naive": 1, "gpipe": micro_batches, "1f1b": stages - stage, "zb-h1": stages, "dualpipe": stages + 1}
    return min(limit[schedule], micro_batches)
