# SPDX-License-Identifier: Apache-2.0
"""A published measurement as a run that `harness plan` can plan. Fixes nothing that the source does not tell.

FSDP is planned as ZeRO-3, SHARD_GRAD_OP as ZeRO-2, Megatron's distributed optimizer as ZeRO-1. Host memory that a
source does not tell is 64 TB, so that only memory that was told can refuse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.plan.planner import Plan, make_plan
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec

LONG_ROW = 16384
NOTES: Mapping[str, Mapping[str, str]] = json.loads(Path(__file__).with_name("offload_notes.json").read_text("utf-8"))
"""Of rows or sources with offload: launchers that the publication's scripts name, reasons why the plan is off."""
_TORCHRUN = frozenset({"accelerate", "llama-factory", "xtuner", "ms-swift", "pytorch", "llama-recipes"})
"""Frameworks whose several ranks are started by torchrun or by `accelerate launch`, in a row's words. Not torchtune,
which sets its threads itself.
"""
LINK_SHARE = 0.8
"""A spec's links count in full, a data sheet's at this share."""
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
_KERNELS = {"flash": "flash_attention_2", "eager": "eager"}
_SAME_CHIP = {"A800-80GB": "A100-80GB", "H800-80GB": "H100-80GB", "H100-96GB": "H100-80GB"}


class PlannedRow(NamedTuple):
    """A row with its plan; `why_not` says why it has none."""

    row: Mapping[str, Any]
    plan: Plan | None
    why_not: str = ""


def read_rows(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of JSON-lines files."""
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines() if line.strip()]


def group_of(row: Mapping[str, Any]) -> str:
    """The first that applies: `LoRA`, `MoE`, `degrees` (tensor or pipeline), `offload`, `long` or `dense`."""
    config = row.get("config") or {}
    if row.get("lora"):
        return "LoRA"
    if any(key in config for key in _EXPERT_KEYS):
        return "MoE"
    if row.get("tp", 1) > 1 or row.get("pp", 1) > 1:
        return "degrees"
    long = row["seq_len"] >= LONG_ROW or row.get("sp", 1) > 1 or row.get("cp", 1) > 1
    if row.get("offload_optimizer") or row.get("offload_param"):
        return "offload, long" if long else "offload"
    if long:
        return "long"
    return "dense, several hosts" if row["gpus"] > row["gpus_per_node"] else "dense, one host"


def plan_row(row: Mapping[str, Any]) -> PlannedRow:
    """Plan a row with DeepSpeed's defaults, whatever the gates say of its combination."""
    why_not = _why_unplannable(row)
    if why_not:
        return PlannedRow(row, None, why_not)
    run = resolve_run(RunSpec.model_validate(spec_of(row)), name=row["id"])
    alone = "pure_bf16" in row.get("features", []) and not row.get("zero_stage")
    plan = make_plan(run._replace(trainer="swift") if alone else run, with_alternatives=False)
    if plan.time is None or plan.memory is None:
        return PlannedRow(row, None, "; ".join(finding.message for finding in plan.findings) or "no memory planned")
    return PlannedRow(row, plan)


def _why_unplannable(row: Mapping[str, Any]) -> str:
    """The reason why no spec can be made of a row; empty where one can."""
    reasons = {
        "shape of the model not published": not row.get("config"),
        f"precision {row['precision']}": row["precision"] not in ("bf16", "fp16", "fp32"),
        "expert or context parallelism": row.get("ep", 1) > 1 or row.get("cp", 1) > 1,
        "ZeRO stage not published": "zero_stage" not in row,
        "offload without ZeRO": row.get("zero_stage") == 0 and bool(row.get("offload_optimizer")),
        "tiled MLP": bool({"tiled_mlp", "memory_tiling"} & set(row.get("features", []))),
        "LoRA rank not published": bool(row.get("lora")) and not row["lora"].get("r"),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def spec_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The run spec of a row, as plain values."""
    features = row.get("features", [])
    config = {"max_position_embeddings": max(row["seq_len"], 2048), **row["config"]}
    model: dict[str, Any] = {"config": config, "attn_implementation": _KERNELS.get(row.get("attention", ""), "sdpa")}
    if row["precision"] == "fp32" and model["attn_implementation"] == "flash_attention_2":
        model["attn_implementation"] = "sdpa"
    if row.get("lora"):
        model["lora"] = {key: value for key, value in row["lora"].items() if value is not None}
    train: dict[str, Any] = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": row.get("micro_batch") or 1,
        "gradient_checkpointing": row.get("checkpointing") == "full",
        "gradient_accumulation_steps": _accumulation(row),
    }
    train |= {"offload_activations": True} if "activation_offload" in features else {}
    train |= {"torch_compile": True} if row.get("compile") else {}
    train |= {"loss_chunk_size": 1024} if {"fused_loss", "tiled_loss"} & set(features) else {}
    spec: dict[str, Any] = {
        "name": "row",
        "model": model,
        "data": {"train": "rows.jsonl", "max_length": row["seq_len"]},
        "train": train,
        "optimizer": {"learning_rate": 1e-5},
        "zero": _zero(row),
        "cluster": _cluster(row),
        "tuned_defaults": False,
        # DeepSpeed was measured without it; FSDP's weights are stepped in one pass, too, where they are
        "launch": {} if "FSDP" in row["framework"] else {"patches": {"one-pass-adam": "off"}},
    }
    if "base_nf4" in features:
        model["quantization"] = {"load_in_4bit": True}
    if row.get("zero_stage") and {"pure_bf16", "bf16_masters"} & set(features):
        spec["deepspeed"] = {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
    if row["precision"] != "fp32":
        spec["precision"] = {row["precision"]: True}
    degrees = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "sp": "sequence_parallel_size"}
    spec["parallel"] = {name: row[key] for key, name in degrees.items() if row.get(key, 1) > 1}
    if "bind_cores" in features:
        spec["launch"]["bind_cores_to_rank"] = True
    if "torch_adam" in features:
        spec["deepspeed"] = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}}}
    if _has_single_threads(row):
        spec["launch"]["env"] = {"OMP_NUM_THREADS": "1"}
    return spec


def _has_single_threads(row: Mapping[str, Any]) -> bool:
    """Does the launcher of this framework set OMP_NUM_THREADS to 1? `accelerate launch` always does (TRL and axolotl
    start by it), torchrun for several ranks of a host.
    """
    launcher = NOTES["launchers"].get(row["source"], "").partition(":")[0]
    words = f"{row['framework']} {launcher}".lower().split()
    return bool({"trl", "axolotl"} & set(words)) or (bool(_TORCHRUN & set(words)) and row["gpus_per_node"] > 1)


def _accumulation(row: Mapping[str, Any]) -> int:
    if row.get("accumulation"):
        return int(row["accumulation"])
    ranks = row["gpus"] // (row.get("tp", 1) * row.get("pp", 1) * row.get("sp", 1))
    sequences = row.get("global_batch_sequences") or 0
    return max(1, round(sequences / (ranks * (row.get("micro_batch") or 1))))


def _zero(row: Mapping[str, Any]) -> dict[str, Any]:
    """Host memory is page-locked unless the source says else: 46 of 56 configurations with offload in public
    repositories have `pin_memory` (../shared/wild, 2026-11-30); Lightning's default has not.
    """
    is_pageable = "pageable" in row.get("features", []) or "Lightning" in row["framework"]
    zero: dict[str, Any] = {"stage": row.get("zero_stage") or 0}
    for key in ("offload_optimizer", "offload_param"):
        if row.get(key):
            zero[key] = {"device": row[key], **({"nvme_path": "/nvme"} if row[key] == "nvme" else {})}
            zero[key] |= {"pin_memory": False} if is_pageable else {}
    return zero


def _cluster(row: Mapping[str, Any]) -> dict[str, Any]:
    per_host = row["gpus_per_node"]
    cluster: dict[str, Any] = {
        "gpu": _SAME_CHIP.get(row["gpu"], row["gpu"]),
        "gpus_per_node": per_host,
        "num_nodes": max(1, row["gpus"] // per_host),
        "host_memory": row.get("host_memory", "64TB"),
    }
    if "nvme" in (row.get("offload_optimizer"), row.get("offload_param")):
        cluster["nvme"] = row.get("nvme", "4x25TB")  # as many disks as the plan assumes
    if row.get("nvlink_gb_s"):
        cluster["link_bandwidth"] = f"{row['nvlink_gb_s'] * LINK_SHARE:g}GB/s"
    if row.get("network_gb_s_per_gpu"):
        cluster["network_bandwidth"] = f"{row['network_gb_s_per_gpu'] * per_host * LINK_SHARE:g}GB/s"
    return cluster
