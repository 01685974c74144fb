# SPDX-License-Identifier: Apache-2.0
"""The learning rate over the steps, as `transformers` computes it.

DeepSpeed's own schedulers are not used: they run the first two steps at rate 0. A `scheduler` block in a
user's JSON is left to DeepSpeed all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.run.schedule_steps import decay_steps, warmup_steps
from harness.runtime.user_errors import user_error
from harness.spec.run_spec import SchedulerSpec


def check_schedule(spec: SchedulerSpec, steps: int) -> None:
    """Raises UserError (OP110) when warm-up and decay take more steps than there are: the rate would jump."""
    if spec.type != "warmup_stable_decay":
        return
    warmup, decay = warmup_steps(spec, steps), decay_steps(spec, steps)
    if warmup + decay > steps:
        raise user_error(
            "OP110",
            f"a warm-up of {warmup} steps and a decay of {decay} do not fit into {steps} steps",
            key="scheduler.decay_steps",
            notes=("the rate would jump from the warm-up into the middle of the decay",),
            fix=f"set `scheduler.decay_steps: {max(0, steps - warmup)}`",
        )


def scheduler_factory(spec: SchedulerSpec, steps: int) -> Callable[[Optimizer], LRScheduler]:
    """The `lr_scheduler` for `deepspeed.initialize`, which calls it with the optimizer."""
    from transformers import get_scheduler  # imports peft and bitsandbytes, which `lazy-compile` must come before

    warmup = warmup_steps(spec, steps)

    def build(optimizer: Optimizer) -> LRScheduler:
        name, options = _transformers_scheduler(spec, warmup, steps, float(optimizer.param_groups[0]["lr"]))
        if spec.type == "polynomial":  # only this one reads the peak there, and Muon sets none
            optimizer.defaults["lr"] = float(optimizer.param_groups[0]["lr"])
        scheduler: LRScheduler = get_scheduler(name, optimizer, warmup, steps, scheduler_specific_kwargs=options)
        return scheduler

    return build


def _transformers_scheduler(spec: SchedulerSpec, warmup: int, steps: int, peak: float) -> tuple[str, dict[str, Any]]:
    """The name in `transformers`, and its options. `peak` is the optimizer's own rate."""
    low = spec.min_lr_ratio
    match spec.type:
        case "constant":
            return ("constant_with_warmup" if warmup else "constant"), {}
        case "cosine":
            return ("cosine_with_min_lr", {"min_lr_rate": low}) if low else ("cosine", {})
        case "cosine_with_restarts":
            return spec.type, {"num_cycles": spec.num_cycles}
        case "polynomial":
            return spec.type, {"lr_end": low * peak, "power": spec.power}
        case "warmup_stable_decay":
            decay = decay_steps(spec, steps)
            return spec.type, {"num_decay_steps": decay, "decay_type": spec.decay_type, "min_lr_ratio": low}
        case _:
            return spec.type, {}
