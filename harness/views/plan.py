# SPDX-License-Identifier: Apache-2.0
"""A plan as text: ranks, batch, memory, time, alternatives, and the next command.

Counts nothing itself.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from harness.findings import Finding
from harness.plan.alternatives import Alternative
from harness.plan.memory_estimate import MemoryEstimate
from harness.plan.memory_items import PHASES, TRAINING, MemoryItem, Tier
from harness.plan.planner import Plan
from harness.plan.step_time import TimePart
from harness.units import format_bytes, format_count, format_seconds, format_trainable, pluralize
from harness.views.plan_tuned_defaults import render_tuned_defaults
from harness.views.style import Style

_PHASE_LABELS = {
    "load": "while the engine is built",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "step": "in the optimizer step",
    "save": "while a checkpoint is written",
    "resume": "while a checkpoint is read",
    "export": "while a folder is exported",
}
_NOTHING_STARTED = "Nothing was started and no host was contacted."
_MIN_FORMULA_WIDTH = 24


def render_plan(plan: Plan, findings: Sequence[Finding], next_command: str, style: Style, width: int = 100) -> str:
    """The whole plan. `findings` are those of the gates and the plan's own; they are counted here, not shown."""
    blocks = [_format_title(plan, style), _render_ranks_and_batch(plan)]
    if plan.memory is not None:
        blocks += [
            _render_memory(plan, plan.memory, "gpu", style, width),
            _render_memory(plan, plan.memory, "host", style, width),
            _render_memory(plan, plan.memory, "nvme", style, width),
            _format_fit(plan, plan.memory, style),
            _render_time(plan, style, width),
            render_tuned_defaults(plan.tuned_defaults_impact, _device_name(plan), style, width),
            _render_alternatives("Alternatives", plan.alternatives, _device_name(plan), style, width),
            _render_alternatives(
                "Fastest that fits, same batch", plan.fastest_fitting, _device_name(plan), style, width
            ),
        ]
    blocks.append(_format_footer(plan, findings, next_command))
    return "\n\n".join(block for block in blocks if block)


def _format_title(plan: Plan, style: Style) -> str:
    precision = plan.run.spec.precision
    number_format = "bf16" if precision.bf16 else "fp16" if precision.fp16 else "fp32"
    size = f"{format_count(plan.model.num_parameters)} parameters" if plan.model else "a model of unknown size"
    return f"{style.paint(plan.run.name, '', bold=True)}: {size} in {number_format}, {plan.title}"


def _render_ranks_and_batch(plan: Plan) -> str:
    degrees, batch, settings = plan.run.parallel_dims, plan.run.batch, plan.settings
    if degrees.world_size is None or degrees.data is None:
        ranks = "unknown"
    else:
        parts = [f"{degrees.data} data", f"{degrees.tensor} tensor", f"{degrees.pipeline} pipeline"]
        parts += [f"{degrees.sequence} sequence"] if degrees.sequence > 1 else []
        ranks = f"{degrees.world_size} = {' x '.join(parts)}{_format_hosts(plan)}"
    lines = [f"Ranks    {ranks}"]
    if batch.is_complete and degrees.data is not None and settings is not None:
        product = f"{batch.micro_batch} per rank x {degrees.data} x {batch.accumulation} accumulation steps"
        lines.append(f"Batch    {batch.global_batch} = {product}, at most {settings.tokens_per_step:,} tokens per step")
    if settings is not None:
        lines.append(f"States   {settings.bytes_per_parameter}")
    split = plan.trainable
    if split is not None and split.frozen:
        count = format_trainable(split.num_trainable, split.num_parameters)
        lines.append(f"Train    {count} of the parameters; the others have neither gradients nor states")
    return "\n".join(lines)


def _format_hosts(plan: Plan) -> str:
    if plan.settings is None:
        return ""
    hosts, kind = plan.settings.num_hosts, plan.device.name if plan.device else "accelerators"
    return f", on {hosts} host{'s' if hosts > 1 else ''} x {plan.settings.ranks_per_host} {kind}"


def _device_name(plan: Plan) -> str:
    """The word for what a rank computes on: a CPU is no GPU."""
    return "device" if plan.device is None or plan.device.is_cpu else "GPU"


def _render_memory(plan: Plan, memory: MemoryEstimate, tier: Tier, style: Style, width: int) -> str:
    phase = memory.gpu_peak_phase if tier == "gpu" or memory.pooled else memory.training_peak_phase
    rows = [row for row in memory.items_of(tier) if phase in row.phases or tier == "nvme"]
    if not rows:
        return ""
    times = 1 if tier == "gpu" else memory.ranks_per_host
    total = sum(row.bytes * (1 if row.shared else times) for row in rows)
    heads = {
        "gpu": f"Memory at the peak, {_PHASE_LABELS[phase]}, per rank",
        "host": f"Memory per host, {pluralize(memory.ranks_per_host, 'rank')}, {_PHASE_LABELS[phase]}",
        "nvme": "NVMe per host",
    }
    names = {"gpu": _device_name(plan), "host": "host", "nvme": "disk"}
    lines = [
        (row.description + (" (assumed)" if row.assumed else ""), row.bytes * times, _format_formula(row, times))
        for row in rows
    ]
    table = _render_table(heads[tier], names[tier], [*lines, ("total", total, "")], style, width)
    parts = [table, _format_phases(memory, tier, width), _format_pooled_note(plan, memory) if tier == "gpu" else ""]
    return "\n".join(part for part in parts if part)


def _format_formula(row: MemoryItem, times: int) -> str:
    return row.formula if times == 1 or row.assumed else f"({row.formula}) x {times}"


def _format_phases(memory: MemoryEstimate, tier: Tier, width: int) -> str:
    """The memory of every phase, to compare with the peak."""
    if tier == "nvme":
        return ""
    sizes = {phase: memory.bytes_at(tier, phase) if tier == "gpu" else memory.host_bytes_at(phase) for phase in PHASES}
    phases = ", ".join(f"{phase} {format_bytes(size)}" for phase, size in sizes.items() if size)
    return textwrap.fill(f"  by phase: {phases}", max(width, 40), subsequent_indent="    ", break_on_hyphens=False)


def _format_pooled_note(plan: Plan, memory: MemoryEstimate) -> str:
    if memory.pooled:
        peak = format_bytes(memory.host_peak)
        return f"On the CPU accelerator this is host memory too: {peak} per host with the rows below."
    if plan.device is None:
        return (
            "The kind of GPU is not known: set `cluster.gpu`, such as `H100-80GB`, or `cpu` where there is none.\n"
            "`harness plan --here` takes the CPU where this machine has no GPU, as `harness launch` does."
        )
    return ""


def _render_table(head: str, unit: str, rows: Sequence[tuple[str, int, str]], style: Style, width: int) -> str:
    left = max(len(head), *(len(what) + 2 for what, _, _ in rows))
    room = width - left - 16
    formula_head = "from" if room >= _MIN_FORMULA_WIDTH else ""
    lines = [f"{style.paint(head.ljust(left), '', bold=True)}  {unit.rjust(10)}  {formula_head}"]
    for what, size, formula in rows:
        start = f"  {what}".ljust(left) + f"  {format_bytes(size).rjust(10)}  "
        parts = textwrap.wrap(formula, room) if room >= _MIN_FORMULA_WIDTH else []
        lines += [(start + (parts[0] if parts else "")).rstrip(), *(" " * len(start) + part for part in parts[1:])]
    return "\n".join(line.rstrip() for line in lines)


def _format_fit(plan: Plan, memory: MemoryEstimate, style: Style) -> str:
    parts = []
    if plan.capacity.gpu and not memory.pooled:
        parts.append(f"GPU {format_bytes(memory.gpu_peak)} of {format_bytes(plan.capacity.gpu)}")
    if plan.capacity.host:
        when = f" {_PHASE_LABELS[memory.host_peak_phase]}" if memory.host_peak_phase not in TRAINING else ""
        owner = " of this machine" if plan.is_capacity_local else ""
        parts.append(f"host {format_bytes(memory.host_peak)} of {format_bytes(plan.capacity.host)}{owner}{when}")
    if plan.capacity.nvme and memory.nvme_bytes:
        parts.append(f"NVMe {format_bytes(memory.nvme_bytes)} of {format_bytes(plan.capacity.nvme)}")
    if not parts:
        missing = "`cluster.host_memory`" if memory.pooled else "`cluster.gpu` and `cluster.host_memory`"
        return f"Whether it fits is not known: set {missing}."
    verdict = {True: ("Fits", "green"), False: ("Does not fit", "red"), None: ("Fits, as far as known", "yellow")}
    word, colour = verdict[plan.fit.fits]
    return f"{style.paint(word, colour, bold=True)}: {', '.join(parts)}"


def _render_time(plan: Plan, style: Style, width: int) -> str:
    time = plan.time
    if time is None:
        return ""
    parts = ", ".join(_format_time_part(part) for part in time.parts)
    speed = f"{time.tokens_per_second:,.0f} tokens/s, MFU {time.mfu:.0%}"
    step = f"{style.paint('Step', '', bold=True)}     {format_seconds(time.seconds)}, {speed}"
    lines = [f"{step}, limited by {time.bottleneck}", *textwrap.wrap(parts, max(40, width - 9))]
    if time.fixed_seconds > 0.01 * time.seconds:
        share, half = time.fixed_seconds / time.seconds, format_count(time.break_even_tokens)
        lines.append(
            f"{format_seconds(time.fixed_seconds)} of it are independent of the batch: {share:.0%} at "
            f"{time.tokens_per_step:,} tokens per step, half at {half}"
        )
    lines += _long_run_lines(plan)
    lines.append("estimates from assumed rates; `--format json` lists them, `cluster` overrides them")
    return "\n         ".join(lines)


def _format_time_part(part: TimePart) -> str:
    hidden = "" if part.exposed == part.seconds else f" ({format_seconds(part.exposed)} not hidden)"
    return f"{part.name} {format_seconds(part.seconds)}{hidden}"


def _long_run_lines(plan: Plan) -> list[str]:
    """Cost of a checkpoint; hours and cost of the whole run."""
    lines = []
    if plan.checkpoint_cost is not None:
        size, cost = format_bytes(plan.checkpoint_cost.bytes), format_seconds(plan.checkpoint_cost.seconds)
        lines.append(
            f"a checkpoint is {size} and takes {cost}; one every {format_seconds(plan.checkpoint_cost.interval)} "
            f"costs least ({plan.checkpoint_cost.lost:.1%} of the time, failures included)"
        )
    if plan.cost is not None:
        cost = "" if plan.cost.money is None else f", cost {plan.cost.money:,.0f}"
        hours = format_seconds(plan.cost.hours * 3600)
        lines.append(f"{format_count(plan.cost.tokens)} tokens: {hours}, {plan.cost.gpu_hours:,.0f} GPU hours{cost}")
    return lines


def _render_alternatives(
    heading: str, alternatives: Sequence[Alternative], device: str, style: Style, width: int
) -> str:
    if not alternatives:
        return ""
    timed = any(each.time for each in alternatives)
    fixed = 33 + (12 if timed else 0)
    left = min(max(len(each.title) for each in alternatives) + 3, max(24, width - fixed))
    head = heading.ljust(left) + f"{device}/rank".rjust(13) + "host/node".rjust(13) + "NVMe/node".rjust(13)
    lines = [style.paint(head + ("step".rjust(12) if timed else "") + "  fits", "", bold=True)]
    for each in alternatives:
        sizes = "".join(
            (format_bytes(size) if size else "-").rjust(13) for size in (each.gpu_peak, each.host_peak, each.nvme_bytes)
        )
        time = (format_seconds(each.time.seconds) if each.time else "-").rjust(12) if timed else ""
        fits = {True: "yes", False: f"no: {each.fit.binding}", None: "not known"}[each.fit.fits]
        mark = ">" if each.is_current else " "
        lines.append(f"{mark} {_truncate(each.title, left - 2).ljust(left - 2)}{sizes}{time}  {fits}".rstrip())
    return "\n".join(lines)


def _truncate(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..."


def _format_footer(plan: Plan, findings: Sequence[Finding], next_command: str) -> str:
    errors = sum(f.severity == "error" for f in findings)
    warnings = sum(f.severity == "warning" for f in findings)
    world = plan.run.parallel_dims.world_size
    ranks = "unknown ranks" if world is None else pluralize(world, "rank")
    summary = f"Plan: {ranks}, {pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}. {_NOTHING_STARTED}"
    return f"{summary}\nNext: {next_command}" if next_command else summary
