"""The engine: `deepspeed.initialize` with the JSON as it is, the model, its parameter groups and the schedule.

What is in the JSON is not looked at here, beyond what the client has to know.
"""

from __future__ import annotations

import sys
from typing import Any

import deepspeed
import torch

from harness.plan.run import Run
from harness.runtime import nvme_release
from harness.runtime.data import Shape
from harness.runtime.experts import mark_experts
from harness.runtime.fewer_calls import call_less
from harness.runtime.first_step import undo_hidden_step
from harness.runtime.host_gradients import cast_when_stepped, gradients_held_once
from harness.runtime.models.compiling import compile_engine
from harness.runtime.muon import import_muon, muon_spares_embeddings
from harness.runtime.nvme_gradients import keep_gradients
from harness.runtime.nvme_prefetch import read_ahead_once
from harness.runtime.policies import guard_steps
from harness.runtime.ranks import Ranks
from harness.runtime.refusals import refusal
from harness.runtime.schedule import scheduler_factory
from harness.runtime.sequence_parallel import sequence_groups
from harness.runtime.topology import Topology


def refuse_unsupported(ds_config: dict[str, Any]) -> None:
    """Raises Refused for what the loop does not train (OP101)."""
    if not ds_config.get("optimizer"):
        raise refusal(
            "OP101",
            "the DeepSpeed JSON has no `optimizer` block",
            key="optimizer",
            fix="set `optimizer.type` in the run spec",
        )


def find_place(run: Run, ranks: Ranks) -> Topology:
    """This rank's place among all. Raises Refused (BT101) when the degrees do not divide the ranks."""
    try:
        return Topology.of(run.degrees, ranks.world, ranks.rank)
    except ValueError as error:
        raise refusal(
            "BT101", str(error), key="parallel", fix="start the run on as many ranks as it was rendered for"
        ) from None


def batch_shape(ds_config: dict[str, Any], world: int) -> Shape:
    """The batch triangle as the JSON has it, over `world` data-parallel ranks. Raises Refused (BT101)."""
    micro = ds_config.get("train_micro_batch_size_per_gpu")
    accumulation = ds_config.get("gradient_accumulation_steps")
    total = ds_config.get("train_batch_size")
    if micro is None:
        accumulation = accumulation or 1
        micro = (total or 0) // (accumulation * world)
    elif accumulation is None:
        accumulation = total // (micro * world) if total else 1
    shape = Shape(micro, accumulation, world)
    if shape.total <= 0 or total not in (None, shape.total):
        raise refusal(
            "BT101",
            f"a global batch of {total} is not {micro} sequences x {accumulation} accumulation steps x {world} ranks",
            key="train.global_batch_size",
            fix="start the run on as many ranks as it was rendered for",
        )
    return shape


def parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices, which decay, and vectors (norms and biases), which do not. One when nothing decays."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not weight_decay:
        return [{"params": trained}]
    # At stage 3 a parameter is an empty tensor outside its forward; `ds_shape` is its true shape.
    matrices = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) >= 2]
    vectors = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [g for g in groups if g["params"]]


def build_engine(run: Run, ds_config: dict[str, Any], model: torch.nn.Module, steps: int) -> Any:
    """`deepspeed.initialize`; the engine has `.lr_scheduler` from `scheduler`, unless the JSON brings its own."""
    decay = ds_config["optimizer"].get("params", {}).get("weight_decay", 0.0)
    import_muon()
    with muon_spares_embeddings():
        engine = _initialize(run, ds_config, model, decay, steps)
    compile_engine(engine, run.spec.train)
    return engine


def _initialize(run: Run, ds_config: dict[str, Any], model: torch.nn.Module, decay: float, steps: int) -> Any:
    if ds_config.get("zero_optimization", {}).get("stage") == 3:
        mark_experts(model)
        call_less()
        _say_not_installed(nvme_release.NAME, nvme_release.release_written_states(ds_config))
    # A plugin may ask DeepSpeed for gradients; DeepCompile calls nothing when they are complete.
    compiled = (ds_config.get("compile") or {}).get("deepcompile", False)
    with gradients_held_once(wanted=run.spec.plugins.file is None and not compiled):
        engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=parameter_groups(model, decay),
            config=ds_config,
            mpu=sequence_groups(run.degrees.sequence),
            lr_scheduler=None if "scheduler" in ds_config else scheduler_factory(run.spec.scheduler, steps),
        )
    cast_when_stepped(engine)
    return engine


def _say_not_installed(patch: str, why: str | None) -> None:
    if why is not None and deepspeed.comm.get_rank() == 0:
        print(f"patch {patch}: not installed, {why}", file=sys.stderr, flush=True)  # noqa: T201


def mend_engine(engine: Any, ranks: Ranks, topology: Topology) -> None:
    """What DeepSpeed leaves undone: at ZeRO stage 0 the hidden first step in 16 bit and gradients that are not finite,
    on NVMe parameters that are read ahead twice, and gradients that are written though they are in memory.
    """
    undo_hidden_step(engine)
    read_ahead_once(engine.module)
    keep_gradients(engine)
    guard_steps(engine, ranks, alone=topology.copies == 1)
