# SPDX-License-Identifier: Apache-2.0
"""Faults for the checks of `benchmarks/gpu_acceptance.py`: each breaks, in a rank, what a check must notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def lose_gradient(_: int) -> None:
    """The first gradient that the harness's own engine copies to the host in a call is lost."""
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Optimizer

    method = Optimizer.partition_grads

    def losing(zero: Any, parameters: Any, partitions: Any) -> Any:
        swapper = getattr(zero, "optimizer_swapper", None)
        swap_out = getattr(swapper, "swap_out_gradients", None)
        if getattr(zero, "holds_gradients_once", False) or getattr(swap_out, "__name__", "") == "_skip_swap_out":
            partitions[0].zero_()
        return method(zero, parameters, partitions)

    Optimizer.partition_grads = losing


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
    from harness.plan.tuned_defaults import max_live_parameters, rules

    rules._RULES = tuple(rule for rule in rules._RULES if rule is not max_live_parameters.choose_default)


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


def join_documents(_: int) -> None:
    """The mask of packed rows lets documents see each other."""
    import torch

    from harness.runtime.parallel import sequence_parallel

    def mask(positions: Any, window: Any) -> Any:
        rows, length = positions.shape
        return torch.ones(rows, 1, length, length, dtype=torch.bool, device=positions.device).tril_()

    sequence_parallel.causal_mask = mask


def scale_loss(_: int) -> None:
    """Gradients of the loss in chunks are a hundredth too large."""
    from harness.runtime import chunked_cross_entropy as module

    compute = module.chunked_cross_entropy
    module.chunked_cross_entropy = lambda *arguments: 1.01 * compute(*arguments)


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

    import harness.runtime.train_context as module

    build = module.build_model

    def building(run: Any, *arguments: Any) -> Any:
        if run.spec.train.offload_activations:
            torch.manual_seed(1)
            run = run._replace(
                spec=run.spec.model_copy(update={"train": run.spec.train.model_copy(update={"seed": 1})})
            )
        return build(run, *arguments)

    module.build_model = building


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

    import harness.runtime.train_context as module

    make = module.make_stepper

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

    module.make_stepper = making
