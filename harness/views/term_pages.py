# SPDX-License-Identifier: Apache-2.0
"""Terms of distributed training, for `harness explain TERM`: a paragraph each, and the command that shows it."""

from __future__ import annotations

from textwrap import fill

_TERMS = {
    "all-reduce": (
        "Every rank gets the sum of all ranks' tensors. A ring sends 2 x (N - 1) / N of the tensor from each rank: a"
        " reduce-scatter and an all-gather. Data parallelism reduces gradients so, tensor parallelism activations.",
        "harness demo collectives",
    ),
    "reduce-scatter": (
        "Every rank gets its part of the sum of all ranks' tensors. A ring sends (N - 1) / N of the tensor. ZeRO-3"
        " reduces gradients so.",
        "harness demo collectives",
    ),
    "all-gather": (
        "Every rank gets the parts of all ranks. A ring sends (N - 1) / N of the whole. ZeRO gathers parameters so: at"
        " stages 1 and 2 after the step, at stage 3 before each layer, forward and backward.",
        "harness demo zero",
    ),
    "bubble": (
        "The time that a pipeline stage waits for the others: (p - 1) / (m + p - 1) of a step of p stages and m"
        " micro-batches under 1F1B. More micro-batches or interleaved stages make it smaller.",
        "harness demo pipeline",
    ),
    "straggler": (
        "A rank that is slower than the others. All of them wait for it in the next collective, so the run has its"
        " speed. `telemetry.straggler_threshold` is the share from which a report names it.",
        "harness demo data-parallel",
    ),
    "mfu": (
        "Model FLOPs utilization: the operations of the model itself (6 a parameter and token, and attention), without"
        " recomputation, by the peak of all GPUs. Published dense runs in bf16 on H100 and A100 reach 38 to 55 %. The"
        " tokens a second of a run divided by those of the plan, times the plan's MFU, is that of the run.",
        "harness plan SPEC",
    ),
    "goodput": (
        "The share of time that becomes progress: without saves, work lost to failures, and restarts.",
        "harness plan SPEC --long",
    ),
    "gradient-accumulation": (
        "Several micro-batches a step. Stages 0 and 1 reduce gradients once a step, stages 2 and 3 after each"
        " micro-batch.",
        "harness demo accumulation",
    ),
    "data-parallelism": (
        "Every rank has the model and rows of its own; gradients are averaged each step.",
        "harness demo data-parallel",
    ),
    "tensor-parallelism": (
        "Matrices are divided: columns first, then rows, whose parts are summed by an all-reduce in every layer. Inside"
        " a host, since every layer waits for it.",
        "harness demo tensor-parallel",
    ),
    "no_shard": (
        "FSDP's strategy without shards is DDP: `zero.stage: 0`. Choose it where weights, gradients and states fit.",
        "harness demo zero",
    ),
    "shard_grad_op": (
        "FSDP divides gradients and optimizer states, and keeps weights gathered from forward to backward; outside of a"
        " step it shards them too. `zero.stage: 2` divides the same but keeps 16-bit weights on every rank always and"
        " reduces in each micro-batch. FSDP2: `reshard_after_forward=False`.",
        "harness demo zero",
    ),
    "full_shard": (
        "FSDP divides weights, gradients and states and gathers each unit in forward and backward: `zero.stage: 3`."
        " FSDP's unit is a wrapped block, ZeRO's a module, or a layer with `leaf_module`. FSDP2:"
        " `reshard_after_forward=True`. Choose it where stages 1 and 2 do not fit, or the network is fast.",
        "harness size --params 7e9 --gpus 8",
    ),
    "hybrid_shard": (
        "FSDP shards inside a host and replicates between hosts. Nearest is `zero.stage: 3` with"
        " `deepspeed.zero_optimization.zero_hpz_partition_size` at the GPUs of a host: weights are gathered there,"
        " while gradients and states stay divided over all ranks. MiCS (`mics_shard_size`) divides these inside too."
        " Choose it where the network between hosts is the bottleneck.",
        "harness plan SPEC --long",
    ),
    "fsdp": (
        "PyTorch's own sharding, which does what ZeRO does: NO_SHARD is stage 0, SHARD_GRAD_OP stage 2, FULL_SHARD"
        " stage 3, HYBRID_SHARD stage 3 with hpZ or MiCS. FSDP2 would do where a"
        " model fits without offload and nothing of DeepSpeed is needed; DeepSpeed adds offload to CPU and NVMe,"
        " AutoTP, pipelines and compressed collectives. The harness has no FSDP back end.",
        "harness demo zero",
    ),
}
_ALIASES = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "fsdp1": "fsdp",
    "fsdp2": "fsdp",
    "tensor-parallel": "tensor-parallelism",
    "data-parallel": "data-parallelism",
    "accumulation": "gradient-accumulation",
}


def list_terms() -> list[str]:
    """The terms that have a paragraph."""
    return list(_TERMS)


def render_term(word: str, width: int = 120) -> str | None:
    """The paragraph of a term and the command that shows it; None for another word."""
    key = word.strip().lower().replace(" ", "-")
    term = _ALIASES.get(key, key)
    paragraph, command = _TERMS.get(term, _TERMS.get(term.replace("-", "_"), ("", "")))
    return f"{word}\n\n{fill(paragraph, width)}\n\nShown by: {command}" if paragraph else None
