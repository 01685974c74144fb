# SPDX-License-Identifier: Apache-2.0
"""Helpers of the planner's tests: a run spec from a few arguments."""

from __future__ import annotations

from typing import Any

from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.planner import Plan, make_plan
from harness.plan.settings.plan_settings import PlanSettings, settings_of
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.run_spec import RunSpec

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 259,
}


def run_of(which: str | dict[str, Any] = "llama-3.1-70b", ranks: int | None = 8, **sections: Any) -> ResolvedRun:
    """A run of one host unless `cluster` says otherwise; sections are merged over bf16, micro-batch 1, ZeRO-3, and
    DeepSpeed's defaults where they are silent.
    """
    named = {"config": which} if isinstance(which, dict) else {"name_or_path": which}
    raw: dict[str, Any] = {
        "model": named,
        "data": {"max_length": 4096},
        "train": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "gradient_checkpointing": True},
        "precision": {"bf16": True},
        "zero": {"stage": 3},
        "cluster": {"gpu": "H100", "host_memory": "2TB", "gpus_per_node": 8},
        "tuned_defaults": False,
    }
    for name, values in sections.items():
        raw[name] = {**raw.get(name, {}), **values} if isinstance(values, dict) else values
    return resolve_run(RunSpec.model_validate(raw), world_size=ranks)


def plan_of(*args: Any, **kwargs: Any) -> Plan:
    return make_plan(run_of(*args, **kwargs))


def settings(*args: Any, **kwargs: Any) -> PlanSettings:
    result = settings_of(run_of(*args, **kwargs))
    assert result is not None
    return result


def offload(optimizer: str = "none", parameters: str = "none", stage: int = 3, **more: Any) -> dict[str, Any]:
    """The `zero` section with these places."""
    path = {"nvme_path": "/nvme"}
    zero: dict[str, Any] = {"stage": stage, **more}
    if optimizer != "none":
        zero["offload_optimizer"] = {"device": optimizer, **(path if optimizer == "nvme" else {})}
    if parameters != "none":
        zero["offload_param"] = {"device": parameters, **(path if parameters == "nvme" else {})}
    return zero


def memory_of_run(*args: Any, **kwargs: Any) -> MemoryEstimate:
    """The memory of a plan that is known to have one."""
    memory = plan_of(*args, **kwargs).memory
    assert memory is not None
    return memory
