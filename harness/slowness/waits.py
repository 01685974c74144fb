# SPDX-License-Identifier: Apache-2.0
"""Causes of waiting: for data, other ranks, host memory, the bus, disks, or a sick GPU. One function a cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.plan.settings.plan_settings import PlanSettings
from harness.slowness.run_measurements import (
    RunMeasurements,
    SettingChange,
    Slowdown,
    enlarge_micro_batch,
    format_percent,
)
from harness.units import finite_number, format_bytes, format_seconds

_DATA_LIMIT = 0.10
_COMMUNICATION_LIMIT = 0.20
_COMMUNICATION_PARTS = (
    "collectives",
    "parameters gathered after the step",
    "tensor and sequence parallelism",
    "pipeline messages",
)
_OPTIMIZER_LIMIT = 0.20
_COPY_LIMIT = 0.15
_SWAP_LIMIT = 0.10
_HEALTH_LIMIT = 0.05
_CLOCK_PROBLEMS = {"thermal", "slowdown", "power_limit"}
_MAX_EVIDENCE = 4


def detect_data_wait(run: RunMeasurements) -> Slowdown | None:
    """Data-bound: steps wait for their data. The plan has no data time: the measured share bounds the gain.

    More than a tenth of the step waits for data.
    """
    share = run.measured_share("data")
    if share is None or share < _DATA_LIMIT:
        return None
    evidence = (
        run.describe_share("data"),
        f"without it the same step would take {format_seconds(run.step_seconds - run.medians['seconds_data'])}, "
        "which is the most that can be gained here",
    )
    advice = (
        "prepared tokens are memory-mapped from `data.cache_dir`: put it on a local disk, not on a network file system",
        "give the ranks enough cores: fewer ranks per host than cores, and `OMP_NUM_THREADS` at most cores / ranks",
    )
    return Slowdown("data", "waiting for data", share, evidence, advice=advice)


def detect_exposed_communication(run: RunMeasurements) -> Slowdown | None:
    """Communication-bound: ranks wait for collectives, or for each other in them.

    More than a fifth of the step is in collectives; without a measurement, by the plan.
    """
    measured_share, planned_share = (
        run.measured_share("communication"),
        run.planned_share(*_COMMUNICATION_PARTS),
    )
    share = measured_share if measured_share is not None else planned_share
    if share is None or share < _COMMUNICATION_LIMIT or (run.header_value("world") or 2) < 2:
        return None
    evidence = []
    if measured_share is not None:
        evidence.append(run.describe_share("communication"))
    if planned_share is not None:
        evidence.append(
            f"the plan expects {format_percent(planned_share)} of the step in communication that nothing hides"
        )
    if run.run_header.get("clock") == "device":
        evidence.append("timed on the device, so communication hidden by computation is counted, too")
    settings = run.settings
    return Slowdown(
        "communication",
        "communication",
        share,
        tuple(evidence),
        _suggest_communication_settings(settings) if settings else (),
        ("waiting for a slow rank counts as communication on all others: compare the busy time of the ranks",),
        is_planned=measured_share is None,
    )


def _suggest_communication_settings(settings: PlanSettings) -> tuple[SettingChange, ...]:
    """Settings that move less: fewer, larger micro-batches; a lower stage; overlap; ZeRO++ across hosts."""
    changes = list(enlarge_micro_batch(settings))
    without_offload = {} if settings.param_device == "none" else {"zero.offload_param": None}
    for stage in range(1, settings.stage):
        sets: dict[str, Any] = {"zero.stage": stage, **without_offload}
        changes.append(SettingChange(f"ZeRO stage {stage}, which gathers fewer parameters", sets))
    if settings.stage in (1, 2, 3) and not settings.overlap_comm:
        changes.append(SettingChange("reduce during the backward pass", {"zero.overlap_comm": True}))
    if settings.stage == 3 and settings.num_hosts > 1:
        sets = {"deepspeed.zero_optimization.zero_hpz_partition_size": settings.ranks_per_host}
        changes.append(SettingChange("a second shard inside each host (ZeRO++ hpZ)", sets))
    return tuple(changes)


def detect_cpu_optimizer(run: RunMeasurements) -> Slowdown | None:
    """Offload-bound by CPU Adam: the optimizer's step runs in host memory, which every rank of a host shares.

    More than a fifth of the step is in the optimizer, with its states on the CPU.
    """
    settings = run.settings
    if settings is None or settings.optimizer_device != "cpu":
        return None
    measured_share, planned_share = run.measured_share("optimizer"), run.planned_share("CPU optimizer")
    share = measured_share if measured_share is not None else planned_share
    if share is None or share < _OPTIMIZER_LIMIT:
        return None
    evidence = []
    if measured_share is not None:
        evidence.append(run.describe_share("optimizer"))
    if planned_share is not None:
        evidence.append(f"the plan has {format_percent(planned_share)} of the step in the CPU's optimizer")
    advice = (
        "its time does not depend on the batch: with a larger `train.global_batch_size` it runs less often (changes "
        "what is trained)",
        "`harness doctor --measure` measures the host's memory bandwidth, which bounds it",
    )
    return Slowdown(
        "cpu-optimizer",
        "the optimizer on the CPU",
        share,
        tuple(evidence),
        _suggest_optimizer_settings(settings),
        advice,
        measured_share is None,
    )


def _suggest_optimizer_settings(settings: PlanSettings) -> tuple[SettingChange, ...]:
    """The optimizer on the device, at this stage or a higher one; or a part of it there."""
    on_device: dict[str, Any] = {"zero.offload_optimizer": None}
    changes = [] if settings.param_device != "none" else [SettingChange("the optimizer on the device", on_device)]
    for stage in range(settings.stage + 1, 4):
        changes.append(
            SettingChange(f"ZeRO stage {stage} with the optimizer on the device", {**on_device, "zero.stage": stage})
        )
    if settings.stage == 3:
        for ratio in (0.5, 0.8):
            if ratio < settings.offload_ratio:
                description = f"{format_percent(1 - ratio)} of the optimizer on the device"
                changes.append(SettingChange(description, {"zero.offload_optimizer.ratio": ratio}))
    return tuple(changes)


def detect_pcie_copies(run: RunMeasurements) -> Slowdown | None:
    """Offload-bound by PCIe: copies between device and host memory that computing does not hide.

    More than 15% of the planned step is in copies. No clock measures copies, so the share is the plan's.
    """
    settings, plan = run.settings, run.plan
    if (
        settings is None
        or plan is None
        or plan.device is None
        or "none" == settings.optimizer_device == settings.param_device
    ):
        return None
    share = run.planned_share("PCIe", "PCIe at the step")
    if share is None or share < _COPY_LIMIT:
        return None
    evidence = [f"the plan has {format_percent(share)} of the step in copies over PCIe that nothing hides"]
    num_bytes = (run.header_value("offload_to_host_bytes") or 0) + (run.header_value("offload_to_device_bytes") or 0)
    if num_bytes and run.step_seconds:
        evidence.append(
            f"{format_bytes(num_bytes)} a rank and step,"
            f" {format_bytes(num_bytes / run.step_seconds)}/s over the measured step;"
            f" {plan.device.name} has {format_bytes(plan.device.pcie)}/s in each direction"
        )
    return Slowdown(
        "pcie",
        "copies between device and host",
        share,
        tuple(evidence),
        _suggest_copy_settings(settings),
        is_planned=True,
    )


def _suggest_copy_settings(settings: PlanSettings) -> tuple[SettingChange, ...]:
    changes: list[SettingChange] = list(enlarge_micro_batch(settings, "micro-batches, which hide more of the copies,"))
    if settings.param_device != "none":
        changes.append(SettingChange("parameters on the device", {"zero.offload_param": None}))
    if settings.optimizer_device == "cpu":
        sets: dict[str, Any] = {"zero.offload_optimizer": None}
        if settings.param_device != "none":
            sets["zero.offload_param"] = None
        changes.append(SettingChange("nothing offloaded", sets))
        if not settings.pin_memory:
            changes.append(SettingChange("page-locked buffers", {"zero.offload_optimizer.pin_memory": True}))
    return tuple(changes)


def detect_nvme_swap(run: RunMeasurements) -> Slowdown | None:
    """Offload-bound by NVMe: ranks are blocked by reads and writes of what is swapped.

    More than a tenth of the step waits for NVMe; without a measurement, by the plan.
    """
    settings = run.settings
    if settings is None or "nvme" not in (settings.optimizer_device, settings.param_device):
        return None
    measured_share, planned_share = (
        run.measured_share("io"),
        run.planned_share("NVMe", "parameters from NVMe"),
    )
    share = measured_share if measured_share is not None else planned_share
    if share is None or share < _SWAP_LIMIT:
        return None
    evidence = []
    if measured_share is not None:
        evidence.append(run.describe_share("io"))
    num_bytes = run.medians.get("nvme_read_bytes", 0.0) + run.medians.get("nvme_write_bytes", 0.0)
    if num_bytes and run.step_seconds:
        evidence.append(
            f"rank 0 moves {format_bytes(num_bytes)} a step,"
            f" {format_bytes(num_bytes / run.step_seconds)}/s over the step"
        )
    if planned_share is not None:
        evidence.append(f"the plan has {format_percent(planned_share)} of the step on NVMe")
    advice = ("`harness doctor --measure` measures the disks; disks under one RAID 0 add up",)
    return Slowdown(
        "nvme",
        "swapping to NVMe",
        share,
        tuple(evidence),
        _suggest_swap_settings(settings),
        advice,
        measured_share is None,
    )


def _suggest_swap_settings(settings: PlanSettings) -> tuple[SettingChange, ...]:
    """The states in host memory; or reads and writes that overlap with Adam."""
    changes: list[SettingChange] = []
    if settings.optimizer_device == "nvme":
        changes.append(SettingChange("the optimizer in host memory", _move_to_cpu("zero.offload_optimizer")))
        if not (settings.pipeline_read and settings.pipeline_write):
            sets = {"zero.offload_optimizer.pipeline_read": True, "zero.offload_optimizer.pipeline_write": True}
            changes.append(SettingChange("read and write while Adam computes", sets))
    if settings.param_device == "nvme":
        changes.append(SettingChange("parameters in host memory", _move_to_cpu("zero.offload_param")))
    if settings.optimizer_device == settings.param_device == "nvme":
        both = {**_move_to_cpu("zero.offload_optimizer"), **_move_to_cpu("zero.offload_param")}
        changes.append(SettingChange("optimizer and parameters in host memory", both))
    return tuple(changes)


def _move_to_cpu(section: str) -> dict[str, Any]:
    """The section on the CPU, without the keys of NVMe."""
    nvme_keys = (
        "nvme_path",
        "pipeline_read",
        "pipeline_write",
        "fast_init",
        "buffer_count",
        "buffer_size",
        "max_in_cpu",
    )
    return {f"{section}.device": "cpu", **{f"{section}.{key}": None for key in nvme_keys}}


def detect_unhealthy_gpu(run: RunMeasurements) -> Slowdown | None:
    """A GPU that is throttled, limited in power, or badly connected: all ranks wait for the slowest one.

    By its clock, or by its lanes and the copies of the plan, a GPU costs more than 5% of the step.
    """
    shares = [(_lost_share(run, line), line) for line in run.gpu_lines if line.get("state") == "problem"]
    costly = sorted((pair for pair in shares if pair[0] >= _HEALTH_LIMIT), key=lambda pair: -pair[0])
    if not costly:
        return None
    evidence = [
        f"rank {line.get('rank')} on {line.get('host')}, GPU {line.get('bus_id') or line.get('uuid') or '?'}, "
        f"{line.get('evidence')} (step {line.get('step')}): up to {format_percent(share)}"
        for share, line in costly[:_MAX_EVIDENCE]
    ]
    if len(costly) > _MAX_EVIDENCE:
        evidence.append(f"and {len(costly) - _MAX_EVIDENCE} more reports of GPUs")
    advice = (
        "leave the host out (`harness launch --exclude HOST`) until `nvidia-smi -q` there shows the same clocks, "
        "limits and PCIe link under load as on the others",
    )
    return Slowdown("gpu", "an unhealthy GPU, at most", costly[0][0], tuple(evidence), advice=advice)


def _lost_share(run: RunMeasurements, line: Mapping[str, Any]) -> float:
    """The share of the step that the GPU costs at most: as if all of it were computed, at its clock."""
    problems = line.get("problems")
    problems = {kind for kind in problems if isinstance(kind, str)} if isinstance(problems, list) else set()
    share = 0.0
    if problems & _CLOCK_PROBLEMS:
        share = 1 - _ratio(line, "sm_clock")
    if "pcie_width" in problems:
        copies = run.planned_share("PCIe", "PCIe at the step") or 0.0
        extra = copies * (1 / _ratio(line, "pcie_width") - 1)
        share = max(share, extra / (1 + extra))
    return share


def _ratio(line: Mapping[str, Any], name: str) -> float:
    """The value over the highest possible one; 1 where either is not known."""
    value, most = finite_number(line.get(name)), finite_number(line.get(f"{name}_max"))
    return min(1.0, value / most) if value and most else 1.0
