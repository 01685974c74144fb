# SPDX-License-Identifier: Apache-2.0
"""The answer of `harness plan` on one screen: fits or not and why, peaks, speed, cost, alternatives, warnings.

Counts nothing itself.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from harness.check.plan_report import PlanReport
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.memory.memory_items import Phase
from harness.plan.memory_peaks import peaks_of
from harness.plan.planner import Plan
from harness.plan.search.alternatives import Alternative, title_of
from harness.plan.search.settings_search import HEADROOM
from harness.plan.settings.checkpointed_layers import describe_checkpointing
from harness.plan.settings.plan_settings import PlanSettings, has_assumed_hosts
from harness.plan.trainer_loop import TRAINERS
from harness.plan.unknown_inputs import unknown_inputs
from harness.run.objective_facts import facts_of
from harness.units import format_count, format_trainable, pluralize
from harness.views.plan_calibration import format_calibration
from harness.views.plan_fit_table import render_fit_table, summarise_ways
from harness.views.plan_numbers import (
    format_cost,
    format_estimate,
    format_share,
    format_size,
    format_time,
    format_time_range,
)
from harness.views.plan_other_loop import fits_alone, format_other_loop, says_otherwise
from harness.views.plan_own_module import format_own_states
from harness.views.style import Style, escape_unprintable

PHASE_LABELS = {
    "load": "while the engine is built",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "step": "in the optimizer step",
    "save": "while a checkpoint is written",
    "resume": "while a checkpoint is read",
    "export": "while a folder is exported",
}
_UNKNOWN_DEVICE = (
    "The kind of GPU is not known: set `cluster.gpu`, for example to `H100-80GB`, or to `cpu` if there is no GPU. "
    "`harness plan --here` takes the CPU where this machine has no GPU, as `harness launch` does."
)
_LABEL = 11
_IN_TERM = "\N{NO-BREAK SPACE}"
"""For a space inside a term that is not to be divided between two lines, such as `micro-batch 2`."""
_MAX_WARNINGS = 4
INPUT_FINDINGS = ("MM001", "MM002", "MM003", "MM004")
"""Of keys that the plan cannot use or does not find: they are shown in full, with their places."""

SAID_ABOVE = ("MM005",)
"""What the verdict says: it is neither shown nor counted again."""


def render_screen(report: PlanReport, style: Style, width: int) -> str:
    """The blocks of the answer, without its last lines."""
    plan = report.plan
    title, facts = _format_title(plan, style, width), _format_ranks_and_batch(plan)
    if plan.memory is None:
        blocks = [title, facts]
    else:
        facts += [*_format_peaks(plan, plan.memory), *_format_speed(plan)]
        blocks = [[*title, *_format_verdict(report, plan.memory, style, width)], facts]
        blocks.append(_format_alternatives(report, style, width))
        if report.fit_table is not None and report.nothing_fits:
            blocks.append([render_fit_table(report.fit_table, style, width)])
    blocks.append(_format_warnings(report, style, width))
    start = " " * _LABEL
    blocks[1] = [part for line in blocks[1] for part in _wrap(line, width, start)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _wrap(text: str, width: int, start: str = "") -> list[str]:
    """Lines of whole words and terms; what is aligned in the first of them stays so."""
    lines = textwrap.wrap(text, max(width, 40), subsequent_indent=start, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_IN_TERM, " ") for line in lines]


def wrap_name(settings: PlanSettings, room: int) -> list[str]:
    """The name of a choice in lines of so many characters."""
    lines = textwrap.wrap(_name_as_terms(settings), room, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_IN_TERM, " ") for line in lines]


def device_name(plan: Plan) -> str:
    """The word for what a rank computes on: a CPU is no GPU."""
    return "device" if plan.device is None or plan.device.is_cpu else "GPU"


def _format_title(plan: Plan, style: Style, width: int) -> list[str]:
    precision = plan.run.spec.precision
    number_format = "bf16" if precision.bf16 else "fp16" if precision.fp16 else "fp32"
    counted = plan.model or plan.own_states
    size = f"{format_count(counted.num_parameters)} parameters" if counted else "a model of unknown size"
    setting = _name_as_terms(plan.settings) if plan.settings else plan.title
    setting += f", {plan.async_offload.title}" if plan.async_offload is not None else ""
    setting += f", trained by {TRAINERS[plan.run.trainer]}" if plan.run.trainer else ""
    lines = _wrap(f"{plan.run.name}: {size} in {number_format}, {setting}", width, "  ")
    return [lines[0].replace(plan.run.name, style.paint(plan.run.name, "", bold=True), 1), *lines[1:]]


def _format_ranks_and_batch(plan: Plan) -> list[str]:
    degrees, batch, settings, split = plan.run.parallel_dims, plan.run.batch, plan.settings, plan.trainable
    lines = []
    if degrees.world_size is None or degrees.data is None:
        lines.append("Ranks      unknown")
    elif settings is not None:
        parts = [f"{degrees.data} data", f"{degrees.tensor} tensor", f"{degrees.pipeline} pipeline"]
        parts += [f"{degrees.sequence} sequence"] if degrees.sequence > 1 else []
        divided = f" = {' x '.join(parts)}" if degrees.model_parallel_size > 1 else ""
        kind = plan.device.name if plan.device else "accelerators"
        hosts = f"{pluralize(settings.num_hosts, 'host')} x {settings.ranks_per_host} {kind}"
        assumed = "; their size is assumed, set `cluster.gpus_per_node`" if has_assumed_hosts(plan.run) else ""
        lines.append(f"Ranks      {degrees.world_size:,}{divided}, on {hosts}{assumed}")
    if settings is not None and batch.is_complete and degrees.data is not None:
        product = f"{batch.micro_batch} x {degrees.data:,} data ranks x {batch.accumulation} accumulation"
        size = (
            f"{settings.tokens_per_step:,} tokens at most" if facts_of(plan.run.spec.objective).loads_model else "rows"
        )
        lines.append(f"Batch      {batch.global_batch:,} = {product}, {size}")
    if split is not None and split.frozen:
        count = format_trainable(split.num_trainable, split.num_parameters)
        lines.append(f"Train      {count} of the parameters; the others have neither gradients nor states")
    if plan.own_states is not None:
        lines += format_own_states(plan.own_states)
    return lines


def name_of_choice(settings: PlanSettings) -> str:
    """Stage, offload, parallel sizes, micro-batch and checkpointing."""
    return _name_as_terms(settings).replace(_IN_TERM, " ")


def _name_as_terms(settings: PlanSettings) -> str:
    sizes = (
        ("tensor", settings.tensor_parallel_size),
        ("pipeline", settings.pipeline_parallel_size),
        ("sequence", settings.sequence_parallel_size),
    )
    parts = [*title_of(settings).split(", "), *(f"{name} {size}" for name, size in sizes if size > 1)]
    checkpointing = describe_checkpointing(settings, "checkpointing")
    terms = [*parts, f"micro-batch {settings.rows}", checkpointing]
    return ", ".join(term.replace(" ", _IN_TERM) for term in terms)


def _format_verdict(report: PlanReport, memory: MemoryEstimate, style: Style, width: int) -> list[str]:
    """The verdict in colour, what would do where nothing fits, and what was searched."""
    plan = report.plan
    word, colour, why = _verdict_words(report, memory)
    if not word:
        lines = _wrap(why, width)
        return lines if plan.device is not None else [*lines, *_wrap(_UNKNOWN_DEVICE, width)]
    other = plan.other_loop
    lines = _wrap(f"{word}: {why}", width, "  ")
    lines[0] = lines[0].replace(word, style.paint(word, colour, bold=True), 1)
    if other is not None and (plan.run.trainer or says_otherwise(other, plan)):
        lines += _wrap(format_other_loop(other, plan), width, "  ")
    return [*lines, *_format_nearest_fit(report, width), *_format_search(report, width)]


def format_verdict_line(report: PlanReport) -> str:
    """The verdict in a sentence, for a page."""
    if report.plan.memory is None:
        return "The memory is not planned: the model, the ranks or the batch is not known."
    word, _, why = _verdict_words(report, report.plan.memory)
    return f"{word}: {why}" if word else why


def _verdict_words(report: PlanReport, memory: MemoryEstimate) -> tuple[str, str, str]:
    """The verdict, its colour and the reason; no verdict where no size is known."""
    plan, fit = report.plan, report.plan.fit
    if not fit.binding:
        missing = "`cluster.host_memory`" if memory.pooled else "`cluster.gpu` and `cluster.host_memory`"
        return "", "", f"Whether it fits is not known: set {missing}."
    if report.nothing_fits and report.searched is not None and report.nearest_fit is None:
        word, colour, why = "Nothing can be used", "red", "the gates refuse all settings that fit"
    elif report.nothing_fits and fit.fits is None and report.searched is not None:
        word, colour = "Nothing fits", "red"
        why = f"this plan would, with {format_size(memory.nvme_bytes)} of disks a host, whose size is not known"
    elif fit.uncertain is not None:
        low, high = (format_size(size) for size in fit.uncertain)
        word, colour = "Not certain", "yellow"
        why = f"GPU memory is {low} to {high} in training, of {format_size(plan.capacity.gpu or 0)}"
        why = _format_unknown(plan, memory, why)
    elif fit.fits is False:
        only_resume = fit.fits_in_training and fit.phase == "resume"
        word = "Nothing fits" if report.nothing_fits else "Cannot resume" if only_resume else "Does not fit"
        colour, why = "red", _format_shortage(plan, memory)
        why = f"this is the closest, and {why}" if report.nothing_fits and report.searched is not None else why
    else:
        word, colour = ("Fits", "green") if fit.fits else ("Fits, as far as known", "yellow")
        full = 1 - (fit.headroom or 0.0)
        word, colour = (word, colour) if full <= 1 - HEADROOM else ("Barely fits", "yellow")
        why = f"{fit.binding} is the fullest, {full:.0%} of it used{_format_phase(fit.phase)}"
        why = _format_unknown(plan, memory, why)
    if word == "Fits" and (alone := fits_alone(plan)):
        word, colour = alone, "yellow"
    return word, colour, why


def _format_phase(phase: Phase | None) -> str:
    return f" {PHASE_LABELS[phase]}" if phase else ""


def _format_unknown(plan: Plan, memory: MemoryEstimate, used: str) -> str:
    unknown = [
        name
        for name, size, is_used in (
            ("`cluster.gpu`", plan.capacity.gpu, not memory.pooled),
            ("`cluster.host_memory`", plan.capacity.host, True),
            ("`cluster.nvme`", plan.capacity.nvme, memory.nvme_bytes > 0),
        )
        if is_used and size is None
    ]
    return f"{used}; not known: {', '.join(unknown)}" if unknown else used


def _format_shortage(plan: Plan, memory: MemoryEstimate) -> str:
    fit = plan.fit
    needed, available = {
        "host memory": (memory.host_peak, plan.capacity.host),
        "NVMe": (memory.nvme_bytes, plan.capacity.nvme),
    }.get(fit.binding, (memory.gpu_peak, plan.capacity.gpu))
    sizes = f"{format_size(needed)} of {format_size(available or 0)}"
    text = f"{fit.binding} is too small, {sizes}{_format_phase(fit.phase)}"
    if fit.binding == "host memory":
        text += " (5% is the system's)"
    elif fit.binding == "GPU memory":
        items = [item for item in memory.items_of("gpu") if memory.gpu_peak_phase in item.phases]
        largest = max(items, key=lambda item: item.bytes)
        text += f", {format_size(largest.bytes)} of it {largest.description}"
    return f"{text}; training itself fits" if fit.fits_in_training else text


def _format_nearest_fit(report: PlanReport, width: int) -> list[str]:
    nearest_fit = report.nearest_fit
    if nearest_fit is None:
        return []
    kind = report.plan.device.name if report.plan.device else "ranks"
    ways = []
    if nearest_fit.ranks is not None:
        hosts = nearest_fit.ranks // nearest_fit.ranks_per_host
        ways.append(f"{nearest_fit.ranks:,} x {kind} ({pluralize(hosts, 'host')} of {nearest_fit.ranks_per_host})")
    if nearest_fit.host_bytes is not None:
        ways.append(f"{format_size(nearest_fit.host_bytes)} of memory a host")
    if nearest_fit.nvme_bytes is not None:
        ways.append(f"{format_size(nearest_fit.nvme_bytes)} of disks a host (`--nvme` or `cluster.nvme`)")
    if nearest_fit.length is not None:
        ways.append(f"sequences of {nearest_fit.length:,} tokens")
    world = report.plan.run.parallel_dims.world_size
    if report.fit_table is not None and world is not None:
        ways += [text for text in summarise_ways(report.fit_table, world) if "LoRA" in text]
    lines = []
    if nearest_fit.closest is not None and nearest_fit.closest.settings != report.plan.settings:
        lack = f"{-(nearest_fit.closest.fit.headroom or 0.0):.0%} short of {nearest_fit.closest.fit.binding}"
        lines += _wrap(f"Closest: {_name_as_terms(nearest_fit.closest.settings)}; {lack}", width, "  ")
    would_do = f"Would be enough: {'; or '.join(ways)}" if ways else f"No number of {kind} up to 4,096 hosts is enough."
    return [*lines, *_wrap(would_do, width, "  ")]


def _format_search(report: PlanReport, width: int) -> list[str]:
    searched = report.searched
    if searched is None:
        return []
    text = f"Searched {len(searched.alternatives):,} settings of the same batch"
    if searched.best is not None:
        text += f"; {len(searched.usable):,} fit and pass the gates, this one is the fastest"
        certain = next((each for each in searched.usable if each.fit.uncertain is None and each.time), None)
        if report.plan.fit.uncertain and certain is not None and certain.time is not None:
            step = format_time_range(certain.time.range)
            text += f"; certain is {name_of_choice(certain.settings)}: {format_size(certain.gpu_peak)}, {step} a step"
        if not searched.launchable:
            text += "; `harness launch` of this version refuses it, but it can be validated, planned and rendered"
    return _wrap(text, width, "  ")


def _format_peaks(plan: Plan, memory: MemoryEstimate) -> list[str]:
    rows: list[tuple[str, int, int | None, str]] = []
    if not memory.pooled:
        when = f"per rank, {PHASE_LABELS[memory.gpu_peak_phase]}"
        rows.append((device_name(plan), memory.gpu_peak, plan.capacity.gpu, when))
    when = f"per host{' (this machine)' if plan.is_capacity_local else ''}, {PHASE_LABELS[memory.host_peak_phase]}"
    in_training = format_size(memory.host_bytes_at(memory.training_peak_phase))
    if in_training != format_size(memory.host_peak):
        when += f"; {in_training} in training"
    rows.append(("Host", memory.host_peak, plan.capacity.host, when))
    if memory.nvme_bytes:
        rows.append(("NVMe", memory.nvme_bytes, plan.capacity.nvme, "per host"))
    lines = []
    for name, needed, available, when in rows:
        there = f" of {format_size(available)}" if available else ""
        lines.append(f"{name.ljust(_LABEL)}{format_size(needed)}{there} {when}")
        if name == "GPU":
            lines += _format_gpu_peaks(plan, memory)
    return lines


def _format_gpu_peaks(plan: Plan, memory: MemoryEstimate) -> list[str]:
    names = {"allocated": "allocated", "reserved": "reserved", "nvidia_smi": "nvidia-smi"}
    parts = [
        f"{names[peak.name]} {format_size(peak.bytes)} ({format_size(peak.range[0])} to {format_size(peak.range[1])})"
        for peak in peaks_of(memory, plan.capacity.gpu, plan.calibration)
    ]
    return [f"{' ' * _LABEL}{', '.join(parts)}"] if parts else []


def _format_speed(plan: Plan) -> list[str]:
    """Step, tokens a second, and the whole run; nothing of a run that does not fit."""
    time, cost = plan.time, plan.cost
    if time is None or plan.fit.verdict is False:
        return []
    speed = (time.tokens_per_step / time.range[1], time.tokens_per_step / time.range[0])
    lines = [
        f"Step       {format_time(time.seconds, time.range)}, limited by {time.bottleneck}",
        f"Speed      {format_estimate(time.tokens_per_second, speed)} tokens/s, MFU {format_share(time.mfu)}",
    ]
    if plan.model and plan.model.experts:
        lines.append(f"{' ' * _LABEL}The experts of a layer are one product; a loop over them is 4 to 20 times slower")
    lines += [*format_calibration(plan), *_format_unknown_inputs(plan)]
    if cost is not None:
        hours = format_time(cost.hours * 3600, (cost.hours_range[0] * 3600, cost.hours_range[1] * 3600))
        gpu_hours = format_estimate(cost.gpu_hours, cost.gpu_hours_range)
        lost = f", {plan.lost_share(time):.1%} of it saves and failures" if plan.checkpoint_cost is not None else ""
        lines += [f"Run        {format_count(cost.tokens)} tokens: {hours}, {gpu_hours} GPU hours{lost}"]
        if cost.money is not None:
            lines.append(f"Cost       {format_estimate(cost.money, cost.money_range)}")
    return lines


def _format_unknown_inputs(plan: Plan) -> list[str]:
    """The reasons for a wide range, and what measures them; nothing where no input that decides the step is assumed."""
    unknown = unknown_inputs(plan)
    if not unknown:
        return []
    first = unknown[0]
    same = [each for each in unknown if each.measured_by == first.measured_by]
    keys = " and ".join(f"`{each.key}`" for each in same)
    verb = "is" if len(same) == 1 else "are"
    it = "it" if len(same) == 1 else "them"
    return [f"{' ' * _LABEL}The range is wide: {keys} {verb} unknown; `{first.measured_by}` measures {it}"]


def _format_alternatives(report: PlanReport, style: Style, width: int) -> list[str]:
    alternatives = report.alternatives
    if not alternatives:
        return []
    columns = _alternative_columns(report.plan, alternatives)
    widths = [max(map(len, column)) + 2 for column in columns]
    room = max(24, min(64, width - sum(widths)))
    heads, *rows = (
        "".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in zip(*columns, strict=True)
    )
    head = "Would fit" if report.plan.fit.verdict is False else "Alternatives"
    lines = [style.paint(head.ljust(room) + heads, "", bold=True)]
    for each, row in zip(alternatives, rows, strict=True):
        first, *others = wrap_name(each.settings, room - 2)
        lines += [f"  {first}".ljust(room) + row, *(f"    {part}" for part in others)]
    return lines


def _alternative_columns(plan: Plan, alternatives: Sequence[Alternative]) -> list[list[str]]:
    """Each with its heading first."""
    columns = [
        [device_name(plan), *(format_size(each.gpu_peak) for each in alternatives)],
        ["host", *(format_size(each.host_peak) for each in alternatives)],
    ]
    if any(each.nvme_bytes for each in alternatives):
        columns.append(["NVMe", *(format_size(each.nvme_bytes) if each.nvme_bytes else "-" for each in alternatives)])
    if any(each.time for each in alternatives):
        columns.append(["step", *(format_time_range(each.time.range) if each.time else "-" for each in alternatives)])
        if plan.tokens is not None:
            heading = "run" if plan.price is None else "cost"
            columns.append([heading, *(format_cost(plan.cost_at(each.time)) for each in alternatives)])
    return columns


def _format_warnings(report: PlanReport, style: Style, width: int) -> list[str]:
    """A few, in a sentence each; a plan that does not fit has said so above."""
    elsewhere = (*INPUT_FINDINGS, *SAID_ABOVE)
    warnings = [
        finding
        for finding in report.findings
        if (finding.severity != "info" or finding.gate == "MM019") and finding.gate not in elsewhere
    ]
    lines = []
    for finding in warnings[:_MAX_WARNINGS]:
        head = f"{finding.severity}[{finding.gate}]"
        first, *others = _wrap(f"{head}: {escape_unprintable(finding.message)}", width, "  ")
        lines += [first.replace(head, style.paint(head, "red" if finding.is_error else "yellow"), 1), *others]
    if len(warnings) > _MAX_WARNINGS:
        lines.append(f"{len(warnings) - _MAX_WARNINGS} more with `--long`")
    return lines
