# SPDX-License-Identifier: Apache-2.0
"""The memory that fixes change, from the plans before and after them: no fix moves a run to another tier unsaid."""

from __future__ import annotations

from pathlib import Path

from harness.check.check_file import CheckedFile
from harness.findings import Finding, Fix, Place
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.planner import Plan, make_plan
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.sections.model_spec import ModelSpec
from harness.units import format_bytes

_EXAMPLE_MODEL, _EXAMPLE_RANKS = "meta-llama/Llama-3.1-70B", 8
"""What is planned where a file names no model, as a DeepSpeed JSON, or no ranks."""
_TOLERANCE = 0.02


def find_memory_change(file: str, before: CheckedFile, after: CheckedFile) -> Finding | None:
    """The finding that fixes moved an offload, or made a run take more GPU memory, host memory or disk; None where
    nothing of it holds, or where no plan can be made.
    """
    if before.run is None or after.run is None:
        return None
    folder = Path(file).parent
    runs = [before.run, after.run]
    plans, example = [_plan(run, folder) for run in runs], ""
    if any(plan.memory is None for plan in plans):
        example = _describe_example(after.run)
        plans = [_plan(_as_example(run), folder) for run in runs]
    old, new = plans[0].memory, plans[1].memory
    changes = [] if old is None or new is None else _list_changes(old, new)
    has_moved = _list_devices(before.run) != _list_devices(after.run)
    if not changes or not (has_moved or any(now > was for _, was, now in changes)):
        return None
    text = ", ".join(f"{tier} {format_bytes(was)} -> {format_bytes(now)}" for tier, was, now in changes)
    needed = " and ".join(f"{format_bytes(now)} of the {tier}" for tier, was, now in changes if now > was)
    return Finding(
        "SP041",
        "warning",
        f"the fixes change the memory that the run needs: {text}",
        place=Place(file, 1, 1),
        notes=(f"planned for {example}, which the file leaves open",) if example else (),
        fix=Fix(f"keep the fixes where there is as much: {needed}") if needed else None,
    )


def _plan(run: ResolvedRun, folder: Path) -> Plan:
    return make_plan(run, folder, with_alternatives=False, with_search=False, build=False)


def _as_example(run: ResolvedRun) -> ResolvedRun:
    """The run with the model, ranks and micro-batch of the example wherever it leaves them open."""
    spec, train = run.spec, run.spec.train
    if not _names_model(run):
        spec = spec.model_copy(update={"model": ModelSpec(name_or_path=_EXAMPLE_MODEL)})
    if run.batch.micro_batch is None:
        sizes = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": None, "global_batch_size": None}
        spec = spec.model_copy(update={"train": train.model_copy(update=sizes)})
    ranks = run.parallel_dims.world_size or _EXAMPLE_RANKS
    return resolve_run(spec, name=run.name, cluster=run.cluster, world_size=ranks, kind=run.kind)


def _describe_example(run: ResolvedRun) -> str:
    parts = [] if _names_model(run) else [_EXAMPLE_MODEL.rpartition("/")[2]]
    parts += [] if run.parallel_dims.world_size else [f"{_EXAMPLE_RANKS} ranks"]
    parts += [] if run.batch.micro_batch else ["a micro-batch of 1"]
    return ", ".join(parts)


def _names_model(run: ResolvedRun) -> bool:
    return run.spec.model.name_or_path is not None or run.spec.model.config is not None


def _list_changes(old: MemoryEstimate, new: MemoryEstimate) -> list[tuple[str, int, int]]:
    """The kinds of memory that differ by more than 2 %, with the bytes before and after."""
    kinds = (
        ("GPU memory of a rank", old.gpu_peak, new.gpu_peak),
        ("memory of a host", old.host_peak, new.host_peak),
        ("NVMe of a host", old.nvme_bytes, new.nvme_bytes),
    )
    return [(kind, was, now) for kind, was, now in kinds if abs(now - was) > _TOLERANCE * was]


def _list_devices(run: ResolvedRun) -> list[str]:
    """Where the optimizer and the parameters are offloaded to."""
    sections = run.spec.zero.offload_optimizer, run.spec.zero.offload_param
    return [section.device if section else "none" for section in sections]
