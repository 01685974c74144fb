# SPDX-License-Identifier: Apache-2.0
"""A plan of any degrees, as text and as JSON. Counts nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.plan.degrees.degrees_plan import DegreesPlan
from harness.plan.degrees.gpu_work import Traffic
from harness.plan.time.pipeline_schedule import Schedule
from harness.units import format_bytes, format_count, format_seconds, pluralize
from harness.views.plan_details import describe_checkpoints
from harness.views.style import Style

SCHEDULE_NAMES: dict[Schedule, str] = {
    "naive": "one micro-batch at a time",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zb-h1": "ZB-H1",
    "dualpipe": "DualPipe",
}
_FORMULAS: dict[Schedule, str] = {
    "naive": "(p - 1) / p",
    "gpipe": "(p - 1) / (m + p - 1)",
    "1f1b": "(p - 1) / (m + p - 1)",
    "interleaved": "(p - 1) / (v m + p - 1)",
    "zb-h1": "(p - 1) / (3 m + p - 1)",
    "dualpipe": "(p / 2 - 1)(F&B + B - 3 W)",
}
_KERNELS = "Megatron's fused layers (arXiv 2205.05198)"
_WINDOWS = {"none": "nothing", "layer": "half a layer", "backward": "last backward", "step": "any pass"}


def render_degrees(
    plan: DegreesPlan, tokens: float | None, price: float | None, launch: Sequence[str], style: Style
) -> str:
    """The whole plan. `launch`: why `harness launch` does not start it; empty where it does."""
    blocks = [_render_head(plan, style), _render_memory(plan, style), _render_traffic(plan), _render_time(plan)]
    if tokens is not None:
        blocks[-1] += "\n" + _render_run(plan, tokens, price)
    blocks.append(_render_launch(launch))
    return "\n\n".join(blocks)


def _render_head(plan: DegreesPlan, style: Style) -> str:
    request, degrees, model = plan.request, plan.request.degrees, plan.model
    name = style.paint(request.model, "", bold=True)
    size = f"{format_count(model.num_parameters)} parameters"
    if model.experts:
        size += f", {format_count(model.active_parameters)} of them active"
    hosts = pluralize(-(-degrees.world_size // degrees.gpus_per_host), "host")
    ranks = f"{degrees.world_size:,} = {degrees}, on {hosts} of {plan.device.name}"
    extras = [f"experts over {degrees.expert}"] if degrees.expert > 1 else []
    extras += ["sequence parallel"] if degrees.tensor > 1 and degrees.sequence else []
    batch = (
        f"{request.micro_batches * request.micro_batch * degrees.data:,} sequences = {request.micro_batch} x"
        f" {degrees.data} data x {request.micro_batches} micro-batches, {request.planned_tokens:,} tokens per step"
    )
    lines = [
        f"{name}: {size}, {request.precision}, checkpointing {request.checkpointing}, ZeRO-{request.zero_stage}",
        "",
        f"Ranks    {', '.join([ranks, *extras])}",
        f"Batch    {batch}",
        f"States   {request.recipe}",
    ]
    if degrees.pipeline > 1:
        chunks = f", {degrees.virtual_stages} chunks per stage" if degrees.virtual_stages > 1 else ""
        share = plan.work.bubble / (1 + plan.work.bubble)
        formula = _FORMULAS[degrees.schedule]
        lines.append(
            f"Stages   {SCHEDULE_NAMES[degrees.schedule]}{chunks}: a stage waits {share:.1%} of the time, {formula}"
        )
    return "\n".join([*lines, *(f"Note     {note}" for note in plan.notes)])


def _render_memory(plan: DegreesPlan, style: Style) -> str:
    fullest = plan.fullest
    where = f"of stage {fullest.stage.stage}, the fullest of {len(plan.memory)}" if len(plan.memory) > 1 else ""
    rows = [(item.kind, format_bytes(item.bytes), item.formula) for item in fullest.items]
    total = f"{format_bytes(fullest.total)} of {format_bytes(plan.device.memory)}"
    verdict = style.paint("fits", "green") if plan.fits else style.paint("does not fit", "red")
    if not plan.fits and plan.request.checkpointing != "full" and plan.checkpointed_bytes <= plan.device.memory:
        verdict += f"; with `--checkpointing full` it fits, {format_bytes(plan.checkpointed_bytes)}"
    width = max(len(row[0]) for row in rows)
    lines = [f"  {kind:<{width}}  {size:>11}  {formula}" for kind, size, formula in rows]
    lines.append(f"  activations as {_KERNELS} keep them")
    return "\n".join([f"GPU memory {where}".rstrip(), *lines, f"  {'in all':<{width}}  {total}: {verdict}"])


def _render_traffic(plan: DegreesPlan) -> str:
    if not plan.work.traffic:
        return "Traffic  none: one GPU in every group"
    names = [_name_collective(traffic) for traffic in plan.work.traffic]
    width = max(map(len, names))
    lines = [
        f"  {name:<{width}}  {_format_group(traffic):<24}  {format_bytes(traffic.link_bytes):>11}"
        f"  {format_bytes(traffic.network_bytes):>11}  {traffic.calls:>7,}  {_WINDOWS[traffic.window]}"
        for name, traffic in zip(names, plan.work.traffic, strict=True)
    ]
    head = f"  {'':<{width}}  {'group':<24}  {'links':>11}  {'network':>11}  {'calls':>7}  hides under"
    return "\n".join(["Traffic of a GPU per step, bytes that it sends", head, *lines])


def _name_collective(traffic: Traffic) -> str:
    """`gradients, reduce-scatter`; a purpose that says how is enough."""
    is_said = traffic.kind in traffic.purpose or traffic.kind == "send"
    return traffic.purpose if is_said else f"{traffic.purpose}, {traffic.kind}"


def _format_group(traffic: Traffic) -> str:
    if traffic.within_host:
        return f"{traffic.ranks} {traffic.group}, one host"
    return f"{traffic.ranks:,} {traffic.group}, {traffic.ranks_in_host} a host"


def _render_time(plan: DegreesPlan) -> str:
    time, work = plan.time, plan.work
    speed = work.tokens / time.seconds
    spread = f"{format_seconds(time.low)} to {format_seconds(time.high)}"
    would = "" if plan.fits else "would be "
    lines = [
        f"Step     {would}{format_seconds(time.seconds)} ({spread}), {speed / work.world_size:,.0f} tokens/s per GPU,"
        f" MFU {plan.mfu:.0%}"
    ]
    for name, seconds, exposed in time.parts:
        shown = f", {format_seconds(exposed)} of it exposed" if exposed else ", hidden"
        hidden = "" if exposed == seconds else shown
        lines.append(f"         {name} {format_seconds(seconds)}{hidden}")
    lines.append(f"Saves    {describe_checkpoints(plan.checkpoint, work.world_size)}")
    return "\n".join(lines)


def _render_run(plan: DegreesPlan, tokens: float, price: float | None) -> str:
    if not plan.fits:
        return f"Run      {format_count(tokens)} tokens: no hours and no price, since it does not fit"
    hours, low, high = plan.gpu_hours(tokens)
    steps = tokens / plan.work.tokens
    line = (
        f"Run      {format_count(tokens)} tokens in {steps:,.0f} steps: {format_count(hours)} GPU hours"
        f" ({format_count(low)} to {format_count(high)}), {hours / plan.work.world_size / 24:,.1f} days"
    )
    line += f", cost {hours * price:,.0f}" if price is not None else ""
    whole = hours / (1 - min(plan.checkpoint.lost, 0.99))
    line += f"\n         with saves and failures {format_count(whole)} GPU hours"
    return line + (f", cost {whole * price:,.0f}" if price is not None else "")


def _render_launch(launch: Sequence[str]) -> str:
    if not launch:
        return (
            "Launch   `harness launch` has these degrees. Its layers are those of transformers and keep more than the"
            "\n         fused ones counted here: `harness plan SPEC` counts the memory of such a run"
        )
    return "\n".join(["Launch   `harness launch` cannot start it", *(f"         {each}" for each in launch)])


def degrees_as_dict(
    plan: DegreesPlan, tokens: float | None, price: float | None, launch: Sequence[str]
) -> dict[str, Any]:
    """The plan as values of JSON. Bytes, seconds, tokens."""
    request, degrees, time, work, fullest = plan.request, plan.request.degrees, plan.time, plan.work, plan.fullest
    body: dict[str, Any] = {
        "format_version": 1,
        "model": request.model,
        "gpu": plan.device.name,
        "world": degrees.world_size,
        "degrees": {
            "data": degrees.data,
            "tensor": degrees.tensor,
            "pipeline": degrees.pipeline,
            "context": degrees.context,
            "expert": degrees.expert,
            "virtual_stages": degrees.virtual_stages,
            "sequence_parallel": degrees.sequence and degrees.tensor > 1,
        },
        "schedule": degrees.schedule,
        "bubble_share": work.bubble / (1 + work.bubble),
        "micro_batch": request.micro_batch,
        "micro_batches": request.micro_batches,
        "tokens_per_step": request.planned_tokens,
        "fits": plan.fits,
        "gpu_bytes": round(fullest.total),
        "gpu_capacity_bytes": plan.device.memory,
        "fullest_stage": fullest.stage.stage,
        "kernels": _KERNELS,
        "memory": [{**asdict(item), "bytes": round(item.bytes)} for item in fullest.items],
        "bytes_by_stage": [round(stage.total) for stage in plan.memory],
        "layers_by_stage": [len(stage.stage.layers) for stage in plan.memory],
        "traffic": [{**asdict(traffic), "within_host": traffic.within_host} for traffic in work.traffic],
        "step_seconds": time.seconds,
        "step_seconds_range": [time.low, time.high],
        "parts": [{"name": name, "seconds": seconds, "exposed": exposed} for name, seconds, exposed in time.parts],
        "tokens_per_second_per_gpu": work.tokens / time.seconds / work.world_size,
        "mfu": plan.mfu,
        "checkpoint": asdict(plan.checkpoint),
        "notes": list(plan.notes),
        "launchable": not launch,
        "launch_obstacles": list(launch),
    }
    if tokens is not None and plan.fits:
        hours, low, high = plan.gpu_hours(tokens)
        whole = hours / (1 - min(plan.checkpoint.lost, 0.99))
        body |= {"tokens": tokens, "gpu_hours": hours, "gpu_hours_range": [low, high]}
        body |= {"gpu_hours_with_failures": whole}
        body |= {} if price is None else {"cost": hours * price, "cost_with_failures": whole * price}
    return body
