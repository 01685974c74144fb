"""What a search found, the fewest GPUs, and a bare count: as text and as JSON. Counts nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.findings import Finding
from harness.plan.alternatives import Alternative
from harness.plan.plan_settings import BytesPerParameter
from harness.plan.settings_search import filter_fitting
from harness.units import format_bytes, format_count, format_seconds
from harness.views.style import Style

_MAX_SHOWN = 8
Rejections = Sequence[tuple[Alternative, Finding]]


def render_search(
    rungs: Sequence[Alternative],
    best: Alternative | None,
    refused: Rejections,
    launchable: bool,
    style: Style,
    width: int,
) -> str:
    """How much was looked at, the fastest few, and what the gates refused before the choice."""
    fits = list(filter_fitting(rungs))
    head = f"Searched {len(rungs):,} settings with the same batch; {len(fits):,} fit with headroom."
    lines = [head]
    if best is None:
        closest = rungs[0] if rungs else None
        if closest is not None and not fits:
            lines.append(f"Nothing fits. Closest: {closest.title}, short of {closest.fit.binding}.")
        elif fits:
            lines.append("The gates refuse all of them.")
    lines += [_format_alternative(rung, rung is best) for rung in _select_listed(fits, best)]
    for rung, finding in refused[:4]:
        gate = style.paint(finding.gate, "yellow")
        lines.append(f"  refused by {gate}: {rung.title} ({finding.message})"[: max(width, 60)])
    if best is not None and not launchable:
        lines.append(
            "`harness launch` of this version refuses the choice too: it is valid, planned and can be rendered."
        )
    return "\n".join(lines)


def _select_listed(fits: Sequence[Alternative], best: Alternative | None) -> list[Alternative]:
    shown = list(fits[:_MAX_SHOWN])
    return shown if best is None or best in shown else [*shown[:-1], best]


def _format_alternative(rung: Alternative, chosen: bool) -> str:
    time = format_seconds(rung.time.seconds) if rung.time else "-"
    s = rung.settings
    batch = f"micro-batch {s.micro_batch}, {'checkpointing' if s.checkpointing else 'no checkpointing'}"
    name = (
        rung.title.split(", micro-batch")[0].removesuffix(", gradient checkpointing").removesuffix(", no checkpointing")
    )
    mark = ">" if chosen else " "
    return f"{mark} {time:>12}  {format_bytes(rung.gpu_peak):>11} GPU  {format_bytes(rung.host_peak):>11} host  {name}, {batch}"


def search_as_dict(
    rungs: Sequence[Alternative], best: Alternative | None, refused: Rejections, raw: Mapping[str, Any]
) -> dict[str, Any]:
    """`search` and `spec` of the JSON."""
    body = {
        "searched": len(rungs),
        "fit": sum(1 for _ in filter_fitting(rungs)),
        "chosen": best.title if best else None,
        "refused": [{"title": rung.title, "gate": f.gate, "message": f.message} for rung, f in refused],
        "fastest": [alternative_as_dict(rung) for rung in list(filter_fitting(rungs))[:_MAX_SHOWN]],
    }
    return {"search": body, "spec": dict(raw)}


def alternative_as_dict(rung: Alternative | None) -> dict[str, Any]:
    """One choice."""
    if rung is None:
        return {"title": None}
    s = rung.settings
    return {
        "title": rung.title,
        "zero_stage": s.stage,
        "offload_optimizer": s.optimizer_device,
        "offload_param": s.param_device,
        "micro_batch": s.micro_batch,
        "gradient_accumulation_steps": s.accumulation,
        "gradient_checkpointing": s.checkpointing,
        "tensor_parallel_size": s.tensor_parallel_size,
        "pipeline_parallel_size": s.pipeline_parallel_size,
        "sequence_parallel_size": s.sequence_parallel_size,
        "gpu_peak_bytes": rung.gpu_peak,
        "host_peak_bytes": rung.host_peak,
        "nvme_bytes": rung.nvme_bytes,
        "fits": rung.fit.fits,
        "headroom": rung.fit.headroom,
        "step_seconds": rung.time.seconds if rung.time else None,
        "bottleneck": rung.time.bottleneck if rung.time else None,
    }


def render_min_gpus(model: str, gpu: str, gpus: int, rung: Alternative | None, floor: int, states: float) -> str:
    """The smallest number of GPUs, beside the raw floor."""
    raw = f"The states alone are {states / 1e9:,.1f} GB, which {floor:,} x {gpu} would hold with nothing else on them."
    if rung is None:
        return f"{model} does not fit on up to {gpus:,} x {gpu}.\n{raw}"
    time = f", {format_seconds(rung.time.seconds)} a step" if rung.time else ""
    where = f"{format_bytes(rung.gpu_peak)} a GPU, {format_bytes(rung.host_peak)} a host"
    where += f", {format_bytes(rung.nvme_bytes)} NVMe a host" if rung.nvme_bytes else ""
    s = rung.settings
    batch = f"micro-batch {s.micro_batch}, {'checkpointing' if s.checkpointing else 'no checkpointing'}"
    name = rung.title.split(", micro-batch")[0].removesuffix(", no checkpointing")
    return f"{model} fits on {gpus:,} x {gpu}: {name}, {batch}{time}\n{where}\n{raw}"


def render_model_states(
    parameters: float,
    gpus: int,
    stage: int | None,
    recipe: BytesPerParameter,
    sizes: Mapping[int, float],
    gpu: str | None,
    floor: int | None,
) -> str:
    """Table 1 of the ZeRO paper for these numbers."""
    lines = [
        f"{format_count(parameters)} parameters on {gpus:,} GPU{'' if gpus == 1 else 's'}, 16-bit weights and Adam",
        f"States   {recipe}, {parameters * recipe.total / 1e9:,.2f} GB in all",
        "",
    ]
    for each, size in sizes.items():
        mark = ">" if each == stage else " "
        lines.append(f"{mark} ZeRO-{each}  {size / 1e9:>12,.2f} GB a rank")
    if floor is not None:
        lines += ["", f"{floor:,} x {gpu} would hold the states with nothing else on them."]
    lines += ["", "No buffers, activations or offload: `harness plan --model NAME` counts those."]
    return "\n".join(lines)
