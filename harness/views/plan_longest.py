# SPDX-License-Identifier: Apache-2.0
"""The longest sequence and the largest model as text and as JSON. Counts nothing itself."""

from __future__ import annotations

from typing import Any

from harness.check.largest_model import LargestModel
from harness.check.longest_sequence import LongestSequence
from harness.plan.counted_plan import CountedPlan
from harness.plan.plan_json import step_json
from harness.units import format_bytes, format_count
from harness.views.plan_lines import cut_text, name_largest, wrap_lines
from harness.views.plan_numbers import describe_setting, describe_setting_briefly, format_time_range
from harness.views.style import Style

_MAX_SHOWN = 6


def render_longest(result: LongestSequence, style: Style, width: int = 100) -> str:
    """The length, the setting that reaches it, what binds, and what others reach."""
    counted = result.counted
    name = style.paint(result.name, "", bold=True)
    lines = [
        f"{name}: sequences of up to {result.length:,} tokens fit on {_cluster(counted)}",
        _describe(counted),
        _memory_line(counted),
    ]
    if counted.time is not None:
        tokens = f"{counted.settings.tokens_per_step:,} tokens"
        lines.append(f"Step of {tokens}: {format_time_range(counted.time.range)}")
    lines.append(_limit_line(result))
    if result.safe_length and result.safe_length < result.length:
        lines.append(f"With 5 % of the memory left free: {result.safe_length:,} tokens.")
    if result.positions is not None and result.positions < result.length:
        lines.append(
            f"The model itself was made for {result.positions:,} positions: longer rows need other position scaling "
            f"and training on such lengths."
        )
    return "\n".join([*wrap_lines(lines, width), "", *_other_lines(result, style, width)])


def _cluster(counted: CountedPlan) -> str:
    kind = counted.plan.device.name if counted.plan.device else "accelerators"
    return f"{counted.settings.world_size:,} x {kind}"


def _describe(counted: CountedPlan) -> str:
    chunks = (
        f", loss in chunks of {counted.settings.loss_chunk_size:,} tokens" if counted.settings.loss_chunk_size else ""
    )
    return f"{describe_setting(counted.settings)}{chunks}"


def _memory_line(counted: CountedPlan) -> str:
    parts = []
    for name, need, have in (
        ("GPU", counted.memory.gpu_peak, counted.plan.capacity.gpu),
        ("host", counted.memory.host_peak, counted.plan.capacity.host),
        ("NVMe", counted.memory.nvme_bytes, counted.plan.capacity.nvme),
    ):
        if need and not (name == "GPU" and counted.memory.pooled):
            parts.append(
                f"{name} {format_bytes(need)}" + (f" of {format_bytes(have)}" if have else ", of unknown size")
            )
    return f"Memory: {'; '.join(parts)}"


def _limit_line(result: LongestSequence) -> str:
    if result.is_limited:
        return f"Limited by the model: it has {result.positions:,} positions."
    capacity, more = result.counted.plan.capacity, f"{result.length + result.unit:,} tokens"
    if result.binding != "GPU memory" or capacity.gpu is None:
        return f"Limited by {result.binding}: {more} do not fit."
    sizes = f"{format_bytes(result.beyond.gpu_peak)} of {format_bytes(capacity.gpu)}"
    return f"Limited by {result.binding}: {more} need {sizes}; the most is {name_largest(result.beyond)}."


def _other_lines(result: LongestSequence, style: Style, width: int) -> list[str]:
    room = max(30, width - 40)
    lines = [style.paint(f"{'Other settings, about':<{room}}{'tokens':>12}{'step':>18}", "", bold=True)]
    for each in result.others[:_MAX_SHOWN]:
        setting = cut_text(describe_setting_briefly(each.settings), room - 3)
        time = format_time_range(each.time.range) if each.time else "-"
        lines.append(f"  {setting:<{room - 2}}{each.length:>12,}{time:>18}")
    return lines if len(lines) > 1 else []


def render_too_long(name: str) -> str:
    """No sequence fits, however short."""
    return f"{name}: no setting that `harness launch` takes fits on this cluster, however short the sequences."


def longest_as_dict(result: LongestSequence | None) -> dict[str, Any]:
    """The answer for programs: tokens, bytes and seconds."""
    head = {"format_version": 1, "question": "longest"}
    if result is None:
        return {**head, "max_length": None}
    counted = result.counted
    return {
        **head,
        "model": result.name,
        "max_length": result.length,
        "multiple_of": result.unit,
        "max_length_with_headroom": result.safe_length,
        "model_positions": result.positions,
        "limited_by": "the model's positions" if result.is_limited else result.binding,
        "settings": describe_setting(counted.settings),
        "loss_chunk_size": counted.settings.loss_chunk_size,
        "offload_activations": counted.settings.activation_device != "none",
        "gpu_peak_bytes": counted.memory.gpu_peak,
        "host_peak_bytes": counted.memory.host_peak,
        "nvme_bytes": counted.memory.nvme_bytes,
        "fits": counted.plan.fit.verdict,
        "tokens_per_step": counted.settings.tokens_per_step,
        **step_json(counted.time),
        "others": [
            {
                "settings": describe_setting(each.settings),
                "max_length": each.length,
                "step_seconds_range": list(each.time.range) if each.time else None,
            }
            for each in result.others
        ],
        "spec": dict(result.spec),
    }


def render_largest(result: LargestModel, style: Style, width: int = 100) -> str:
    """The largest model of the catalogue that fits, and those after it."""
    if not result.fitting:
        return f"No model of the catalogue fits on {result.machine}."
    best = result.fitting[0]
    size = format_count(best.parameters)
    lines = [
        f"{style.paint(best.name, '', bold=True)}: {size} parameters, the largest of the catalogue on {result.machine}",
        _describe(best.counted),
        _memory_line(best.counted),
    ]
    if best.counted.time is not None:
        tokens = f"{best.counted.settings.tokens_per_step:,} tokens"
        lines.append(f"Step of {tokens}: {format_time_range(best.counted.time.range)}")
    if result.too_large:
        too_large = ", ".join(f"{name} ({format_count(parameters)})" for name, parameters in result.too_large[-3:])
        lines.append(f"Too large: {too_large}.")
    room = max(30, width - 40)
    lines = wrap_lines(lines, width)
    lines += ["", style.paint(f"{'Next':<30}{'settings':<{room - 18}}{'step':>18}", "", bold=True)]
    for each in result.fitting[1:]:
        name = cut_text(f"{each.name.rpartition('/')[2]} ({format_count(each.parameters)})", 27)
        setting = cut_text(describe_setting_briefly(each.counted.settings), room - 19)
        time = format_time_range(each.counted.time.range) if each.counted.time else "-"
        lines.append(f"  {name:<28}{setting:<{room - 18}}{time:>18}")
    return "\n".join(lines)


def largest_as_dict(result: LargestModel) -> dict[str, Any]:
    """The models for programs, the largest first."""
    return {
        "format_version": 1,
        "question": "largest-model",
        "model": result.fitting[0].name if result.fitting else None,
        "fitting": [
            {
                "model": each.name,
                "num_parameters": each.parameters,
                "settings": describe_setting(each.counted.settings),
                "gpu_peak_bytes": each.counted.memory.gpu_peak,
                "host_peak_bytes": each.counted.memory.host_peak,
                "step_seconds_range": list(each.counted.time.range) if each.counted.time else None,
            }
            for each in result.fitting
        ],
        "too_large": [{"model": name, "num_parameters": parameters} for name, parameters in result.too_large],
        "spec": dict(result.fitting[0].spec) if result.fitting else None,
    }
