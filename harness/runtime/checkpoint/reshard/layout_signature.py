# SPDX-License-Identifier: Apache-2.0
"""The layout of an engine's shards. The manifest records it, and a resume compares it with its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.pipeline.parameter_names import to_transformers_parameter
from harness.runtime.topology import Topology

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_LABELS = {
    "zero_stage": "ZeRO stage",
    "dtype": "weights in",
    "sharers": "ranks that share the optimizer's states",
    "tensor": "tensor degree",
    "pipeline": "pipeline stages",
    "optimizer_device": "optimizer on",
    "sub_group_size": "`sub_group_size`",
    "round_robin_gradients": "`round_robin_gradients`",
    "wrapper": "optimizer wrapper",
    "groups": "parameter groups",
}


def describe_layout(
    engine: Engine, topology: Topology, config: PreTrainedConfig | None, distributed: Distributed
) -> dict[str, Any]:
    """Plain values. `groups`: for each pipeline stage, the names of the parameters (as `transformers` has them) of each
    optimizer group. `config`: the model's, which a pipeline's names need. A collective of all ranks."""
    stage, offload = engine.zero_optimization_stage(), engine.zero_offload_optimizer()
    param = next(p for p in engine.module.parameters() if p.requires_grad)
    return {
        "zero_stage": int(stage),
        "dtype": str(param.dtype).removeprefix("torch."),
        "sharers": topology.data_parallel_size * topology.sequence_parallel_size if stage else 1,
        "tensor": topology.tensor_parallel_size,
        "pipeline": topology.pipeline_parallel_size,
        "optimizer_device": str(getattr(offload.device, "value", offload.device)) if offload else "none",
        "sub_group_size": int(engine.zero_sub_group_size()) if stage == 3 else None,
        "round_robin_gradients": bool(engine.zero_round_robin_gradients()) if stage in (1, 2) else None,
        "wrapper": type(engine.optimizer).__name__,
        "groups": _gather_stages(_names_by_group(engine, config), topology, distributed),
    }


def layout_changes(saved: dict[str, Any], current: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(label, saved value, current value) of each change. After any change, DeepSpeed's own shards do not fit."""
    keys = [key for key in _LABELS if key in saved and saved[key] != current[key]]
    return [(_LABELS[key], _short_value(saved[key]), _short_value(current[key])) for key in keys]


def _short_value(value: Any) -> Any:
    return "others" if isinstance(value, list) else value


def param_names(engine: Engine, config: PreTrainedConfig | None) -> dict[Any, str]:
    """Parameter -> its name in `transformers`, for the parameters of this rank; a tied one under its first name."""
    names = {p: name for name, p in reversed(list(engine.module.named_parameters()))}
    if hasattr(engine.module, "tied_modules"):
        return {p: to_transformers_parameter(cast("PreTrainedConfig", config), name) for p, name in names.items()}
    return names


def param_groups(engine: Engine) -> list[list[Any]]:
    """The model's own parameters by optimizer group, in the engine's order."""
    optimizer = engine.optimizer
    for attribute in ("bit16_groups", "bf16_groups", "fp16_groups"):
        groups = getattr(optimizer, attribute, None)
        if groups is not None:
            return (
                _merge_sub_groups(optimizer, groups)
                if engine.zero_optimization_stage() == 3
                else [list(g) for g in groups]
            )
    return [list(group["params"]) for group in optimizer.param_groups]


def _merge_sub_groups(optimizer: Any, sub_groups: list[list[Any]]) -> list[list[Any]]:
    groups: list[list[Any]] = [[] for _ in optimizer.optimizer.param_groups]
    for i, parameters in enumerate(sub_groups):
        groups[optimizer.sub_group_to_group_id[i]] += list(parameters)
    return groups


def _names_by_group(engine: Engine, config: PreTrainedConfig | None) -> list[list[str]]:
    names = param_names(engine, config)
    return [[names[p] for p in group] for group in param_groups(engine)]


def _gather_stages(names: list[list[str]], topology: Topology, distributed: Distributed) -> list[list[list[str]]]:
    """Names by stage, from the first rank of each."""
    if topology.pipeline_parallel_size == 1:
        return [names]
    names_by_rank = distributed.all_gather_object(names)
    return names_by_rank[:: topology.world_size // topology.pipeline_parallel_size]
