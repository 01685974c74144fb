# SPDX-License-Identifier: Apache-2.0
"""The tables of a plan: memory by row with its formula, phases, parts of the step, tuned defaults, all alternatives.

Counts nothing itself.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from harness.check.auto_plan import SearchResult
from harness.check.plan_report import PlanReport
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.memory.memory_items import PHASES, MemoryItem, Tier
from harness.plan.planner import Plan
from harness.plan.search.alternatives import Alternative
from harness.plan.search.settings_search import HEADROOM
from harness.plan.time.collective_traffic import CollectiveTraffic
from harness.plan.time.goodput import CheckpointCost
from harness.plan.time.step_time import TimePart
from harness.plan.tuned_defaults.impact import DefaultImpact
from harness.units import format_bytes, format_count, format_seconds, pluralize
from harness.views.plan_lines import cut_text, name_as_terms, name_of_choice, wrap_terms
from harness.views.plan_screen import device_name
from harness.views.plan_verdict import PHASE_LABELS
from harness.views.style import Style

_MIN_FORMULA_WIDTH = 24
_MAX_SEARCHED = 12
_MIN_SECONDS = 1e-4


def render_details(report: PlanReport, style: Style, width: int) -> str:
    """All tables of a plan that has memory."""
    plan = report.plan
    if plan.memory is None:
        return ""
    device = device_name(plan)
    blocks = [
        f"States     {plan.settings.bytes_per_parameter}" if plan.settings else "",
        _render_memory(plan, plan.memory, "gpu", style, width),
        _render_memory(plan, plan.memory, "host", style, width),
        _render_memory(plan, plan.memory, "nvme", style, width),
        _render_time(plan, style, width),
        _render_traffic(plan.traffic, style),
        _render_tuned_defaults(plan.tuned_defaults_impact, device, style, width),
        _render_alternatives(
            "Other stages and offloads",
            (*plan.alternatives, *plan.async_offloads),
            report.searched,
            device,
            style,
            width,
        ),
    ]
    if report.searched is not None:
        blocks.append(_render_searched(report.searched, style, width))
    else:
        heading = "Fastest that fits, same batch"
        blocks.append(_render_alternatives(heading, plan.fastest_fitting, None, device, style, width))
    return "\n\n".join(block for block in blocks if block)


def _render_memory(plan: Plan, memory: MemoryEstimate, tier: Tier, style: Style, width: int) -> str:
    phase = memory.gpu_peak_phase if tier == "gpu" or memory.pooled else memory.training_peak_phase
    rows = [row for row in memory.items_of(tier) if phase in row.phases or tier == "nvme"]
    if not rows:
        return ""
    times = 1 if tier == "gpu" else memory.ranks_per_host
    total = sum(row.bytes * (1 if row.shared else times) for row in rows)
    heads = {
        "gpu": f"Memory at the peak, {PHASE_LABELS[phase]}, per rank",
        "host": f"Memory per host, {pluralize(memory.ranks_per_host, 'rank')}, {PHASE_LABELS[phase]}",
        "nvme": "NVMe per host",
    }
    names = {"gpu": device_name(plan), "host": "host", "nvme": "disk"}
    lines = [
        (row.description + (" (assumed)" if row.assumed else ""), row.bytes * times, _format_formula(row, times))
        for row in rows
    ]
    table = _render_table(heads[tier], names[tier], [*lines, ("total", total, "")], style, width)
    parts = [table, _format_phases(memory, tier, width), _format_pooled_note(memory) if tier == "gpu" else ""]
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


def _format_pooled_note(memory: MemoryEstimate) -> str:
    if memory.pooled:
        peak = format_bytes(memory.host_peak)
        return f"On the CPU accelerator this is host memory too: {peak} per host with the rows below."
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


def _render_time(plan: Plan, style: Style, width: int) -> str:
    time = plan.time
    if time is None or plan.fit.verdict is False:
        return ""
    parts = ", ".join(format_time_part(part) for part in time.parts)
    lines = textwrap.wrap(parts, max(40, width - 11), break_on_hyphens=False)
    if time.fixed_seconds > 0.01 * time.seconds:
        share, half = time.fixed_seconds / time.seconds, format_count(time.break_even_tokens)
        lines.append(
            f"{format_seconds(time.fixed_seconds)} of it are independent of the batch: {share:.0%} at "
            f"{time.tokens_per_step:,} tokens per step, half at {half}"
        )
    lines += _checkpoint_lines(plan)
    lines.append("estimates from fitted rates and data sheets; `--format json` lists them, `cluster` overrides them")
    head = style.paint("Parts", "", bold=True) + " of a step\n           "
    return head + "\n           ".join(
        part for line in lines for part in textwrap.wrap(line, max(40, width - 11), break_on_hyphens=False)
    )


def format_time_part(part: TimePart) -> str:
    """`PCIe 5.5 s (3.1 s not hidden)`."""
    hidden = "" if part.exposed == part.seconds else f" ({format_seconds(part.exposed)} not hidden)"
    return f"{part.name} {format_seconds(part.seconds)}{hidden}"


def _render_searched(searched: SearchResult, style: Style, width: int) -> str:
    """The fastest that fit, and those that the gates refused before them."""
    lines = [style.paint("Fastest of the search", "", bold=True)]
    for each in searched.usable[:_MAX_SEARCHED]:
        time = format_seconds(each.time.seconds) if each.time else "-"
        sizes = f"{format_bytes(each.gpu_peak):>11} GPU  {format_bytes(each.host_peak):>11} host"
        mark = ">" if each is searched.best else " "
        start = f"{mark} {time:>12}  {sizes}  "
        name = wrap_terms(name_as_terms(each.settings), max(24, width - len(start)))
        lines += [start + name[0], *(" " * len(start) + part for part in name[1:])]
    for alternative, finding in searched.refused[:4]:
        gate = style.paint(finding.gate, "yellow")
        text = textwrap.wrap(f"{name_of_choice(alternative.settings)} ({finding.message})", max(40, width - 22))
        lines += [f"  refused by {gate}: {text[0]}", *(f"    {part}" for part in text[1:])]
    return "\n".join(lines)


def _render_alternatives(
    heading: str,
    alternatives: Sequence[Alternative],
    searched: SearchResult | None,
    device: str,
    style: Style,
    width: int,
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
        seconds = format_seconds(each.time.seconds) if each.time and each.fit.verdict is not False else "-"
        time = seconds.rjust(12) if timed else ""
        mark = ">" if each.is_current else " "
        fits = _format_fits(each, searched)
        lines.append(f"{mark} {cut_text(each.title, left - 2).ljust(left - 2)}{sizes}{time}  {fits}".rstrip())
    return "\n".join(lines)


def _format_fits(each: Alternative, searched: SearchResult | None) -> str:
    if each.fit.verdict is False:
        phase = f", {each.fit.phase} only" if each.fit.fits_in_training else ""
        return f"no: {each.fit.binding}{phase}"
    refused = searched.refusal_of(each) if searched is not None else None
    if refused is not None:
        return f"refused by {refused.gate}"
    if each.fit.verdict is None:
        return "not certain" if each.fit.uncertain else "not known"
    return "yes" if each.fit.headroom is None or each.fit.headroom >= HEADROOM else "barely"


def _render_traffic(rows: Sequence[CollectiveTraffic], style: Style) -> str:
    """The table of `harness plan --long`; empty for a run on one rank."""
    if not rows:
        return ""
    names = [f"{row.collective}, {row.carries}" for row in rows]
    groups = [f"{row.ranks:,} {row.group}" for row in rows]
    head = "Sent by a rank per step"
    left, middle = max(len(head) - 2, *map(len, names)), max(map(len, groups))
    lines = [style.paint(f"{head:<{left + 2}}  {'ranks':<{middle}}  {'bytes':>11}  {'time':>8}  of DDP", "", bold=True)]
    for row, name, group in zip(rows, names, groups, strict=True):
        time = "-" if row.seconds is None else format_seconds(row.seconds)
        ratio = "" if row.of_ddp is None else f"{row.of_ddp:>6.2f}"
        lines.append(f"  {name:<{left}}  {group:<{middle}}  {format_bytes(row.sent):>11}  {time:>8}  {ratio}".rstrip())
    shares = [row.of_ddp for row in rows if row.of_ddp is not None]
    if shares:
        lines.append(f"  data parallelism in all: {sum(shares):.2f} of DDP's one all-reduce of the same gradients")
    return "\n".join(lines)


def _render_tuned_defaults(impacts: Sequence[DefaultImpact], device: str, style: Style, width: int) -> str:
    """Each tuned default, DeepSpeed's own default, and the planned difference; `device` is the word for a GPU."""
    if not impacts:
        return ""
    heads = ("Tuned defaults", "value", "default")
    rows = [
        (
            d.tuned_default.key.removeprefix("zero_optimization."),
            _format_value(d.tuned_default.value),
            _format_value(d.tuned_default.default),
        )
        for d in impacts
    ]
    left, middle, right = (max(map(len, column)) for column in zip(heads, *rows, strict=True))
    lines = [style.paint(f"{heads[0].ljust(left)}  {heads[1].rjust(middle)}  {heads[2].rjust(right)}", "", bold=True)]
    for d, (key, value, default) in zip(impacts, rows, strict=True):
        start = f"  {key}".ljust(left) + f"  {value.rjust(middle)}  {default.rjust(right)}  "
        room = max(width - len(start), 30)
        parts = textwrap.wrap("; ".join(filter(None, (_format_impact(d, device), d.tuned_default.reason))), room)
        lines += [start + parts[0], *(" " * len(start) + part for part in parts[1:])]
    return "\n".join(line.rstrip() for line in [*lines, "`tuned_defaults: false` keeps DeepSpeed's defaults"])


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else ", ".join(value) if isinstance(value, list) else str(value)


def _format_impact(d: DefaultImpact, device: str) -> str:
    sizes = ((device, d.gpu_bytes), ("host", d.host_bytes), ("wire/step", round(d.wire_bytes)))
    effects = [f"{name} {'+' if size > 0 else '-'}{format_bytes(abs(size))}" for name, size in sizes if size]
    if d.step_seconds is not None and abs(d.step_seconds) >= _MIN_SECONDS:
        effects.append(f"step {'+' if d.step_seconds > 0 else '-'}{format_seconds(abs(d.step_seconds))}")
    return ", ".join(effects)


def describe_checkpoints(cost: CheckpointCost, gpus: int) -> str:
    """`a checkpoint is ... and takes ...; one every ... costs least`, with the time between failures."""
    size, seconds = format_bytes(cost.bytes), format_seconds(cost.seconds)
    background = f" in the background, of which the run waits {format_seconds(cost.waits)}"
    waits = background if cost.waits != cost.seconds else ""
    each = cost.failure_seconds
    apart = f"{each / 3600:,.0f} hours" if each >= 36_000 else format_seconds(each)
    return (
        f"a checkpoint is {size} and takes {seconds}{waits}; a failure of one of {gpus:,} GPUs every"
        f" {apart}; one every {format_seconds(cost.interval)} "
        f"costs least ({cost.lost:.1%} of the time, failures included)"
    )


def _checkpoint_lines(plan: Plan) -> list[str]:
    """The lines of `harness plan --long`."""
    if plan.checkpoint_cost is None or plan.settings is None:
        return []
    lines = [describe_checkpoints(plan.checkpoint_cost, plan.settings.world_size)]
    saves = plan.saves_at(plan.time)
    if saves is not None:
        lines.append(
            f"`checkpoint.save_steps: {saves.save_steps}` saves every {format_seconds(saves.interval)}: saves take"
            f" {saves.save_share:.1%} and failures {saves.failure_share:.1%} of the time; a failure loses"
            f" {format_seconds(saves.failure_loses)} on average"
        )
    return lines
