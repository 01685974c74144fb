# SPDX-License-Identifier: Apache-2.0
"""Load the universal layout into an engine of any layout.

Stages 1 and 2: DeepSpeed's own functions for a parameter (`load_hp_checkpoint_state`, `map_to_flat_opt_states`). The
loop around them is here, because DeepSpeed's fails on a rank that has no part of some group, and assigns the groups'
settings by index. Stage 3: DeepSpeed's function for a parameter's slice, but not its loop, which gives every group the
settings of the first, knows no states but Adam's and cannot fill an optimizer on NVMe. Stage 0:
DeepSpeed has no function for it.

Frozen parameters and buffers are loaded too, which DeepSpeed's universal loading leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import deepspeed
import torch
from torch.optim.lr_scheduler import LambdaLR

from harness import input_limits
from harness.checkpoints.manifest import Manifest
from harness.file_io import parse_json, read_regular
from harness.patches.universal_checkpoint import read_universal_files
from harness.runtime.checkpoint.consolidate import WEIGHT
from harness.runtime.checkpoint.nvme_states import fill_sub_group
from harness.runtime.checkpoint.reshard.layout_signature import param_groups, param_names
from harness.runtime.checkpoint.reshard.to_universal import convert_to_universal
from harness.runtime.checkpoint.safe_load import load_file, load_param, load_shard
from harness.runtime.engine_protocol import Engine, EngineOptimizer, ZeroStage3Optimizer, ZeroStage12Optimizer
from harness.runtime.patch_selection import check_usable
from harness.runtime.pipeline.pipeline_module import Pipeline
from harness.runtime.topology import Topology
from harness.runtime.train_context import TrainContext
from harness.runtime.user_errors import user_error

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def load_universal(ctx: TrainContext, folder: Path, manifest: Manifest) -> None:
    """Convert checkpoint `folder` if that has not been done, and load it: weights, masters, the optimizer's states and
    settings, schedule, counters, loss scale. A collective. Raises UserError on all ranks (CK105, CK120-CK123, CK131,
    EN130).
    """
    ctx.distributed.call_or_fail_everywhere(lambda: check_usable("universal-checkpoint"))
    universal = convert_to_universal(ctx, folder, manifest)
    load_into_engine(ctx.engine, ctx.topology, universal, ctx.config, ctx.distributed.call_or_fail_everywhere)


def load_into_engine(
    engine: Engine,
    topology: Topology,
    universal: Path,
    config: PreTrainedConfig | None,
    call_or_fail_everywhere: Callable[[Callable[[], None]], None],
) -> None:
    """Load a universal folder that is complete."""
    body = parse_json(read_regular(universal / "groups.json", input_limits.RUN_FILE, follow=False))
    zero, names = universal / "zero", param_names(engine, config)
    trained = {name for group in body["groups"] for name in group["names"]}
    has_all = topology.pipeline_parallel_size == 1
    call_or_fail_everywhere(lambda: _check_names(engine, names, zero, trained, has_all=has_all))
    call_or_fail_everywhere(lambda: _check_shapes(engine, names, zero, topology))
    stage = engine.zero_optimization_stage()
    optimizer = engine.optimizer
    if hasattr(optimizer, "checkpoint_event_prologue"):
        optimizer.checkpoint_event_prologue()
    _load_frozen(engine, names, zero, topology)
    with read_universal_files(lambda file: _read_file(file, engine)):
        if stage == 3:
            stage3_optimizer = cast("ZeroStage3Optimizer", optimizer)
            _load_stage3(stage3_optimizer, names, zero, body["step"])
            stage3_optimizer.checkpoint_event_epilogue()
        elif hasattr(optimizer, "update_lp_params"):
            _load_stage12(engine, names, zero, topology, body["step"])
            optimizer.update_lp_params()
        else:
            _load_stage0(engine, names, zero, topology, body["step"])
    _restore_options(engine, names, body["groups"])
    _restore_counters(engine, universal, body["dtype"])


def _check_names(engine: Engine, names: dict[Any, str], zero: Path, trained: set[str], *, has_all: bool) -> None:
    """`trained`: by the run that saved the checkpoint, which has states of these alone; `has_all`: this rank has the
    whole model, not a stage of it. Raises UserError (CK123).
    """
    expected = {names[p] for group in param_groups(engine) for p in group}
    missing = sorted(name for name in expected if not (zero / name / f"{WEIGHT}.pt").is_file())
    if missing:
        raise user_error(
            "CK123",
            f"the checkpoint has no weight `{missing[0]}`, which this run trains",
            notes=(f"{len(missing)} of {len(expected)} are missing",),
            fix="resume with the model, and the adapters, of the checkpoint",
        )
    surplus = sorted(trained - {*names.values()}) if has_all else []
    if surplus:
        raise user_error(
            "CK123",
            f"the checkpoint has a trained weight `{surplus[0]}`, which the model of this run does not have",
            notes=(f"{len(surplus)} of {len(trained)} would be lost",),
            fix="resume with the model, and the adapters, of the checkpoint",
        )
    untrained = sorted(expected - trained) if trained else []
    if untrained:
        raise user_error(
            "CK123",
            f"the checkpoint has no optimizer state of `{untrained[0]}`, which this run trains and that one did not",
            key="model.freeze",
            notes=(f"{len(untrained)} of {len(expected)} were not trained",),
            fix="set `model.freeze` and `model.train_only` back, or start from that run's export",
        )


def _check_shapes(engine: Engine, names: dict[Any, str], zero: Path, topology: Topology) -> None:
    """The states of a parameter have its shape: kernels in C++ read as many elements of each, whatever it has."""
    for parameter in (p for group in param_groups(engine) for p in group):
        folder = zero / names[parameter]
        shapes = {key: load_param(folder / f"{key}.pt").shape for key in (WEIGHT, *_state_keys(folder))}
        most = getattr(parameter, "ds_numel", parameter.numel()) * topology.tensor_parallel_size
        if len(set(shapes.values())) > 1 or shapes[WEIGHT].numel() > most:
            raise user_error(
                "CK120",
                f"`{folder}` has shapes that do not fit: {shapes}, of a parameter of {most:,} elements at most",
                fix="remove the folder `universal`, which a resume writes again",
            )


def _read_file(file: Path, engine: Engine) -> Any:
    """A file of the universal layout as DeepSpeed's functions take it. Raises UserError (CK111, CK120)."""
    return load_file(file, mmap=True) if file.stem == "step" else {"param": _load_param(file, engine)}


def _load_param(file: Path, engine: Engine) -> torch.Tensor:
    """A stored tensor, of a weight that a tensor group of a pipeline shards this rank's shard."""
    whole, module = load_param(file), engine.module
    partition = module.tensor_partitions.get(file.parent.name) if isinstance(module, Pipeline) else None
    if partition is None:
        return whole
    grid = cast("Any", module).mpu()
    return partition.take_shard(whole, grid.get_slice_parallel_rank(), grid.get_slice_parallel_world_size())


def _load_stage12(engine: Engine, names: dict[Any, str], zero: Path, topology: Topology, step: int | None) -> None:
    from deepspeed.utils.tensor_fragment import map_to_flat_opt_states

    optimizer = cast("ZeroStage12Optimizer", engine.optimizer)
    for group, parameters in zip(optimizer.optimizer.param_groups, param_groups(engine), strict=True):
        flat = group["params"][0]
        keys: set[str] = set()
        for parameter in parameters:
            if parameter._hp_mapping is not None:  # this rank holds a part of it
                parameter.load_hp_checkpoint_state(
                    zero / names[parameter], topology.tensor_parallel_rank, topology.tensor_parallel_size
                )
                held = parameter._hp_mapping.optim_fragment
                parameter._hp_mapping.optim_fragment = {_own_name(optimizer.optimizer, key): held[key] for key in held}
                keys |= set(parameter._hp_mapping.get_optim_state_keys())
        keys = keys or {_own_name(optimizer.optimizer, key) for key in _state_keys(zero / names[parameters[0]])}
        map_to_flat_opt_states(flat, parameters, optimizer.optimizer.state, keys)
        _set_step(optimizer.optimizer, flat, step)


def _state_keys(folder: Path) -> set[str]:
    """The optimizer's states of a parameter."""
    return {path.stem for path in folder.glob("*.pt")} - {WEIGHT, "step"}


_ADAGRAD_SUMS = {"sum", "exp_avg_sq"}
"""What torch's Adagrad and DeepSpeed's in host memory call their one state, the sum of all squared gradients."""


def _own_name(inner: Any, key: str) -> str:
    """The name that this optimizer has for a state of the checkpoint."""
    if key in _ADAGRAD_SUMS and "Adagrad" in type(inner).__name__:
        return "sum" if type(inner).__module__.startswith("torch.optim") else "exp_avg_sq"
    return key


def _load_stage3(optimizer: ZeroStage3Optimizer, names: dict[Any, str], zero: Path, step: int | None) -> None:
    """Sub-group by sub-group: memory holds the states of one."""
    for number, parameters in enumerate(optimizer.fp16_groups):
        flat: dict[str, Any] = {}
        for key in (WEIGHT, *sorted(_state_keys(zero / names[parameters[0]]))):
            slices = [
                optimizer.load_hp_checkpoint_state(str(zero / names[p]), key, param=p).clone() for p in parameters
            ]
            flat[_own_name(optimizer.optimizer, key)] = torch.cat(slices)
        master = flat.pop(WEIGHT)
        if step is not None:
            flat["step"] = step
        fill_sub_group(optimizer, number, master, flat)
        inner = optimizer.optimizer
        _set_step(inner, optimizer.fp32_partitioned_groups_flat[number], step)


def _load_stage0(engine: Engine, names: dict[Any, str], zero: Path, topology: Topology, step: int | None) -> None:
    """Whole masters and states on every rank: one flat vector a group (fused, 16 bit), or a tensor a parameter."""
    optimizer = engine.optimizer
    inner = engine.basic_optimizer
    masters = getattr(optimizer, "fp32_groups_flat", None)
    for g, parameters in enumerate(param_groups(engine)):
        for key in (WEIGHT, *sorted(_state_keys(zero / names[parameters[0]]))):
            tensors = [_local_part(p, zero / names[p] / f"{key}.pt", engine, topology) for p in parameters]
            targets = [torch.cat([t.flatten() for t in tensors])] if masters is not None else tensors
            for target, owner in zip(targets, inner.param_groups[g]["params"], strict=True):
                if key == WEIGHT:
                    owner.data.copy_(target)
                else:
                    inner.state[owner][_own_name(inner, key)] = target.to(owner.device, copy=True)
            if key == WEIGHT:
                for parameter, tensor in zip(parameters, tensors, strict=True):
                    parameter.data.copy_(tensor)
        for owner in inner.param_groups[g]["params"]:
            _set_step(inner, owner, step)


def _local_part(parameter: Any, file: Path, engine: Engine, topology: Topology) -> torch.Tensor:
    """This rank's part of a stored tensor: all of it, or its shard of a tensor degree."""
    from deepspeed.checkpoint.universal_checkpoint import _resolve_autotp_partition

    whole = _load_param(file, engine)
    if topology.pipeline_parallel_size > 1:
        return whole
    part = _resolve_autotp_partition(parameter, {}, whole, topology.tensor_parallel_rank, topology.tensor_parallel_size)
    return (whole if part is None else part).reshape(getattr(parameter, "ds_shape", parameter.shape))


def _set_step(inner: Any, owner: Any, step: int | None) -> None:
    """Optimizers of torch count steps in a tensor, DeepSpeed's in an int."""
    if step is None:
        return
    in_tensor = type(inner).__module__.startswith("torch.optim")
    inner.state[owner]["step"] = torch.tensor(float(step)) if in_tensor else step


def _load_frozen(engine: Engine, names: dict[Any, str], zero: Path, topology: Topology) -> None:
    """Frozen parameters and saved buffers; one that the checkpoint lacks keeps its value."""
    for parameter in engine.module.parameters():
        file = zero / names[parameter] / f"{WEIGHT}.pt"
        if parameter.requires_grad or not parameter.is_floating_point() or not file.is_file():
            continue
        is_sharded = hasattr(parameter, "ds_id")
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=is_sharded), torch.no_grad():
            if not is_sharded or topology.rank == 0:
                parameter.copy_(_local_part(parameter, file, engine, topology))
    for name, buffer in engine.module.named_buffers():
        file = zero / name / f"{WEIGHT}.pt"
        if file.is_file():
            buffer.copy_(load_param(file))


def _restore_options(engine: Engine, names: dict[Any, str], saved_groups: list[dict[str, Any]]) -> None:
    """Give each group the saved settings of its first parameter, where this optimizer knows them."""
    options_by_name = {name: group["options"] for group in saved_groups for name in group["names"]}
    for group, parameters in zip(engine.basic_optimizer.param_groups, param_groups(engine), strict=True):
        options = options_by_name.get(names[parameters[0]], {}) if parameters else {}
        group.update({k: tuple(v) if isinstance(v, list) else v for k, v in options.items() if k in group})


def _restore_counters(engine: Engine, universal: Path, dtype: str) -> None:
    """Steps, schedule, and the loss scale between runs in fp16."""
    head = load_shard(universal / "mp_rank_00_model_states.pt")
    engine.global_steps = head["global_steps"]
    engine.global_samples = head["global_samples"]
    engine.skipped_steps = head["skipped_steps"]
    if engine.lr_scheduler is not None and head.get("lr_scheduler") is not None:
        state = head["lr_scheduler"]
        if isinstance(engine.lr_scheduler, LambdaLR):  # one function a group, without a state; groups may have changed
            state = {**state, "lr_lambdas": [None] * len(engine.lr_scheduler.lr_lambdas)}
        engine.lr_scheduler.load_state_dict(state)
    if engine.fp16_enabled() and dtype == "float16":
        _restore_scale(engine.optimizer, universal)


def _restore_scale(optimizer: EngineOptimizer, universal: Path) -> None:
    state = load_shard(universal / "zero" / "optimizer_state.pt")
    scaler = getattr(optimizer, "loss_scaler", None) or getattr(optimizer, "loss_scale_config", None)
    saved_scaler = vars(state["loss_scaler"]) if "loss_scaler" in state else state
    for field in ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis"):
        if field in saved_scaler and hasattr(scaler, field):
            setattr(scaler, field, saved_scaler[field])
