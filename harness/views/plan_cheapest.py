# SPDX-License-Identifier: Apache-2.0
"""The cheapest machine as text and as JSON. Counts nothing itself."""

from __future__ import annotations

from typing import Any

from harness.check.cheapest_machine import CheapestMachine, MachineRow
from harness.plan.plan_json import step_json
from harness.plan.planner import Plan
from harness.plan.time.cost_range import CostRange, check_deadline
from harness.units import format_bytes, format_count
from harness.views.plan_fit_table import render_fit_table, short_size, table_as_dict
from harness.views.plan_lines import align_columns, format_hours_range, wrap_lines, wrap_terms
from harness.views.plan_numbers import (
    cost_as_dict,
    describe_setting,
    describe_setting_briefly,
    format_range,
    format_share,
    format_time_range,
)
from harness.views.style import Style

_DEADLINES = {"met": "meets the deadline", "at risk": "may miss the deadline", "missed": "misses the deadline"}
_USUAL_MFU = 0.38


def render_cheapest(result: CheapestMachine, style: Style, width: int = 100) -> str:
    """The best machine, the best of each kind, and the ways of training on the best kind."""
    tokens = format_count(result.tokens)
    if not result.rows:
        return f"{result.model}, {tokens} tokens: the run fits on no kind of GPU with a price.\n{_notes(result, width)}"
    lines = [*wrap_lines(_best_lines(result, tokens, style), width), "", *_kind_lines(result, style, width), ""]
    if result.table is not None:
        lines += [f"Ways of training on {result.table.gpu}:", render_fit_table(result.table, style, width), ""]
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
    own = best.counted.plan.rates.network
    rate = own or best.machine.device.network * best.machine.gpus_per_host
    network = f"networks of {rate * 8e-9:,g} Gbit/s a host{'' if own else ' are assumed (`--network`)'}"
    hosts = f"; {network}" if best.counted.settings.num_hosts > 1 else ""
    return [head, f"{cost}{verdict}", f"{describe_setting(best.counted.settings)}; {gpu}, {host}{hosts}"]


def _kind_lines(result: CheapestMachine, style: Style, width: int) -> list[str]:
    rows = [("Kind", "GPUs", "GPU", "host", "Gbit/s", "hours", "dollars", "a GPU h", "settings")]
    for index, row in enumerate(result.rows):
        name = f"{'>' if index == 0 else ' '} {row.machine.device.name}"
        marks = [row.deadline, "" if row.machine.device.starts_ranks else "no launch"]
        sizes = (short_size(row.counted.memory.gpu_peak), short_size(row.counted.memory.host_peak))
        rate = row.counted.plan.rates.network or row.machine.device.network * row.machine.gpus_per_host
        network = f"{rate * 8e-9:,.0f}" if row.counted.settings.num_hosts > 1 else "-"
        costs = (format_range(row.cost.hours_range), _money(row.cost), f"{row.machine.price.dollars:.2f}")
        setting = ", ".join(
            [*(each for each in marks if each and each != "met"), describe_setting_briefly(row.counted.settings)]
        )
        rows.append((name, f"{row.machine.gpus}", *sizes, network, *costs, setting))
    lines = align_columns(rows, 16, width)
    return [style.paint(lines[0], "", bold=True), *lines[1:]]


def _notes(result: CheapestMachine, width: int) -> str:
    lines = ["GPU, host: memory that each needs; Gbit/s: the network of a host, where several train (`--network`)."]
    others = [row.machine.device.name for row in result.rows if not row.machine.device.starts_ranks]
    if others:
        names = ", ".join(others)
        lines.append(f"`harness launch` starts no ranks on {names} (EN022); `harness render` makes a script's JSON.")
    if result.too_small:
        lines.append(f"Nothing fits on: {', '.join(result.too_small)}.")
    if result.unfilled:
        lines.append(f"So many GPUs do not fill hosts of: {', '.join(result.unfilled)}.")
    if result.unpriced:
        lines.append(f"{len(result.unpriced)} kinds have no price: `--price KIND=X` adds one; the JSON names them.")
    if result.prices.read_on is not None:
        day = result.prices.read_on.isoformat()
        lines.append(f"Prices are on demand, before tax and storage, read on {day} or later; the JSON has the pages.")
    assumed = [price.kind for price in result.prices.prices if price.is_memory_assumed]
    if assumed:
        lines.append(f"Host memory is that sold with a GPU; for {', '.join(assumed)} it is taken to equal the GPU's.")
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


def render_measured(rate: float, mfu: float, plan: Plan, *, of_search: bool, width: int = 100) -> str:
    """`Measured   400 tokens/s: MFU 2.1 %, 5 % of the planned rate; published dense runs in bf16 reach 38 to 55 %`, the
    time of the run at it, and of a lower MFU what small micro-batches do. Of published rows: 512 tokens long in
    micro-batches of 6,144 and more (`llm-foundry`), the small ones (`deepcompile-blog`, without compilation or with).
    """
    share = format_share(rate / plan.time.tokens_per_second) if plan.time else "-"
    text = f"Measured   {format_count(rate)} tokens/s: MFU {mfu:.1%}, {share} of the planned rate"
    if plan.tokens is not None:
        seconds = plan.tokens / rate
        text += f"; the run takes {format_time_range((seconds, seconds))} at it"
    text += "; published dense runs in bf16 reach 38 to 55%"
    if mfu < _USUAL_MFU:
        text += (
            ", rows of 512 tokens too in micro-batches of 6,000 tokens up; with one of 512 to 4,096 tokens a step, 4"
            " to 27% (Llama 3 8B, 8 x H100, ZeRO-1)"
        )
    text += "; the plan is of the fastest settings found" if of_search else ""
    return "\n".join(wrap_terms(text, width, " " * len("Measured   ")))


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
        "table": None if result.table is None else table_as_dict(result.table),
        "nothing_fits_on": list(result.too_small),
        "hosts_not_filled": list(result.unfilled),
        "without_a_price": list(result.unpriced),
        "spec": dict(result.rows[0].spec) if result.rows else None,
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
        **step_json(row.time),
        **cost_as_dict(row.cost),
        "deadline": row.deadline,
        "price": {
            "dollars_per_gpu_hour": price.dollars,
            "seller": price.seller,
            "page": price.page,
            "read_on": price.read_on.isoformat(),
        },
    }
