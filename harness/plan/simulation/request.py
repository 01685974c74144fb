# SPDX-License-Identifier: Apache-2.0
"""The request for a simulation: the run with two micro-batches a step, and the model with fewer layers if requested."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.facts.layer_keys import LAYER_KEYS, find_key, reduce_layers
from harness.facts.model_lookup import find_configuration
from harness.plan.plan_usage import usage_error
from harness.plan.planner import Plan
from harness.plan.simulation.clock_rates import clock_rates
from harness.run.resolved_run import ResolvedRun

ACCUMULATION = 2
"""Micro-batches of a simulated step: the first writes gradients, the second adds to them, and others repeat it."""
_REFUSED: tuple[tuple[Callable[[ResolvedRun, Mapping[str, Any]], Any], str, str], ...] = (
    (
        lambda run, _: run.spec.train.torch_compile,
        "`train.torch_compile`: nothing can be compiled without the GPU, and the memory would be that of the"
        " uncompiled model",
        "give `--set train.torch_compile=false` to simulate the run without it",
    ),
    (
        lambda _, ds_config: (ds_config.get("compile") or {}).get("deepcompile"),
        "DeepCompile: nothing can be compiled without the GPU",
        "switch `compile.deepcompile` off to simulate the run without it",
    ),
    (
        lambda run, _: run.attn_implementation in ("flash_attention_2", "flash_attention_3"),
        "flash attention of a package (`model.attn_implementation`), whose kernels read values",
        "give `--set model.attn_implementation=sdpa`, or `sdpa_varlen` for packed rows: torch's own flash kernel",
    ),
    (
        lambda run, _: run.parallel_dims.tensor > 1 and run.parallel_dims.pipeline > 1,
        "tensor ranks inside pipeline stages, whose messages are not simulated",
        "simulate one of the two degrees",
    ),
    (
        lambda run, _: run.spec.model.quantization,
        "`model.quantization`: bitsandbytes has no kernels for a GPU that is not there",
        "give `--set model.quantization=null` to simulate adapters over weights of 16 bits",
    ),
    (
        lambda run, _: run.spec.model.trust_remote_code,
        "`model.trust_remote_code`: a plan does not run the model's own code",
        "simulate a family that `transformers` has",
    ),
)
"""(is it so, why it cannot be simulated, what to do)."""


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """`body` is what the worker reads. `layers`: those of the model; `simulated_layers`: those of the request."""

    body: Mapping[str, Any]
    rank: int
    layers: int
    simulated_layers: int


def build_request(
    plan: Plan,
    ds_config: Mapping[str, Any],
    base_dir: Path,
    *,
    rank: int = 0,
    layers: int | None = None,
    races: bool = False,
    trace: bool = False,
) -> SimulationRequest:
    """The request for one rank. `races`: to look for races, too; `trace`: with the trace of a step.

    Raises UserError (MM007) for a rank or a number of layers that does not exist, a model without configuration, a run
    whose ranks or micro-batch are unknown, and what cannot be simulated.
    """
    run, settings, memory = plan.run, plan.settings, plan.memory
    for is_so, reason, fix in _REFUSED:
        if is_so(run, ds_config):
            raise usage_error(f"this run cannot be simulated with {reason}", fix)
    if settings is None or memory is None:
        raise usage_error("the run has no known ranks, micro-batch or model", "see the findings of `harness plan`")
    config = configuration_of(plan, base_dir)
    if not 0 <= rank < settings.world_size:
        raise usage_error(f"there is no rank {rank}", f"give `--rank` a number from 0 to {settings.world_size - 1}")
    key = find_key(config, LAYER_KEYS)
    whole = int(config[key]) if key is not None else 0
    if layers is not None and (key is None or not 1 <= layers <= whole):
        raise usage_error(
            f"the model has no {layers} layers", f"give `--layers` a number from {fewest_layers(plan)} to {whole}"
        )
    if layers is not None:
        config = reduce_layers(config, layers)
    per_host, rates = memory.ranks_per_host, clock_rates(plan)
    body = {
        "run": run.to_json(),
        "ds_config": _with_accumulation(ds_config, settings.data_parallel_size),
        "model_config": config,
        "rank": {
            "rank": rank,
            "world_size": settings.world_size,
            "local_rank": rank % per_host,
            "ranks_per_host": per_host,
        },
        "capacity": _capacity(plan),
        "races": races,
        "pin_memory_backend": "native" if settings.pins_natively else "torch",
        "rates": None if rates is None else rates.to_json(),
        "trace": trace,
    }
    return SimulationRequest(body, rank, whole, whole if layers is None else layers)


def configuration_of(plan: Plan, base_dir: Path) -> dict[str, Any]:
    """The fields of the model's `config.json`. Raises UserError (MM007) if there is none."""
    model = plan.run.spec.model
    config = find_configuration(model.name_or_path, model.config, base_dir, model.revision)
    if config is None:
        raise usage_error(
            f"`{model.name_or_path or 'the model'}` has no `config.json` here and is not in the catalogue",
            "name a folder that has its `config.json`",
        )
    return config


def fewest_layers(plan: Plan) -> int:
    """The fewest layers from which the whole model follows by a straight line: twice those gathered at once."""
    settings, model = plan.settings, plan.model
    if settings is None or model is None or plan.memory is None or settings.stage < 3:
        return 4
    gathered = max((item.bytes for item in plan.memory.items_of("gpu") if item.kind == "gathered"), default=0)
    layers = gathered // settings.param_bytes / max(1, model.largest_layer_parameters)
    return max(4, 2 * math.ceil(layers))


def _with_accumulation(ds_config: Mapping[str, Any], data_parallel_size: int) -> dict[str, Any]:
    config = dict(ds_config)
    micro = int(config["train_micro_batch_size_per_gpu"])
    steps = min(int(config.get("gradient_accumulation_steps") or 1), ACCUMULATION)
    config["gradient_accumulation_steps"] = steps
    if "train_batch_size" in config:  # absent with AutoTP: DeepSpeed would compare it with all ranks
        config["train_batch_size"] = micro * steps * data_parallel_size
    return config


def _capacity(plan: Plan) -> dict[str, int]:
    """Bytes a rank: of the GPU without the CUDA context and NCCL's buffers, which are no tensors, and of the host."""
    memory, capacity = plan.memory, plan.capacity
    result: dict[str, int] = {}
    if memory is not None and capacity.gpu and not memory.pooled:
        outside = sum(item.bytes for item in memory.items_of("gpu") if item.kind in ("context", "nccl"))
        result["cuda"] = capacity.gpu - outside
    if memory is not None and capacity.host:
        result["cpu"] = capacity.host // memory.ranks_per_host
    return result
