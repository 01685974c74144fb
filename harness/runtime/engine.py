# SPDX-License-Identifier: Apache-2.0
"""The engine: `deepspeed.initialize` with the JSON as it is, the model, its parameter groups and the schedule.

Of the JSON only the keys that the client needs are read here.
"""

from __future__ import annotations

import sys
from typing import Any

import deepspeed
import torch

from harness.plan.resolved_run import ResolvedRun
from harness.runtime.distributed import Distributed
from harness.runtime.lr_schedule import scheduler_factory
from harness.runtime.micro_batch import BatchGeometry
from harness.runtime.models.torch_compile import compile_engine
from harness.runtime.moe_leaf_modules import mark_moe_leaf_modules
from harness.runtime.parallel.sequence_parallel import init_sequence_groups
from harness.runtime.patches import nvme_release
from harness.runtime.patches.cpu_offload_single_grad import cast_grads_on_step, skip_cpu_grad_copies
from harness.runtime.patches.muon_embeddings import exclude_embeddings_from_muon
from harness.runtime.patches.muon_lazy_compile import import_muon_without_compile
from harness.runtime.patches.nvme_offload_no_grad_swap import keep_grads_in_host_memory
from harness.runtime.patches.nvme_prefetch_duplicate import drop_duplicate_prefetches
from harness.runtime.patches.nvtx_ranges import disable_nvtx_without_profiler
from harness.runtime.patches.stage0_hidden_step import undo_hidden_step
from harness.runtime.patches.stage0_nonfinite_guard import skip_nonfinite_steps
from harness.runtime.patches.zero3_leaf_params import cache_leaf_parameters
from harness.runtime.topology import Topology
from harness.runtime.user_errors import user_error


def check_ds_config(ds_config: dict[str, Any]) -> None:
    """Raises UserError (OP101) for a JSON that the loop cannot train with."""
    if not ds_config.get("optimizer"):
        raise user_error(
            "OP101",
            "the DeepSpeed JSON has no `optimizer` block",
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


def build_engine(run: ResolvedRun, ds_config: dict[str, Any], model: torch.nn.Module, steps: int) -> Any:
    """`deepspeed.initialize`; `.lr_scheduler` is that of the spec's `scheduler`, unless the JSON has its own."""
    decay = ds_config["optimizer"].get("params", {}).get("weight_decay", 0.0)
    import_muon_without_compile()
    with exclude_embeddings_from_muon():
        engine = _initialize_deepspeed(run, ds_config, model, decay, steps)
    compile_engine(engine, run.spec.train)
    return engine


def _initialize_deepspeed(
    run: ResolvedRun, ds_config: dict[str, Any], model: torch.nn.Module, decay: float, steps: int
) -> Any:
    if ds_config.get("zero_optimization", {}).get("stage") == 3:
        mark_moe_leaf_modules(model)
        cache_leaf_parameters()
        disable_nvtx_without_profiler()
        _report_patch_not_installed(nvme_release.PATCH_NAME, nvme_release.release_written_states(ds_config))
    # A plug-in may read gradients through DeepSpeed; DeepCompile calls no hook when they are complete.
    compiled = (ds_config.get("compile") or {}).get("deepcompile", False)
    with skip_cpu_grad_copies(enabled=run.spec.plugins.file is None and not compiled):
        engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=weight_decay_groups(model, decay),
            config=ds_config,
            mpu=init_sequence_groups(run.parallel_dims.sequence),
            lr_scheduler=None if "scheduler" in ds_config else scheduler_factory(run.spec.scheduler, steps),
        )
    cast_grads_on_step(engine)
    return engine


def _report_patch_not_installed(patch: str, reason: str | None) -> None:
    if reason is not None and deepspeed.comm.get_rank() == 0:
        print(f"patch {patch}: not installed, {reason}", file=sys.stderr, flush=True)  # noqa: T201


def apply_engine_patches(engine: Any, distributed: Distributed, topology: Topology) -> None:
    """Patches of this engine: at ZeRO stage 0 the hidden first step in 16 bit and nonfinite gradients, on NVMe
    parameters that are prefetched twice and gradients that are written though they are in memory.
    """
    undo_hidden_step(engine)
    drop_duplicate_prefetches(engine.module)
    keep_grads_in_host_memory(engine)
    skip_nonfinite_steps(engine, distributed, same_gradients=topology.model_parallel_size == 1)
