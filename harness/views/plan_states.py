# SPDX-License-Identifier: Apache-2.0
"""Tables of model states, as text and as JSON. Counts nothing itself."""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.plan.search.state_tables import PeakTable, StatesRow
from harness.units import format_count


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
