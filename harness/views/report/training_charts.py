# SPDX-License-Identifier: Apache-2.0
"""The curves of one run, or of several side by side: loss, rate, norm, speed, MFU. Reads records, draws charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from harness.run_records.run_record import Points, RunRecord
from harness.units import finite_number
from harness.views.report.charts import Chart, Mark, Series, average_points, pick_evenly, smooth_points

_MAX_STACKED_POINTS = 240
_MAX_MEASURED_CHARTS = 12
_MIN_OTHER_SHARE = 0.005
"""Share of the steps below which unaccounted time is not drawn."""
STEP_PARTS = ("data", "forward", "backward", "optimizer", "pipeline", "loop")


def entropy_of(record: RunRecord) -> float | None:
    """The loss of a model that knows only the frequencies of tokens, nats per token."""
    points = record.points("eval", "unigram_entropy")
    return points[-1][1] if points else finite_number(record.header.get("unigram_entropy"))


def marks_of(record: RunRecord) -> tuple[Mark, ...]:
    """Checkpoints, restarts and resumes on the axis of steps."""
    saves = [
        Mark(step, "save")
        for step in (finite_number(line.get("step")) for line in record.lines_of("save"))
        if step is not None
    ]
    again = [finite_number(line.get("step")) for line in record.lines_of("restart")]
    again += [finite_number(line.get("start_step")) for line in record.lines_of("run")[1:]]
    return (*(Mark(step, "restart") for step in dict.fromkeys(again) if step is not None), *saves)


_MAX_AXIS_POINTS = 300


def axes_of(record: RunRecord) -> dict[str, list[list[float]]]:
    """The steps of a training, and what the other axes have at each: tokens read, and hours of its steps."""
    tokens = record.points("step", "tokens")
    hours, total = list[tuple[float, float]](), 0.0
    lengths = dict(record.points("step", "steps"))
    for step, seconds in record.points("step", "seconds"):
        total += seconds * lengths.get(step, 1.0) / 3600
        hours.append((step, total))
    axes = {name: _rising(points) for name, points in (("tokens", tokens), ("hours", hours)) if points}
    return {name: axis for name, axis in axes.items() if len(axis[0]) > 1}


def _rising(points: Points) -> list[list[float]]:
    """Both coordinates from zero on, where they rise, as an axis has to."""
    xs, ys = [0.0], [0.0]
    for x, y in [*pick_evenly(points[:-1], _MAX_AXIS_POINTS), points[-1]]:
        if x > xs[-1] and y > ys[-1]:
            xs.append(x)
            ys.append(float(f"{y:.9g}"))
    return [xs, ys]


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
        Chart(title_loss("Loss", [record]), loss, marks=marks),
        *_build_measured_charts(record),
        Chart("Learning rate", [Series("learning rate", record.points("step", "learning_rate"), colour=3)], zero=True),
        Chart(
            "Gradient norm before clipping", [Series("norm", record.points("step", "grad_norm"), colour=2)], zero=True
        ),
    ]
    scale = record.points("step", "loss_scale")
    return [*charts, Chart("Loss scale", [Series("loss scale", scale)], zero=True)] if scale else charts


def title_loss(name: str, records: Sequence[RunRecord]) -> str:
    """The title of a chart of the loss: with its unit, where all runs have one."""
    units = {record.loss_unit for record in records}
    if units == {"token"}:
        return f"{name}, nats per token"
    return f"{name}, mean of the {units.pop()}s" if len(units) == 1 else name


def _build_measured_charts(record: RunRecord) -> list[Chart]:
    """What objectives and the user's own metrics measure: names that begin alike on one chart, but for accuracies."""
    groups: dict[str, list[str]] = {}
    for key in record.measured_names():
        name = key.partition(".")[2]
        own = key.startswith("own.") or "accuracy" in name
        groups.setdefault(name if own else name.partition("_")[0], []).append(key)
    charts = []
    for title, keys in list(groups.items())[:_MAX_MEASURED_CHARTS]:
        series = []
        for i, key in enumerate(keys):
            name = key.partition(".")[2].replace("_", " ")
            steps = record.points("step", key)
            window = max(3, len(steps) // 50)
            curve = smooth_points(steps, window) if len(steps) > 100 else steps
            text = f"{name}, mean of {window} steps" if len(steps) > 100 else name
            held_out = f"{name}, held-out" if steps else name
            series += [
                Series(text, curve, colour=i % 5 + 1, dash=i),
                Series(held_out, record.points("eval", key), "dots", i % 5 + 1),
            ]
        charts.append(Chart(title.replace("_", " ").capitalize(), series, marks=marks_of(record)))
    return charts


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
    return [*charts, *build_step_split_chart(record), *_build_gpu_charts(record)]


def _build_gpu_charts(record: RunRecord) -> list[Chart]:
    """Use and power of the GPUs, where NVML gave them: the mean of the ranks, the lowest and the highest."""
    charts = []
    for key, title, unit in (("gpu_utilization", "Use of the GPUs", "%"), ("gpu_power", "Power of a GPU", "W")):
        rows = list[tuple[float, list[float]]]()
        for line in record.lines_of("ranks"):
            step, values = finite_number(line.get("step")), line.get(key)
            known = [v for v in map(finite_number, values) if v is not None] if isinstance(values, list) else []
            if step is not None and known:
                rows.append((step, known))
        ends: list[tuple[str, Callable[[Sequence[float]], float]]] = [
            ("mean", fmean),
            ("lowest", min),
            ("highest", max),
        ]
        series = [
            Series(f"{name} of the ranks", [(step, reduce(values)) for step, values in rows], colour=i, dash=i - 1)
            for i, (name, reduce) in enumerate(ends, start=1)
        ]
        many = any(len(values) > 1 for _, values in rows)
        note = "As NVML reads it at that moment: use is the share of time with any kernel, not of the peak."
        charts += [Chart(title, series[: 3 if many else 1], unit, zero=True, note=note)] if rows else []
    return charts


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
            series.append(Series(name, curve, "line", i % 5 + 1, i, run=i))
        return Chart(title, series, unit, zero)

    def smooth(points: Points) -> Points:
        return smooth_points(points, max(3, len(points) // 50)) if len(points) > 100 else points

    return [
        chart(title_loss("Training loss", records), "step", "loss", zero=False, change=smooth),
        chart(title_loss("Held-out loss", records), "eval", "loss", zero=False),
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
