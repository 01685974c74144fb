"""From a few words to a run spec, and from one of the planner's choices back to the spec's keys. No files, no gates."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.facts.devices import DEVICES, Device, find_device
from harness.facts.model_lookup import ModelFacts, find_model
from harness.findings import Finding, Fix
from harness.plan.plan_settings import PlanSettings
from harness.plan.rates import parse_disks
from harness.plan.zero_partitions import partition_model
from harness.units import parse_bytes

NVME_PATH = "/local_nvme"
_MAX_GPUS = 1_000_000


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the command line says about a run that has no spec. `stage` None: the planner chooses."""

    model: str
    gpus: int
    gpu: str
    gpus_per_node: int | None = None
    host_memory: str | None = None
    nvme: str | None = None
    stage: int | None = None
    max_length: int = 4096
    tokens_per_step: int = 1 << 20

    @property
    def gpus_per_host(self) -> int:
        """GPUs a host: 8 unless it is said, and never more than there are."""
        return min(self.gpus_per_node or 8, self.gpus)

    @property
    def global_batch_size(self) -> int:
        """Sequences a step: as many as the tokens ask for, and the same number on every rank."""
        return self.gpus * max(1, round(self.tokens_per_step / self.max_length / self.gpus))


def validate_request(ask: PlanRequest) -> list[Finding]:
    """Everything that cannot be planned with, all at once."""
    found = [*validate_count("--gpus", ask.gpus, _MAX_GPUS), *validate_count("--max-length", ask.max_length, 1 << 24)]
    if ask.gpus_per_node is not None:
        found += validate_count("--gpus-per-node", ask.gpus_per_node, 1024)
    if not found and ask.gpus % ask.gpus_per_host:
        message = f"{ask.gpus} GPUs do not fill hosts of {ask.gpus_per_host}"
        found.append(Finding("MM007", "error", message, fix=Fix("give `--gpus-per-node`")))
    facts = find_model(ask.model, build=False)
    if facts.facts is None and "not among the families" not in facts.why_not:
        fix = Fix("name a folder with a `config.json`, or a model of the catalogue such as `llama-3.1-70b`")
        message = f"the model's size is not known: {facts.why_not}"
        found.append(Finding("MM001", "error", message[:400], "model.name_or_path", fix=fix))
    return [*found, *validate_gpu(ask.gpu), *_validate_sizes(ask)]


def validate_count(option: str, value: int, most: int) -> list[Finding]:
    """A count that no machine has."""
    if 1 <= value <= most:
        return []
    message = f"`{option} {value}` is not a number from 1 to {most:,}"
    return [Finding("MM007", "error", message, fix=Fix(f"give `{option}` a number of at least 1"))]


def validate_gpu(name: str) -> list[Finding]:
    """A kind of GPU that is not known."""
    if find_device(name) is not None:
        return []
    close = difflib.get_close_matches(name, DEVICES, n=1, cutoff=0.3)
    fix = Fix(f"give `--gpu {close[0]}`" if close else "choose one of " + ", ".join(DEVICES))
    notes = ("known kinds: " + ", ".join(DEVICES),)
    return [Finding("MM003", "error", f"GPU kind `{name}` is not known", notes=notes, fix=fix)]


def _validate_sizes(ask: PlanRequest) -> list[Finding]:
    found = []
    for option, text, parse in (("--host-memory", ask.host_memory, parse_bytes), ("--nvme", ask.nvme, parse_disks)):
        try:
            if text is not None and parse(text) <= 0:
                raise ValueError(f"`{text}` is nothing")
        except ValueError as error:
            fix = Fix("write a size such as `2TB`" + (" or `8x3.5TB`" if option == "--nvme" else ""))
            found.append(Finding("MM004", "error", f"`{option}`: {error}", fix=fix))
    return found


def spec_from_request(ask: PlanRequest) -> dict[str, Any]:
    """The run spec that is asked for, as plain values: ZeRO-3 and micro-batch 1 until something better is found."""
    cluster: dict[str, Any] = {
        "num_nodes": ask.gpus // ask.gpus_per_host,
        "gpus_per_node": ask.gpus_per_host,
        "gpu": ask.gpu,
    }
    cluster |= {"host_memory": ask.host_memory} if ask.host_memory else {}
    cluster |= {"nvme": ask.nvme} if ask.nvme else {}
    return {
        "model": {"name_or_path": ask.model, "attn_implementation": "sdpa"},
        "data": {"train": "data/*.jsonl", "max_length": ask.max_length},
        "train": {
            "num_train_epochs": 1,
            "per_device_train_batch_size": 1,
            "global_batch_size": ask.global_batch_size,
            "gradient_checkpointing": True,
        },
        "optimizer": {"learning_rate": 1e-5, "weight_decay": 0.1},
        "precision": {"bf16": True},
        "zero": {"stage": 3 if ask.stage is None else ask.stage},
        "cluster": cluster,
    }


def merge_changes(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with changes laid over them, section by section; a change to None takes a key away."""
    result = dict(raw)
    for key, value in changes.items():
        if isinstance(value, Mapping):
            inner = result.get(key)
            result[key] = merge_changes(inner if isinstance(inner, Mapping) else {}, value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return {key: value for key, value in result.items() if value != {}}


def spec_changes_for(choice: PlanSettings, model: ModelFacts, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The spec's keys that make a run of this choice."""
    sequences = choice.micro_batch * choice.accumulation * choice.data_parallel_size
    return {
        "train": {
            "per_device_train_batch_size": choice.micro_batch,
            "global_batch_size": sequences,
            "gradient_accumulation_steps": None,
            "gradient_checkpointing": choice.checkpointing,
        },
        "zero": _zero_changes(choice, model, raw.get("zero") or {}),
        "parallel": {
            "tensor_parallel_size": choice.tensor_parallel_size if choice.tensor_parallel_size > 1 else None,
            "pipeline_parallel_size": choice.pipeline_parallel_size if choice.pipeline_parallel_size > 1 else None,
            "sequence_parallel_size": choice.sequence_parallel_size if choice.sequence_parallel_size > 1 else None,
        },
    }


def _zero_changes(s: PlanSettings, model: ModelFacts, raw: Mapping[str, Any]) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": s.stage, "offload_optimizer": None, "offload_param": None}
    zero["sub_group_size"] = (
        s.sub_group_size if "nvme" in (s.optimizer_device, s.param_device) else raw.get("sub_group_size")
    )
    path = next(
        (section["nvme_path"] for section in raw.values() if isinstance(section, Mapping) and section.get("nvme_path")),
        NVME_PATH,
    )
    if s.optimizer_device != "none":
        zero["offload_optimizer"] = {"device": s.optimizer_device}
    if s.optimizer_device == "nvme":
        zero["offload_optimizer"] |= {
            "nvme_path": path,
            "pipeline_read": s.pipeline_read,
            "pipeline_write": s.pipeline_write,
            "buffer_count": s.optimizer_buffers,
        }
    if s.param_device != "none":
        zero["offload_param"] = {"device": s.param_device}
    if s.param_device == "nvme":
        largest = -(-partition_model(model, s).largest_parameter // s.zero_world_size)
        size = max(s.parameter_buffer_size, -(-largest // 1_000_000) * 1_000_000)
        zero["offload_param"] |= {"nvme_path": path, "buffer_count": s.parameter_buffers, "buffer_size": size}
    return zero


def min_gpus_for_states(bytes_of_states: float, device: Device) -> int:
    """GPUs of this kind whose memory holds the states alone, in the vendor's gigabytes: 14 for 70 B on 80 GB."""
    return max(1, -(-int(bytes_of_states) // nominal_memory(device)))


def nominal_memory(device: Device) -> int:
    """The size in the kind's name, decimal: what the literature divides by."""
    digits = "".join(c for c in device.name.rpartition("-")[2] if c.isdigit())
    return int(digits) * 10**9 if digits else max(1, device.memory)
