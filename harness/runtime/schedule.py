"""The learning rate over the steps, as `transformers` computes it.

DeepSpeed's own schedulers are not used: they run the first two steps at rate 0. A `scheduler` block that a user has put
into the JSON all the same is left to DeepSpeed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from transformers import get_scheduler

from harness.spec.model import RunSpec, SchedulerSpec


def total_steps(spec: RunSpec, steps_per_epoch: int) -> int:
    """Optimizer steps of the whole run: `train.max_steps`, else what the epochs take (one epoch if neither is set)."""
    if spec.train.max_steps is not None:
        return spec.train.max_steps
    return max(1, math.ceil((spec.train.num_train_epochs or 1.0) * steps_per_epoch))


def warmup_steps(spec: SchedulerSpec, steps: int) -> int:
    """`warmup_steps`, else `warmup_ratio` of all steps, rounded up as in `transformers`."""
    return spec.warmup_steps if spec.warmup_steps is not None else math.ceil(spec.warmup_ratio * steps)


def scheduler_factory(spec: SchedulerSpec, steps: int) -> Callable[[Any], Any]:
    """What `deepspeed.initialize` takes as `lr_scheduler`: it is called with the optimizer that DeepSpeed has built."""
    warmup = warmup_steps(spec, steps)
    name, options = {
        "constant": ("constant_with_warmup" if warmup else "constant", {}),
        "linear": ("linear", {}),
        "cosine": ("cosine_with_min_lr", {"min_lr_rate": spec.min_lr_ratio}) if spec.min_lr_ratio else ("cosine", {}),
    }[spec.type]

    def build(optimizer: Any) -> Any:
        return get_scheduler(name, optimizer, warmup, steps, scheduler_specific_kwargs=options)

    return build
