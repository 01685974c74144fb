# SPDX-License-Identifier: Apache-2.0
"""The layout of an engine's optimizer: the tensors that it steps, and the place of each parameter in them.

| Optimizer | Tensors that are stepped | Place of a parameter |
| --- | --- | --- |
| stage 0, fp32 | the parameters | itself |
| stage 0, fp16 and bf16 | `fp32_groups_flat`, or one copy a parameter | its offset in the flat weights |
| stages 1 and 2 | `single_partition_of_fp32_groups`, this rank's slice of a group | its offset in the flat weights |
| `BF16_Optimizer` | `fp32_groups_flat_partition`, likewise | its offset in the flat weights |
| stage 3 | `fp32_partitioned_groups_flat`, slices of all parameters of a sub-group | after those before it |

The offset is read from the storage of the weights, not from DeepSpeed's own tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from harness.engine_witness.number_formats import roundoff_of


class NotObservable(Exception):
    """The reason why the witness does not look at an engine."""


@dataclass(frozen=True)
class Place:
    """Elements `begin` to `end` of a flattened parameter, from `offset` on in the tensor `flat`."""

    parameter: torch.nn.Parameter
    flat: torch.Tensor
    group: int
    """Of the parameter groups of the optimizer that steps."""
    begin: int
    end: int
    offset: int


@dataclass
class EngineLayout:
    """The parameters that the optimizer of an engine steps on this rank."""

    kind: str
    """Such as "stage 2"."""
    outer: Any
    """The optimizer whose `step` the engine calls."""
    bases: list[Any] = field(default_factory=list)
    """The optimizers that compute, which may be the outer one."""
    places: dict[int, Place] = field(default_factory=dict)
    """By id of a parameter. A parameter of which this rank steps nothing has an empty place."""
    limits: list[str] = field(default_factory=list)
    checks_factor: bool = True
    """Is the factor between loss and gradients that of `engine.backward`? A pipeline divides the loss itself."""
    checks_norm: bool = True
    """Is the norm that clips that of the gradients of the data-parallel group?"""
    roundoff: float = 0.0
    """Unit roundoff of the number formats in which gradients are summed, as the engine's configuration names them."""
    autocast: torch.dtype | None = None
    """The format of `torch_autocast`, in which gradients are reduced and stage 3 gathers weights."""
    checks_weights: bool = True
    """Does the model compute with the stepped weights, rounded to its own format?"""


def read_layout(engine: Any, optimizer: Any) -> EngineLayout:
    """Raises NotObservable."""
    own = vars(engine)
    if own.get("zenflow"):
        raise NotObservable("ZenFlow steps parts of the weights at other times")
    if "SuperOffload" in type(optimizer).__name__:
        raise NotObservable("SuperOffload steps in another process")
    if _call(engine, "is_deepcompile_enabled"):
        raise NotObservable("DeepCompile reduces gradients inside the compiled graph")
    if _call(engine, "zero_quantized_gradients"):
        raise NotObservable("gradients are reduced in 4 bits (`zero_quantized_gradients`)")
    layout = _layout_of(optimizer)
    if any("Muon" in type(base).__name__ for base in layout.bases):
        raise NotObservable("Muon makes its update from the gradients before the optimizer is stepped")
    if not layout.places:
        raise NotObservable(f"no parameter was found in {type(optimizer).__name__}")
    _add_limits(layout, engine)
    _add_formats(layout, engine, optimizer)
    return layout


def _add_limits(layout: EngineLayout, engine: Any) -> None:
    own = vars(engine)
    if (_call(engine, "autotp_size") or 1) > 1 or _size(own.get("mpu"), "get_model_parallel_world_size") > 1:
        layout.checks_norm = False
        layout.limits.append("clipping: the norm is over tensor-parallel ranks, too")
    if own.get("pipeline_parallelism"):
        layout.checks_norm = layout.checks_factor = False
        layout.limits.append("the division by accumulation steps and clipping under pipeline parallelism")
    if own.get("has_moe_layers"):
        layout.checks_norm = False
        layout.limits.append("experts, and clipping of models that have them")
    if own.get("quantizer") or _call(engine, "zero_quantized_weights") or own.get("compression_scheduler"):
        layout.checks_weights = False


def _add_formats(layout: EngineLayout, engine: Any, optimizer: Any) -> None:
    if _call(engine, "torch_autocast_enabled"):
        layout.autocast = _call(engine, "torch_autocast_dtype")
    dtypes = [
        getattr(optimizer, "communication_data_type", None) or _property(engine, "communication_data_type"),
        getattr(optimizer, "gradient_accumulation_dtype", None),
        getattr(optimizer, "grad_acc_dtype", None),
        layout.autocast,
    ]
    layout.roundoff = max((roundoff_of(dtype) for dtype in dtypes if isinstance(dtype, torch.dtype)), default=0.0)


def _layout_of(optimizer: Any) -> EngineLayout:
    names = dir(type(optimizer)) + list(vars(optimizer))
    if "fp32_partitioned_groups_flat" in names:
        return _stage3(optimizer)
    if "single_partition_of_fp32_groups" in names:
        stage = 2 if getattr(optimizer, "partition_gradients", True) else 1
        return _partitions(
            f"stage {stage}",
            optimizer,
            optimizer.bit16_groups,
            optimizer.bit16_groups_flat,
            optimizer.single_partition_of_fp32_groups,
        )
    if "fp32_groups_flat_partition" in names:
        return _partitions(
            "BF16_Optimizer",
            optimizer,
            optimizer.bf16_groups,
            optimizer.bf16_groups_flat,
            optimizer.fp32_groups_flat_partition,
        )
    if "fp32_groups_flat" in names:
        return _partitions(
            "stage 0", optimizer, optimizer.fp16_groups, optimizer.fp16_groups_flat, optimizer.fp32_groups_flat
        )
    if "fp32_groups" in names:
        return _copies(optimizer)
    if isinstance(optimizer, torch.optim.Optimizer):
        layout = EngineLayout("stage 0", optimizer, [optimizer])
        for group, values in enumerate(optimizer.param_groups):
            for parameter in values["params"]:
                layout.places[id(parameter)] = Place(parameter, parameter, group, 0, parameter.numel(), 0)
        return layout
    raise NotObservable(f"{type(optimizer).__name__} is not known")


def _stage3(optimizer: Any) -> EngineLayout:
    layout = EngineLayout("stage 3", optimizer, [optimizer.optimizer])
    backup = vars(optimizer).get("backup_optimizer")
    if backup is not None:
        layout.bases.append(backup)
    for number, parameters in enumerate(optimizer.fp16_groups):
        flat, group, offset = (
            optimizer.fp32_partitioned_groups_flat[number],
            optimizer.sub_group_to_group_id[number],
            0,
        )
        for parameter in parameters:
            rank = dist.get_rank(parameter.ds_process_group)
            size, numel = int(parameter.partition_numel()), int(parameter.ds_numel)
            begin = min(rank * size, numel)
            layout.places[id(parameter)] = Place(parameter, flat, group, begin, min(begin + size, numel), offset)
            offset += size
    return layout


def _partitions(
    kind: str, optimizer: Any, groups: Any, weights: Sequence[torch.Tensor], masters: Sequence[torch.Tensor]
) -> EngineLayout:
    """Each group is one flat tensor of weights, and `masters` are this rank's slices of them, or all of them."""
    layout = EngineLayout(kind, optimizer, [optimizer.optimizer])
    process_groups = getattr(optimizer, "real_dp_process_group", None)
    for group, (parameters, flat, master) in enumerate(zip(groups, weights, masters, strict=True)):
        is_whole = master.numel() == flat.numel() and kind == "stage 0"
        rank = 0 if is_whole else dist.get_rank(process_groups[group] if process_groups else None)
        low, high = rank * master.numel(), (rank + 1) * master.numel()
        for parameter in parameters:
            if parameter.untyped_storage().data_ptr() != flat.untyped_storage().data_ptr():
                raise NotObservable("the weights are not in the flat tensor of their group")
            start = parameter.storage_offset() - flat.storage_offset()
            end = start + parameter.numel()
            begin, stop = max(start, low), min(end, high)
            if begin >= stop:
                begin = stop = low
                layout.places[id(parameter)] = Place(parameter, master, group, 0, 0, 0)
                continue
            layout.places[id(parameter)] = Place(parameter, master, group, begin - start, stop - start, begin - low)
    return layout


def _copies(optimizer: Any) -> EngineLayout:
    """One fp32 copy of each parameter."""
    layout = EngineLayout("stage 0", optimizer, [optimizer.optimizer])
    for group, (parameters, copies) in enumerate(zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)):
        for parameter, copy in zip(parameters, copies, strict=True):
            layout.places[id(parameter)] = Place(parameter, copy, group, 0, parameter.numel(), 0)
    return layout


def compared_parameters(module: torch.nn.Module, layout: EngineLayout) -> dict[str, torch.nn.Parameter]:
    """Trained parameters of the layout, by name.

    Left out: experts, which have a data-parallel group of their own, and weights that stages of a pipeline share, whose
    gradient is summed over stages.
    """
    tied = vars(module).get("tied_comms") or {}
    shared = {id(p) for entry in tied.values() for p in entry["module"].parameters()} if tied else set[int]()
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
        and id(parameter) in layout.places
        and id(parameter) not in shared
        and getattr(parameter, "allreduce", True) is not False
    }


def data_parallel_group(engine: Any) -> tuple[Any, float]:
    """The ranks over which gradients are summed, and the divisor of the sum: their number over that of a sequence.

    Of an engine without a process group: (None, 1).
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None, 1.0
    own = vars(engine)
    group = own.get("seq_data_parallel_group")
    mpu = own.get("mpu")
    if own.get("pipeline_parallelism") and mpu is not None:
        group = mpu.get_data_parallel_group()
    if group is None:
        group = own.get("data_parallel_group")
    size = dist.get_world_size(group)
    if not own.get("gradient_average", True):
        return group, 1.0
    return group, size / (own.get("sequence_parallel_size") or 1)


def _call(engine: Any, name: str) -> Any:
    method = getattr(type(engine), name, None)
    try:
        return method(engine) if method is not None else None
    except Exception:  # a release that has the method and not what it reads
        return None


def _property(engine: Any, name: str) -> Any:
    try:
        return getattr(engine, name) if hasattr(type(engine), name) else None
    except Exception:  # as above
        return None


def _size(mpu: Any, name: str) -> int:
    try:
        return int(getattr(mpu, name)()) if mpu is not None and hasattr(mpu, name) else 1
    except Exception:  # as above
        return 1
