# SPDX-License-Identifier: Apache-2.0
"""Measurements of a machine by one of its runs: medians of its typical steps and its peaks, compared with the plan."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from harness.errors import UserError
from harness.facts.devices import device_by_driver_name
from harness.facts.metrics_schema import SCHEMA_VERSION
from harness.hostinfo import machine
from harness.plan.plan_usage import usage_error
from harness.plan.planner import Plan, make_plan
from harness.plan.time.calibration import MAX_FACTOR, CalibratedRun, Observation, sum_by_rate
from harness.plan.time.machine_fingerprint import (
    Fingerprint,
    PlanTarget,
    major_version,
    rates_digest,
    target_of,
    to_gib,
)
from harness.plan.time.step_time import PARTS_OF_UPDATE, StepTime, rate_of_part
from harness.run_records.run_record import RunRecord, read_run_record
from harness.units import finite_number, format_seconds

MIN_STEPS = 5
_COLLECTIVES = (
    "collectives",
    "parameters gathered after the step",
    "tensor and sequence parallelism",
    "pipeline messages",
)
MAX_SECONDS = 1e6
"""No part of a step takes days."""
_MAX_TEXT = 200
"""Characters of a name that a run gives of its machine."""
_COMMUNICATION_NOISE = 0.1
"""Waiting for other ranks counts as communication, too."""
_LEAST_SHARE = 0.02
"""A sum that is planned as less of the step says nothing of rates: other work is in it."""


def measure_run(run_dir: Path) -> tuple[Fingerprint, CalibratedRun]:
    """The machine of a run and its measurements. Raises UserError with the reason if they cannot be used."""
    record = read_run_record(run_dir)
    if record.run is None:
        raise _not_usable(run_dir, "its `spec.resolved.json` is missing or cannot be read")
    header = record.lines_of("run")[-1] if record.lines_of("run") else {}
    if not header:
        raise _not_usable(run_dir, "its `metrics.jsonl` has no line `run`: no step was taken")
    if header.get("format_version") != SCHEMA_VERSION:
        version = header.get("format_version")
        raise _not_usable(run_dir, f"its metrics are of format version {version}, this release reads {SCHEMA_VERSION}")
    if record.on_cpu or header.get("device") == "cpu":
        raise _not_usable(run_dir, "it ran on the CPU, for which no time is planned")
    if record.state == "failed":
        raise _not_usable(run_dir, "it failed, so its last steps and peaks are not typical", "name a run that ended")
    steps = _count_typical_steps(record)
    if steps < MIN_STEPS:
        reason = f"it has {steps} steps after its first line of metrics, and {MIN_STEPS} are needed"
        raise _not_usable(run_dir, reason, "train for more steps")
    driver_name, memory = str(header.get("device") or ""), finite_number(header.get("device_memory_bytes")) or 0.0
    device = device_by_driver_name(driver_name, int(memory))
    if device is None:
        raise _not_usable(run_dir, f"its GPU is not known: `{driver_name}`")
    plan = make_plan(record.run, record.base_dir, device.name, with_alternatives=False)
    target, time = _planned_step(run_dir, plan, device.name)
    fingerprint = _fingerprint_of(run_dir, target, header, driver_name)
    observations = tuple(_observe(record, header, time))
    if not observations:
        raise _not_usable(run_dir, "its metrics have no parts of a step")
    _check_sizes(run_dir, observations)
    return fingerprint, CalibratedRun(
        name=record.name,
        started=finite_number(header.get("time")) or 0.0,
        steps=steps,
        observations=observations,
        **_memory_ratios(record, plan),
    )


def _check_sizes(run_dir: Path, observations: Iterable[Observation]) -> None:
    """Raises UserError for a part of a step that no machine makes so fast or so slow."""
    for each in observations:
        planned = sum(each.planned.values())
        if not 1 / MAX_FACTOR < each.measured / planned < MAX_FACTOR:
            times = f"{format_seconds(each.measured)}, where {format_seconds(planned)} are planned"
            fix = "`harness report` names what made the run slow"
            raise _not_usable(run_dir, f"its {each.what} takes {times}: no machine differs that much", fix)


def _not_usable(run_dir: Path, reason: str, fix: str = "name a run that trained on GPUs") -> UserError:
    return usage_error(f"`{run_dir}` cannot be used for a calibration: {reason}", fix)


def _count_typical_steps(record: RunRecord) -> int:
    """Steps of the lines that `RunRecord.values` takes: without the first line of each start."""
    lines = record.lines_of("step")
    by_line = sorted(finite_number(line.get("steps")) or 1.0 for line in lines if finite_number(line.get("seconds")))
    typical = len(record.values("seconds")) if len(lines) > 1 else 0
    return int(sum(by_line[:typical]))


def _planned_step(run_dir: Path, plan: Plan, gpu_kind: str) -> tuple[PlanTarget, StepTime]:
    """The plan's target and time. Raises UserError for a step that cannot be planned, or that is planned for another
    GPU.
    """
    settings, time = plan.settings, plan.time
    if time is None or settings is None or plan.device is None:
        reason = next((finding.message for finding in plan.findings if finding.gate.startswith("MM")), "no time")
        raise _not_usable(run_dir, f"its step cannot be planned: {reason}")
    if plan.device.name != gpu_kind:
        reason = f"it trained on {gpu_kind}, and its `cluster.gpu` is {plan.device.name}"
        raise _not_usable(run_dir, reason, "correct `cluster.gpu` in the spec")
    return target_of(gpu_kind, settings, plan.run.spec.cluster), time


def _fingerprint_of(run_dir: Path, target: PlanTarget, header: Mapping[str, Any], driver_name: str) -> Fingerprint:
    host = _machine_of(run_dir, header)
    missing = next((name for name in ("cpu", "torch", "deepspeed") if not _text_of(host, name)), None)
    if missing is not None:
        raise _not_usable(run_dir, f"its line `run` does not name `{missing}` of its machine")
    return Fingerprint(
        cpu=_text_of(host, "cpu"),
        host_memory_gib=to_gib(finite_number(host.get("host_memory_bytes")) or 0.0),
        gpu=driver_name[:_MAX_TEXT],
        gpu_kind=target.gpu_kind,
        gpus_per_host=target.gpus_per_host,
        several_hosts=target.several_hosts,
        torch=_text_of(host, "torch"),
        deepspeed=_text_of(host, "deepspeed"),
        harness=(_text_of(host, "harness") or major_version()).partition(".")[0],
        rates=rates_digest(),
        cluster=target.cluster,
    )


def _text_of(host: Mapping[str, Any], key: str) -> str:
    """A name that the run gives, cut; empty where it gives none. Whoever can write the run has chosen it."""
    value = host.get(key)
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _machine_of(run_dir: Path, header: Mapping[str, Any]) -> Mapping[str, Any]:
    """The run's own words, or for a run from before it had any, this machine's where it ran here."""
    stored, hosts = header.get("machine"), header.get("hosts")
    if isinstance(stored, dict):
        return stored
    if not isinstance(hosts, list) or socket.gethostname() not in hosts:
        reason = "it does not record its machine, so it may have run on a different one"
        raise _not_usable(run_dir, reason, "calibrate on a host of the run, or by a run of this release")
    versions = {name: machine.package_version(name) for name in ("torch", "deepspeed")}
    return {"cpu": machine.cpu_model(), "host_memory_bytes": machine.host_memory().total, **versions}


def _observe(record: RunRecord, header: Mapping[str, Any], time: StepTime) -> Iterable[Observation]:
    """The passes and the update, where the device's clock tells them apart; else both as one."""
    names = [part.name for part in time.parts]
    rate_of = {name: rate_of_part(name) for name in names}
    exposed = {part.name: part.exposed for part in time.parts}

    def observation(what: str, measured: float, planned: Mapping[str, float], **more: float) -> Iterable[Observation]:
        if 0 < measured < MAX_SECONDS and sum(planned.values()) >= _LEAST_SHARE * time.seconds:
            yield Observation(what=what, measured=measured, planned=sum_by_rate(planned, rate_of), **more)

    medians = {
        key: median(values)
        for key in ("seconds", "data", "forward", "backward", "optimizer", "loop", "communication", "io")
        if (values := record.values("seconds" if key == "seconds" else f"seconds_{key}"))
    }
    on_device = header.get("clock") == "device"
    if on_device and {"forward", "backward", "optimizer"} <= medians.keys():
        passes = {name: exposed[name] for name in names if name not in PARTS_OF_UPDATE}
        update = {name: exposed[name] for name in names if name in PARTS_OF_UPDATE}
        yield from observation("forward and backward pass", medians["forward"] + medians["backward"], passes)
        yield from observation("update", medians["optimizer"], update)
    elif "seconds" in medians:
        whole = medians["seconds"] - medians.get("data", 0.0) - medians.get("loop", 0.0)
        yield from observation("step", whole, exposed)
    if on_device and "communication" in medians:
        # The device's clock counts what computation hides, too.
        seconds = {part.name: part.seconds for part in time.parts if part.name in _COLLECTIVES}
        yield from observation("communication", medians["communication"], seconds, noise=_COMMUNICATION_NOISE)


def _memory_ratios(record: RunRecord, plan: Plan) -> dict[str, float]:
    """Allocated over planned tensors, and reserved over allocated, of the rank with most."""
    allocated, reserved = (_largest(record, f"memory_gpu_{kind}_bytes") for kind in ("peak", "reserved"))
    planned = plan.memory.allocated_peak if plan.memory else 0
    if not allocated or not planned:
        return {}
    ratios = {"allocated": allocated / planned, "reserved": reserved / allocated}
    return {name: ratio for name, ratio in ratios.items() if 1 / MAX_FACTOR < ratio < MAX_FACTOR}


def _largest(record: RunRecord, key: str) -> float:
    values: list[float] = []
    for line in record.lines:
        value = line.get(key)
        numbers = map(finite_number, value if isinstance(value, list) else [value])
        values += [number for number in numbers if number is not None]
    return max(values, default=0.0)
