# SPDX-License-Identifier: Apache-2.0
"""The installed DeepSpeed's storage of a JSON's values: its pydantic models, and the attributes of its config."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

MODELS = {
    "zero_optimization": "deepspeed.runtime.zero.config:DeepSpeedZeroConfig",
    "zero_optimization.offload_optimizer": "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadOptimizerConfig",
    "zero_optimization.offload_param": "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadParamConfig",
    "zero_optimization.leaf_module": "deepspeed.runtime.zero.leaf_module_config:DeepSpeedZeroLeafModuleConfig",
    "zero_optimization.zenflow": "deepspeed.runtime.zenflow.zenflow_config:ZenFlowConfig",
    "bf16": "deepspeed.runtime.precision_config:DeepSpeedBF16Config",
    "fp16": "deepspeed.runtime.precision_config:DeepSpeedFP16Config",
    "tensor_parallel": "deepspeed.runtime.tensor_parallel.config:TPTrainingConfig",
    "tensor_parallel.tp": "deepspeed.runtime.tensor_parallel.config:TPConfig",
    "compile": "deepspeed.compile.config:CompileConfig",
    "hybrid_engine": "deepspeed.runtime.config:HybridEngineConfig",
    "comms_logger": "deepspeed.comm.config:CommsLoggerConfig",
    "tensorboard": "deepspeed.monitor.config:TensorBoardConfig",
    "wandb": "deepspeed.monitor.config:WandbConfig",
    "csv_monitor": "deepspeed.monitor.config:CSVConfig",
    "comet": "deepspeed.monitor.config:CometConfig",
    "timers.throughput": "deepspeed.utils.config:DeepSpeedThroughputTimerConfig",
    "weight_quantization": "deepspeed.inference.config:WeightQuantConfig",
}
READ: dict[str, Callable[[Any], Any]] = {
    "": lambda c: c,
    "zero_optimization": lambda c: c.zero_config,
    "zero_optimization.offload_optimizer": lambda c: c.zero_config.offload_optimizer,
    "zero_optimization.offload_param": lambda c: c.zero_config.offload_param,
    "zero_optimization.leaf_module": lambda c: c.zero_config.leaf_module,
    "zero_optimization.zenflow": lambda c: c.zero_config.zenflow,
    "bf16": lambda c: c.bfloat16_config,
    "fp16": lambda c: c.float16_config,
    "tensor_parallel": lambda c: c.tensor_parallel_config,
    "tensor_parallel.tp": lambda c: c.tensor_parallel_config.tensor_parallel,
    "compile": lambda c: c.compile_config,
    "hybrid_engine": lambda c: c.hybrid_engine,
    "comms_logger": lambda c: getattr(c.comms_config, "comms_logger", None),
    "tensorboard": lambda c: c.monitor_config.tensorboard,
    "wandb": lambda c: c.monitor_config.wandb,
    "csv_monitor": lambda c: c.monitor_config.csv_monitor,
    "comet": lambda c: c.monitor_config.comet,
    "timers.throughput": lambda c: c.timers_config,
    "weight_quantization": lambda c: c.weight_quantization_config,
    "activation_checkpointing": lambda c: c.activation_checkpointing_config,
    "aio": lambda c: c.aio_config,
    "autotuning": lambda c: c.autotuning_config,
    "checkpoint.writer": lambda c: c.checkpoint_config["writer"],
    "data_efficiency": lambda c: c.data_efficiency_config,
    "data_efficiency.data_sampling": lambda c: c.data_efficiency_config["data_sampling"],
    "data_efficiency.data_sampling.curriculum_learning": (
        lambda c: c.data_efficiency_config["data_sampling"]["curriculum_learning"]
    ),
    "data_efficiency.data_sampling.dynamic_batching": (
        lambda c: c.data_efficiency_config["data_sampling"]["dynamic_batching"]
    ),
    "expert_parallel": lambda c: c.expert_parallel_config,
    "flops_profiler": lambda c: c.flops_profiler_config,
    "pipeline": lambda c: c.pipeline,
}
"""From a DeepSpeedConfig to what holds a block's values, as attributes or as a dict."""


def model(path: str) -> Any:
    """The pydantic model of a typed block."""
    module, _, name = MODELS[path].partition(":")
    return getattr(importlib.import_module(module), name)


def fields(path: str) -> Iterator[tuple[str, str, Any]]:
    """(field, its name in JSON, pydantic's description of it)."""
    for name, field in model(path).model_fields.items():
        yield name, field.alias or name, field
