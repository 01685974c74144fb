# SPDX-License-Identifier: Apache-2.0
"""Observed settings of an engine after `deepspeed.initialize`: records them, judges nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from deepspeed.comm import comm
from deepspeed.utils import groups

BLOCKS = {
    "zero_optimization": "zero_config",
    "fp16": "float16_config",
    "bf16": "bfloat16_config",
    "tensor_parallel": "tensor_parallel_config",
    "compile": "compile_config",
    "timers": "timers_config",
    "hybrid_engine": "hybrid_engine",
    "comms_logger": "comms_config",
    "activation_checkpointing": "activation_checkpointing_config",
    "flops_profiler": "flops_profiler_config",
    "aio": "aio_config",
    "autotuning": "autotuning_config",
    "pipeline": "pipeline",
}
SCALARS = """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping steps_per_print
    dump_state memory_breakdown wall_clock_breakdown communication_data_type seq_parallel_communication_data_type
    prescale_gradients gradient_predivide_factor gradient_allreduce_op zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer dataloader_drop_last disable_allgather managed_gradient_accumulation
    disable_python_gc log_level""".split()


def effective(engine: Any) -> dict[str, Any]:
    """The configuration as DeepSpeed understood it, under the keys of its JSON."""
    config = engine._config
    found = {name: plain(getattr(config, name, None)) for name in SCALARS}
    for key, attribute in BLOCKS.items():
        found[key] = plain(getattr(config, attribute, None))
    found["optimizer"] = {"type": config.optimizer_name, "params": plain(config.optimizer_params)}
    found["scheduler"] = {"type": config.scheduler_name, "params": plain(config.scheduler_params)}
    found["torch_autocast"] = {
        "enabled": plain(getattr(config, "torch_autocast_enabled", None)),
        "dtype": plain(getattr(config, "torch_autocast_dtype", None)),
    }
    found["data_types"] = {
        name: plain(getattr(config, name, None)) for name in ("grad_accum_dtype", "param_dtype", "buffer_dtype")
    }
    found["checkpoint"] = {
        "load_universal": plain(config.load_universal_checkpoint),
        "use_node_local_storage": plain(config.use_node_local_storage),
    }
    return found


def plain(value: Any) -> Any:  # noqa: PLR0911
    """A value as JSON can say it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "model_dump"):
        # the names of the JSON, not those of the class
        return plain({**vars(value), **value.model_dump(by_alias=True, warnings=False)})
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if hasattr(value, "value") and not callable(value.value):
        return plain(value.value)
    if hasattr(value, "__dict__") and type(value).__module__.startswith("deepspeed"):
        return {k: plain(v) for k, v in vars(value).items() if not k.startswith("_")}
    return str(value)


def engine_facts(engine: Any) -> dict[str, Any]:
    """Stage, classes, devices, dtypes, degrees and batch, each as the engine itself has it; None where it fails."""
    optimizer = engine.optimizer
    questions: dict[str, Callable[[], Any]] = {
        "engine": lambda: type(engine).__name__,
        "stage": lambda: int(engine.zero_optimization_stage()),
        "optimizer": lambda: type(optimizer).__name__ if optimizer is not None else None,
        "base_optimizer": lambda: type(getattr(optimizer, "optimizer", optimizer)).__name__,
        "offload_optimizer": lambda: offload_of_optimizer(optimizer),
        "offload_param": lambda: offload_of_params(optimizer),
        "partial_offload": lambda: getattr(optimizer, "partial_offload", None),
        "dtypes": lambda: sorted({str(p.dtype).removeprefix("torch.") for p in engine.module.parameters()}),
        "communication_data_type": lambda: plain(engine.communication_data_type),
        "grad_accum_dtype": lambda: plain(getattr(optimizer, "gradient_accumulation_dtype", None)),
        "tensor": lambda: tensor_degree(engine),
        "data": lambda: data_degree(engine),
        "pipeline": lambda: int(getattr(engine, "num_stages", 1)),
        "sequence": lambda: int(groups._get_sequence_parallel_world_size()),
        "micro": engine.train_micro_batch_size_per_gpu,
        "accumulation": engine.gradient_accumulation_steps,
        "global": engine.train_batch_size,
        "clipping": lambda: plain(engine.gradient_clipping()),
        "scheduler": lambda: type(engine.lr_scheduler).__name__ if engine.lr_scheduler else None,
        "autocast": lambda: autocast(engine),
        "compiled": lambda: bool(engine.is_compiled),
        "effective": lambda: effective(engine),
        "hyper": lambda: hyper(optimizer),
        "experts": lambda: expert_degree(engine),
        "masters": lambda: master_dtypes(optimizer),
        "hpz": lambda: hpz(optimizer),
        "comms_logger": lambda: bool(comm.comms_logger.enabled),
        "curriculum": lambda: bool(engine.curriculum_learning_enabled()),
    }
    facts: dict[str, Any] = {}
    for name, ask in questions.items():
        try:
            facts[name] = ask()
        except Exception as error:  # an attribute that this engine does not have is an answer too
            facts[name] = None
            facts.setdefault("unanswered", {})[name] = f"{type(error).__name__}: {error}"[:200]
    return facts


def autocast(engine: Any) -> list[Any]:
    """Whether `torch_autocast` is on, and its format; an old release knows nothing of it."""
    if not hasattr(engine, "torch_autocast_enabled"):
        return [False, None]
    return [bool(engine.torch_autocast_enabled()), plain(engine.torch_autocast_dtype())]


def hyper(optimizer: Any) -> dict[str, Any]:
    """The numbers of the first parameter group."""
    if optimizer is None or not optimizer.param_groups:
        return {}
    return {k: plain(v) for k, v in optimizer.param_groups[0].items() if k != "params" and not torch.is_tensor(v)}


def expert_degree(engine: Any) -> int:
    """Ranks that share a layer's experts under AutoEP; 0 where there is no such layer."""
    from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer

    layers = [m for m in engine.module.modules() if isinstance(m, AutoEPMoELayer)]
    return int(layers[0].ep_size) if layers else 0


def master_dtypes(optimizer: Any) -> list[str]:
    """Formats of the weights that the optimizer itself steps; those of the ZeRO optimizer's own shards where it has any."""
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition"):
        shards = getattr(optimizer, name, None)
        if shards:
            return sorted({str(s.dtype).removeprefix("torch.") for s in shards})
    return []


def hpz(optimizer: Any) -> int:
    """Ranks that share ZeRO++'s secondary partition; 1 is none."""
    group = getattr(optimizer, "zero_hpz_partition_size", 1)
    return int(group or 1)


def data_degree(engine: Any) -> int:
    """Where Ulysses gives the groups, DeepSpeed says only how many ranks share the data and the sequence together."""
    if engine.dp_world_size is not None:
        return int(engine.dp_world_size)
    return int(engine.seq_dp_world_size) // int(groups._get_sequence_parallel_world_size())


def tensor_degree(engine: Any) -> int:
    """Ranks that share a layer, 1 where no tensor group was made."""
    from deepspeed.runtime.pipe.engine import PipelineEngine

    if isinstance(engine, PipelineEngine):
        return 1
    if engine.mpu is not None and hasattr(engine.mpu, "get_tensor_model_parallel_world_size"):
        return int(engine.mpu.get_tensor_model_parallel_world_size())
    if hasattr(engine, "autotp_size") and engine.autotp_size() > 1:
        return int(groups.get_tensor_model_parallel_world_size())
    return 1


def offload_of_optimizer(optimizer: Any) -> str:
    """`none`, `cpu` or `nvme`: where the ZeRO optimizer really keeps its states."""
    if getattr(optimizer, "swap_optimizer", False):
        return "nvme"
    if getattr(optimizer, "offload_optimizer", False) or getattr(optimizer, "cpu_offload", False):
        return "cpu"
    return "none"


def offload_of_params(optimizer: Any) -> str:
    """`none`, `cpu` or `nvme`: where ZeRO-3 really keeps its shards."""
    if getattr(optimizer, "params_in_nvme_and_cpu", False):
        return "nvme"
    return "cpu" if getattr(optimizer, "offload_param", False) else "none"


def weights(engine: Any) -> dict[str, torch.Tensor]:
    """Full weights by name, as fp32 copies; gathers at stage 3."""
    import deepspeed

    parameters = dict(engine.module.named_parameters())
    if any(hasattr(p, "ds_id") for p in parameters.values()):
        found = {}
        for name, parameter in parameters.items():
            with deepspeed.zero.GatheredParameters([parameter]):
                found[name] = parameter.detach().float().clone()
        return found
    return {name: p.detach().float().clone() for name, p in parameters.items()}


def differences(now: dict[str, torch.Tensor], then: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, float]:
    """Largest change of each weight that changed (or -1 where its shape did), beyond rounding to `dtype`."""
    changed = {}
    for name, weight in now.items():
        before = then.get(name)
        if before is None:
            continue
        if before.shape != weight.shape:
            changed[name] = -1.0
        elif (gap := float((weight - before.to(dtype).float()).abs().max())) > 1e-6:
            changed[name] = gap
    return changed
