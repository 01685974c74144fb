# SPDX-License-Identifier: Apache-2.0
"""The verdict of a plan: does it fit and why, what would do where nothing fits, what was searched. Counts nothing."""

from __future__ import annotations

from harness.check.plan_report import PlanReport
from harness.facts.model_lookup import BY_NAME
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.memory.memory_items import Phase
from harness.plan.planner import Plan
from harness.plan.search.alternatives import title_of
from harness.plan.search.nearest_fit import NearestFit
from harness.plan.search.settings_search import HEADROOM, fits_with_headroom
from harness.plan.trainer_loop import LoopMemory, logits_bytes
from harness.plan.weights.quantized_weights import describe_fsdp
from harness.units import pluralize
from harness.views.plan_fit_table import NOT_DIVIDED, summarise_ways
from harness.views.plan_lines import name_as_terms, name_largest, wrap_terms
from harness.views.plan_numbers import format_size, format_time_range, parallel_terms
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
    if other is not None and (plan.run.trainer or _says_otherwise(other, plan)):
        lines += wrap_terms(_format_other_loop(other, plan), width, "  ")
    lines += [*_format_higher_stage(report, width), *_format_nearest_fit(report, width)]
    lines += _format_offload(report, width)
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
        if report.nearest_fit is not None and report.nearest_fit.host_bytes is not None:
            sizes = f"{format_size(report.nearest_fit.host_bytes)} needed of {format_size(plan.capacity.host or 0)}"
            why = f"host memory is too small, {sizes}; {why}"
    elif fit.uncertain is not None:
        low, high = (format_size(size) for size in fit.uncertain)
        word, colour = "Not certain", "yellow"
        why = f"GPU memory is {low} to {high} in training, of {format_size(plan.capacity.gpu or 0)}"
        why = f"{_format_unknown(report, memory, why)}; the most is {name_largest(memory)}"
    elif fit.fits is False:
        only_resume = fit.fits_in_training and fit.phase == "resume"
        word = "Nothing fits" if report.nothing_fits else "Cannot resume" if only_resume else "Does not fit"
        colour, why = "red", _format_shortage(plan, memory)
        why = f"this is the closest, and {why}" if report.nothing_fits and report.searched is not None else why
    else:
        is_known = fit.fits and not plan.model_source.startswith(BY_NAME)
        word, colour = ("Fits", "green") if is_known else ("Fits, as far as known", "yellow")
        full = 1 - (fit.headroom or 0.0)
        word, colour = (word, colour) if full <= 1 - HEADROOM else ("Barely fits", "yellow")
        why = f"{fit.binding} is the fullest, {full:.0%} used{_format_phase(fit.phase)}"
        why = _format_unknown(report, memory, why)
    if word == "Fits" and (alone := _fits_alone(plan)):
        word, colour = alone, "yellow"
    return word, colour, why


def _format_phase(phase: Phase | None) -> str:
    return f" {PHASE_LABELS[phase]}" if phase else ""


def _format_unknown(report: PlanReport, memory: MemoryEstimate, used: str) -> str:
    plan = report.plan
    names = {"GPU memory": "`cluster.gpu`", "host memory": "`cluster.host_memory`", "NVMe": "`cluster.nvme`"}
    needed = {"host memory": memory.host_peak, "NVMe": memory.nvme_bytes}
    unknown = [
        names[tier] + (f", {format_size(needed[tier])} needed" if tier in needed else "") for tier in plan.fit.unknown
    ]
    if "host memory" in plan.fit.unknown and (thrifty := report.least_host):
        other = ", ".join([title_of(thrifty.settings), *parallel_terms(thrifty.settings)])
        unknown[plan.fit.unknown.index("host memory")] += f", {format_size(thrifty.host_peak)} with {other}"
    if plan.model_source.startswith(BY_NAME):
        unknown.append(f"the model, which is planned as {plan.model_source.removeprefix(BY_NAME).lstrip(': ')}")
    return f"{used}; not known: {'; '.join(unknown)}" if unknown else used


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


def _format_higher_stage(report: PlanReport, width: int) -> list[str]:
    each, plan = report.higher_stage, report.plan
    if each is None or plan.capacity.gpu is None:
        return []
    text = f"{title_of(each.settings)} fits on the same GPUs: {format_size(each.gpu_peak)} of"
    text += f" {format_size(plan.capacity.gpu)}, {format_size(each.host_peak)} a host"
    step = f", {format_time_range(each.time.range)} a step" if each.time else ""
    return wrap_terms(f"{text}{step} (`zero.stage: 3`)", width, "  ")


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
    lines, ways = [], _list_ways(report, nearest_fit, kind)
    if whole := _bytes_in_4_bits(report.plan):
        text = f"Each GPU holds all 4-bit weights, {format_size(whole)}, which DeepSpeed does not divide (MD043)"
        lines += wrap_terms(f"{text}: more GPUs do not help", width, "  ")
        least = int(report.plan.memory.gpu_peak / (1 - HEADROOM)) if report.plan.memory else 0
        ways += [
            f"GPUs of {format_size(least)} or more",
            "LoRA over 16-bit weights, which ZeRO-3 divides",
            "a smaller model",
        ]
        ways.append(describe_fsdp(whole, report.plan.run.parallel_dims.world_size or 1))
    if nearest_fit.closest is not None and nearest_fit.closest.settings != report.plan.settings:
        short = -(nearest_fit.closest.fit.headroom or 0.0)
        lack = f"{short:.0%} short of {nearest_fit.closest.fit.binding}" if short > 0 else "its disks are not known"
        lack = "it is not certain" if nearest_fit.closest.fit.uncertain is not None else lack
        lines += wrap_terms(f"Closest: {name_as_terms(nearest_fit.closest.settings)}; {lack}", width, "  ")
    no_number = f"No number of {kind} up to 512 hosts is sure to be enough."
    if nearest_fit.closest is None or nearest_fit.closest.settings.stage == 3:
        no_number += f" {NOT_DIVIDED}"
    return [*lines, *wrap_terms(f"Would be enough: {'; or '.join(ways)}" if ways else no_number, width, "  ")]


def _list_ways(report: PlanReport, nearest_fit: NearestFit, kind: str) -> list[str]:
    """What would be enough: more GPUs, memory, disks, shorter sequences, adapters, no resume."""
    run, table, own, ways = report.plan.run, report.fit_table, "", []
    if table is not None and (fewest := table.fewest_for(run)):
        own, count = fewest.way, f"{'' if fewest.state == 'fits' else 'probably '}{fewest.gpus:,}"
        per_host = min(fewest.gpus, table.gpus_per_host)
        unsure = [cell.gpus for cell in table.rows[own] if cell.state == "not certain" and cell.gpus < fewest.gpus]
        hosts = f"{pluralize(fewest.gpus // per_host, 'host')} of {per_host}, {own}"
        ways.append(f"{count} x {kind} ({hosts}{f'; probably {unsure[0]:,}' if unsure else ''})")
    if nearest_fit.host_bytes is not None:
        sure = nearest_fit.sure_host_bytes
        text = f"{format_size(nearest_fit.host_bytes)} of memory a host"
        if sure is None:
            text = f"probably {text}"
        elif sure > nearest_fit.host_bytes:
            text = f"probably {text}, surely {format_size(sure)}"
        ways.append(text)
    if nearest_fit.nvme_bytes is not None:
        ways.append(f"{format_size(nearest_fit.nvme_bytes)} of disks a host (`--nvme` or `cluster.nvme`)")
    if nearest_fit.length is not None:
        ways.append(f"sequences of {nearest_fit.length:,} tokens")
    if table is not None and (world := run.parallel_dims.world_size) is not None:
        ways += [text for name, text in summarise_ways(table, world) if "LoRA" in name and name != own]
    searched = () if report.searched is None else report.searched.alternatives
    once = [each for each in searched if each.fit.phase == "resume" and each.fit.fits_in_training]
    if once := [each for each in once if report.plan.capacity.nvme or not each.nvme_bytes]:
        ways.append(f"this host for a run that never resumes ({name_as_terms(once[0].settings)})")
    return ways


def _bytes_in_4_bits(plan: Plan) -> int:
    """The weights in 4 bits of a GPU that has too little memory; 0 of other plans."""
    items = plan.memory.items_of("gpu") if plan.memory is not None and plan.fit.binding == "GPU memory" else ()
    return sum(item.bytes for item in items if item.description.endswith("in 4 bits"))


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


def _fits_alone(plan: Plan) -> str:
    """The verdict of a plan that holds for `harness launch` and not for another trainer's loop; empty for others."""
    other = plan.other_loop
    if plan.fit.fits is not True or plan.fit.uncertain or other is None or not other.trainer:
        return ""
    adverb = {False: "", None: "surely "}.get(other.fit.verdict)
    return "" if adverb is None else f"Only `harness launch` {adverb}fits"


def _says_otherwise(other: LoopMemory, plan: Plan) -> bool:
    """Has the other loop another verdict? Of adapters only a loop that does not fit; a range of others counts, too."""
    if plan.run.spec.model.lora is not None and other.fit.verdict is not False and not _fits_alone(plan):
        return False
    return (other.fit.verdict, bool(other.fit.uncertain)) != (plan.fit.verdict, bool(plan.fit.uncertain))


def _format_other_loop(other: LoopMemory, plan: Plan) -> str:
    """The same settings in the other loop: its verdict, its peak, and the logits that make the difference."""
    unsure = "is not certain" if other.fit.uncertain else "fits, as far as known"
    verdict = {True: "fits", False: "does not fit", None: unsure}[other.fit.verdict]
    text = f"With {other.name} it {verdict}: "
    is_of_host = other.memory.pooled or plan.capacity.gpu is None or other.fit.binding == "host memory"
    if is_of_host:
        return f"{text}{format_size(other.memory.host_peak)} of host memory"
    low, high = (format_size(each) for each in other.memory.gpu_peak_range)
    text += f"{low} to {high} of {format_size(plan.capacity.gpu or 0)} of GPU memory in training"
    mine = logits_bytes(plan.memory) if plan.memory else 0
    theirs = logits_bytes(other.memory)
    at_once = f"; logits of a whole micro-batch are {format_size(max(mine, theirs))}"
    return text + (at_once if abs(theirs - mine) > 1 << 30 else "")
