# SPDX-License-Identifier: Apache-2.0
"""The engine: `deepspeed.initialize` with the JSON as it is, the model, its parameter groups and the schedule.

Of the JSON only the keys that the client needs are read here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.utils import combine_grad_norm_groups
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils import set_z3_leaf_modules

from harness.patches.chunked_loss import ChunkedHead, install_chunked_loss
from harness.patches.one_pass_adam import install_one_pass
from harness.patches.overlapped_step import install_overlapped_step
from harness.patches.patch_registry import PatchStates
from harness.run.resolved_run import ResolvedRun
from harness.runtime.chunked_cross_entropy import chunked_cross_entropy
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.lr_schedule import scheduler_factory
from harness.runtime.micro_batch import BatchGeometry
from harness.runtime.parallel.sequence_parallel import init_sequence_groups, new_sequence_group
from harness.runtime.topology import Topology
from harness.runtime.user_errors import user_error
from harness.spec.sections.training_spec import TrainSpec

MIN_EXPERTS = 2


def check_ds_config(ds_config: dict[str, Any]) -> None:
    """Raises UserError (OP101) for a JSON that the loop cannot train with."""
    if not (ds_config.get("optimizer") or {}).get("type"):
        raise user_error(
            "OP101",
            "the DeepSpeed JSON has no `optimizer` block with a `type`",
            key="optimizer",
            fix="set `optimizer.type` in the run spec",
        )


def resolve_topology(run: ResolvedRun, distributed: Distributed) -> Topology:
    """This rank's place among all. Raises UserError (BT101) when the degrees do not divide the ranks."""
    try:
        return Topology.from_dims(run.parallel_dims, distributed.world_size, distributed.rank)
    except ValueError as error:
        raise user_error(
            "BT101", str(error), key="parallel", fix="start the run on as many ranks as it was rendered for"
        ) from None


def resolve_batch_geometry(ds_config: dict[str, Any], data_parallel_size: int) -> BatchGeometry:
    """The batch sizes of the JSON, over so many data-parallel ranks. Raises UserError (BT101)."""
    micro = ds_config.get("train_micro_batch_size_per_gpu")
    accumulation = ds_config.get("gradient_accumulation_steps")
    total = ds_config.get("train_batch_size")
    if micro is None:
        accumulation = accumulation or 1
        micro = (total or 0) // (accumulation * data_parallel_size)
    elif accumulation is None:
        accumulation = total // (micro * data_parallel_size) if total else 1
    geometry = BatchGeometry(micro, accumulation, data_parallel_size)
    if geometry.global_batch_size <= 0 or total not in (None, geometry.global_batch_size):
        raise user_error(
            "BT101",
            f"a global batch of {total} is not {micro} sequences x {accumulation} accumulation steps"
            f" x {data_parallel_size} ranks",
            key="train.global_batch_size",
            fix="start the run on as many ranks as it was rendered for",
        )
    return geometry


def weight_decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices, which decay, and vectors (norms and biases), which do not. One when nothing decays."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not weight_decay:
        return [{"params": trained}]
    # At stage 3 a parameter is an empty tensor outside its forward; `ds_shape` is its true shape.
    matrices = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) >= 2]
    vectors = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [g for g in groups if g["params"]]


def build_engine(
    run: ResolvedRun,
    ds_config: dict[str, Any],
    model: torch.nn.Module,
    steps: int,
    patches: PatchStates,
    distributed: Distributed,
) -> Engine:
    """`deepspeed.initialize` with the patches of the run. A collective.

    `.lr_scheduler` is that of the spec's `scheduler`, unless the JSON has its own. Ranks of one replica agree where a
    patch depends on gradients that may differ between them.
    """
    decay = ds_config["optimizer"].get("params", {}).get("weight_decay", 0.0)
    if ds_config.get("zero_optimization", {}).get("stage") == 3:
        mark_moe_leaf_modules(model)
    with patches.around_initialize():
        engine: Engine = deepspeed.initialize(
            model=model,
            model_parameters=weight_decay_groups(model, decay),
            config=ds_config,
            mpu=init_sequence_groups(run.parallel_dims),
            lr_scheduler=None if "scheduler" in ds_config else scheduler_factory(run.spec.scheduler, steps),
        )[0]
    topology = resolve_topology(run, distributed)
    if topology.sequence_parallel_size > 1 and topology.tensor_parallel_size > 1:
        # The engine sets it where its `mpu` has sequence groups.
        cast("Any", engine).seq_parallel_group = new_sequence_group(topology)
    if topology.pipeline_parallel_size > 1:
        from harness.runtime.engine import join_every_norm

        join_every_norm(engine, distributed.any_rank)
    compile_engine(engine, run.spec.train)
    has_same_gradients = topology.model_parallel_size == 1
    patches.change_engine(engine, (lambda flag: flag) if has_same_gradients else distributed.any_rank)
    return engine


def install_step(
    engine: Engine, patches: PatchStates, distributed: Distributed, *, is_main_process: bool, overlap_gib: float = 0.0
) -> PatchStates:
    """Step CPU Adam in one pass over memory, and beside the backward pass, where the patches `one-pass-adam` and
    `overlapped-step` are applied. A collective. Returns the patches: one is skipped, with a line, where the engine or
    the machine of any rank does not allow it. The other ranks step so nevertheless: the bits are the same.
    """
    installers: dict[str, Callable[[Engine], str]] = {
        "one-pass-adam": install_one_pass,
        "overlapped-step": lambda engine: install_overlapped_step(engine, overlap_gib),
    }
    for name, install in installers.items():
        if not patches.is_applied(name):
            continue
        reasons = distributed.all_gather_object(install(engine))
        refusals = [f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason]
        if refusals:
            reason = f"on {len(refusals)} of {len(reasons)} ranks, first {refusals[0]}"
            if is_main_process:
                print(f"patch {name}: skipped, {reason}", file=sys.stderr, flush=True)  # noqa: T201
            patches = patches.with_skipped(name, reason)
    return patches


def install_loss(
    engine: Engine, run: ResolvedRun, patches: PatchStates, *, is_main_process: bool
) -> tuple[ChunkedHead | None, PatchStates]:
    """Make the model compute its loss in chunks of tokens, where the patch `chunked-loss` is applied.

    Returns the head that does it, and the patches: this one is skipped, with a line, for a model that it does not fit.
    """
    if not patches.is_applied("chunked-loss"):
        return None, patches
    chunk = run.loss_chunk_size
    head = install_chunked_loss(engine, chunk, chunked_cross_entropy)
    if isinstance(head, ChunkedHead):
        return head, patches
    if is_main_process:
        print(f"loss: computed at once, not in chunks of {chunk} tokens: {head}", file=sys.stderr, flush=True)  # noqa: T201
    return None, patches.with_skipped("chunked-loss", head)


def compile_engine(engine: Engine, train: TrainSpec) -> None:
    """Compile the engine's model at its first forward, if `train.torch_compile` is set.

    Raises UserError (MD159 a backend that torch does not have, DeepCompile where it cannot be built).
    """
    if not train.torch_compile:
        return
    backend = train.torch_compile_backend
    backends = torch.compiler.list_backends(exclude_tags=None)
    if backend is not None and backend not in backends:
        raise user_error(
            "MD159",
            f"torch has no compiler backend `{backend}` here",
            key="train.torch_compile_backend",
            notes=(f"it has {', '.join(f'`{name}`' for name in backends)}",),
            fix="remove `train.torch_compile_backend`",
        )
    if engine.is_deepcompile_enabled() and get_accelerator().device_name() == "cpu":
        raise user_error(
            "MD159",
            "DeepCompile cannot be used on the CPU: its kernels need CUDA",
            key="deepspeed.compile.deepcompile",
            fix="remove `deepspeed.compile`; `train.torch_compile` works without",
        )
    engine.compile(**({"backend": backend} if backend else {}))


def mark_moe_leaf_modules(model: torch.nn.Module) -> list[str]:
    """Make ZeRO-3 gather each block of experts as a whole, before `deepspeed.initialize`. Returns the blocks' classes.

    A block is found by its structure: a module with a list of modules of one class, called `experts` or `...experts`.
    Experts that are rows of one weight, as `transformers` 5 keeps them, need no mark. DeepSpeed marks the
    modules of the JSON's `leaf_module` itself.
    """
    classes = {type(module) for module in model.modules() if _has_expert_list(module)}
    if classes:
        set_z3_leaf_modules(model, list(classes))
    return sorted(cls.__name__ for cls in classes)


def _has_expert_list(module: torch.nn.Module) -> bool:
    return any(
        name.endswith("experts")
        and isinstance(child, torch.nn.ModuleList)
        and len(child) >= MIN_EXPERTS
        and len({type(expert) for expert in child}) == 1
        for name, child in module.named_children()
    )


def join_every_norm(engine: Engine, any_rank: Callable[[bool], bool]) -> None:
    """Let each rank take part in as many sums of the norm as the stage with most groups. A collective of all ranks.

    DeepSpeed's ZeRO optimizer sums the norm over the stages once for each parameter group of its own stage. A stage of
    an embedding alone has no group of vectors, and one whose matrices are frozen none of matrices: its ranks then wait
    in fewer all-reduces than the others, for ever.
    """
    optimizer: Any = engine.optimizer
    if not isinstance(optimizer, DeepSpeedZeroOptimizer):  # others sum once
        return
    own_groups, most_groups = len(optimizer.bit16_groups), 0
    while any_rank(own_groups > most_groups):
        most_groups += 1
    missing = most_groups - own_groups
    if not missing:
        return
    own_norm = optimizer.scaled_global_norm

    def norm_of_all_stages(norm_type: int = 2) -> torch.Tensor:
        norms = [own_norm(norm_type)]
        for _ in range(missing):
            squares = torch.zeros((), dtype=torch.float32, device=engine.device)
            optimizer._model_parallel_all_reduce(tensor=squares, op=dist.ReduceOp.SUM)
            norms.append(squares.sqrt())
        norm: torch.Tensor = combine_grad_norm_groups(norms, norm_type=norm_type)
        return norm

    optimizer.scaled_global_norm = norm_of_all_stages
