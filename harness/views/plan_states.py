# SPDX-License-Identifier: Apache-2.0
"""Tables of model states and a bare count of parameters, as text and as JSON. Counts nothing itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.plan.search.bare_count import ModelStates
from harness.plan.search.state_tables import PeakTable, StatesRow
from harness.units import format_count, format_seconds


def format_gigabytes(size: float) -> str:
    """Three figures of decimal gigabytes: `1,120`, `283`, `17.5`, `0.12`."""
    gigabytes = size / 1e9
    return (
        f"{gigabytes:,.0f}" if gigabytes >= 99.95 else f"{gigabytes:.1f}" if gigabytes >= 9.995 else f"{gigabytes:.2f}"
    )


def render_states_table(rows: Sequence[StatesRow]) -> str:
    """A line for each model and recipe, a column for each stage and number of GPUs, in GB."""
    counts = sorted({gpus for row in rows for gpus, _ in row.per_gpu})
    names, recipes = max(len(row.name) for row in rows), max(len(row.recipe_name) for row in rows)
    head = f"{'':<{names}}  {'':<{recipes}}  {'states':>7}"
    stages = f"{'':<{names}}  {'':<{recipes}}  {'ZeRO-0':>7}"
    for gpus in counts:
        head += f"  {gpus:,} GPUs".ljust(23)
        stages += "".join(f" {f'ZeRO-{stage}':>7}" for stage in (1, 2, 3))
    lines = [head.rstrip(), stages]
    previous = ""
    for row in rows:
        cells = "".join(f" {format_gigabytes(row.per_gpu[gpus, stage]):>7}" for gpus in counts for stage in (1, 2, 3))
        name, previous = ("" if row.name == previous else row.name), row.name
        lines.append(f"{name:<{names}}  {row.recipe_name:<{recipes}}  {format_gigabytes(row.total):>7}{cells}")
    used = {row.recipe_name: row.recipe for row in rows}
    lines += ["", "GB per GPU: the states alone, without buffers, activations or offload"]
    width = max(map(len, used))
    return "\n".join([*lines, *(f"{name:<{width}}  {recipe}" for name, recipe in used.items())])


def states_table_as_json(rows: Sequence[StatesRow]) -> str:
    """The same for programs."""
    body = [
        {
            "name": row.name,
            "parameters": row.parameters,
            "recipe": row.recipe_name,
            "bytes_per_parameter": row.recipe.total,
            "bytes": round(row.total),
            "per_gpu": [
                {"gpus": gpus, "zero_stage": stage, "bytes": round(size)} for (gpus, stage), size in row.per_gpu.items()
            ],
        }
        for row in rows
    ]
    return json.dumps({"format_version": 1, "states": body}, indent=2)


def render_peak_table(table: PeakTable) -> str:
    """By stage: does it fit on these numbers of GPUs, and the least number that does."""
    total = table.parameters * table.recipe.total
    counts = list(table.rows[0].per_gpu)
    lines = [
        f"{format_count(table.parameters)} parameters, {table.recipe_name}: {total / 1e9:,.2f} GB of states,"
        f" measured peak without them {table.peak / 1e9:,.2f} GB",
        f"States   {table.recipe}",
        f"Floor    {table.raw_floor_gpus:,} x {table.gpu} would hold the states alone,"
        f" {table.capacity / 1e9:.0f} GB each",
        "",
        f"{'':<8}" + "".join(f"  {f'{gpus:,} GPUs':>18}" for gpus in counts) + f"  {'least':>8}",
    ]
    for row in table.rows:
        cells = "".join(f"  {_format_topology(size, table.capacity):>18}" for size in row.per_gpu.values())
        least = "never" if row.min_gpus is None else f"{row.min_gpus:,}"
        lines.append(f"{f'ZeRO-{row.stage}':<8}{cells}  {least:>8}")
    return "\n".join(
        [*lines, "", "The peak is assumed to be the same on any number of GPUs, with the same micro-batch."]
    )


def _format_topology(size: float, capacity: int) -> str:
    return f"{size / 1e9:,.2f} GB, " + ("fits" if size <= capacity else "no  ")


def peak_table_as_json(table: PeakTable) -> str:
    """The same for programs."""
    body = {
        "parameters": table.parameters,
        "recipe": table.recipe_name,
        "bytes_per_parameter": table.recipe.total,
        "gpu": table.gpu,
        "capacity_bytes": table.capacity,
        "non_state_peak_bytes": table.peak,
        "raw_floor_gpus": table.raw_floor_gpus,
        "stages": [
            {
                "zero_stage": row.stage,
                "min_gpus": row.min_gpus,
                "topologies": [
                    {"gpus": gpus, "bytes": round(size), "fits": size <= table.capacity}
                    for gpus, size in row.per_gpu.items()
                ],
            }
            for row in table.rows
        ],
    }
    return json.dumps({"format_version": 1, **body}, indent=2)


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
