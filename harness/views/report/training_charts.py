# SPDX-License-Identifier: Apache-2.0
"""The curves of one run, or of several side by side: loss, rate, norm, speed, MFU. Reads records, draws charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.run_records.run_record import Points, RunRecord
from harness.units import finite_number
from harness.views.report.charts import Chart, Mark, Series, average_points, smooth_points

_MAX_STACKED_POINTS = 240
_MIN_OTHER_SHARE = 0.005
"""Share of the steps below which unaccounted time is not drawn."""
STEP_PARTS = ("data", "forward", "backward", "optimizer", "pipeline", "loop")


def entropy_of(record: RunRecord) -> float | None:
    """The loss of a model that knows only the frequencies of tokens, nats per token."""
    points = record.points("eval", "unigram_entropy")
    return points[-1][1] if points else finite_number(record.header.get("unigram_entropy"))


def marks_of(record: RunRecord) -> tuple[Mark, ...]:
    """Checkpoints and restarts on the axis of steps."""
    saves = [
        Mark(step, "save")
        for step in (finite_number(line.get("step")) for line in record.lines_of("save"))
        if step is not None
    ]
    again = [finite_number(line.get("step")) for line in record.lines_of("restart")]
    return (*(Mark(step, "restart") for step in again if step is not None), *saves)


def build_learning_charts(record: RunRecord) -> list[Chart]:
    """Loss, learning rate, gradient norm, loss scale of one run."""
    marks, losses = marks_of(record), record.points("step", "loss")
    entropy = entropy_of(record)
    raw = [Series("training loss", losses, colour=1)]
    if len(losses) > 100:
        window = max(3, len(losses) // 50)
        raw = [
            Series("each step", losses, "thin", 1),
            Series(f"training loss, mean of {window} steps", smooth_points(losses, window), colour=1),
        ]
    loss = [
        *raw,
        Series("held-out loss", record.points("eval", "loss"), "dots", 2),
        Series("unigram entropy", [(0.0, entropy)] if entropy is not None else [], "rule", 5, 1),
    ]
    charts = [
        Chart("Loss, nats per token", loss, marks=marks),
        Chart("Learning rate", [Series("learning rate", record.points("step", "learning_rate"), colour=3)], zero=True),
        Chart(
            "Gradient norm before clipping", [Series("norm", record.points("step", "grad_norm"), colour=2)], zero=True
        ),
    ]
    scale = record.points("step", "loss_scale")
    return [*charts, Chart("Loss scale", [Series("loss scale", scale)], zero=True)] if scale else charts


def build_speed_charts(record: RunRecord) -> list[Chart]:
    """Tokens/s, MFU with its variants, and the parts of a step, over the run."""
    marks = marks_of(record)
    speed = [Series("tokens/s", record.points("step", "tokens_per_second"), colour=4)]
    charts = [Chart("Tokens/s", speed, zero=True, marks=marks)]
    useful = [
        Series("MFU", to_percent(record.points("step", "mfu")), colour=1),
        Series("HFU, with recomputation", to_percent(record.points("step", "hfu")), colour=2, dash=1),
        Series("MFU by 6N", to_percent(record.points("step", "mfu_6n")), colour=5, dash=2),
    ]
    rate = record.points("step", "device_flops_per_second")
    if any(s.points for s in useful):
        note = "MFU: FLOPs that the model needs over the device's peak; 6N leaves attention out."
        charts.append(Chart("Model FLOPs utilisation", useful, "%", zero=True, marks=marks, note=note))
    elif rate:
        note = "No peak of this device is known, so there is no MFU; set `telemetry.peak_flops`.".replace("`", "")
        charts.append(
            Chart("FLOP/s of a device", [Series("FLOP/s", rate, colour=1)], zero=True, marks=marks, note=note)
        )
    return [*charts, *build_step_split_chart(record)]


def to_percent(points: Points) -> Points:
    """Shares as percent."""
    return [(x, 100 * y) for x, y in points]


def build_step_split_chart(record: RunRecord) -> list[Chart]:
    """The parts of a step on top of each other, averaged over stretches of the run."""
    totals = record.points("step", "seconds")
    if not totals:
        return []
    parts, rest = [], average_points(totals, _MAX_STACKED_POINTS)
    for name in STEP_PARTS:
        points = record.points("step", f"seconds_{name}")
        if len(points) == len(totals) and any(y for _, y in points):
            means = average_points(points, _MAX_STACKED_POINTS)
            parts.append((name, means))
            rest = [(x, y - m) for (x, y), (_, m) in zip(rest, means, strict=True)]
    if not parts:
        return []
    if sum(y for _, y in rest) > _MIN_OTHER_SHARE * sum(y for _, y in totals) * len(rest) / len(totals):
        parts.append(("other", [(x, max(0.0, y)) for x, y in rest]))
    series = [Series(name, points, "area", i, i - 1) for i, (name, points) in enumerate(parts, start=1)]
    inside = record.points("step", "seconds_communication")
    if inside:
        series.append(
            Series("of these in communication", average_points(inside, _MAX_STACKED_POINTS), colour=0, dash=1)
        )
    note = "Parts are stacked; the upper edge is the whole step."
    return [Chart("Time of a step by part", series, "s", zero=True, note=note)]


def build_comparison_charts(records: Sequence[RunRecord], names: Sequence[str]) -> list[Chart]:
    """The curves of several runs on one axis, distinguished by colour and line style."""

    def chart(
        title: str,
        kind: str,
        key: str,
        unit: str = "",
        *,
        zero: bool = True,
        change: Callable[[Points], Points] | None = None,
    ) -> Chart:
        series = []
        for i, (record, name) in enumerate(zip(records, names, strict=True)):
            points = record.points(kind, key)
            curve = change(points) if change else points
            series.append(Series(name, curve, "line", i % 5 + 1, i))
        return Chart(title, series, unit, zero)

    def smooth(points: Points) -> Points:
        return smooth_points(points, max(3, len(points) // 50)) if len(points) > 100 else points

    return [
        chart("Training loss, nats per token", "step", "loss", zero=False, change=smooth),
        chart("Held-out loss, nats per token", "eval", "loss", zero=False),
        chart("Tokens/s", "step", "tokens_per_second"),
        chart("Model FLOPs utilisation", "step", "mfu", "%", change=to_percent),
        chart("Seconds per step", "step", "seconds", "s"),
        chart("Gradient norm before clipping", "step", "grad_norm"),
        chart("Learning rate", "step", "learning_rate"),
        chart("Resident memory of rank 0", "step", "memory_host_bytes", "GiB", change=to_gib),
    ]


def to_gib(points: Points) -> Points:
    """Bytes as GiB."""
    return [(x, y / 2**30) for x, y in points]
