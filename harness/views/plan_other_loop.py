# SPDX-License-Identifier: Apache-2.0
"""The same settings in the loop of another trainer, in a line of the plan's screen. Counts nothing itself."""

from __future__ import annotations

from harness.plan.planner import Plan
from harness.plan.trainer_loop import LoopMemory, logits_bytes
from harness.views.plan_numbers import format_size


def fits_alone(plan: Plan) -> str:
    """The verdict of a plan that holds for `harness launch` and not for another trainer's loop; empty for others."""
    other = plan.other_loop
    if plan.fit.fits is not True or plan.fit.uncertain or other is None or not other.trainer:
        return ""
    adverb = {False: "", None: "surely "}.get(other.fit.verdict)
    return "" if adverb is None else f"Only `harness launch` {adverb}fits"


def says_otherwise(other: LoopMemory, plan: Plan) -> bool:
    """Has the other loop another verdict? Of adapters only a loop that does not fit; a range of others counts, too."""
    if plan.run.spec.model.lora is not None and other.fit.verdict is not False and not fits_alone(plan):
        return False
    return (other.fit.verdict, bool(other.fit.uncertain)) != (plan.fit.verdict, bool(plan.fit.uncertain))


def format_other_loop(other: LoopMemory, plan: Plan) -> str:
    """The same settings in the other loop: its verdict, its peak, and the logits that make the difference."""
    unsure = "is not certain" if other.fit.uncertain else "fits, as far as known"
    verdict = {True: "fits", False: "does not fit", None: unsure}[other.fit.verdict]
    text = f"With {other.name} it {verdict}: "
    is_of_host = other.memory.pooled or plan.capacity.gpu is None or other.fit.binding == "host memory"
    if is_of_host:
        return f"{text}{format_size(other.memory.host_peak)} of host memory"
    low, high = (format_size(each) for each in other.memory.gpu_peak_range)
    text += f"{low} to {high} of {format_size(plan.capacity.gpu or 0)} of GPU memory in training"
    mine = logits_bytes(plan.memory) if plan.memory else 0
    theirs = logits_bytes(other.memory)
    at_once = f"; logits of a whole micro-batch are {format_size(max(mine, theirs))}"
    return text + (at_once if abs(theirs - mine) > 1 << 30 else "")
