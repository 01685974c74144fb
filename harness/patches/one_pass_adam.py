# SPDX-License-Identifier: Apache-2.0
"""Steps CPU Adam in one walk through host memory, and copies a sub-group to the device while the next one is stepped.

Upstream: A step of a sub-group walks through host memory four times: gradients are cast to fp32, scaled and clipped by
`mul_`, stepped by the compiled Adam, and the masters cast to 16 bits. Stage 3 then casts on the CPU into new pageable
memory and waits for its copy to the device (`_reassign_or_swap_out_partitioned_parameters`).

Patch: One op (`one_pass_adam.cpp`, compiled with DeepSpeed's sources and flags) reads the gradient as it is, scales it,
calls DeepSpeed's Adam and writes the 16-bit weights, block by block in registers: the same arithmetic in the same
order, so the same bits. Stage 3 copies from two buffers, page-locked unless `pin_memory` is false, on a stream of its
own. In steps whose gradients the engine checks read, they are cast and scaled before. Without a compiler the run goes
on as before and says so.

Gain: 0.50 of the processor time of a sub-group's step on two busy cores; 1.11 of Adam (`benchmarks/cpu_step.py`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.patches.patch_registry import Patch, PatchFacts, Target

if TYPE_CHECKING:
    import torch

OP = "cpu_adam_one_pass"
SOURCE = Path(__file__).with_name("one_pass_adam.cpp")
_ZERO3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_ZERO12 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_SWAP = "deepspeed.runtime.swap_tensor"


def make_builder() -> Any:
    """DeepSpeed's builder of CPU Adam, with our source around its own; the op goes into the same cache. Without OpenMP:
    the source says why.
    """
    from deepspeed.ops.op_builder import CPUAdamBuilder

    class OnePassAdamBuilder(CPUAdamBuilder):  # type: ignore[misc]
        NAME = OP

        def absolute_name(self) -> str:
            return f"harness.{OP}_op"

        def sources(self) -> list[str]:
            return [str(_copy_source())]

        def include_paths(self) -> list[str]:
            return ["csrc/includes", "csrc/adam"]

        def cxx_args(self) -> list[str]:
            return [flag for flag in super().cxx_args() if flag not in ("-fopenmp", "-g")]

    return OnePassAdamBuilder()


def source_digest() -> str:
    """Of our source: another one is another op."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]


def _copy_source() -> Path:
    """Our source in the folder of the op, under a name of its content: ninja compiles again where a path differs, and
    two checkouts with one environment would take turns.
    """
    copy = torch_extensions_dir() / OP / f"one_pass_adam-{source_digest()}.cpp"
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        scratch = copy.with_name(f".{copy.name}.{os.getpid()}")
        scratch.write_bytes(SOURCE.read_bytes())
        scratch.replace(copy)
    return copy


class OnePassOp:
    """Stands for the compiled op of a `DeepSpeedCPUAdam`, whose own `step` calls it. `gradient`, `scale` and `weights`
    are those of the sub-group that is about to be stepped: the gradient in its own format (None: the one that the
    optimizer passes), the factor of unscaling and clipping, and the 16-bit weights to write.
    """

    def __init__(self, op: Any, adam: Any) -> None:
        self._op = op
        self.is_observed: Callable[[], bool] = lambda: False
        """Somebody reads the gradient of this step: it is cast and scaled before, as without the patch."""
        self.forget()
        defaults = adam.defaults
        adam.ds_opt_adam.destroy_adam(adam.opt_id)
        numbers = (defaults["lr"], *defaults["betas"], defaults["eps"], defaults["weight_decay"])
        op.create_adam(adam.opt_id, *numbers, adam.adam_w_mode, False)  # which says nothing
        adam.ds_opt_adam = self

    def forget(self) -> None:
        """The sub-group is stepped."""
        self.gradient: torch.Tensor | None = None
        self.weights: torch.Tensor | None = None
        self.scale = 1.0

    def adam_update(self, *arguments: Any) -> None:
        """The signature of DeepSpeed's op: eight numbers, then master, gradient and both states."""
        *numbers, master, gradient, first, second = arguments
        source = gradient if self.gradient is None else self.gradient
        self._op.adam_update_in_one_pass(*numbers, master, source, first, second, self.scale, self.weights)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


class DeviceCopies:
    """Copies of these weights, updated, to the device: on a stream of their own, from at most two host buffers."""

    def __init__(self, weights: list[torch.Tensor], *, is_pinned: bool) -> None:
        import torch
        from deepspeed.accelerator import get_accelerator

        self._accelerator = get_accelerator()
        pin = self._accelerator.pin_memory if is_pinned else torch.Tensor.contiguous
        numel = max(flat.numel() for flat in weights)
        self.buffers: list[torch.Tensor] = [pin(torch.empty(numel, dtype=weights[0].dtype)) for _ in weights[:2]]
        self._sent: list[Any] = [None] * len(self.buffers)
        self._stream = self._accelerator.Stream()
        self._next = 0

    def take_buffer(self, numel: int) -> torch.Tensor:
        """A buffer that nothing reads any more: the host waits for the copy out of it before the last."""
        sent = self._sent[self._next]
        if sent is not None:
            sent.synchronize()
        return self.buffers[self._next].narrow(0, 0, numel)

    def send(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Begin the copy of the buffer that was taken. The target may be read by what the device has still to do."""
        self._stream.wait_stream(self._accelerator.current_stream())
        with self._accelerator.stream(self._stream):
            target.copy_(source, non_blocking=True)
            event = self._accelerator.Event()
            event.record(self._stream)
        self._sent[self._next] = event
        self._next = (self._next + 1) % len(self.buffers)

    def finish(self, *streams: Any) -> None:
        """Whatever the device does from now on, on its current stream or one of these, comes after all copies."""
        for stream in (self._accelerator.current_stream(), *streams):
            stream.wait_stream(self._stream)


def show_gradients_when(engine: Any, is_observed: Callable[[], bool]) -> None:
    """In the steps for which it is true, the optimizer's step finds cast and scaled gradients in `grad`."""
    op = getattr(engine.optimizer, "one_pass_op", None)
    if op is not None:
        op.is_observed = is_observed


def install_one_pass(engine: Any) -> str:
    """Step this engine in one pass; returns why it is not, or nothing."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    zero = engine.optimizer
    adam: Any = getattr(zero, "optimizer", None)
    if type(zero) not in (DeepSpeedZeroOptimizer_Stage3, DeepSpeedZeroOptimizer):
        return f"the optimizer's wrapper is `{type(zero).__name__}`"
    if type(adam) is not DeepSpeedCPUAdam:
        return f"the optimizer is `{type(adam).__name__}`, not DeepSpeed's CPU Adam"
    is_stage3 = type(zero) is DeepSpeedZeroOptimizer_Stage3
    masters = zero.fp32_partitioned_groups_flat if is_stage3 else zero.single_partition_of_fp32_groups
    if not adam.fp32_optimizer_states or any(master.dtype.itemsize != 4 for master in masters):
        return "master weights or states are not in fp32"
    if getattr(zero, "torch_autocast_gradscaler", None) or getattr(zero, "zenflow", False):
        return "a gradient scaler or ZenFlow makes the step"
    try:
        op = OnePassOp(make_builder().load(), adam)
    except Exception as error:  # whatever the compiler says, the run trains without it
        return f"its op `{OP}` cannot be compiled or loaded: {f'{error}'.strip().partition(chr(10))[0][:200]}"
    zero.one_pass_op, zero.one_pass_step = op, (_Stage3Step if is_stage3 else _Stage12Step)(zero, op)
    return ""


class _Stage3Step:
    """Replaces what ZeRO-3 does with a sub-group in its step, but for sub-groups that the device steps (`ratio`)."""

    def __init__(self, zero: Any, op: OnePassOp) -> None:
        self._zero, self._op, self._masters = zero, op, zero.fp32_partitioned_groups_flat
        self._read_gradient = _gradient_reader(zero)
        self._prepare, self._unscale = zero._prepare_sub_group, zero.unscale_and_clip_grads
        self._step, self._post_step = zero._optimizer_step, zero._post_step
        self._reassign = zero._reassign_or_swap_out_partitioned_parameters
        self._written: torch.Tensor | None = None
        sent = [flat for group in range(len(self._masters)) if _is_on_device(flat := self._weights_of(group))]
        self._copies = DeviceCopies(sent, is_pinned=zero.offload_optimizer_pin_memory) if sent else None
        zero._prepare_sub_group, zero.unscale_and_clip_grads = self.prepare, self.take_scale
        zero._optimizer_step, zero._post_step = self.step, self.finish
        zero._reassign_or_swap_out_partitioned_parameters = self.place_weights

    def prepare(self, group: int, timers: Any) -> None:
        """Find the gradient as the backward pass left it."""
        if self._is_on_cpu(group) and not self._op.is_observed():
            self._op.gradient = self._read_gradient(group, lambda: self._prepare(group, timers))
        else:
            self._prepare(group, timers)

    def take_scale(self, group: int, norm: Any) -> None:
        """Let DeepSpeed multiply a one by the factor, in fp32 as it would multiply the gradient."""
        import torch

        if not self._is_on_cpu(group) or self._op.is_observed():
            self._unscale(group, norm)
            return
        one = torch.ones(1)
        self._zero.fp32_partitioned_groups_flat = {group: SimpleNamespace(grad=one)}
        try:
            self._unscale(group, norm)
        finally:
            self._zero.fp32_partitioned_groups_flat = self._masters
        self._op.scale = one.tolist()[0]  # in host memory: nothing waits for the device

    def step(self, group: int) -> None:
        """DeepSpeed's step, whose op walks once; on the device the weights go through a buffer."""
        weights = self._weights_of(group)
        if weights is not None and self._copies and _is_on_device(weights):
            weights = self._copies.take_buffer(weights.numel())
        self.step_with(group, weights)

    def step_with(self, group: int, weights: torch.Tensor | None) -> None:
        """The op writes these."""
        self._written = self._op.weights = weights
        try:
            self._step(group)
        finally:
            self._op.forget()

    def place_weights(self, group: int) -> None:
        """Begin the copy to the device; what was not written in the step goes DeepSpeed's way."""
        written, self._written = self._written, None
        if written is None:
            self._reassign(group)
            return
        weights = self._zero.fp16_partitioned_groups_flat[group]
        if self._copies and _is_on_device(weights):
            self._copies.send(written, weights)
        elif written is not weights:
            weights.copy_(written)
        self._zero._unflatten_partitioned_parameters(group)

    def finish(self, timers: Any) -> None:
        """The gathers that end the step come after all copies."""
        if self._copies is not None:
            gathers = getattr(self._zero.parameter_offload, "_DeepSpeedZeRoOffload__allgather_stream", None)
            self._copies.finish(*filter(None, [gathers]))
        self._post_step(timers)

    def _is_on_cpu(self, group: int) -> bool:
        return bool(self._zero.subgroup_to_device[group] == "cpu")

    def _weights_of(self, group: int) -> Any:
        """The 16-bit weights of a sub-group that the CPU steps; None where they are on NVMe or in fp32."""
        weights = self._zero.fp16_partitioned_groups_flat[group]
        return weights if self._is_on_cpu(group) and weights is not None and weights.dtype.itemsize == 2 else None


def _is_on_device(weights: torch.Tensor | None) -> bool:
    return weights is not None and weights.device.type != "cpu"


def _gradient_reader(zero: Any) -> Callable[[int, Callable[[], None]], Any]:
    """`read(group, prepare)`: the gradient of a sub-group before any cast; None where the master's own is read."""
    masters, flat = zero.fp32_partitioned_groups_flat, getattr(zero, "grad_partitions_flat_buffer", None)
    swapper = getattr(zero, "optimizer_swapper", None)
    if swapper is not None:
        return _swapped_gradient_reader(zero, swapper)
    if flat is None or not getattr(zero, "holds_gradients_once", False) or flat.dtype == masters[0].dtype:
        return lambda _, prepare: prepare()
    sizes = [int(master.numel()) for master in masters]
    views = [flat.narrow(0, start, size) for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)]

    def read(group: int, _: Callable[[], None]) -> Any:
        # The optimizer asks whether there is one.
        masters[group].grad = masters[group].new_zeros(1).expand(sizes[group])
        return views[group]

    return read


def _swapped_gradient_reader(zero: Any, swapper: Any) -> Callable[[int, Callable[[], None]], Any]:
    """Of sub-groups on NVMe whose gradients are in host memory (the patch `nvme-offload-no-grad-swap`)."""
    retrieve = swapper._retrieve_unswapped_grad_partitions

    def is_read_in_place(info: Any) -> bool:
        part = None if info.swapped_gradients else info.unswapped_gradients.get(0)
        return part is not None and part.numel() == info.numel() and part.dtype.itemsize == 2

    def read(group: int, prepare: Callable[[], None]) -> Any:
        swapper._retrieve_unswapped_grad_partitions = lambda swap_info, dest_buffer: (
            None if is_read_in_place(swap_info) else retrieve(swap_info=swap_info, dest_buffer=dest_buffer)
        )
        try:
            prepare()
        finally:
            swapper._retrieve_unswapped_grad_partitions = retrieve
        info = swapper.swap_params_info.get(zero.fp32_partitioned_groups_flat[group].ds_id)
        in_place = info is not None and zero._swappable_optimizer_subgroup(group) and is_read_in_place(info)
        return info.unswapped_gradients[0] if in_place else None

    return read


class _Stage12Step:
    """Replaces what stages 1 and 2 do with the partition of a group in their step."""

    def __init__(self, zero: Any, op: OnePassOp) -> None:
        self._zero, self._op = zero, op
        self._masters = zero.single_partition_of_fp32_groups
        self._buffers = zero.param_buffer_of_bit16_for_cpu_offload_groups
        self._unscale, self._step = zero.unscale_and_clip_grads, zero._optimizer_step
        self._release = zero._release_preflattened_grad_buffers
        zero.unscale_and_clip_grads, zero._optimizer_step = self.take_scale, self.step
        zero._release_preflattened_grad_buffers = self.restore

    def take_scale(self, _: Any, norm: Any) -> None:
        """Let DeepSpeed multiply a one by the factor, in fp32 as it would multiply the gradient."""
        import torch

        one = torch.ones(1)
        self._unscale([one], norm)
        self._op.scale = one.tolist()[0]  # in host memory: nothing waits for the device

    def step(self, group: int) -> None:
        """Until DeepSpeed has copied the master, it is the buffer that is written: a copy onto itself is none."""
        if self._op.is_observed():
            self._masters[group].grad.mul_(self._op.scale)
            self._op.scale = 1.0
        target = self._target_of(group)
        is_written = target.dtype.itemsize == 2
        self._op.weights = target if is_written else None
        try:
            self._step(group)
        finally:
            self._op.forget()
        if is_written:
            masters, buffers = list(self._masters), list(self._buffers)
            masters[group] = buffers[group] = target
            self._zero.single_partition_of_fp32_groups = masters
            self._zero.param_buffer_of_bit16_for_cpu_offload_groups = buffers

    def restore(self, *arguments: Any) -> None:
        """DeepSpeed calls it after its copies."""
        self._zero.single_partition_of_fp32_groups = self._masters
        self._zero.param_buffer_of_bit16_for_cpu_offload_groups = self._buffers
        self._release(*arguments)

    def _target_of(self, group: int) -> Any:
        import torch

        partitions = self._zero.parallel_partitioned_bit16_groups[group]
        rank = torch.distributed.get_rank(group=self._zero.real_dp_process_group[group])
        own: torch.Tensor = partitions[rank].data
        return own if own.device.type == "cpu" else self._buffers[group].data


def _is_needed(run: PatchFacts) -> bool:
    is_offloaded = run.optimizer_device == "cpu" or (run.optimizer_device == "nvme" and run.stage == 3)
    is_plain = not (run.has_zenflow or run.has_super_offload or run.has_deepcompile)
    is_adam = run.optimizer_type in ("adam", "adamw")
    return run.stage > 0 and is_offloaded and is_adam and run.has_16bit_weights and is_plain


PATCH = Patch(
    name="one-pass-adam",
    kind="performance",
    targets=(
        Target("deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam.__init__", "2e1146e604d0e37c"),
        Target("deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam.step", "60c1fe8cf212943f"),
        Target("deepspeed.ops.op_builder.cpu.cpu_adam:CPUAdamBuilder", "c8e5c04ba194d360"),
        Target("deepspeed.ops.op_builder.cpu.builder:CPUOpBuilder.cxx_args", "97f973882b2c62b9"),
        Target(f"{_ZERO3}.step", "9898430d590dafcb"),
        Target(f"{_ZERO3}._prepare_sub_group", "411d89bb387bf49b"),
        Target(f"{_ZERO3}.unscale_and_clip_grads", "50ce66f676ff755a"),
        Target(f"{_ZERO3}._optimizer_step", "80e89fe6e8aa6878"),
        Target(f"{_ZERO3}._reassign_or_swap_out_partitioned_parameters", "b11e6e85c55eefcb"),
        Target(f"{_ZERO3}._unflatten_partitioned_parameters", "a20012d890fb1838"),
        Target(f"{_ZERO3}._post_step", "743cadfd4b6a8880"),
        Target(f"{_ZERO12}.step", "c006b5bdd80ab23f"),
        Target(f"{_ZERO12}.unscale_and_clip_grads", "9a5d61c4320ce19f"),
        Target(f"{_ZERO12}._optimizer_step", "2f9be65141a46fba"),
        Target(f"{_ZERO12}._release_preflattened_grad_buffers", "0e105ad2342a6fd9"),
        Target(f"{_SWAP}.optimizer_utils:OptimizerSwapper._retrieve_unswapped_grad_partitions", "af48f596f1d25061"),
        Target(f"{_SWAP}.optimizer_utils:OptimizerStateSwapInfo", "5133342c80244f20"),
    ),
    remove_when="DeepSpeed's CPU Adam takes 16-bit gradients with a scale and writes 16-bit weights",
    when="an optimizer of type Adam or AdamW in host memory or on NVMe with 16-bit weights, without ZenFlow,"
    " SuperOffload or DeepCompile",
    is_needed=_is_needed,
)
