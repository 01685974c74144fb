# SPDX-License-Identifier: Apache-2.0
"""Reasons why `harness launch` cannot start a run of these degrees: what the harness lacks, and refusing gates."""

from __future__ import annotations

from typing import Any

from harness.check.check_file import check_file
from harness.plan.degrees.degrees_request import DegreesRequest
from harness.spec.yaml_text import spec_as_yaml

_SCHEDULES = {
    "naive": "naive",
    "gpipe": "GPipe",
    "interleaved": "interleaved",
    "zb-h1": "ZB-H1",
    "dualpipe": "DualPipe",
}


def find_launch_obstacles(request: DegreesRequest) -> list[str]:
    """A sentence for each; empty where `harness launch` starts it."""
    degrees = request.degrees
    lacks = []
    if degrees.context > 1:
        lacks.append("context rings (it has Ulysses: `parallel.sequence_parallel_size`)")
    if degrees.expert > 1:
        lacks.append("expert parallelism")
    if degrees.pipeline > 1 and degrees.schedule != "1f1b":
        lacks.append(f"the {_SCHEDULES[degrees.schedule]} schedule (it has 1F1B)")
    if degrees.tensor > 1 and degrees.sequence:
        lacks.append("Megatron's sequence parallelism (`--no-sequence-parallel`)")
    if request.precision == "fp8":
        lacks.append("FP8")
    if request.checkpointing == "selective":
        lacks.append("selective checkpointing")
    if request.states == "int8":
        lacks.append("8-bit optimizer states")
    obstacles = [f"the harness lacks {each}" for each in lacks]
    checked = check_file(
        "degrees.yaml", text=spec_as_yaml(_spec(request)), world_size=degrees.world_size, launching=True
    )
    errors = [finding for finding in checked.report.findings if finding.is_error]
    return [*obstacles, *(f"{finding.gate}: {finding.message}" for finding in errors)]


def _spec(request: DegreesRequest) -> dict[str, Any]:
    """The run spec of what the harness has of it."""
    degrees = request.degrees
    hosts = max(1, degrees.world_size // degrees.gpus_per_host)
    return {
        "model": {"name_or_path": request.model, "attn_implementation": "sdpa"},
        "data": {"train": "data/*.jsonl", "max_length": request.seq_length},
        "train": {
            "num_train_epochs": 1,
            "per_device_train_batch_size": request.micro_batch,
            "gradient_accumulation_steps": request.micro_batches,
            "gradient_checkpointing": request.checkpointing == "full",
        },
        "optimizer": {"learning_rate": 1e-5},
        "precision": {} if request.precision == "fp32" else {"fp16" if request.precision == "fp16" else "bf16": True},
        "zero": {"stage": request.zero_stage},
        "parallel": {
            "tensor_parallel_size": degrees.tensor,
            "pipeline_parallel_size": degrees.pipeline,
        },
        "cluster": {
            "num_nodes": hosts,
            "gpus_per_node": min(degrees.gpus_per_host, degrees.world_size),
            "gpu": request.gpu,
        },
    }
