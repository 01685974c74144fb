# SPDX-License-Identifier: Apache-2.0
"""The verdict of a plan: does it fit and why, what would do where nothing fits, what was searched. Counts nothing."""

from __future__ import annotations

from harness.check.plan_report import PlanReport
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.memory.memory_items import Phase
from harness.plan.planner import Plan
from harness.plan.search.alternatives import title_of
from harness.plan.search.settings_search import HEADROOM, fits_with_headroom
from harness.units import pluralize
from harness.views.plan_fit_table import NOT_DIVIDED, summarise_ways
from harness.views.plan_lines import name_as_terms, name_largest, wrap_terms
from harness.views.plan_numbers import format_size, format_time_range, parallel_terms
from harness.views.plan_other_loop import fits_alone, format_other_loop, says_otherwise
from harness.views.style import Style

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


def format_verdict(report: PlanReport, memory: MemoryEstimate, style: Style, width: int) -> list[str]:
    """The verdict in colour, what would do where nothing fits, and what was searched."""
    plan = report.plan
    word, colour, why = _verdict_words(report, memory)
    if not word:
        lines = wrap_terms(why, width)
        return lines if plan.device is not None else [*lines, *wrap_terms(_UNKNOWN_DEVICE, width)]
    other = plan.other_loop
    lines = wrap_terms(f"{word}: {why}", width, "  ")
    lines[0] = lines[0].replace(word, style.paint(word, colour, bold=True), 1)
    if other is not None and (plan.run.trainer or says_otherwise(other, plan)):
        lines += wrap_terms(format_other_loop(other, plan), width, "  ")
    lines += [*_format_nearest_fit(report, width), *_format_offload(report, width)]
    return [*lines, *_format_search(report, width)]


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
        why = f"{_format_unknown(plan, memory, why)}; the most is {name_largest(memory)}"
    elif fit.fits is False:
        only_resume = fit.fits_in_training and fit.phase == "resume"
        word = "Nothing fits" if report.nothing_fits else "Cannot resume" if only_resume else "Does not fit"
        colour, why = "red", _format_shortage(plan, memory)
        why = f"this is the closest, and {why}" if report.nothing_fits and report.searched is not None else why
    else:
        word, colour = ("Fits", "green") if fit.fits else ("Fits, as far as known", "yellow")
        full = 1 - (fit.headroom or 0.0)
        word, colour = (word, colour) if full <= 1 - HEADROOM else ("Barely fits", "yellow")
        why = f"{fit.binding} is the fullest, {full:.0%} used{_format_phase(fit.phase)}"
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
        text += f"; the most is {name_largest(memory)}"
    return f"{text}; training itself fits" if fit.fits_in_training else text


def _format_offload(report: PlanReport, width: int) -> list[str]:
    """The reason for offload, or that it is not needed, and the number of GPUs that do without."""
    each, plan = report.without_offload, report.plan
    if each is None or plan.capacity.gpu is None:
        return []
    kind = ", ".join([title_of(each.settings), *parallel_terms(each.settings)])
    sizes = f"{format_size(each.gpu_peak)} of {format_size(plan.capacity.gpu)} a GPU ({kind})"
    if fits_with_headroom(each):
        step = f", {format_time_range(each.time.range)} a step" if each.time else ""
        fits = "it fits, too" if each.fit.uncertain is None else "it is not certain"
        return wrap_terms(f"Without offload {fits}: {sizes}{step}", width, "  ")
    others = f"; {report.gpus_without_offload:,} GPUs would do" if report.gpus_without_offload else ""
    needs = "it needs" if each.gpu_peak > plan.capacity.gpu else "it is too tight:"
    return wrap_terms(f"Without offload {needs} {sizes}{others}", width, "  ")


def _format_nearest_fit(report: PlanReport, width: int) -> list[str]:
    nearest_fit = report.nearest_fit
    if nearest_fit is None:
        return []
    kind = report.plan.device.name if report.plan.device else "ranks"
    ways = []
    table = report.fit_table
    all_trained = None if table is None or report.plan.run.spec.model.lora else table.fewest_of_all or table.tight
    if table is not None and (fewest := all_trained):
        count = f"{'probably ' if fewest is table.tight else ''}{fewest.gpus:,}"
        per_host = min(fewest.gpus, table.gpus_per_host)
        ways.append(f"{count} x {kind} ({pluralize(fewest.gpus // per_host, 'host')} of {per_host}, {fewest.way})")
    if nearest_fit.host_bytes is not None:
        ways.append(f"{format_size(nearest_fit.host_bytes)} of memory a host")
    if nearest_fit.nvme_bytes is not None:
        ways.append(f"{format_size(nearest_fit.nvme_bytes)} of disks a host (`--nvme` or `cluster.nvme`)")
    if nearest_fit.length is not None:
        ways.append(f"sequences of {nearest_fit.length:,} tokens")
    world = report.plan.run.parallel_dims.world_size
    if table is not None and world is not None:
        ways += [text for text in summarise_ways(table, world) if "LoRA" in text]
    searched = () if report.searched is None else report.searched.alternatives
    if once := next((each for each in searched if each.fit.phase == "resume" and each.fit.fits_in_training), None):
        ways.append(f"this host for a run that never resumes ({name_as_terms(once.settings)})")
    lines = []
    if nearest_fit.closest is not None and nearest_fit.closest.settings != report.plan.settings:
        short = -(nearest_fit.closest.fit.headroom or 0.0)
        lack = f"{short:.0%} short of {nearest_fit.closest.fit.binding}" if short > 0 else "its disks are not known"
        lack = "it is not certain" if nearest_fit.closest.fit.uncertain is not None else lack
        lines += wrap_terms(f"Closest: {name_as_terms(nearest_fit.closest.settings)}; {lack}", width, "  ")
    no_number = f"No number of {kind} up to 512 hosts is sure to be enough."
    if nearest_fit.closest is None or nearest_fit.closest.settings.stage == 3:
        no_number += f" {NOT_DIVIDED}"
    return [*lines, *wrap_terms(f"Would be enough: {'; or '.join(ways)}" if ways else no_number, width, "  ")]


def _format_search(report: PlanReport, width: int) -> list[str]:
    searched = report.searched
    if searched is None:
        return []
    text = f"Searched {len(searched.alternatives):,} settings of the same batch"
    if searched.best is not None:
        unsure = sum(each.fit.uncertain is not None for each in searched.usable)
        others = f"; {unsure:,} others are not certain" if unsure and not searched.best.fit.uncertain else ""
        text += f": {len(searched.usable) - (unsure if others else 0):,} fit, this one is the fastest{others}"
        if not searched.launchable:
            text += "; `harness launch` of this version refuses it, but it can be validated, planned and rendered"
    return wrap_terms(text, width, "  ")
