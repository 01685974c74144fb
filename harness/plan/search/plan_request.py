# SPDX-License-Identifier: Apache-2.0
"""A run without a spec, from the command line: its checks, and the values of its spec. No files, no gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.facts.devices import (
    Device,
    find_device,
    is_before_ampere,
    notes_on_kind,
    suggest_device,
    usual_gpus_per_host,
)
from harness.facts.model_lookup import find_configuration, find_model, find_positions
from harness.findings import Finding, Fix
from harness.plan.plan_usage import unknown_model
from harness.plan.search.pinned_keys import key_of_override
from harness.plan.time.rates import parse_disks
from harness.plan.weights.tensor_shard import DEFAULT_PLAN, shard_model
from harness.spec.overrides import apply_overrides
from harness.spec.parse.source import KeyPath, Source, join_key
from harness.units import parse_bytes, pluralize

_MAX_GPUS = 1_000_000
_DEFAULT_LENGTH = 4096
DEFAULT_BATCH_TOKENS = "1048576"
ADAPTERS = ("model.lora.r=16", "model.lora.target_modules=all-linear")
"""Overrides that `--lora` stands for: adapters at all linear layers, as QLoRA's authors train them."""
QUANTIZED = ("model.quantization.load_in_4bit=true",)
"""With these ones, `--qlora`."""
PRECISIONS = {"bf16": "precision={bf16: true}", "fp16": "precision={fp16: true}", "fp32": "precision={bf16: false}"}
"""The override that a word of `--precision` stands for: without either format a spec trains in fp32."""
OPTION_KEYS: Mapping[str, str] = {
    "model": "model.name_or_path",
    "gpus": "cluster.gpus_per_node",
    "gpu": "cluster.gpu",
    "gpus_per_node": "cluster.gpus_per_node",
    "host_memory": "cluster.host_memory",
    "nvme": "cluster.nvme",
    "zero_stage": "zero.stage",
    "max_length": "data.max_length",
    "batch_tokens": "train.global_batch_size",
}
"""The key of a spec that stands for an option of a run without one."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The options of a run that has no spec. `stage` None: the planner chooses. `overrides`: those of `--set`."""

    model: str
    gpus: int
    gpu: str
    gpus_per_node: int | None = None
    host_memory: str | None = None
    nvme: str | None = None
    stage: int | None = None
    max_length: int = _DEFAULT_LENGTH
    tokens_per_step: int = int(DEFAULT_BATCH_TOKENS)
    overrides: tuple[str, ...] = ()

    @property
    def gpus_per_host(self) -> int:
        """GPUs a host: as hosts of the kind are built by default, and never more than there are."""
        return min(self.gpus_per_node or usual_gpus_per_host(self.gpu), self.gpus)

    @property
    def pinned(self) -> tuple[KeyPath, ...]:
        """The keys of the spec that no search may change."""
        stage: tuple[KeyPath, ...] = () if self.stage is None else (("zero", "stage"),)
        return (*stage, *map(key_of_override, self.overrides))

    @property
    def data_ranks(self) -> int:
        """Ranks that take sequences of their own. A search divides the model where ranks alone would be more than the
        sequences of a step.
        """
        return self.gpus // replica_of(self)[1]

    @property
    def global_batch_size(self) -> int:
        """Sequences a step: the same number on every data rank, as near to the tokens as that can be."""
        return self.data_ranks * max(1, round(self.tokens_per_step / self.max_length / self.data_ranks))

    @property
    def planned_tokens(self) -> int:
        """Tokens of those sequences."""
        return self.global_batch_size * self.max_length


@lru_cache(maxsize=64)
def replica_of(request: PlanRequest) -> tuple[str, int]:
    """The key of `parallel` and the degree with which a search begins, so that a step has no more sequences than were
    asked for: the least that is enough, else the largest that the model and the hosts allow. ("", 1): data ranks alone,
    as also where `--set` or `--zero-stage` decide.
    """
    alone, sequences = ("", 1), max(1, round(request.tokens_per_step / request.max_length))
    is_decided = request.stage is not None or any(key[0] == "parallel" for key in request.pinned)
    model = None if is_decided or request.gpus <= sequences else find_model(request.model, by_name=True).facts
    if model is None:
        return alone
    best = alone
    for degree in (2, 4, 8, 16):
        if request.gpus % degree:
            break
        divides = model.heads % degree == 0 and model.kv_heads % degree == 0 and degree <= request.gpus_per_host
        if divides and shard_model(model, degree, DEFAULT_PLAN).is_useful:
            best = ("tensor_parallel_size", degree)
        elif degree <= model.num_layers:
            best = ("pipeline_parallel_size", degree)
        if request.gpus // best[1] <= sequences:
            break
    return best


def default_length(model: str) -> int:
    """Tokens of a sequence where no option says them: no more than the model has positions."""
    positions = find_positions(model, find_configuration(model, None, Path.cwd(), None))
    return min(_DEFAULT_LENGTH, positions or _DEFAULT_LENGTH)


def validate_request(request: PlanRequest) -> list[Finding]:
    """Every finding about a request at once."""
    findings = [
        *validate_count("--gpus", request.gpus, _MAX_GPUS),
        *validate_count("--max-length", request.max_length, 1 << 24),
    ]
    if request.gpus_per_node is not None:
        findings += validate_count("--gpus-per-node", request.gpus_per_node, 1024)
    if not findings and request.gpus % request.gpus_per_host:
        message = f"{request.gpus} GPUs do not fill hosts of {request.gpus_per_host}"
        findings.append(Finding("MM007", "error", message, fix=Fix("give `--gpus-per-node`")))
    model = find_model(request.model, by_name=True)
    if model.facts is None and "not among the families" not in model.why_not:
        findings.append(unknown_model(model.why_not))
    kind = [] if ("cluster", "gpu_memory") in request.pinned else validate_gpu(request.gpu)
    return [*findings, *kind, *_validate_sizes(request), *_validate_overrides(request)]


def validate_count(option: str, value: int, maximum: int) -> list[Finding]:
    """A finding for a count that no machine has."""
    if 1 <= value <= maximum:
        return []
    message = f"`{option} {value}` is not a number from 1 to {maximum:,}"
    return [Finding("MM007", "error", message, fix=Fix(f"give `{option}` a number from 1 to {maximum:,}"))]


def validate_gpu(name: str) -> list[Finding]:
    """A finding for an unknown kind of GPU."""
    if find_device(name) is not None:
        return []
    similar = suggest_device(name)
    fix = Fix(f"give `--gpu {similar}`" if similar else "choose one of the known kinds")
    return [Finding("MM003", "error", f"GPU kind `{name}` is not known", notes=notes_on_kind(name), fix=fix)]


def _validate_sizes(request: PlanRequest) -> list[Finding]:
    findings = []
    for option, text, parse in (
        ("--host-memory", request.host_memory, parse_bytes),
        ("--nvme", request.nvme, parse_disks),
    ):
        try:
            size = None if text is None else parse(text)
            if size is not None and size < 10**8:
                raise ValueError(f"`{text}` is {pluralize(size, 'byte')}" if size else f"`{text}` is zero")
            if size is not None and size > 10**18:
                raise ValueError(f"`{text}` is more than any host has")
        except ValueError as error:
            fix = Fix("write a size such as `2TB`" + (" or `8x3.5TB`" if option == "--nvme" else ""))
            findings.append(Finding("MM004", "error", f"`{option}`: {error}", fix=fix))
    return findings


def _validate_overrides(request: PlanRequest) -> list[Finding]:
    """A finding for each key of `--set` that an option of the run sets."""
    options = {key: "--" + name.replace("_", "-") for name, key in OPTION_KEYS.items()}
    options |= {"cluster.num_nodes": "--gpus", "cluster.gpus_per_node": "--gpus-per-node", "launch.num_gpus": "--gpus"}
    findings = []
    for text in request.overrides:
        key = join_key(key_of_override(text))
        if key in options:
            message = f"without a spec, `{key}` is the option `{options[key]}`"
            findings.append(Finding("MM007", "error", message, fix=Fix(f"give `{options[key]}` instead of `--set`")))
    return findings


def batch_finding(request: PlanRequest) -> Finding | None:
    """A warning if no step can have exactly the requested tokens, with the nearest numbers that it can have."""
    asked, planned = request.tokens_per_step, request.planned_tokens
    if asked == planned:
        return None
    whole = request.data_ranks * request.max_length
    below, kind = asked // whole * whole, "rank" if request.data_ranks == request.gpus else "data rank"
    message = (
        f"{asked:,} tokens per step are not a multiple of {whole:,}, a sequence of {request.max_length:,} tokens "
        f"on each of {pluralize(request.data_ranks, kind)}: planned with {planned:,}"
    )
    possible = [f"`--batch-tokens {tokens}`" for tokens in (below, below + whole) if tokens]
    fix = Fix(f"give {' or '.join(possible)}, fewer GPUs, or a shorter `--max-length`")
    return Finding("MM007", "warning", message, fix=fix)


def spec_from_request(request: PlanRequest) -> dict[str, Any]:
    """The run spec of a request, as plain values: ZeRO-3 and micro-batch 1, before the search. Raises UserError for an
    override that is no `key=value`.
    """
    cluster: dict[str, Any] = {
        "num_nodes": request.gpus // request.gpus_per_host,
        "gpus_per_node": request.gpus_per_host,
        "gpu": request.gpu,
    }
    cluster |= {"host_memory": request.host_memory} if request.host_memory else {}
    cluster |= {"nvme": request.nvme} if request.nvme else {}
    parallel, degree = replica_of(request)
    is_quantized = any(key[:2] == ("model", "quantization") for key in request.pinned)
    device = find_device(request.gpu)
    kind = request.gpu if device is None else device.name
    is_chosen = any(key[0] == "precision" for key in request.pinned)
    stage = 1 if parallel == "pipeline_parallel_size" else 2 if is_quantized else 3
    values = {
        **({"parallel": {parallel: degree}} if parallel else {}),
        "model": {"name_or_path": request.model, "attn_implementation": "sdpa"},
        "data": {"train": "data/*.jsonl", "max_length": request.max_length},
        "train": {
            "num_train_epochs": 1,
            "per_device_train_batch_size": 1,
            "global_batch_size": request.global_batch_size,
            "gradient_checkpointing": True,
        },
        "optimizer": {"learning_rate": 1e-5, "weight_decay": 0.1},
        "precision": {} if is_chosen else {"fp16" if is_before_ampere(kind) else "bf16": True},
        "zero": {"stage": stage if request.stage is None else request.stage},
        "cluster": cluster,
    }
    raw = apply_overrides(Source("--set", "yaml", "", values), request.overrides).data
    train = raw.get("train")
    if isinstance(train, dict) and ("train", "per_device_train_batch_size") not in request.pinned:
        steps, sequences = train.get("gradient_accumulation_steps"), train.get("global_batch_size")
        if isinstance(steps, int) and isinstance(sequences, int) and steps > 0 == sequences % (steps * request.gpus):
            train["per_device_train_batch_size"] = sequences // (steps * request.gpus)
    return raw


def min_gpus_for_states(bytes_of_states: float, device: Device) -> int:
    """GPUs of this kind whose memory holds the states alone, in the vendor's gigabytes: 14 for 70 B on 80 GB."""
    return max(1, -(-int(bytes_of_states) // nominal_memory(device)))


def nominal_memory(device: Device) -> int:
    """The size in the kind's name, decimal: what the literature divides by."""
    digits = "".join(c for c in device.name.rpartition("-")[2] if c.isdigit())
    return int(digits) * 10**9 if digits else max(1, device.memory)
