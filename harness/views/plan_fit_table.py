# SPDX-License-Identifier: Apache-2.0
"""Ways of training a model by numbers of GPUs, as text and as JSON. Counts nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.check.fit_table import FitCell, FitTable, needs_other_hosts
from harness.check.training_ways import LONG_SEQUENCE, OF_ALL, WAYS, way_named
from harness.plan.plan_json import alternative_json, step_json
from harness.plan.search.nearest_fit import enough_disks, enough_host
from harness.units import pluralize
from harness.views.plan_lines import align_columns, name_largest, wrap_lines
from harness.views.plan_numbers import (
    cost_as_dict,
    describe_setting,
    format_range,
    format_size,
    format_time_range,
    parallel_terms,
)
from harness.views.style import Style

_NAME, _COLUMN = 14, 13
NOT_DIVIDED = (
    "Each GPU gathers whole layers, with any experts, however many GPUs there are: larger ones hold them, expert or "
    "tensor parallelism, as Megatron has it, divides them."
)
_QUANTIZED = (
    ": the harness does not divide 4-bit weights (MD043); other trainers do with `bnb_4bit_quant_storage`, FSDP also "
    "where they are loaded through the CPU, ZeRO-3 once each GPU has loaded all of them"
)


def render_fit_table(table: FitTable, style: Style, width: int = 100, gpus: int | None = None) -> str:
    """The ways by numbers of GPUs, then the fewest GPUs of each way with its memory, step, money and settings. With
    `gpus` the first alone, from these on where not all have room. Of ways that fit on no number, the reasons alone.
    """
    counts = sorted({cell.gpus for row in table.rows.values() for cell in row})
    most = max(3, (width - _NAME) // _COLUMN)
    first = max(0, len(counts) - most)
    first = min(first, counts.index(gpus)) if gpus in counts else first
    shown = counts[first : first + most]
    why = wrap_lines([text for name in table.rows if (text := _say_why_not(table, name))], width)
    if all(cell.state == "no" for row in table.rows.values() for cell in row):
        return "\n".join([*why, *wrap_lines([describe_hosts(table)], width)])
    lines = [style.paint(f"{'GPUs':<{_NAME}}" + "".join(f"{each:>{_COLUMN},}" for each in shown), "", bold=True)]
    for name, row in table.rows.items():
        cells = {cell.gpus: cell for cell in row}
        texts = (cell_text(cells.get(each)) for each in shown)
        lines.append(f"{name:<{_NAME}}" + "".join(f"{text:>{_COLUMN}}" for text in texts))
    notes = (
        "Time of a step; ~ is not certain, - does not fit; `RAM 1.2 TiB`, `disk 5 TiB`: it fits into the GPUs, if each "
        "host has so much. Tensor and pipeline ranks are tried where whole layers or the rows of a step do not do."
    )
    lines += wrap_lines([notes, describe_hosts(table)], width)
    fewest = ["", *_fewest_lines(table, style, width)] if gpus is None and any(table.fewest.values()) else []
    return "\n".join([*lines, *fewest, *(why if gpus is None else ())])


def cell_text(cell: FitCell | None) -> str:
    """A cell in a few characters: its step, or what it lacks."""
    if cell is None or cell.state == "no":
        return "-"
    if cell.state == "host":
        return f"RAM {short_size(enough_host(cell.best.host_peak))}"
    if cell.state == "disks":
        return f"disk {short_size(enough_disks(cell.best.nvme_bytes))}"
    time = format_time_range((cell.best.time.seconds,) * 2) if cell.best.time else "yes"
    return f"~{time}" if cell.state == "not certain" else time


def short_size(size: int) -> str:
    """`1.2 TiB`, `83 GiB`, for a cell."""
    return f"{size / 2**40:.1f} TiB" if size >= 1 << 40 else f"{size / 2**30:.0f} GiB"


def _brief(cell: FitCell) -> str:
    """Settings beside the name of the way: `ZeRO-3, parameters on CPU, 4 x 8`."""
    s = cell.best.settings
    parts = [f"ZeRO-{s.stage}", *parallel_terms(s)]
    parts += ["parameters too"] if s.param_device != "none" else []
    parts.append(f"{s.rows} x {s.accumulation}")
    return ", ".join(parts if s.checkpointing else [*parts, "no checkpointing"])


def describe_cell(cell: FitCell) -> str:
    """Settings, memory, step and money of a cell in one line."""
    best = cell.best
    parts = [describe_setting(best.settings), f"GPU {format_size(best.gpu_peak)}, host {format_size(best.host_peak)}"]
    parts += [f"disks {format_size(best.nvme_bytes)}"] if best.nvme_bytes else []
    parts += [f"{format_time_range(best.time.range)} a step"] if best.time else []
    money = cell.cost.money_range if cell.cost else None
    return "; ".join([*parts, f"{format_range(money)} dollars"] if money else parts)


def describe_hosts(table: FitTable) -> str:
    """The owner of these hosts, and the facts of them that are not known."""
    hosts = f"Hosts of {table.gpus_per_host}"
    disks = f"; networks of {table.network * 8e-9:,g} Gbit/s (`--network`)"
    disks += "" if table.nvme else "; disks are not known (`--nvme`)"
    if table.host_memory is None:
        return f"{hosts}: their memory is not known, so offload names what it needs (`--host-memory`){disks}."
    memory = format_size(table.host_memory)
    if table.assumed_from is None:
        return f"{hosts} with {memory} of memory{disks}."
    who = table.assumed_from.seller
    sold = "as much as its GPUs have" if table.assumed_from.is_memory_assumed else f"as {who} sells them"
    return f"{hosts} are assumed to have {memory} of memory, {sold}, parts of one their share (`--host-memory`){disks}."


def _fewest_lines(table: FitTable, style: Style, width: int) -> list[str]:
    heads = ("Fewest", "GPUs", "GPU", "host", "disks", "step", "dollars", "settings")
    rows = [heads, *((name, *_fewest_texts(cell, table.rows[name])) for name, cell in table.fewest.items())]
    lines = align_columns(rows, _NAME, width)
    lines[0] = style.paint(lines[0], "", bold=True)
    if table.price is not None:
        billions = f"{table.tokens / 1e9:g} billion tokens (`--tokens`)"
        lines.append(f"Dollars for {billions} at {table.price:.2f} a GPU hour (`--price`).")
    for name, finding in table.refused.items():
        lines += wrap_lines([f"`harness launch` refuses {name}: {finding.gate}, {finding.message}"], width)
    return lines


def _fewest_texts(cell: FitCell | None, row: Sequence[FitCell | None]) -> tuple[str, ...]:
    if cell is None:
        return ("-",) * 7
    unsure = next((each.gpus for each in row if each and each.state == "not certain"), cell.gpus)
    best = cell.best
    disks = short_size(best.nvme_bytes) if best.nvme_bytes else "-"
    time = format_time_range(best.time.range) if best.time else "-"
    money = format_range(cell.cost.money_range) if cell.cost and cell.cost.money_range else "-"
    sizes = (format_size(best.gpu_peak), short_size(best.host_peak), disks)
    fewer = f"~{unsure:,} or " if unsure < cell.gpus else "~" if cell.state == "not certain" else ""
    return (f"{fewer}{cell.gpus:,}", *sizes, time, money, _brief(cell))


def _say_why_not(table: FitTable, name: str) -> str:
    """The reason why a way fits on no number of GPUs: the largest part where it needs least."""
    row = table.rows[name]
    if table.fewest[name] is not None or not row or row[-1].state != "no":
        return ""
    least = min((cell for cell in row if cell.state == "no"), key=_needs_least)
    sizes = f"{format_size(least.best.gpu_peak)} each, mostly {name_largest(least.best.memory, 1)}"
    quantized = _QUANTIZED if least.best.settings.quantization else ""
    return f"{name} fits on none: {pluralize(least.gpus, 'GPU')} would need {sizes}{quantized}"


def _needs_least(cell: FitCell) -> tuple[int, int]:
    return cell.best.gpu_peak >> 30, -cell.gpus


def render_min_gpus(table: FitTable, style: Style, width: int = 100) -> str:
    """The smallest number of GPUs in a line, then the table, and the number that would hold the states alone."""
    best, tight = table.fewest_of_all, table.tight
    name = style.paint(table.model, "", bold=True)
    if best is None:
        cells = [cell for row in table.rows.values() for cell in row]
        short = [cell for cell in cells if cell.state == "no" and way_named(cell.way) in OF_ALL]
        least = min(short, key=_needs_least, default=None)
        most = max((cell.gpus for cell in cells), default=1)
        verdict = "does not fit on" if tight is None else "is certain to fit on no number"
        lines = [f"{name}: training all of it {verdict} up to {most:,} x {table.gpu}"]
        if least:
            peak, parts = format_size(least.best.gpu_peak), name_largest(least.best.memory, 3)
            needs = f"On {least.gpus:,} a GPU would need {peak} with {least.way}"
            lines.append(f"{needs}, which is mostly {parts}. {NOT_DIVIDED}")
    else:
        time = f", {format_time_range(best.best.time.range)} a step" if best.best.time else ""
        alone, way = table.fewest.get(WAYS[0].name), best.way
        if way != WAYS[0].name:
            way += f" and {format_size(enough_host(best.best.host_peak))} of memory a host"
        lines = [f"{name} fits on {best.gpus:,} x {table.gpu}: {way}{time}"]
        if alone is not None and alone.gpus > best.gpus and alone.state == "fits":
            lines[0] += f"; on {alone.gpus:,} without offload"
    lines[0] += f"; {table.max_length:,} tokens a sequence, {table.tokens_per_step:,} a step"
    if tight is not None:
        lines.append(f"On {tight.gpus:,} it is not certain: {describe_setting(tight.best.settings)}.")
    floor = f"{table.raw_floor_gpus:,} x {table.gpu}"
    lines.append(f"The states alone are {table.state_bytes / 1e9:,.1f} GB, which {floor} would hold without more.")
    if table.max_length >= LONG_SEQUENCE:
        lines.append("More GPUs divide states; activations of a sequence (SDPA) only sequence or tensor ranks do.")
    return "\n".join([*wrap_lines(lines, width), "", render_fit_table(table, style, width)])


def summarise_ways(table: FitTable, gpus: int) -> Iterator[tuple[str, str]]:
    """Ways that would fit where nothing does, by name: each way that does on so many GPUs, else the fewest on which it
    does.
    """
    for name, row in table.rows.items():
        here = [cell for cell in row if cell.gpus == gpus and cell.state in ("fits", "disks", "host")]
        cells = [*here, *(cell for cell in (table.fewest.get(name),) if cell)]
        cell = next((each for each in cells if not needs_other_hosts(each, table.host_memory)), None)
        if cell is None or not table.takes(name):
            continue
        host, disks = format_size(enough_host(cell.best.host_peak)), format_size(enough_disks(cell.best.nvme_bytes))
        needs = {"host": f" with {host} of memory a host", "disks": f" with {disks} of disks a host"}
        where = "here" if cell.gpus == gpus else f"on {pluralize(cell.gpus, 'GPU')}"
        time = f", {format_time_range(cell.best.time.range)} a step" if cell.best.time else ""
        probably = "probably " if cell.state == "not certain" else ""
        yield name, f"{name} {probably}{where}{needs.get(cell.state, '')}{time}"


def table_as_dict(table: FitTable) -> dict[str, Any]:
    """The table for programs: bytes, seconds and dollars."""
    return {
        "model": table.model,
        "gpu": table.gpu,
        "max_length": table.max_length,
        "tokens_per_step": table.tokens_per_step,
        "tokens": table.tokens,
        "gpus_per_host": table.gpus_per_host,
        "host_memory_bytes": table.host_memory,
        "host_memory_assumed": table.assumed_from is not None,
        "nvme_bytes": table.nvme,
        "network_bytes_per_second": table.network,
        "ways": [
            {
                "way": name,
                "cells": [_cell_as_dict(cell) for cell in row],
                "fewest": None if (fewest := table.fewest[name]) is None else _cell_as_dict(fewest),
                "refused_by": table.refused[name].gate if name in table.refused else None,
                "refusal": table.refused[name].message if name in table.refused else None,
            }
            for name, row in table.rows.items()
        ],
    }


def _cell_as_dict(cell: FitCell) -> dict[str, Any]:
    best = alternative_json(cell.best)
    return {
        "gpus": cell.gpus,
        "state": cell.state,
        "settings": describe_setting(cell.best.settings),
        **{name: best[name] for name in ("gpu_peak_bytes", "host_peak_bytes", "nvme_bytes")},
        **step_json(cell.best.time),
        **(cost_as_dict(cell.cost) if cell.cost else {}),
    }


def min_gpus_as_dict(table: FitTable) -> dict[str, Any]:
    """The smallest number of GPUs for programs, and the table."""
    best, tight = table.fewest_of_all, table.tight
    return {
        "format_version": 1,
        "question": "min-gpus",
        "gpus": best.gpus if best else None,
        "tight_gpus": tight.gpus if tight else None,
        "raw_floor_gpus": table.raw_floor_gpus,
        "state_bytes": table.state_bytes,
        **({"title": None} if best is None else alternative_json(best.best) | _cell_as_dict(best)),
        "table": table_as_dict(table),
    }
