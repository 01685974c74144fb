"""A plan as text: ranks, batch, memory, time, what else would fit, and the command that comes next.

Counts nothing itself.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from harness.findings import Finding
from harness.plan.memory import Memory
from harness.plan.plan import Plan
from harness.plan.rows import Phase, Row, Tier
from harness.units import format_bytes, format_count, format_seconds
from harness.views.style import Style

_PHASES = {"backward": "in the backward pass", "step": "in the optimizer step"}
_LAST_WORDS = "Nothing was written and no host was contacted."
_SHORT_FORMULA = 24


def as_text(plan: Plan, findings: Sequence[Finding], next_command: str, style: Style, width: int = 100) -> str:
    """The whole plan. `findings` are those of the gates and the plan's own; they are counted here, not shown."""
    blocks = [_title(plan, style), _ranks_and_batch(plan)]
    if plan.memory is not None:
        blocks += [
            _memory(plan, plan.memory, "gpu", style, width),
            _memory(plan, plan.memory, "host", style, width),
            _memory(plan, plan.memory, "nvme", style, width),
            _verdict(plan, plan.memory, style),
            _time(plan, style),
            _ladder(plan, style, width),
        ]
    blocks.append(_last_lines(plan, findings, next_command))
    return "\n\n".join(block for block in blocks if block)


def _title(plan: Plan, style: Style) -> str:
    precision = plan.run.spec.precision
    number_format = "bf16" if precision.bf16 else "fp16" if precision.fp16 else "fp32"
    size = f"{format_count(plan.model.num_parameters)} parameters" if plan.model else "a model of unknown size"
    return f"{style.paint(plan.run.name, '', bold=True)}: {size} in {number_format}, {plan.title}"


def _ranks_and_batch(plan: Plan) -> str:
    degrees, batch, settings = plan.run.degrees, plan.run.batch, plan.settings
    if degrees.world is None or degrees.data is None:
        ranks = "unknown"
    else:
        parts = [f"{degrees.data} data", f"{degrees.tensor} tensor", f"{degrees.pipeline} pipeline"]
        parts += [f"{degrees.sequence} sequence"] if degrees.sequence > 1 else []
        ranks = f"{degrees.world} = {' x '.join(parts)}{_where(plan)}"
    lines = [f"Ranks    {ranks}"]
    if batch.complete and degrees.data is not None and settings is not None:
        product = f"{batch.per_device} per rank x {degrees.data} x {batch.accumulation} accumulation steps"
        lines.append(f"Batch    {batch.global_batch} = {product}, at most {settings.tokens_per_step:,} tokens a step")
    return "\n".join(lines)


def _where(plan: Plan) -> str:
    if plan.settings is None:
        return ""
    hosts, kind = plan.settings.hosts, plan.device.name if plan.device else "accelerators"
    return f", on {hosts} host{'s' if hosts > 1 else ''} x {plan.settings.ranks_per_host} {kind}"


def _memory(plan: Plan, memory: Memory, tier: Tier, style: Style, width: int) -> str:
    phase = memory.gpu_peak_phase
    rows = [row for row in memory.of(tier) if phase in row.phases or tier != "gpu"]
    if not rows:
        return ""
    times = 1 if tier == "gpu" else memory.ranks_per_host
    total = sum(row.bytes for row in rows) * times
    heads = {
        "gpu": f"Memory at the peak, {_PHASES[phase]}, per rank",
        "host": f"Memory per host, {memory.ranks_per_host} rank{'s' if memory.ranks_per_host > 1 else ''}",
        "nvme": "NVMe per host",
    }
    names = {"gpu": "device" if plan.device is None or memory.pooled else "GPU", "host": "host", "nvme": "disk"}
    lines = [
        (row.what + (" (assumed)" if row.assumed else ""), row.bytes * times, _formula(row, times)) for row in rows
    ]
    table = _table(heads[tier], names[tier], [*lines, ("together", total, _other_phase(memory, tier))], style, width)
    return f"{table}\n{_pooled(plan, memory)}".rstrip() if tier == "gpu" else table


def _formula(row: Row, times: int) -> str:
    return row.formula if times == 1 or row.assumed else f"({row.formula}) x {times}"


def _other_phase(memory: Memory, tier: Tier) -> str:
    if tier != "gpu":
        return ""
    other: Phase = "step" if memory.gpu_peak_phase == "backward" else "backward"
    return f"{format_bytes(memory.at('gpu', other))} {_PHASES[other]}"


def _pooled(plan: Plan, memory: Memory) -> str:
    if memory.pooled:
        peak = format_bytes(memory.host_peak)
        return f"On the CPU accelerator this is host memory too: {peak} per host with what follows."
    if plan.device is None:
        return "The kind of GPU is not known: set `cluster.gpu`, such as `H100-80GB`, or `cpu` where there is none."
    return ""


def _table(head: str, unit: str, rows: Sequence[tuple[str, int, str]], style: Style, width: int) -> str:
    left = max(len(head), *(len(what) + 2 for what, _, _ in rows))
    room = width - left - 16
    lines = [
        f"{style.paint(head.ljust(left), '', bold=True)}  {unit.rjust(10)}  {'from' if room >= _SHORT_FORMULA else ''}"
    ]
    for what, size, formula in rows:
        start = f"  {what}".ljust(left) + f"  {format_bytes(size).rjust(10)}  "
        parts = textwrap.wrap(formula, room) if room >= _SHORT_FORMULA else []
        lines += [(start + (parts[0] if parts else "")).rstrip(), *(" " * len(start) + part for part in parts[1:])]
    return "\n".join(line.rstrip() for line in lines)


def _verdict(plan: Plan, memory: Memory, style: Style) -> str:
    parts = []
    if plan.capacity.gpu and not memory.pooled:
        parts.append(f"GPU {format_bytes(memory.gpu_peak)} of {format_bytes(plan.capacity.gpu)}")
    if plan.capacity.host:
        parts.append(f"host {format_bytes(memory.host_peak)} of {format_bytes(plan.capacity.host)}")
    if not parts:
        missing = "`cluster.host_memory`" if memory.pooled else "`cluster.gpu` and `cluster.host_memory`"
        return f"Whether it fits is not known: set {missing}."
    words = {True: ("Fits", "green"), False: ("Does not fit", "red"), None: ("As far as is known it fits", "yellow")}
    word, colour = words[plan.fit.fits]
    return f"{style.paint(word, colour, bold=True)}: {', '.join(parts)}"


def _time(plan: Plan, style: Style) -> str:
    time = plan.time
    if time is None:
        return ""
    parts = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in time.parts)
    speed = f"{time.tokens_per_second:,.0f} tokens/s"
    step = f"{style.paint('Step', '', bold=True)}     {format_seconds(time.seconds)}, {speed}"
    note = "an estimate; `--format json` lists its assumptions"
    return f"{step}, limited by {time.bottleneck}\n         {parts}\n         {note}"


def _ladder(plan: Plan, style: Style, width: int) -> str:
    rungs = plan.rungs
    timed = any(rung.time for rung in rungs)
    fixed = 33 + (12 if timed else 0)
    left = min(max(len(rung.title) for rung in rungs) + 3, max(24, width - fixed))
    head = "What else would fit".ljust(left) + "GPU/rank".rjust(13) + "host/node".rjust(13) + "NVMe/node".rjust(13)
    lines = [style.paint(head + ("step".rjust(12) if timed else ""), "", bold=True)]
    for rung in rungs:
        sizes = "".join((format_bytes(size) if size else "-").rjust(13) for size in (rung.gpu, rung.host, rung.nvme))
        time = (format_seconds(rung.time.seconds) if rung.time else "-").rjust(12) if timed else ""
        fits = {True: "fits", False: f"no: {rung.fit.binding}", None: ""}[rung.fit.fits]
        mark = ">" if rung.chosen else " "
        lines.append(f"{mark} {_clip(rung.title, left - 2).ljust(left - 2)}{sizes}{time}  {fits}".rstrip())
    return "\n".join(lines)


def _clip(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..."


def _last_lines(plan: Plan, findings: Sequence[Finding], next_command: str) -> str:
    errors = sum(f.severity == "error" for f in findings)
    warnings = sum(f.severity == "warning" for f in findings)
    world = plan.run.degrees.world
    ranks = "unknown ranks" if world is None else _count(world, "rank")
    summary = f"Plan: {ranks}, {_count(errors, 'error')}, {_count(warnings, 'warning')}. {_LAST_WORDS}"
    return f"{summary}\nNext: {next_command}" if next_command else summary


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
