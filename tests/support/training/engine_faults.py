# SPDX-License-Identifier: Apache-2.0
"""Faults that a release of DeepSpeed might have, put into the installed one for as long as a context lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Replace = Callable[[Any, str, Callable[[Any], Any]], None]
"""(owner, attribute, function of the original that returns the replacement)"""


@contextlib.contextmanager
def inject_fault(name: str) -> Iterator[None]:
    """The fault of this name; none for an empty one."""
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, attribute)
        replaced.append((owner, attribute, original))
        setattr(owner, attribute, make(original))

    try:
        if name:
            FAULTS[name](replace)
        yield
    finally:
        for owner, attribute, original in reversed(replaced):
            setattr(owner, attribute, original)


def _engine() -> Any:
    from deepspeed.runtime.engine import DeepSpeedEngine

    return DeepSpeedEngine


def _zero12() -> Any:
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    return DeepSpeedZeroOptimizer


def _zero3() -> Any:
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    return DeepSpeedZeroOptimizer_Stage3


def _adamw() -> Any:
    from torch.optim import AdamW

    return AdamW


def _step_twice(replace: Replace) -> None:
    def make(original: Any) -> Any:
        def step(self: Any, *args: Any) -> Any:
            original(self, *args)
            return original(self, *args)

        return step

    replace(_adamw(), "step", make)


def _skip_all_reduce(replace: Replace) -> None:
    """Each rank keeps its own gradients: stage 0."""
    import deepspeed.comm

    def make(original: Any) -> Any:
        def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return None if tensor.numel() > 64 else original(tensor, *args, **kwargs)

        return all_reduce

    replace(deepspeed.comm, "all_reduce", make)


def _leave_rank_out(replace: Replace) -> None:
    """The gradients of rank 1 are zero in the sum."""
    import deepspeed.comm

    def make(original: Any) -> Any:
        def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tensor.numel() > 64 and deepspeed.comm.get_rank() == 1:
                tensor.zero_()
            return original(tensor, *args, **kwargs)

        return all_reduce

    replace(deepspeed.comm, "all_reduce", make)


def _clip_to_other_norm(replace: Replace) -> None:
    for owner in (_zero12(), _zero3()):
        replace(owner, "unscale_and_clip_grads", lambda f: lambda self, grads, norm: f(self, grads, norm * 1.5))


def _lengthen_all(replace: Replace) -> None:
    """By one percent, on their way to the other ranks."""
    replace(_zero12(), "average_tensor", lambda f: lambda self, tensor, *args: f(self, tensor.mul_(1.01), *args))


def _lengthen_one(replace: Replace) -> None:
    """The last matrix, by three percent, before the norm that clips is computed."""

    def make(original: Any) -> Any:
        def compute_norm(self: Any, gradients: Any, params: Any) -> Any:
            if params[-1].shape == (32, 24):
                gradients[-1].mul_(1.03)
            return original(self, gradients, params)

        return compute_norm

    replace(_zero12(), "get_grad_norm_direct", make)


def _divide_nothing(replace: Replace) -> None:
    """`engine.backward` forgets the accumulation steps."""
    replace(_engine(), "backward", lambda f: lambda self, loss, **_: f(self, loss, scale_wrt_gas=False))


def _keep_old_weights(replace: Replace) -> None:
    """Stages 1 and 2 do not gather the updated weights."""
    import deepspeed.runtime.zero.stage_1_and_2 as module

    replace(module, "all_gather_dp_groups", lambda _: lambda **_: None)


def _swap_weight_decay(replace: Replace) -> None:
    def make(original: Any) -> Any:
        def step(self: Any, *args: Any) -> Any:
            decays = [group["weight_decay"] for group in self.param_groups]
            for group in self.param_groups:
                group["weight_decay"] = 0.1 - group["weight_decay"]
            result = original(self, *args)
            for group, decay in zip(self.param_groups, decays, strict=True):
                group["weight_decay"] = decay
            return result

        return step

    replace(_adamw(), "step", make)


def _count_steps_twice(replace: Replace) -> None:
    """The bias correction of a later step."""

    def make(original: Any) -> Any:
        def step(self: Any, *args: Any) -> Any:
            for state in filter(None, self.state.values()):
                state["step"] += 1
            return original(self, *args)

        return step

    replace(_adamw(), "step", make)


def _reverse_partition(replace: Replace) -> None:
    """Each rank steps with the gradient of other places of its partition."""

    def make(original: Any) -> Any:
        def unscale(self: Any, number: int, norm: Any) -> None:
            original(self, number, norm)
            gradient = self.fp32_partitioned_groups_flat[number].grad
            gradient.copy_(gradient.flip(0))

        return unscale

    replace(_zero3(), "unscale_and_clip_grads", make)


def _overwrite_accumulation(replace: Replace) -> None:
    """Stage 3 forgets the earlier micro-batches."""

    def make(original: Any) -> Any:
        def backward(self: Any, loss: Any, **kwargs: Any) -> Any:
            self.optimizer.micro_step_id = -1 if self.optimizer.micro_step_id else 0
            self.optimizer.grad_partitions_flat_buffer.zero_()
            return original(self, loss, **kwargs)

        return backward

    replace(_engine(), "backward", make)


def _skip_step(replace: Replace) -> None:
    """The engine's optimizer forgets its gradients and steps nothing."""
    replace(_zero12(), "step", lambda _: lambda self, *_args: self.zero_grad())


FAULTS: dict[str, Callable[[Replace], None]] = {
    "accumulation-overwritten": _overwrite_accumulation,
    "all-reduce-skipped": _skip_all_reduce,
    "clipped-to-another-norm": _clip_to_other_norm,
    "all-lengthened": _lengthen_all,
    "loss-not-divided": _divide_nothing,
    "one-lengthened": _lengthen_one,
    "old-weights": _keep_old_weights,
    "partition-reversed": _reverse_partition,
    "rank-left-out": _leave_rank_out,
    "steps-counted-twice": _count_steps_twice,
    "step-skipped": _skip_step,
    "stepped-twice": _step_twice,
    "weight-decay-swapped": _swap_weight_decay,
}
