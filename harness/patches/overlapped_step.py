# SPDX-License-Identifier: Apache-2.0
"""Steps sub-groups of CPU Adam while the backward pass still runs, and drops those whose guess was wrong.

Upstream: ZeRO-3 steps all sub-groups after the backward pass, since only then the norm is known by which gradients are
clipped. SuperOffload (`runtime/superoffload`), for CUDA alone, steps them earlier in a process of its own, but only
without clipping, waits for each batch of gradients on the host, and after an overflow computes the old values back,
which rounds.

Patch: As in SuperOffload, a sub-group is stepped once each of its gradients is final in the last micro-batch; by a
thread with the op of `one-pass-adam`, in the order in which gradients come, with the scale that the step has where it
does not clip. The op writes new master, states and 16-bit weights beside the old ones, which stay as they are; nothing
is copied, and it moves as many bytes as a step in place. The step then compares: where scale, learning rate and counts
are those that were guessed, old and new change places and the weights are sent; else the sub-group is stepped in its
turn. So weights are those of the plain order to the bit. After three steps in a row that clipped, nothing is guessed
until a step does not clip. What is written beside takes at most `zero.offload_optimizer.overlap_step_gib` of host
memory a rank, for the sub-groups whose gradients come first.

Gain: by the plan 14.5 of 23.7 s of the CPU step of a 70B model with 86 GiB a rank, as its last backward pass is not
longer; 15.4 by the simulated clock (`tests/plan/test_step_time.py`). No GPU has run it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from harness.facts.kept_copies import count_overlapped, kept_bytes
from harness.patches.patch_registry import Patch, PatchFacts, Target

if TYPE_CHECKING:
    import torch

_ZERO3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_MISSES = 3
"""Steps in a row that clipped, after which nothing is guessed."""
_READERS = {
    "_overflow_clean_up": "42b39a5af45d85ed",
    "load_state_dict": "9a58f1e8ac585243",
    "_get_fp32_opt_state_partition": "0b29744952c1f4a1",
    "_get_fp32_grad_state_partition": "81d911cade272bd5",
}
"""Methods after which masters, states or gradients may be others, so that nothing holds that was stepped before."""


class StepThread:
    """One thread, which does one thing after the other."""

    def __init__(self) -> None:
        from deepspeed.accelerator import get_accelerator

        # Else the thread waits for events on device 0, where each rank would then hold a context.
        use_device = partial(get_accelerator().set_device, get_accelerator().current_device())
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="overlapped-step", initializer=use_device)

    def submit(self, event: Any, run: Callable[[], None]) -> Future[None]:
        """Run after the event, if there is one."""

        def wait_and_run() -> None:
            if event is not None:
                event.synchronize()
            run()

        return self._pool.submit(wait_and_run)


class _SubGroup:
    """A sub-group that may be stepped early: where its new master, states and weights are written."""

    def __init__(self, zero: Any, group: int, *, is_pinned: bool) -> None:
        import torch
        from deepspeed.accelerator import get_accelerator

        self.master: torch.Tensor = zero.fp32_partitioned_groups_flat[group]
        self.new: list[torch.Tensor] = []
        weights = torch.empty_like(zero.fp16_partitioned_groups_flat[group], device="cpu")
        self.weights = get_accelerator().pin_memory(weights) if is_pinned else weights
        self._expected = sum(_has_data(zero, parameter) for parameter in zero.fp16_groups[group])
        self.final: set[int] = set()
        """Parameters whose gradient is final."""
        self.work: Future[None] | None = None
        self.is_tried = False
        self.guess: tuple[Any, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Its gradients are final, and it was not stepped with other ones."""
        return not self.is_tried and len(self.final) == self._expected

    def make_room(self) -> None:
        """From the first step on, or once a checkpoint is read: until then nothing is stepped early."""
        self.new = self.new or [self.master.new_empty(self.master.shape) for _ in range(3)]


class OverlappedStep:
    """Of one engine: changes its optimizer, which steps in one pass."""

    def __init__(self, zero: Any, groups: list[int]) -> None:
        import torch

        self._zero, self._op, self._one_pass = zero, zero.one_pass_op, zero.one_pass_step
        self._masters, self._gradient_of = zero.fp32_partitioned_groups_flat, _gradients(zero)
        is_pinned = _pins_weights(zero, groups)
        self._groups = {group: _SubGroup(zero, group, is_pinned=is_pinned) for group in groups}
        self._thread = StepThread()
        self._threads = max(1, torch.get_num_threads() - 1)  # one launches kernels
        self._misses, self._is_compared = 0, False
        self.early: Counter[str] = Counter()
        """Sub-groups that were `begun` during backward passes, and of these `kept`, `dropped` and `cancelled`."""
        self._partition, self._pre_step, self._step = zero.partition_grads, zero._pre_step, zero._optimizer_step
        zero.partition_grads, zero._pre_step, zero._optimizer_step = self.partition, self.begin_step, self.step
        for name in _READERS:
            setattr(zero, name, self._after_drop(getattr(zero, name)))

    def partition(self, parameters: list[Any], partitions: list[Any]) -> Any:
        """Gradients are written to the host: what was stepped with earlier ones is dropped before."""
        zero = self._zero
        owners = [(zero.grad_position[zero.get_param_id(p)][0], p) for p in parameters]
        owners = [(group, p) for group, p in owners if group in self._groups and _has_data(zero, p)]
        for group, _ in owners:
            self._drop(group)
        buffers = self._partition(parameters, partitions)
        if not zero.is_gradient_accumulation_boundary() or self._misses >= _MISSES or self._op.is_observed():
            return buffers
        for group, parameter in owners:
            self._groups[group].final.add(parameter.ds_id)
        ready = sorted({group for group, _ in owners if self._groups[group].is_ready}, reverse=True)
        event = _record_event() if ready else None
        for group in ready:
            self._begin(group, event)
        return buffers

    def begin_step(self) -> None:
        """The backward pass is over: nothing more is begun, and what is under way is waited for."""
        for each in self._groups.values():
            if not self._cancel(each) and each.work is not None:
                each.work.result()
            each.final.clear()
            each.is_tried = False
            each.make_room()
        self._is_compared = False
        self._pre_step()

    def step(self, group: int) -> None:
        """A sub-group's turn: its scale is known."""
        is_plain = self._op.is_observed() or self._zero.subgroup_to_device[group] != "cpu"
        if not is_plain and not self._is_compared:
            self._misses = 0 if self._op.scale == self._unclipped() else self._misses + 1
            self._is_compared = True
        each = self._groups.get(group)
        if each is None or each.work is None:
            self._step(group)
        elif is_plain or each.guess != (self._op.scale, *self._numbers(group)):
            self._drop(group)
            self._step(group)
        else:
            self._keep(group, each)

    def _keep(self, group: int, each: _SubGroup) -> None:
        """DeepSpeed counts the step; the op has made it, and old values are where the next new ones are written."""
        each.work = None
        for tensor, new in zip(self._values(each), each.new, strict=True):
            tensor.data, new.data = new.data, tensor.data
        self.early["kept"] += 1
        self._op.adam_update = lambda *_: None
        try:
            self._one_pass.step_with(group, each.weights)
        finally:
            del self._op.adam_update

    def _begin(self, group: int, event: Any) -> None:
        each, gradient, scale = self._groups[group], self._gradient_of(group), self._unclipped()
        each.is_tried = True
        state = self._zero.optimizer.state.get(each.master)
        if not state or gradient is None or (gradient.dtype.itemsize == 4 and self._zero.loss_scale != 1):
            return  # DeepSpeed makes the states in the first step; a gradient in fp32 would be scaled in place
        if len({tuple(values["betas"]) for values in self._zero.optimizer.param_groups}) > 1:
            return  # the op computes powers of beta by the one that was stepped before, so that the order counts
        numbers = self._numbers(group)
        each.guess = (scale, *numbers)
        master, *states = self._values(each)
        each.make_room()
        update, weights, new, threads = self._op.adam_update_beside, each.weights, each.new, self._threads
        self.early["begun"] += 1
        tensors = master.data, gradient, *states
        each.work = self._thread.submit(event, lambda: update(*numbers, *tensors, scale, weights, new, threads))

    def _drop(self, group: int) -> None:
        """Nothing of it holds; it no longer reads its gradient."""
        each = self._groups[group]
        if self._cancel(each) or each.work is None:
            return
        each.work.result()
        each.work = None
        self.early["dropped"] += 1

    def _cancel(self, each: _SubGroup) -> bool:
        """Is it one that has not begun? It is forgotten."""
        if each.work is None or not each.work.cancel():
            return False
        each.work = None
        self.early["cancelled"] += 1
        return True

    def _after_drop(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            for group in self._groups:
                self._drop(group)
            return method(*arguments, **named)

        return call

    def _values(self, each: _SubGroup) -> tuple[torch.Tensor, ...]:
        state = self._zero.optimizer.state[each.master]
        return each.master, state["exp_avg"], state["exp_avg_sq"]

    def _numbers(self, group: int) -> tuple[Any, ...]:
        """Those that `DeepSpeedCPUAdam.step` passes to its op."""
        adam = self._zero.optimizer
        values = adam.param_groups[self._zero.sub_group_to_group_id[group]]
        number = adam.state[self._masters[group]]["step"] + 1
        decay, correction = values["weight_decay"], values["bias_correction"]
        return (adam.opt_id, number, values["lr"], *values["betas"], values["eps"], decay, correction)

    def _unclipped(self) -> float:
        """The factor of `unscale_and_clip_grads` where it does not clip."""
        import torch

        return float(torch.ones(1).mul_(1.0 / self._zero.loss_scale).tolist()[0])


def install_overlapped_step(engine: Any, gib: float) -> str:
    """Step this engine's sub-groups early, in so many GiB; returns why it is not, or nothing."""
    zero = engine.optimizer
    if not hasattr(zero, "one_pass_step"):
        return "the engine does not step in one pass"
    weights, masters = zero.fp16_partitioned_groups_flat, zero.fp32_partitioned_groups_flat
    able = [
        group
        for group, master in enumerate(masters)
        if zero.subgroup_to_device[group] == "cpu" and weights[group] is not None and weights[group].dtype.itemsize == 2
    ]
    if not able:
        return "no sub-group has master, states and 16-bit weights in host memory"
    sizes = [int(masters[group].numel()) for group in able]
    is_rounded = _pins_weights(zero, able) and not _pins_natively()
    count = count_overlapped(sizes, gib, is_rounded=is_rounded)
    if not count:
        needed = kept_bytes(sizes[-1], is_rounded=is_rounded) / 2**30
        return f"{gib:g} GiB hold no copy of a sub-group: that of the last, {sizes[-1]:,} elements, has {needed:.3g}"
    zero.overlapped_step = OverlappedStep(zero, able[-count:])
    return ""


def _pins_weights(zero: Any, groups: list[int]) -> bool:
    """Are new weights kept in page-locked memory, as they go to a device?"""
    devices = [zero.fp16_partitioned_groups_flat[group].device.type for group in groups]
    return bool(zero.offload_optimizer_pin_memory) and any(device != "cpu" for device in devices)


def _pins_natively() -> bool:
    """Does DeepSpeed's own allocator pin (from 0.19.6 on), which rounds nothing?"""
    module = sys.modules.get("deepspeed.utils.pin_memory")
    return module is not None and module.get_active_native_pinned_memory() is not None


def _has_data(zero: Any, parameter: Any) -> bool:
    """Is any of the parameter this rank's? Else it gets no gradient here."""
    return bool(parameter.partition_numel() * zero._get_param_partition_rank(parameter) < parameter.ds_numel)


def _gradients(zero: Any) -> Callable[[int], Any]:
    """Of a sub-group, where the backward pass leaves them."""
    masters = zero.fp32_partitioned_groups_flat
    if not getattr(zero, "holds_gradients_once", False):
        return lambda group: masters[group].grad
    sizes = [int(master.numel()) for master in masters]
    starts = list(accumulate(sizes, initial=0))
    return lambda group: zero.grad_partitions_flat_buffer.narrow(0, starts[group], sizes[group])


def _record_event() -> Any:
    """At this point of the current stream, which copies gradients; None on the host's. A wait for it does not spin."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    if accelerator.is_synchronized_device():
        return None
    event = accelerator.Event(**({"blocking": True} if accelerator.device_name() == "cuda" else {}))
    event.record(accelerator.current_stream())
    return event


def _is_needed(run: PatchFacts) -> bool:
    from harness.patches.one_pass_adam import PATCH as ONE_PASS

    is_plain = not (run.has_plugins or run.has_zenflow or run.has_super_offload or run.has_deepcompile)
    is_here = run.overlap_step_gib > 0 and run.stage == 3 and run.optimizer_device == "cpu"
    return is_here and is_plain and ONE_PASS.is_needed(run)


PATCH = Patch(
    name="overlapped-step",
    kind="performance",
    targets=(
        Target("deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam.step", "60c1fe8cf212943f"),
        Target(f"{_ZERO3}.step", "9898430d590dafcb"),
        Target(f"{_ZERO3}.partition_grads", "4c6115da7e394e62"),
        Target(f"{_ZERO3}._pre_step", "dd5219fe31ca7e9b"),
        Target(f"{_ZERO3}.unscale_and_clip_grads", "50ce66f676ff755a"),
        Target(f"{_ZERO3}._optimizer_step", "80e89fe6e8aa6878"),
        *(Target(f"{_ZERO3}.{name}", digest) for name, digest in _READERS.items()),
    ),
    remove_when="DeepSpeed steps sub-groups during the backward pass with clipping, and drops wrong ones exactly",
    when="`zero.offload_optimizer.overlap_step_gib`, at stage 3 with Adam or AdamW in host memory, `one-pass-adam` and"
    " no plug-in",
    is_needed=_is_needed,
)
