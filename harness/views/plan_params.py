# SPDX-License-Identifier: Apache-2.0
"""A bare count of parameters, as text and as JSON: states by kind and ZeRO stage, and bytes sent. Counts nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from harness.plan.search.bare_count import ModelStates
from harness.units import format_count, format_seconds


def model_states_as_dict(states: ModelStates) -> dict[str, Any]:
    """A bare count for programs: bytes, seconds, bytes a second."""
    shares = states.by_stage
    return {
        "format_version": 1,
        "parameters": states.parameters,
        "gpus": states.gpus,
        "zero_stage": states.stage,
        "bytes_per_parameter": asdict(states.recipe),
        "model_states_per_rank_bytes": shares[3 if states.stage is None else states.stage].states,
        "by_stage_bytes": {stage: share.states for stage, share in shares.items()},
        "by_stage": {stage: {**asdict(share), "states": share.states} for stage, share in shares.items()},
        "gradient_bytes": states.gradient_bytes,
        "network_bytes_per_second": states.network,
        "raw_floor_gpus": states.raw_floor_gpus,
    }


def render_model_states(states: ModelStates) -> str:
    """Table 1 of the ZeRO paper for these numbers, and what each stage sends beside DDP."""
    gpus = f"{states.gpus:,} GPU{'' if states.gpus == 1 else 's'}"
    is_timed = states.network is not None
    heads = ("GB per rank", "weights", "gradients", "optimizer", "sent", "of DDP", *(("time",) if is_timed else ()))
    lines = [
        f"{format_count(states.parameters)} parameters on {gpus}, 16-bit weights and Adam",
        f"States   {states.recipe}, {states.parameters * states.recipe.total / 1e9:,.2f} GB in all",
        "",
        f"{'':8}{heads[0]:>14}" + "".join(f"{head:>11}" for head in heads[1:]),
    ]
    for stage, share in states.by_stage.items():
        mark = ">" if stage == states.stage else " "
        cells = "".join(
            f"{size / 1e9:>11,.2f}" for size in (share.parameters, share.gradients, share.optimizer, share.sent)
        )
        time = f"{format_seconds(share.seconds):>11}" if share.seconds is not None else ""
        ratio = f"{share.of_ddp:.2f}" if states.gpus > 1 else "-"
        lines.append(f"{mark} ZeRO-{stage}{share.states / 1e9:>14,.2f}{cells}{ratio:>11}{time}")
    if states.raw_floor_gpus is not None:
        lines += ["", f"{states.raw_floor_gpus:,} x {states.gpu} would hold the states without anything else."]
    gradients = f"gradients reduced in {'fp32' if states.gradient_bytes == 4 else 'bf16'}"
    lines += ["", f"Sent: GB that a rank sends a step of one micro-batch, by rings; {gradients}. ZeRO-0 is DDP's one"]
    lines += ["all-reduce. Stages 1 and 2 all-reduce too, as DeepSpeed does by default, and gather what was stepped;"]
    lines += ["with `use_multi_rank_bucket_allreduce: false` they send what DDP does where gradients are in bf16."]
    if states.network is not None:
        size = states.parameters * states.gradient_bytes / 1e9
        took = format_seconds(states.by_stage[0].seconds or 0.0)
        lines += [
            f"All-reduce of {size:,.2f} GB of gradients at {states.network / 1e9:g} GB/s: {took}, nothing hidden."
        ]
    lines += ["No buffers, activations or offload: `harness size --model NAME` counts those."]
    return "\n".join(lines)
