# SPDX-License-Identifier: Apache-2.0
"""The cheapest machine as text and as JSON. Counts nothing itself."""

from __future__ import annotations

from typing import Any

from harness.check.cheapest_machine import CheapestMachine, MachineRow
from harness.plan.search.alternatives import title_of
from harness.plan.settings.checkpointed_layers import describe_checkpointing
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.cost_range import CostRange, check_deadline
from harness.units import format_bytes, format_count
from harness.views.plan_lines import cut_text, format_hours_range, wrap_lines
from harness.views.plan_numbers import format_range, format_time_range
from harness.views.style import Style

_DEADLINES = {"met": "meets the deadline", "at risk": "may miss the deadline", "missed": "misses the deadline"}
_SETTINGS_WIDTH = 28


def render_cheapest(result: CheapestMachine, style: Style, width: int = 100) -> str:
    """The best machine, the best of each kind, and other numbers of GPUs of the best."""
    tokens = format_count(result.tokens)
    if not result.rows:
        return f"{result.model}, {tokens} tokens: the run fits on no kind of GPU with a price.\n{_notes(result, width)}"
    lines = [*wrap_lines(_best_lines(result, tokens, style), width), "", *_kind_lines(result, style, width), ""]
    lines += [*_count_lines(result, style), ""] if len(result.counts) > 1 else []
    return "\n".join([*lines, _notes(result, width)])


def _best_lines(result: CheapestMachine, tokens: str, style: Style) -> list[str]:
    best = result.rows[0]
    name = f"{best.machine.gpus} x {best.machine.device.name}"
    cost = f"{_money(best.cost)} dollars, {format_hours_range(best.cost.hours_range)}"
    verdict = f", {_DEADLINES[best.deadline]} of {_duration(result.deadline)}" if best.deadline else ""
    head = f"{style.paint(result.model, '', bold=True)}, {tokens} tokens: cheapest on {name}"
    memory = best.counted.memory
    gpu = f"GPU {format_bytes(memory.gpu_peak)} of {format_bytes(best.machine.device.memory)}"
    host = f"host {format_bytes(memory.host_peak)} of {format_bytes(best.machine.host_memory)}"
    return [head, f"{cost}{verdict}", f"{describe_setting(best.counted.settings)}; {gpu}, {host}"]


def describe_setting(settings: PlanSettings) -> str:
    """`ZeRO-3, sequence 8, micro-batch 1 x 4, gradient checkpointing`."""
    sizes = (
        ("tensor", settings.tensor_parallel_size),
        ("pipeline", settings.pipeline_parallel_size),
        ("sequence", settings.sequence_parallel_size),
    )
    parallel = "".join(f", {name} {size}" for name, size in sizes if size > 1)
    batch = f"micro-batch {settings.micro_batch} x {settings.accumulation}"
    moved = ", inputs of layers in host memory" if settings.activation_device != "none" else ""
    return f"{title_of(settings)}{parallel}, {batch}, {describe_checkpointing(settings)}{moved}"


def describe_setting_briefly(settings: PlanSettings) -> str:
    """`ZeRO-3, sequence 8, 1 x 4, checkpointing`, for tables."""
    text = describe_setting(settings).replace("micro-batch ", "").removesuffix(", no gradient checkpointing")
    return text.replace("gradient checkpointing", "checkpointing").replace(", inputs of layers in", " in")


def _kind_lines(result: CheapestMachine, style: Style, width: int) -> list[str]:
    room = max(_SETTINGS_WIDTH, width - 78)
    head = f"{'Kind':<16}{'GPUs':>5}  {'Settings':<{room}}{'step':>16}{'hours':>14}{'dollars':>16}{'a GPU h':>9}"
    lines = [style.paint(head, "", bold=True)]
    for index, row in enumerate(result.rows):
        time, settings = row.time, row.counted.settings
        mark = ">" if index == 0 else " "
        name = f"{mark} {row.machine.device.name}"
        setting = cut_text(describe_setting_briefly(settings), room - 1)
        hours = format_range(row.cost.hours_range)
        late = f"  {row.deadline}" if row.deadline not in (None, "met") else ""
        late += "" if row.machine.device.starts_ranks else "  no launch"
        lines.append(
            f"{name:<16}{row.machine.gpus:>5}  {setting:<{room}}{format_time_range(time.range):>16}{hours:>14}"
            f"{_money(row.cost):>16}{row.machine.price.dollars:>9.2f}{late}"
        )
    return lines


def _count_lines(result: CheapestMachine, style: Style) -> list[str]:
    kind = result.rows[0].machine.device.name
    head = f"{'Numbers of ' + kind:<30}{'hours':>14}{'dollars':>16}"
    lines = [style.paint(head, "", bold=True)]
    for each in result.counts:
        mark = ">" if each.machine.gpus == result.rows[0].machine.gpus else " "
        name = f"{mark} {each.machine.gpus:,}"
        lines.append(f"{name:<30}{format_range(each.cost.hours_range):>14}{_money(each.cost):>16}")
    return lines


def _notes(result: CheapestMachine, width: int) -> str:
    lines = []
    others = [row.machine.device.name for row in result.rows if not row.machine.device.starts_ranks]
    if others:
        names = ", ".join(others)
        lines.append(f"`harness launch` starts no ranks on {names} (EN022); `harness render` makes a script's JSON.")
    if result.too_small:
        lines.append(f"Nothing fits on: {', '.join(result.too_small)}.")
    if result.unpriced:
        lines.append(f"Without a price: {', '.join(result.unpriced)}. `--price KIND=X` adds one.")
    if result.prices.read_on is not None:
        day = result.prices.read_on.isoformat()
        lines.append(
            f"Prices are on demand, before tax, without storage, read on {day} or later; pages are in the JSON."
        )
    assumed = [price.kind for price in result.prices.prices if price.is_memory_assumed]
    if assumed:
        lines.append(
            f"Host memory is that sold with a GPU; for {', '.join(assumed)} it is assumed to equal the GPU's memory."
        )
    return "\n".join(wrap_lines(lines, width))


def _money(cost: CostRange) -> str:
    return format_range(cost.money_range) if cost.money_range is not None else "-"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 3600:g} h" if seconds < 259200 else f"{seconds / 86400:g} days"


def render_deadline(cost: CostRange | None, deadline: float) -> str:
    """`Deadline   4 days: may be missed, 2.00 B tokens take 71 to 110 h`."""
    head = f"Deadline   {_duration(deadline)}:"
    if cost is None:
        return f"{head} not met, as the run does not fit or its speed is not known"
    answers = {"met": "met", "at risk": "may be missed", "missed": "missed"}
    answer = answers[check_deadline(cost.hours_range, deadline)]
    return f"{head} {answer}, {format_count(cost.tokens)} tokens take {format_hours_range(cost.hours_range)}"


def deadline_as_dict(cost: CostRange | None, deadline: float) -> dict[str, Any]:
    """The same for programs; `answer` is None for a run that does not fit."""
    answer = None if cost is None else check_deadline(cost.hours_range, deadline)
    return {"seconds": deadline, "answer": answer, **({} if cost is None else cost_as_dict(cost))}


def cheapest_as_dict(result: CheapestMachine) -> dict[str, Any]:
    """The rows for programs: dollars, hours, seconds and bytes."""
    return {
        "format_version": 1,
        "question": "cheapest",
        "model": result.model,
        "tokens": result.tokens,
        "deadline_seconds": result.deadline,
        "prices_read_on": result.prices.read_on.isoformat() if result.prices.read_on else None,
        "cheapest": _row_as_dict(result.rows[0]) if result.rows else None,
        "kinds": [_row_as_dict(row) for row in result.rows],
        "counts": [
            {"gpus": each.machine.gpus, "title": each.alternative.title, **cost_as_dict(each.cost)}
            for each in result.counts
        ],
        "nothing_fits_on": list(result.too_small),
        "without_a_price": list(result.unpriced),
        "spec": dict(result.rows[0].spec) if result.rows else None,
    }


def cost_as_dict(cost: CostRange) -> dict[str, Any]:
    """Hours and dollars, each with its range."""
    return {
        "hours": cost.hours,
        "hours_range": list(cost.hours_range),
        "gpu_hours": cost.gpu_hours,
        "gpu_hours_range": list(cost.gpu_hours_range),
        "dollars": cost.money,
        "dollars_range": list(cost.money_range) if cost.money_range is not None else None,
    }


def _row_as_dict(row: MachineRow) -> dict[str, Any]:
    counted, price = row.counted, row.machine.price
    return {
        "kind": row.machine.device.name,
        "launchable": row.machine.device.starts_ranks,
        "gpus": row.machine.gpus,
        "gpus_per_host": row.machine.gpus_per_host,
        "host_memory_bytes": row.machine.host_memory,
        "host_memory_assumed": price.is_memory_assumed,
        "settings": describe_setting(counted.settings),
        "gpu_peak_bytes": counted.memory.gpu_peak,
        "host_peak_bytes": counted.memory.host_peak,
        "step_seconds": row.time.seconds,
        "step_seconds_range": list(row.time.range),
        **cost_as_dict(row.cost),
        "deadline": row.deadline,
        "price": {
            "dollars_per_gpu_hour": price.dollars,
            "seller": price.seller,
            "page": price.page,
            "read_on": price.read_on.isoformat(),
        },
    }
