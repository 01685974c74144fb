# SPDX-License-Identifier: Apache-2.0
"""The lengths of a learning-rate schedule, in optimizer steps, and which of its keys each type reads."""

from __future__ import annotations

import math

from harness.spec.run_spec import RunSpec, SchedulerSpec

READ_FIELDS: dict[str, tuple[str, ...]] = {
    "constant": (),
    "linear": ("steps",),
    "cosine": ("steps", "min_lr_ratio"),
    "cosine_with_restarts": ("steps", "num_cycles"),
    "polynomial": ("steps", "min_lr_ratio", "power"),
    "inverse_sqrt": (),
    "warmup_stable_decay": ("steps", "min_lr_ratio", "decay_steps", "decay_type"),
}
"""Fields of `scheduler` that a type reads besides the warm-up; `steps` are those of the whole run."""


def total_steps(spec: RunSpec, steps_per_epoch: int) -> int:
    """Optimizer steps of the whole run: `train.max_steps`, else what the epochs take (one epoch if neither is set)."""
    return count_steps(spec.train.max_steps, spec.train.num_train_epochs, steps_per_epoch)


def count_steps(max_steps: int | None, epochs: float | None, steps_per_epoch: int) -> int:
    """`max_steps`, else the steps of so many epochs."""
    return max_steps if max_steps is not None else max(1, math.ceil((epochs or 1.0) * steps_per_epoch))


def warmup_steps(spec: SchedulerSpec, steps: int) -> int:
    """`warmup_steps`, else `warmup_ratio` of all steps, rounded up as in `transformers`."""
    return spec.warmup_steps if spec.warmup_steps is not None else math.ceil(spec.warmup_ratio * steps)


def decay_steps(spec: SchedulerSpec, steps: int) -> int:
    """Of `warmup_stable_decay`: `decay_steps`, else `decay_ratio` of all steps, rounded up."""
    return spec.decay_steps if spec.decay_steps is not None else math.ceil(spec.decay_ratio * steps)
