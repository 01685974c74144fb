# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs as NVML says it, and the problems in it: which facts end or spoil a job, and which cost speed.

Reads no GPU; `nvml_reader` does. A GPU without work lowers its clocks and the generation of its PCIe link to save
power, which is no problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

GpuProblemKind = Literal[
    "lost", "ecc", "remap", "thermal", "slowdown", "nvlink", "pcie_width", "pcie_generation", "power_limit", "power_cap"
]
# nvml.h, nvmlClocksEventReasons
IDLE, POWER_CAP, HARDWARE_SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
_MAX_NOTES = 8
_THERMAL = SOFTWARE_THERMAL | HARDWARE_THERMAL
_LIMIT_TOLERANCE = 0.95
_BUSY_PERCENT = 20
_RESET = "drain the host and reset the GPU (`nvidia-smi --gpu-reset`, or a restart)"


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One GPU: MHz, degrees Celsius, watts, percent, counts. None where the driver or the GPU does not say."""

    index: int = 0
    """NVML counts by PCI bus id, as `nvidia-smi` and the `deepspeed` launcher do."""
    name: str = "GPU"
    uuid: str = ""
    bus_id: str = ""
    words: str = ""
    """The driver's error, where the GPU is lost."""
    reasons: int | None = None
    """Bits of why clocks are low (nvmlClocksEventReasons)."""
    sm_clock: int | None = None
    sm_clock_max: int | None = None
    memory_clock: int | None = None
    memory_clock_max: int | None = None
    temperature: int | None = None
    slowdown_temperature: int | None = None
    power: float | None = None
    power_limit: float | None = None
    power_limit_default: float | None = None
    utilization: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    links_up: int | None = None
    links_down: int | None = None
    link_errors: int | None = None
    """CRC errors, replays and recoveries of all NVLinks since the driver was loaded."""
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    pages_pending: int | None = None
    rows_remapped: int | None = None
    rows_pending: int | None = None
    remap_failed: int | None = None

    @property
    def is_busy(self) -> bool:
        """Does it compute now, so that its clocks and links are not lowered to save power?"""
        return not (self.reasons or 0) & IDLE and (self.utilization or 0) >= _BUSY_PERCENT

    @property
    def label(self) -> str:
        """`GPU 3 (0000:9b:00.0)`."""
        place = self.bus_id or self.uuid
        return f"GPU {self.index} ({place})" if place else f"GPU {self.index}"


@dataclass(frozen=True, slots=True)
class HostGpus:
    """The answer of one host. `words`: why `gpus` is empty, such as no `nvidia-ml-py` or no driver."""

    gpus: tuple[GpuHealth, ...] = ()
    words: str = ""
    driver: str | None = None


class GpuProblem(NamedTuple):
    """A problem of one GPU, and the gate that reports it before a run. `clause` has the GPU as its subject; `is_fault`:
    it will end or spoil a job.
    """

    gate: str
    kind: GpuProblemKind
    is_fault: bool
    clause: str
    fix: str


def parse_host_gpus(raw: Mapping[str, Any] | None) -> HostGpus:
    """The answer of `nvml_reader`; None: none came in time. Raises TypeError or ValueError for another kind of one."""
    if raw is None:
        return HostGpus(words="no answer in time")
    gpus = tuple(parse_gpu(gpu) for gpu in raw.get("gpus", ()))
    driver = raw.get("driver")
    return HostGpus(gpus, str(raw.get("words", ""))[:400], None if driver is None else str(driver))


def parse_gpu(raw: Mapping[str, Any]) -> GpuHealth:
    """One GPU of the answer. Raises TypeError or ValueError for a value of another type."""
    values: dict[str, Any] = {}
    for field in fields(GpuHealth):
        value = raw.get(field.name)
        if value is None:
            continue
        if field.name in ("name", "uuid", "bus_id", "words"):
            values[field.name] = str(value)[:100]
        else:
            values[field.name] = float(value) if field.name.startswith("power") else int(value)
    return GpuHealth(**values)


def count_most_links(gpus: Iterable[GpuHealth]) -> dict[str, int]:
    """By model, the most NVLinks that one GPU has up."""
    most: dict[str, int] = {}
    for gpu in gpus:
        most[gpu.name] = max(most.get(gpu.name, 0), gpu.links_up or 0)
    return most


def find_gpu_problems(gpu: GpuHealth, most_links: int = 0, gate: str | None = None) -> list[GpuProblem]:
    """The problems of a GPU, faults of the memory first; only those of one gate where it is named. `most_links`:
    NVLinks that a GPU of its model has up at most; where all of a model have some down, these may not be wired.
    """
    if gpu.words:
        lost = GpuProblem("EN081", "lost", True, f"does not answer: {gpu.words}", _RESET)
        return [lost] if gate in (None, lost.gate) else []
    checks = [check for name, check in _CHECKS.items() if gate in (None, name)]
    problems = [problem for check in checks for problem in check(gpu)]
    if gate in (None, "EN083") and gpu.links_up is not None and gpu.links_up < most_links:
        clause = f"has {gpu.links_up} NVLinks up, others of its model {most_links}"
        fix = f"see `nvidia-smi nvlink -s` there; {_RESET}"
        problems.append(GpuProblem("EN083", "nvlink", True, clause, fix))
    return problems


def _memory_problems(gpu: GpuHealth) -> list[GpuProblem]:
    problems = []
    if gpu.ecc_uncorrected:
        errors = f"{gpu.ecc_uncorrected} uncorrected ECC error{'s' if gpu.ecc_uncorrected > 1 else ''}"
        clause = f"has {errors} since its driver was loaded"
        problems.append(GpuProblem("EN080", "ecc", True, clause, f"{_RESET}; replace a GPU that has such errors again"))
    if gpu.remap_failed:
        clause = "could not remap a broken row of its memory"
        problems.append(GpuProblem("EN080", "remap", True, clause, "leave the host out, and replace the GPU"))
    elif gpu.rows_pending or gpu.pages_pending:
        what = "remap rows" if gpu.rows_pending else "retire pages"
        clause = f"needs a reset to {what} of its memory that had errors"
        problems.append(GpuProblem("EN080", "remap", True, clause, _RESET))
    return problems


def _clock_problems(gpu: GpuHealth) -> list[GpuProblem]:
    reasons, state = gpu.reasons or 0, describe_clock(gpu)
    too_hot = gpu.temperature is not None and gpu.temperature >= (gpu.slowdown_temperature or 10**6)
    if reasons & _THERMAL or too_hot:
        fix = "check fans, air flow and the load of its neighbours (`nvidia-smi -q -d TEMPERATURE,PERFORMANCE`)"
        return [GpuProblem("EN082", "thermal", True, f"is slowed down by heat{state}", fix)]
    if reasons & (POWER_BRAKE | HARDWARE_SLOWDOWN):
        brake = " by the power brake" if reasons & POWER_BRAKE else " by its hardware"
        fix = "check power supplies and power cables of the host (`nvidia-smi -q -d PERFORMANCE`)"
        # Without work some GPUs show the one bit that stands for any reason of the hardware.
        certain = bool(reasons & POWER_BRAKE) or not reasons & IDLE
        return [GpuProblem("EN082", "slowdown", certain, f"is slowed down{brake}{state}", fix)]
    return []


def _pcie_problems(gpu: GpuHealth) -> list[GpuProblem]:
    fix = "reseat the GPU or its riser, and see if `nvidia-smi -q -d PCIE` has the full link under load"
    if gpu.pcie_width and gpu.pcie_width < (gpu.pcie_width_max or 0):
        clause = f"has {gpu.pcie_width} lanes of PCIe, {gpu.pcie_width_max} are possible"
        return [GpuProblem("EN084", "pcie_width", False, clause, fix)]
    if gpu.is_busy and gpu.pcie_generation and gpu.pcie_generation < (gpu.pcie_generation_max or 0):
        clause = f"has PCIe generation {gpu.pcie_generation} under load, {gpu.pcie_generation_max} is possible"
        return [GpuProblem("EN084", "pcie_generation", False, clause, fix)]
    return []


def _power_problems(gpu: GpuHealth) -> list[GpuProblem]:
    limit, default = gpu.power_limit, gpu.power_limit_default
    fix = "raise it (`nvidia-smi -pl`, as root), or plan with lower FLOP/s"
    if limit is not None and default is not None and limit < _LIMIT_TOLERANCE * default:
        return [GpuProblem("EN085", "power_limit", False, f"is limited to {limit:.0f} W of {default:.0f} W", fix)]
    if (gpu.reasons or 0) & POWER_CAP and gpu.is_busy:
        return [GpuProblem("EN085", "power_cap", False, f"is at its power limit{describe_clock(gpu)}", fix)]
    return []


_CHECKS: Mapping[str, Callable[[GpuHealth], list[GpuProblem]]] = {
    "EN080": _memory_problems,
    "EN082": _clock_problems,
    "EN084": _pcie_problems,
    "EN085": _power_problems,
}


def describe_clock(gpu: GpuHealth) -> str:
    """`: 91 C, SM clock 750 of 1980 MHz`, or nothing."""
    parts = [] if gpu.temperature is None else [f"{gpu.temperature} C"]
    if gpu.sm_clock is not None and gpu.sm_clock_max is not None:
        parts.append(f"SM clock {gpu.sm_clock} of {gpu.sm_clock_max} MHz")
    return ": " + ", ".join(parts) if parts else ""


def select_gpus(answer: HostGpus, devices: Sequence[int]) -> tuple[GpuHealth, ...]:
    """The GPUs that the ranks of a host take."""
    return tuple(gpu for gpu in answer.gpus if gpu.index in devices)


class GpuProblemGroup(NamedTuple):
    """One problem of one or more GPUs, for a finding."""

    gate: str
    is_fault: bool
    message: str
    notes: tuple[str, ...]
    fix: str


def group_gpu_problems(
    gpus_by_host: Mapping[str, Sequence[GpuHealth]], gate: str | None = None
) -> list[GpuProblemGroup]:
    """The problems of the GPUs that a run takes, those of a kind together, faults first; only those of one gate where
    it is named. A host without a name is this machine.
    """
    most_links: Mapping[str, int] = {}
    if gate in (None, "EN083"):
        most_links = count_most_links(gpu for gpus in gpus_by_host.values() for gpu in gpus)
    groups: dict[tuple[bool, str], list[tuple[str, GpuHealth, GpuProblem]]] = {}
    for host, gpus in gpus_by_host.items():
        for gpu in gpus:
            for problem in find_gpu_problems(gpu, most_links.get(gpu.name, 0), gate):
                groups.setdefault((not problem.is_fault, problem.kind), []).append((host, gpu, problem))
    return [_to_group(groups[key]) for key in sorted(groups)]


def _to_group(rows: Sequence[tuple[str, GpuHealth, GpuProblem]]) -> GpuProblemGroup:
    sentences = [f"{gpu.label} of {f'`{host}`' if host else 'this machine'} {p.clause}" for host, gpu, p in rows]
    _, first, problem = rows[0]
    notes = [*([f"its UUID is {first.uuid}"] if first.uuid else []), *sentences[1:_MAX_NOTES]]
    if len(sentences) > _MAX_NOTES:
        notes.append(f"and {len(sentences) - _MAX_NOTES} more GPUs")
    return GpuProblemGroup(problem.gate, problem.is_fault, sentences[0], tuple(notes), problem.fix)
