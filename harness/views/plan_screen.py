# SPDX-License-Identifier: Apache-2.0
"""The answer of `harness plan` on one screen: fits or not and why, peaks, speed, cost, alternatives, warnings.

Counts nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.check.plan_report import PlanReport
from harness.facts.devices import is_before_ampere
from harness.plan.memory.memory_estimate import MemoryEstimate, estimate_memory
from harness.plan.memory_peaks import peaks_of, with_twice_the_gpus
from harness.plan.own_states import OwnStates
from harness.plan.planner import Plan
from harness.plan.search.alternatives import Alternative, title_of
from harness.plan.settings.plan_settings import has_assumed_hosts
from harness.plan.time.collective_traffic import CollectiveTraffic
from harness.plan.time.step_time import PARAMETERS_READ, StepTime, find_enough_network
from harness.plan.trainer_loop import TRAINERS
from harness.plan.unknown_inputs import find_remedy, unknown_inputs
from harness.plan.weights.trainable_split import has_known_targets
from harness.run.objective_facts import facts_of
from harness.units import format_bytes, format_count, format_trainable, pluralize
from harness.views.plan_calibration import format_calibration
from harness.views.plan_fit_table import render_fit_table
from harness.views.plan_lines import name_as_terms, wrap_terms
from harness.views.plan_numbers import (
    format_cost,
    format_estimate,
    format_share,
    format_size,
    format_time,
    format_time_range,
)
from harness.views.plan_verdict import PHASE_LABELS, format_verdict
from harness.views.style import Style, escape_unprintable

_LABEL = 11
_WITH = {False: "without checkpointing", True: "with it"}
_MAX_WARNINGS = 4
INPUT_FINDINGS = ("MM001", "MM002", "MM003", "MM004")
"""Of keys that the plan cannot use or does not find: they are shown in full, with their places."""

SAID_ABOVE = ("MM005",)
"""What the verdict says: it is neither shown nor counted again."""


def render_screen(report: PlanReport, style: Style, width: int) -> str:
    """The blocks of the answer, without its last lines."""
    plan = report.plan
    title, facts = _format_title(plan, style, width), _format_ranks_and_batch(report)
    if plan.memory is None:
        blocks = [title, facts]
    else:
        facts += [*_format_peaks(plan, plan.memory), *_format_speed(plan)]
        blocks = [[*title, *format_verdict(report, plan.memory, style, width)], facts]
        blocks.append(_format_alternatives(report, style, width))
        if report.fit_table is not None and report.nothing_fits:
            blocks.append([render_fit_table(report.fit_table, style, width, plan.run.parallel_dims.world_size)])
    blocks.append(_format_warnings(report, style, width))
    start = " " * _LABEL
    blocks[1] = [part for line in blocks[1] for part in wrap_terms(line, width, start)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def device_name(plan: Plan) -> str:
    """The word for what a rank computes on: a CPU is no GPU."""
    return "device" if plan.device is None or plan.device.is_cpu else "GPU"


def _format_title(plan: Plan, style: Style, width: int) -> list[str]:
    number_format, precision = _number_format(plan), plan.run.spec.precision
    counted = plan.model or plan.own_states
    size = f"{format_count(counted.num_parameters)} parameters" if counted else "a model of unknown size"
    if plan.device is not None and precision.fp16 and is_before_ampere(plan.device.name):
        number_format += f" ({plan.device.name} has no bf16)"
    setting = name_as_terms(plan.settings) if plan.settings else plan.title
    setting += f", {plan.async_offload.title}" if plan.async_offload is not None else ""
    setting += f", trained by {TRAINERS[plan.run.trainer]}" if plan.run.trainer else ""
    lines = wrap_terms(f"{plan.run.name}: {size} in {number_format}, {setting}", width, "  ")
    return [lines[0].replace(plan.run.name, style.paint(plan.run.name, "", bold=True), 1), *lines[1:]]


def _number_format(plan: Plan) -> str:
    precision = plan.run.spec.precision
    return "bf16" if precision.bf16 else "fp16" if precision.fp16 else "fp32"


def _describe_rows(report: PlanReport, length: int) -> str:
    """The length of a row, by whom it was chosen, and that short rows count as full ones."""
    text = f"rows of {length:,} tokens" + ("" if report.plan.run.spec.data.packing else ", all counted as full")
    return text + (f"; assumed: {', '.join(f'`{name}`' for name in report.assumed)}" if report.assumed else "")


def _format_ranks_and_batch(report: PlanReport) -> list[str]:
    plan = report.plan
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
        lines += _format_links(plan, settings.ranks_per_host)
    if settings is not None and batch.is_complete and degrees.data is not None:
        product = f"{batch.micro_batch} x {degrees.data:,} data ranks x {batch.accumulation} accumulation"
        is_of_text = facts_of(plan.run.spec.objective).loads_model
        size = f"{settings.tokens_per_step:,} tokens at most" if is_of_text else "rows"
        lines.append(f"Batch      {batch.global_batch:,} = {product}, {size}")
        lines += [" " * _LABEL + _describe_rows(report, settings.seq_length)] if is_of_text else []
        lines += _format_largest(report.largest_micro_batches, settings.rows)
    if split is not None and split.frozen:
        count = format_trainable(split.num_trainable, split.num_parameters)
        kept = "4 bits" if settings and settings.quantization else _number_format(plan)
        lines.append(f"Train      {count} of the parameters; the others, in {kept}, have neither gradients nor states")
        if (lora := plan.run.spec.model.lora) and plan.model and not has_known_targets(plan.model, lora):
            lines.append("           adapters at all linear layers are assumed: `model.lora.target_modules` decides")
    if plan.own_states is not None:
        lines += _format_own_states(plan.own_states)
    return lines


def _format_largest(largest: Sequence[Alternative], rows: int) -> list[str]:
    """The largest micro-batches on data ranks alone, where one is larger than that of the plan."""
    if all(each.settings.rows <= rows for each in largest):
        return []
    parts = [f"{s.rows} x {s.accumulation} {_WITH[s.checkpointing]}" for s in (each.settings for each in largest)]
    kind = title_of(largest[0].settings)
    return [f"{' ' * _LABEL}largest micro-batch x accumulation of {kind} alone: {', '.join(parts)}"]


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
            lines += [*_format_gpu_peaks(plan, memory), *_format_divided(plan)]
    return [*lines, *(" " * _LABEL + text for text in _format_disks(plan, memory))]


def _format_divided(plan: Plan) -> list[str]:
    twice = with_twice_the_gpus(plan)
    if twice is None:
        return []
    parts = [f"{format_size(item.bytes)} {item.description.partition(' (')[0]}" for item in twice[1]]
    text = f"{' ' * _LABEL}with twice the GPUs {format_size(twice[0])}"
    return [f"{text}; not divided: {', '.join(parts)}" if parts else text]


def _format_disks(plan: Plan, memory: MemoryEstimate) -> list[str]:
    """The bytes of a parameter on disk, here and in DeepSpeed alone, and the buffers in host memory."""
    settings = plan.settings
    if plan.model is None or settings is None or not memory.nvme_bytes:
        return []
    alone = estimate_memory(plan.model, replace(settings, separate_offload_grads=True), plan.device)
    split = plan.trainable if settings.param_device != "nvme" else None
    count = (split.num_trainable if split else plan.model.num_parameters) / settings.num_hosts
    width, of_alone = (f"{each.nvme_bytes / count:.3g}" for each in (memory, alone))
    trained = "trained parameter" if split and split.frozen else "parameter"
    rules = [f"{width} bytes a {trained}; DeepSpeed alone, which swaps gradients, {of_alone}"]
    if settings.optimizer_device == "nvme":
        each = settings.swap_buffers_per_sub_group
        rules.append(f"`offload_optimizer.buffer_count` {settings.optimizer_buffers}: {each} a sub-group in flight")
    if settings.param_device == "nvme":
        rules.append(f"`offload_param.buffer_count` {settings.parameter_buffers}: one a gathered parameter")
        rules.append(f"`offload_param.buffer_size` {settings.parameter_buffer_size:,}: a rank's share of the largest")
    return rules


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
    faster = find_remedy(plan)
    speed = (time.tokens_per_step / time.range[1], time.tokens_per_step / time.range[0])
    lines = [
        f"Step       {format_time(time.seconds, time.range)}, limited by {time.bottleneck}",
        *_explain_limit(plan),
        *([f"{' ' * _LABEL}{format_time(faster[1].seconds, faster[1].range)} with {faster[0]}"] if faster else []),
        *(" " * _LABEL + text for text in _format_sent(plan.traffic)),
        f"Speed      {format_estimate(time.tokens_per_second, speed)} tokens/s, MFU {format_share(time.mfu)}",
    ]
    if plan.model and plan.model.experts:
        text = "The experts of a layer are one product; published runs took up to 3.8 times as long"
        lines.append(f"{' ' * _LABEL}{text}")
    lines += [*format_calibration(plan), *_format_unknown_inputs(plan)]
    if cost is not None:
        hours = format_time(cost.hours * 3600, (cost.hours_range[0] * 3600, cost.hours_range[1] * 3600))
        gpu_hours = format_estimate(cost.gpu_hours, cost.gpu_hours_range)
        lost = f", {plan.lost_share(time):.1%} of it saves and failures" if plan.checkpoint_cost is not None else ""
        run = f"{format_count(cost.tokens)} tokens, {math.ceil(cost.tokens / time.tokens_per_step):,} steps"
        lines += [f"Run        {run}: {hours}, {gpu_hours} GPU hours{lost}"]
        if cost.money is not None:
            lines.append(f"Cost       {format_estimate(cost.money, cost.money_range)}")
    return lines


def _explain_limit(plan: Plan) -> list[str]:
    """Of collectives: the network that would not limit the step; else the time of CPU Adam and of the disks."""
    if plan.time is None or not (plan.model and plan.settings and plan.device):
        return []
    if plan.time.bottleneck != "collectives":
        return [f"{' ' * _LABEL}{text}" for text in _format_fixed_parts(plan.time)]
    if enough := find_enough_network(plan.model, plan.settings, plan.device, plan.rates):
        text = f"{enough[0] * 8e-9:,.6g} Gbit/s a host; from {enough[1] * 8e-9:,.0f} Gbit/s on {enough[2]} limits it"
        return [" " * _LABEL + text]
    return []


def _format_fixed_parts(time: StepTime) -> Iterator[str]:
    """What CPU Adam and the disks take of a step, whatever the batch, and the parameters that a micro-batch reads."""
    parts = {part.name: part for part in time.parts if part.exposed > 0.01 * time.seconds}
    names = {"CPU optimizer": "CPU Adam takes", "NVMe": "states from NVMe and back take", PARAMETERS_READ: ""}
    for name, what in names.items():
        if part := parts.get(name):
            took = format_time(part.exposed, (part.exposed / part.scatter, part.exposed * part.scatter))
            yield f"{what} {took} of it, whatever the batch" if what else f"{name} take {took} more than they overlap"
            if what and name == time.bottleneck:
                yield "a larger batch (`--batch-tokens`, more accumulation) spreads that time over more tokens"


def _format_unknown_inputs(plan: Plan) -> list[str]:
    """The reasons for a wide range, and what measures them; nothing where no input that decides the step is assumed."""
    unknown = unknown_inputs(plan)
    if not unknown:
        return []
    first = unknown[0]
    keys = " and ".join(f"`{each.key}`" for each in unknown if each.measured_by == first.measured_by)
    return [f"{' ' * _LABEL}The range is wide: unknown {keys}, which `{first.measured_by}` measures"]


def _format_alternatives(report: PlanReport, style: Style, width: int) -> list[str]:
    alternatives = report.alternatives
    if not alternatives:
        return []
    columns = _alternative_columns(report.plan, alternatives)
    widths = [max(map(len, column)) + 2 for column in columns]
    room = max(24, min(72, width - sum(widths)))
    heads, *rows = (
        "".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in zip(*columns, strict=True)
    )
    head = "Would fit" if report.plan.fit.verdict is False else "Alternatives"
    lines = [style.paint(head.ljust(room) + heads, "", bold=True)]
    for each, row in zip(alternatives, rows, strict=True):
        first, *others = wrap_terms(name_as_terms(each.settings), room - 2)
        lines += [f"  {first}".ljust(room) + row, *(f"    {part}" for part in others)]
    return lines


def _format_links(plan: Plan, ranks_per_host: int) -> list[str]:
    """The assumed rate between GPUs that have no NVLink: boards differ tenfold."""
    device = plan.device
    if device is None or device.is_cpu or ranks_per_host == 1 or plan.run.spec.cluster.link_bandwidth is not None:
        return []
    if device.link > device.pcie:
        return []
    kind = "PCIe without NVLink" if device.link == device.pcie else "PCIe slots of 16 lanes without NVLink or P2P"
    rate = device.link * plan.rates.link_efficiency / 1e9
    return [f"{' ' * _LABEL}{kind}: {rate:.0f} GB/s between two is assumed (`cluster.link_bandwidth`)"]


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
        first, *others = wrap_terms(f"{head}: {escape_unprintable(finding.message)}", width, "  ")
        lines += [first.replace(head, style.paint(head, "red" if finding.is_error else "yellow"), 1), *others]
    if len(warnings) > _MAX_WARNINGS:
        lines.append(f"{len(warnings) - _MAX_WARNINGS} more with `--long`")
    return lines


def _format_sent(rows: Sequence[CollectiveTraffic]) -> list[str]:
    """The bytes that a GPU sends in a step, by what they carry; nothing of one rank."""
    names = [row.carries.partition(" in ")[0].partition(" forward")[0] for row in rows]
    names = [f"{name} ({row.group})" if names.count(name) > 1 else name for row, name in zip(rows, names, strict=True)]
    parts = ", ".join(f"{format_bytes(row.sent)} {name}" for row, name in zip(rows, names, strict=True))
    return [f"a GPU sends {format_bytes(sum(row.sent for row in rows))} a step: {parts}"] if rows else []


def _format_own_states(states: OwnStates) -> list[str]:
    """A line each for the parameters, their states, DeepSpeed's buffers, what is not known, and the rows."""
    count = format_trainable(states.num_trainable, states.num_parameters)
    trained = "" if states.num_trainable == states.num_parameters else f", {count} trained"
    host = states.bytes_of("host") * states.ranks_per_host
    sizes = [f"{format_size(states.bytes_of('gpu'))} on the device of a rank"]
    sizes += [f"{format_size(host)} on a host"] if host else []
    nvme = states.bytes_of("nvme") * states.ranks_per_host
    sizes += [f"{format_size(nvme)} on a host's NVMe"] if nvme else []
    return [
        f"Module     {states.num_parameters:,} parameters{trained}",
        f"States     {', '.join(sizes)}: weights, gradients, optimizer",
        f"Buffers    {format_size(states.bytes_of('gpu', buffers=True))} on the device of a rank, at most",
        "Other      activations are not known",
        f"Rows       {'not known' if states.num_rows is None else f'{states.num_rows:,} for training'}",
    ]
