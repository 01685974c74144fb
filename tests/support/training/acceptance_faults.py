# SPDX-License-Identifier: Apache-2.0
"""Faults for the checks of `benchmarks/gpu_acceptance.py`: each breaks, in a rank, what a check must notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def _is_patched(zero: Any) -> bool:
    """Is this the optimizer of the harness's engine, and not that of plain DeepSpeed?"""
    swapper = getattr(zero, "optimizer_swapper", None)
    return getattr(zero, "holds_gradients_once", False) or (swapper is not None and _is_patched_swapper(swapper))


def _is_patched_swapper(swapper: Any) -> bool:
    return getattr(swapper.swap_out_gradients, "__name__", "") == "_skip_swap_out"


def lose_gradient(_: int) -> None:
    """The first gradient that the harness's own engine copies to the host in a call is lost."""
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Optimizer

    method = Optimizer.partition_grads

    def losing(zero: Any, parameters: Any, partitions: Any) -> Any:
        if _is_patched(zero):
            partitions[0].zero_()
        return method(zero, parameters, partitions)

    Optimizer.partition_grads = losing


def keep_old_weights(rank: int) -> None:
    """The second rank of the harness's engine computes with the weights of before the step: a copy that comes late."""
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Optimizer

    copy_back = Optimizer._reassign_or_swap_out_partitioned_parameters

    def keeping(zero: Any, sub_group: int) -> Any:
        return None if rank == 1 and _is_patched(zero) else copy_back(zero, sub_group)

    Optimizer._reassign_or_swap_out_partitioned_parameters = keeping


def lose_moments(rank: int) -> None:
    """The states that the second rank of the harness's engine writes to NVMe have lost a moment, from the first step on."""
    from deepspeed.runtime.swap_tensor.partitioned_optimizer_swapper import PartitionedOptimizerSwapper as Swapper

    write = Swapper._swap_out_optimizer_state

    def losing(swapper: Any, states: Any) -> Any:
        if rank == 1 and _is_patched_swapper(swapper):
            states.get_compute_tensors()[-1].zero_()
        return write(swapper, states)

    Swapper._swap_out_optimizer_state = losing


def change_row(_: int) -> None:
    """A prefetched row has one other token."""
    from harness.runtime.dataset.batch_prefetch import BatchPrefetcher

    load = BatchPrefetcher._load_batch

    def changed(prefetcher: Any, position: Any) -> Any:
        batch = load(prefetcher, position)
        first = batch.micro_batches[0]
        ids = first.input_ids.clone()
        ids[0, 0] += 1
        return replace(batch, micro_batches=[replace(first, input_ids=ids), *batch.micro_batches[1:]])

    BatchPrefetcher._load_batch = changed  # type: ignore[method-assign]


def leave_live_parameters(_: int) -> None:
    """DeepSpeed's own limit of gathered parameters, which has no room for the next layer."""
    from harness.plan.tuned_defaults import rules, zero_defaults

    rules._RULES = tuple(rule for rule in rules._RULES if rule is not zero_defaults.choose_live_parameters)


def hold_more_memory(_: int) -> None:
    """Each forward takes 8 MiB that no plan has."""
    import torch

    import harness.runtime.train_context as module

    build = module.build_engine

    def building(*arguments: Any, **named: Any) -> Any:
        engine = build(*arguments, **named)
        engine.module.register_forward_pre_hook(lambda *_: setattr(engine, "more", torch.zeros(2 << 20)))
        return engine

    module.build_engine = building


def keep_gathered(_: int) -> None:
    """What was gathered for a module stays until the step is over."""
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator

    Coordinator.release_sub_module = lambda *_, **__: None


def forget_reuse(_: int) -> None:
    """Nothing stays gathered for a module that needs it soon again."""
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator

    begin = Coordinator.__init__

    def forgetting(coordinator: Any, **named: Any) -> None:
        begin(coordinator, **{**named, "max_reuse_distance_in_numel": 0})

    Coordinator.__init__ = forgetting


def join_documents(_: int) -> None:
    """The mask of packed rows lets documents see each other."""
    import torch

    from harness.runtime.parallel import sequence_parallel

    def mask(positions: Any, window: Any) -> Any:
        rows, length = positions.shape
        return torch.ones(rows, 1, length, length, dtype=torch.bool, device=positions.device).tril_()

    sequence_parallel.causal_mask = mask


def move_borders(_: int) -> None:
    """Documents of packed rows end a token late."""
    from harness.runtime.models import sdpa_varlen

    attend: Any = sdpa_varlen._attend_by_document

    def attend_late(q: Any, k: Any, v: Any, borders: tuple[int, ...], *rest: Any) -> Any:
        return attend(q, k, v, (0, *(border + 1 for border in borders[1:-1]), borders[-1]), *rest)

    sdpa_varlen._attend_by_document = attend_late  # type: ignore[assignment]


def scale_loss(_: int) -> None:
    """Gradients of the loss in chunks are a hundredth too large."""
    from harness.runtime import chunked_cross_entropy as module

    compute = module.chunked_cross_entropy
    module.chunked_cross_entropy = lambda *arguments: 1.01 * compute(*arguments)


def double_gradients(_: int) -> None:
    """The optimizer of ZeRO-2 steps with twice the gradient."""
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    clip = DeepSpeedZeroOptimizer.unscale_and_clip_grads

    def double(self: Any, groups: Any, norm: Any) -> None:
        clip(self, groups, norm)
        for group in groups:
            group.mul_(2)

    DeepSpeedZeroOptimizer.unscale_and_clip_grads = double


def read_losses(_: int) -> None:
    """Each step of the harness waits for its loss."""
    from harness.runtime.step import DataParallelStepper as Stepper

    step = Stepper.train_step

    def reading(*arguments: Any) -> Any:
        losses = step(*arguments)
        float(losses)
        return losses

    Stepper.train_step = reading  # type: ignore[method-assign]


def shorten_seconds(_: int) -> None:
    """The timer of a step says a third of the time that passes."""
    from harness.runtime.step_timer import StepTimer

    measure = StepTimer.seconds_between
    StepTimer.seconds_between = lambda *marks: measure(*marks) / 3  # type: ignore[method-assign]


def change_offloaded(_: int) -> None:
    """A run that offloads activations starts from other weights."""
    import torch

    import harness.runtime.objectives.causal_lm as module

    build = module.build_model

    def building(run: Any, *arguments: Any) -> Any:
        if run.spec.train.offload_activations:
            torch.manual_seed(1)
            run = run._replace(
                spec=run.spec.model_copy(update={"train": run.spec.train.model_copy(update={"seed": 1})})
            )
        return build(run, *arguments)

    module.build_model = building


def change_kept_attention(_: int) -> None:
    """Layers that keep their attention get another output of it when they recompute."""
    from harness.runtime.models.kept_attention import ReplayAttention, is_attention_kernel

    plain = ReplayAttention.__torch_dispatch__

    def replay(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = plain(self, func, types, args, kwargs)
        return (output[0] * 1.05, *output[1:]) if is_attention_kernel(func.name()) else output

    ReplayAttention.__torch_dispatch__ = replay  # type: ignore[method-assign]


def leave_buffer_elsewhere(_: int) -> None:
    """A buffer of the model that is loaded stays on another device."""
    import torch

    import harness.runtime.train_context as module

    build = module.build_engine

    def building(*arguments: Any, **named: Any) -> Any:
        engine = build(*arguments, **named)
        engine.module.register_buffer("elsewhere", torch.zeros(1, device="meta"), persistent=False)
        return engine

    module.build_engine = building


def damage_checkpoint(_: int) -> None:
    """A file of each checkpoint loses its end once its manifest is written."""
    from harness.checkpoints import manifest as module

    write = module.write_manifest

    def writing(folder: Any, body: Any) -> None:
        write(folder, body)
        file = max((f for f in folder.rglob("*") if f.is_file()), key=lambda path: path.stat().st_size)
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size - 1)

    module.write_manifest = writing


def copy_a_part(_: int) -> None:
    """The copy of the state in host memory, which a save in the background writes, lacks an element."""
    from harness.runtime.checkpoint.snapshot import HostSnapshot

    copy = HostSnapshot._copy_tensor

    def copying(snapshot: Any, tensor: Any, storages: Any) -> Any:
        copied = copy(snapshot, tensor, storages)
        if copied.numel() > 1 and copied.is_floating_point():
            copied.view(-1)[-1] = 0
        return copied

    HostSnapshot._copy_tensor = copying  # type: ignore[method-assign]


def resume_other_weights(_: int) -> None:
    """A resume changes a master weight."""
    import harness.runtime.train as module

    restore = module.restore_checkpoint

    def restoring(ctx: Any, *arguments: Any) -> Any:
        state = restore(ctx, *arguments)
        ctx.engine.optimizer.fp32_partitioned_groups_flat[0].data[0] += 1e-3
        return state

    module.restore_checkpoint = restoring


def stop_clock(_: int) -> None:
    """Work takes no time."""
    from benchmarks.gpu_checks import device

    time_work = device.time_work
    device.time_work = lambda work, repeats=3: 1e-6 * time_work(work, repeats)


def slow_disk(_: int) -> None:
    """The disk reads and writes a hundred bytes a second."""
    from harness.runtime import hardware_benchmark as module

    module.bench_disk = lambda _: {"disk_read": 100.0, "disk_write": 100.0, "disk_way": "slowly"}  # type: ignore[assignment]


def slow_harness(_: int) -> None:
    """The harness's steps compute something else, too."""
    import time

    from harness.runtime.objectives.causal_lm import CausalLM

    make = CausalLM.make_stepper

    def making(*arguments: Any, **named: Any) -> Any:
        stepper = make(*arguments, **named)
        step = stepper.train_step

        def slow(*values: Any) -> Any:
            end = time.process_time() + 0.4
            while time.process_time() < end:
                pass
            return step(*values)

        stepper.train_step = slow
        return stepper

    CausalLM.make_stepper = making  # type: ignore[method-assign]


def forget_scales(_: int) -> None:
    """The scales of 4-bit weights are not counted."""
    from harness.runtime.telemetry import state_bytes

    state_bytes.scale_tensors = lambda *_: ()  # type: ignore[assignment]
