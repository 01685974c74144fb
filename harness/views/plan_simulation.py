# SPDX-License-Identifier: Apache-2.0
"""A plan next to the simulation of its run, as text and as JSON. Counts nothing itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from harness.plan.planner import Plan
from harness.plan.simulation.comparison import PhaseRow, SimulationComparison
from harness.plan.simulation.simulated_time import GROUPS, TimeComparison, planned_group
from harness.units import format_bytes, format_count, format_seconds, pluralize
from harness.views.plan_details import format_time_part
from harness.views.plan_lines import cut_text, wrap_lines
from harness.views.style import Style

_GIB = 1 << 30
NO_CLOCK = "the clock needs a known GPU, and no other stage that a pipeline would wait for"
_SHORT = 1e-3
"""Seconds: shorter work is in no line of the text."""
_ROW_NAMES = {"copies": "copies host - GPU", "host": "host alone"}
_PHASES = "phases"
_ORDER = (_PHASES, "default", "CPU optimizer", "collectives", "disk read", "disk write")
_TIER_NAMES = {"gpu": "GPU", "host": "host"}
_NOT_SIMULATED = (
    "Not in the simulated figures: workspaces of kernels (cuBLAS, attention), NCCL's buffers, the CUDA context, gaps "
    "of torch's allocator, memory that `record_stream` holds back, and on the host the process itself. `harness plan` "
    "has rows for them."
)
_NOT_STRAIGHT = "The peaks are not linear in the simulated layers: give more `--layers`, or leave it out."


class SimulationView(NamedTuple):
    """All that is shown: the plan, the worker's result, both next to each other, and how they came about.

    `extrapolated_from`: the numbers of layers that were simulated, where the model has more.
    """

    plan: Plan
    result: Mapping[str, Any]
    comparison: SimulationComparison
    rank: int
    versions: str
    is_kept: bool = False
    extrapolated_from: tuple[int, int] | None = None
    time: TimeComparison | None = None


def render_simulation(view: SimulationView, style: Style, width: int = 100) -> str:
    """Planned and simulated bytes, traffic, and what is not in them."""
    blocks = [_headline(view, style, width), _phase_table(view, style), _reasons(view, width)]
    if view.result.get("is_straight_line") is False:
        blocks.append(style.paint(_NOT_STRAIGHT, "yellow"))
    if view.result["failed"] is not None:
        blocks.append(_failure(view.result["failed"], style, width))
    blocks += [_group_tables(view, style, width), _time(view, style, width), _traffic(view, width)]
    exceeded = view.result["host_exceeded"]
    if exceeded is not None:
        blocks.append(_host_exceeded(exceeded, style, width))
    if "races" in view.result:
        blocks.append(_races(view.result["races"], style, width))
    blocks.append("\n".join(wrap_lines([_NOT_SIMULATED, _footer(view)], width)))
    return "\n\n".join(block for block in blocks if block)


def simulation_as_dict(view: SimulationView) -> dict[str, Any]:
    """Values for programs; bytes a rank."""
    result = {key: value for key, value in view.result.items() if key not in ("event", "collective_order", "clock")}
    return {
        "rank": view.rank,
        "versions": view.versions,
        "extrapolated_from_layers": view.extrapolated_from,
        "phases": [{**asdict(row), "lines": dict(row.lines), "differs": row.differs} for row in view.comparison.phases],
        "groups": [asdict(row) for row in view.comparison.groups],
        "time": simulated_time_as_dict(view.time),
        "simulation": result,
    }


def _headline(view: SimulationView, style: Style, width: int) -> str:
    run, settings = view.plan.run, view.plan.settings
    kind = view.plan.device.name if view.plan.device else "accelerator of unknown size"
    world = settings.world_size if settings is not None else "?"
    words = f"{view.versions} on a simulated {kind}, rank {view.rank} of {world}, two micro-batches a step"
    if view.extrapolated_from is not None:
        few, more = view.extrapolated_from
        words += f"; extrapolated from {few} and {more} layers"
    return "\n".join(wrap_lines([f"{style.paint(run.name, '', bold=True)}: {words}"], width))


def _phase_table(view: SimulationView, style: Style) -> str:
    lines = [f"{'GiB a rank':<16}{'planned':>9}{'simulated':>11}"]
    last = ""
    for row in view.comparison.phases:
        name = _TIER_NAMES[row.tier] if row.tier != last else ""
        last = row.tier
        planned = "" if row.planned is None else f"{row.planned / _GIB:.2f}"
        note = style.paint(f"  {_difference(row)}", "yellow") if row.differs else ""
        lines.append(f"{name:<5} {row.phase:<10}{planned:>9}{row.simulated / _GIB:>11.2f}{note}")
    return "\n".join(lines)


def _difference(row: PhaseRow) -> str:
    planned = row.planned or 0
    share = (planned - row.simulated) / max(row.simulated, 1)
    return (
        f"planned {abs(share) * 100:.0f} % {'more' if share > 0 else 'less'}" if abs(share) < 5 else "planned otherwise"
    )


def _reasons(view: SimulationView, width: int) -> str:
    """Each named difference once."""
    words = dict.fromkeys(
        f"{_TIER_NAMES[row.tier]}: {row.reason}" for row in view.comparison.phases if row.differs and row.reason
    )
    return "\n".join(wrap_lines([f"Why {reason}." for reason in words], width))


def _group_tables(view: SimulationView, style: Style, width: int) -> str:
    blocks = []
    for tier, phase in view.comparison.peak_phase.items():
        rows = [row for row in view.comparison.groups if row.tier == tier]
        lines = [style.paint(f"{_TIER_NAMES[tier]} at its peak, in {phase}, GiB", "", bold=True)]
        lines += [
            cut_text(
                f"  {row.group:<24}{row.planned / _GIB:>9.2f}{row.simulated / _GIB:>9.2f}  {row.line}", max(width, 60)
            )
            for row in rows
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _time(view: SimulationView, style: Style, width: int) -> str:
    """Nothing for a simulation that did not come to the end of a step."""
    return "" if view.result["failed"] is not None else render_simulated_time(view.time, style, width)


def _traffic(view: SimulationView, width: int) -> str:
    """Of the second step, whose micro-batches are like all that follow: both steps, halved."""
    lines = []
    for phase in ("forward", "backward", "step"):
        parts = [
            f"{kind} {entry['count']:,} x, {format_bytes(entry['bytes'])}"
            for source in ("collectives", "copies")
            for kind, entry in view.result[source].get(phase, {}).items()
        ]
        if parts:
            lines.append(f"{phase}: {'; '.join(parts)}")
    gathers = view.result["gathers"]
    for phase in ("forward", "backward"):
        entry = gathers.get(phase)
        if entry and entry["on_demand"] + entry["ahead"]:
            total = entry["on_demand"] + entry["ahead"]
            lines.append(
                f"{phase}: {format_count(total)} parameters gathered, {entry['on_demand'] / total * 100:.0f} % of them"
                " when their layer is called, the others earlier, by prefetch"
            )
    disk = view.result["disk"]
    if disk:
        lines.append(f"disk: {format_bytes(disk.get('read', 0))} read, {format_bytes(disk.get('written', 0))} written")
    lines += describe_checkpoint(view.result)
    return "\n".join(
        ["A rank moves in two steps of two micro-batches:", *wrap_lines([f"  {line}" for line in lines], width)]
    )


def _failure(failed: Mapping[str, Any], style: Style, width: int) -> str:
    lines = [
        style.paint(f"Out of GPU memory in {failed['phase']}", "red", bold=True)
        + f": {format_bytes(failed['bytes'])} for {failed['line']}, with {format_bytes(failed['taken'])} taken by",
        *_largest_holders(failed),
    ]
    return "\n".join(wrap_lines(lines, width))


def _host_exceeded(exceeded: Mapping[str, Any], style: Style, width: int) -> str:
    lines = [
        style.paint(f"More than a rank's share of the host in {exceeded['phase']}", "red", bold=True)
        + f": {format_bytes(exceeded['bytes'])} for {exceeded['line']},"
        f" with {format_bytes(exceeded['taken'])} taken by",
        *_largest_holders(exceeded),
    ]
    return "\n".join(wrap_lines(lines, width))


def _largest_holders(failed: Mapping[str, Any]) -> list[str]:
    largest = sorted(failed["holders"].items(), key=lambda entry: -entry[1])[:3]
    return [f"  {format_bytes(size)}  {line}" for line, size in largest]


def _races(races: Sequence[Mapping[str, Any]], style: Style, width: int) -> str:
    """Both sides of each race: who, what and where."""
    if not races:
        return "No race: all accesses to the same memory are ordered, and none is to memory freed and allocated again."
    lines = [style.paint(f"{pluralize(len(races), 'race')}: nothing orders these accesses", "red", bold=True)]
    for race in races:
        what = "the same memory" if race["kind"] == "unordered" else "memory freed and allocated again"
        lines.append(f"  {what} ({race['memory']}), {race['count']:,} x")
        for side in (race["first"], race["second"]):
            lines.append(f"    {side['action']} on {side['stream']}: `{side['operator']}` at {side['line']}")
    return "\n".join(wrap_lines(lines, width))


def _footer(view: SimulationView) -> str:
    seconds = format_seconds(view.result["seconds"])
    how = f"kept from a simulation of {seconds}" if view.is_kept else f"simulated in {seconds}"
    return f"{how.capitalize()}. Nothing was written except the cached answer, and no host was contacted."


def describe_checkpoint(result: Mapping[str, Any]) -> list[str]:
    """The bytes that a rank writes and reads; nothing where no checkpoint was simulated."""
    checkpoint = result.get("checkpoint")
    if not checkpoint:
        return []
    copies = result["copies"].get("save", {}).get("device to host", {}).get("bytes", 0)
    way = "from a copy in the background" if checkpoint["way"] == "background" else "in line with training"
    words = f"save: {_by_kind(checkpoint['written'])} written {way}"
    if copies:
        words += f"; {format_bytes(copies)} copied to the host"
    if checkpoint["read_from_nvme"]:
        words += f"; {format_bytes(checkpoint['read_from_nvme'])} read from the NVMe"
    lines = [words]
    if "read" in checkpoint:
        words = f"resume: {_by_kind(checkpoint['read'])} read"
        disk = checkpoint["disk_of_resume"]
        if disk:
            words += f"; NVMe: {format_bytes(disk.get('read', 0))} read, {format_bytes(disk.get('written', 0))} written"
        lines.append(words)
    return lines


def _by_kind(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{format_bytes(size)} of {kind}" for kind, size in sizes.items() if size) or "nothing"


def render_trace(trace: Mapping[str, Any], title: str) -> str:
    """Chrome's trace events, which Perfetto reads: tracks for phases, streams, groups, the CPU optimizer, the disk."""
    texts = trace["texts"]
    tracks = [_PHASES, *sorted({texts[row[0]] for row in trace["slices"]}, key=_track_order)]
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": title}},
    ]
    for number, track in enumerate(tracks):
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": track}})
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    events += [
        {"ph": "X", "pid": 1, "tid": 0, "name": name, "ts": start, "dur": duration}
        for name, start, duration in trace["phases"]
    ]
    numbers = {track: number for number, track in enumerate(tracks)}
    events += [
        {
            "ph": "X",
            "pid": 1,
            "tid": numbers[texts[track]],
            "name": texts[name],
            "cat": texts[kind],
            "ts": start,
            "dur": duration,
            "args": {"phase": texts[phase], "line": texts[line], "kernels": kernels},
        }
        for track, name, kind, phase, line, start, duration, kernels in trace["slices"]
    ]
    note = {"merged_below_seconds": trace["merged_below"], "of": title}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": note}, separators=(",", ":"))


def _track_order(name: str) -> tuple[int, str]:
    return next((number for number, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER)), name


def render_simulated_time(comparison: TimeComparison | None, style: Style, width: int) -> str:
    """Both sides by kind of work, then the plan with the simulated overlap."""
    if comparison is None:
        return "\n".join(wrap_lines([f"No time: {NO_CLOCK}."], width))
    simulated = comparison.simulated
    head = f"Seconds a step of {pluralize(simulated.micro_batches, 'micro-batch')}".replace("batchs", "batches")
    lines = [
        f"{style.paint(head.ljust(34), '', bold=True)}{'planned':>12}{'simulated':>22}",
        f"{'':<18}{'busy':>12}{'not hidden':>12}{'busy':>12}{'not hidden':>12}",
    ]
    for name in GROUPS:
        planned, work = planned_group(comparison.planned, name), simulated.group(name)
        if max(planned.busy, work.busy) >= _SHORT:
            cells = "".join(f"{seconds:>12.2f}" for seconds in (planned.busy, planned.exposed, work.busy, work.exposed))
            lines.append(f"  {_ROW_NAMES.get(name, name):<16}{cells}")
    total = f"{'':>12}{comparison.planned.seconds:>12.2f}{'':>12}{simulated.seconds:>12.2f}"
    lines.append(f"  {'step':<16}{total}")
    phases = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in simulated.phases.items())
    kinds = ", ".join(
        f"{name} {format_seconds(work.busy)} ({format_seconds(work.exposed)} not hidden)"
        for name, work in simulated.kinds.items()
        if name not in GROUPS and work.busy >= _SHORT
    )
    parts = ", ".join(format_time_part(part) for part in comparison.with_overlap.parts)
    words = [f"  simulated: {phases}", f"  {kinds}"] if kinds else [f"  simulated: {phases}"]
    words.append(f"  the plan with this overlap: {format_seconds(comparison.with_overlap.seconds)} a step: {parts}")
    return "\n".join([*lines, *wrap_lines(words, width)])


def simulated_time_as_dict(comparison: TimeComparison | None) -> dict[str, Any] | None:
    """Values for programs: seconds."""
    if comparison is None:
        return None
    simulated = comparison.simulated
    return {
        "planned_seconds": comparison.planned.seconds,
        "simulated_seconds": simulated.seconds,
        "phases": dict(simulated.phases),
        "kinds": {name: asdict(work) for name, work in simulated.kinds.items()},
        "host": simulated.host,
        "planned_groups": {name: asdict(planned_group(comparison.planned, name)) for name in GROUPS},
        "simulated_groups": {name: asdict(simulated.group(name)) for name in GROUPS},
        "plan_with_simulated_overlap": {
            "seconds": comparison.with_overlap.seconds,
            "parts": [asdict(part) for part in comparison.with_overlap.parts],
        },
    }
