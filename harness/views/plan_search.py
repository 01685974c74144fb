"""What a search found, the fewest GPUs, and a bare count: as text and as JSON. Counts nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.findings import Finding
from harness.plan.ladder import Rung
from harness.plan.search import fitting
from harness.plan.settings import Recipe
from harness.units import format_bytes, format_count, format_seconds
from harness.views.style import Style

_SHOWN = 8
Refusals = Sequence[tuple[Rung, Finding]]


def search_text(
    rungs: Sequence[Rung], best: Rung | None, refused: Refusals, launchable: bool, style: Style, width: int
) -> str:
    """How much was looked at, the fastest few, and what the gates refused before the choice."""
    fits = list(fitting(rungs))
    head = f"Searched {len(rungs):,} settings with the same batch; {len(fits):,} fit with headroom."
    lines = [head]
    if best is None:
        closest = rungs[0] if rungs else None
        if closest is not None and not fits:
            lines.append(f"Nothing fits. Closest: {closest.title}, short of {closest.fit.binding}.")
        elif fits:
            lines.append("The gates refuse all of them.")
    lines += [_line(rung, rung is best) for rung in _listed(fits, best)]
    for rung, finding in refused[:4]:
        gate = style.paint(finding.gate, "yellow")
        lines.append(f"  refused by {gate}: {rung.title} ({finding.message})"[: max(width, 60)])
    if best is not None and not launchable:
        lines.append(
            "`harness launch` of this version refuses the choice too: it is valid, planned and can be rendered."
        )
    return "\n".join(lines)


def _listed(fits: Sequence[Rung], best: Rung | None) -> list[Rung]:
    shown = list(fits[:_SHOWN])
    return shown if best is None or best in shown else [*shown[:-1], best]


def _line(rung: Rung, chosen: bool) -> str:
    time = format_seconds(rung.time.seconds) if rung.time else "-"
    s = rung.settings
    batch = f"micro-batch {s.micro_batch}, {'checkpointing' if s.checkpointing else 'no checkpointing'}"
    name = (
        rung.title.split(", micro-batch")[0].removesuffix(", gradient checkpointing").removesuffix(", no checkpointing")
    )
    mark = ">" if chosen else " "
    return f"{mark} {time:>12}  {format_bytes(rung.gpu):>11} GPU  {format_bytes(rung.host):>11} host  {name}, {batch}"


def search_json(rungs: Sequence[Rung], best: Rung | None, refused: Refusals, raw: Mapping[str, Any]) -> dict[str, Any]:
    """`search` and `spec` of the JSON."""
    body = {
        "searched": len(rungs),
        "fit": sum(1 for _ in fitting(rungs)),
        "chosen": best.title if best else None,
        "refused": [{"title": rung.title, "gate": f.gate, "message": f.message} for rung, f in refused],
        "fastest": [rung_json(rung) for rung in list(fitting(rungs))[:_SHOWN]],
    }
    return {"search": body, "spec": dict(raw)}


def rung_json(rung: Rung | None) -> dict[str, Any]:
    """One choice."""
    if rung is None:
        return {"title": None}
    s = rung.settings
    return {
        "title": rung.title,
        "zero_stage": s.stage,
        "offload_optimizer": s.optimizer_at,
        "offload_param": s.parameters_at,
        "micro_batch": s.micro_batch,
        "gradient_accumulation_steps": s.accumulation,
        "gradient_checkpointing": s.checkpointing,
        "tensor_parallel_size": s.tensor,
        "pipeline_parallel_size": s.pipeline,
        "sequence_parallel_size": s.sequence_parallel,
        "gpu_peak_bytes": rung.gpu,
        "host_peak_bytes": rung.host,
        "nvme_bytes": rung.nvme,
        "fits": rung.fit.fits,
        "headroom": rung.fit.headroom,
        "step_seconds": rung.time.seconds if rung.time else None,
        "bottleneck": rung.time.bottleneck if rung.time else None,
    }


def fewest_text(model: str, gpu: str, gpus: int, rung: Rung | None, floor: int, states: float) -> str:
    """The smallest number of GPUs, beside the raw floor."""
    raw = f"The states alone are {states / 1e9:,.1f} GB, which {floor:,} x {gpu} would hold with nothing else on them."
    if rung is None:
        return f"{model} does not fit on up to {gpus:,} x {gpu}.\n{raw}"
    time = f", {format_seconds(rung.time.seconds)} a step" if rung.time else ""
    where = f"{format_bytes(rung.gpu)} a GPU, {format_bytes(rung.host)} a host"
    where += f", {format_bytes(rung.nvme)} NVMe a host" if rung.nvme else ""
    s = rung.settings
    batch = f"micro-batch {s.micro_batch}, {'checkpointing' if s.checkpointing else 'no checkpointing'}"
    name = rung.title.split(", micro-batch")[0].removesuffix(", no checkpointing")
    return f"{model} fits on {gpus:,} x {gpu}: {name}, {batch}{time}\n{where}\n{raw}"


def bare_text(
    parameters: float,
    gpus: int,
    stage: int | None,
    recipe: Recipe,
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
