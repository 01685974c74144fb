# SPDX-License-Identifier: Apache-2.0
"""The machine that a calibration is of, and whether a plan is for the same one: processor, memory, GPUs, versions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from pydantic import BaseModel, ConfigDict

import harness
from harness.hostinfo import machine
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.fitted_rates import FITTED
from harness.plan.time.rates import parse_rate
from harness.spec.sections.cluster_spec import ClusterSpec

_MEMORY_TOLERANCE = 0.05
"""Kernels and control groups report a little less than there is."""
_GIVEN_RATES = (
    "host_memory_bandwidth",
    "nvme_read_bandwidth",
    "nvme_write_bandwidth",
    "link_bandwidth",
    "network_bandwidth",
    "pcie_bandwidth",
    "compute_efficiency",
)


class Fingerprint(BaseModel):
    """The machine of a run. `gpu`: as its driver calls it; `harness`: the major version; `rates`: a digest of the
    constants that the factors are on; `cluster`: rates that the spec gave.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cpu: str
    host_memory_gib: int
    gpu: str
    gpu_kind: str
    gpus_per_host: int
    several_hosts: bool
    torch: str
    deepspeed: str
    harness: str
    rates: str
    cluster: dict[str, float]

    @property
    def title(self) -> str:
        """`8 x H100-80GB, one host`."""
        hosts = "several hosts" if self.several_hosts else "one host"
        return f"{self.gpus_per_host} x {self.gpu_kind}, {hosts}"

    def is_same_machine(self, other: Fingerprint) -> bool:
        """Do both runs count for one calibration?"""
        same = self.model_copy(update={"host_memory_gib": other.host_memory_gib}) == other
        return same and is_same_memory(self.host_memory_gib, other.host_memory_gib)


@dataclass(frozen=True, slots=True)
class Machine:
    """A host as its kernel, drivers and packages name it; a version is None where the package is not installed."""

    cpu: str
    host_memory_gib: int
    torch: str | None
    deepspeed: str | None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """The GPUs and hosts of a plan, as far as a calibration depends on them."""

    gpu_kind: str
    gpus_per_host: int
    several_hosts: bool
    cluster: dict[str, float] = field(default_factory=dict)


def target_of(gpu_kind: str, settings: PlanSettings, cluster: ClusterSpec) -> PlanTarget:
    """The target of a plan."""
    return PlanTarget(gpu_kind, settings.ranks_per_host, settings.num_hosts > 1, given_rates(cluster))


def given_rates(cluster: ClusterSpec) -> dict[str, float]:
    """The rates that a spec gives, in bytes a second; without those that cannot be read."""
    rates: dict[str, float] = {}
    for key in _GIVEN_RATES:
        value = getattr(cluster, key)
        if value is None:
            continue
        try:
            rates[key] = value if isinstance(value, float) else parse_rate(value)
        except ValueError:
            continue
    return rates


def this_machine() -> Machine:
    """The machine that this process runs on."""
    gib = to_gib(machine.host_memory().total)
    torch, deepspeed = machine.package_version("torch"), machine.package_version("deepspeed")
    return Machine(machine.cpu_model(), gib, torch, deepspeed, machine.accelerator_models())


def to_gib(size: float) -> int:
    """Whole GiB."""
    return round(size / 2**30)


def is_same_memory(a: int, b: int) -> bool:
    """Are both sizes those of one host?"""
    return abs(a - b) <= _MEMORY_TOLERANCE * max(a, b)


@cache
def rates_digest() -> str:
    """A digest of the fitted constants: factors on other constants mean something else."""
    return hashlib.sha256(repr(FITTED).encode()).hexdigest()[:12]


def major_version() -> str:
    """That of the harness."""
    return harness.__version__.partition(".")[0]


def plan_differences(fingerprint: Fingerprint, target: PlanTarget) -> Iterator[str]:
    """The differences of a plan from the calibrated run, each as a clause."""
    if target.gpu_kind != fingerprint.gpu_kind:
        yield f"it is of {fingerprint.gpu_kind}, the plan is for {target.gpu_kind}"
    if target.gpus_per_host != fingerprint.gpus_per_host:
        yield f"it is of {fingerprint.gpus_per_host} GPUs a host, the plan is for {target.gpus_per_host}"
    if target.several_hosts != fingerprint.several_hosts:
        names = {True: "several hosts", False: "one host"}
        yield f"it is of {names[fingerprint.several_hosts]}, the plan is for {names[target.several_hosts]}"
    for key in _GIVEN_RATES:
        run, plan = fingerprint.cluster.get(key), target.cluster.get(key)
        if run != plan:
            yield f"`cluster.{key}` is {_format_given(plan)} in the plan and {_format_given(run)} in the calibrated run"
    if fingerprint.harness != major_version():
        yield f"it is of version {fingerprint.harness} of the harness, this is {major_version()}"
    elif fingerprint.rates != rates_digest():
        yield "the planner's own constants have changed since: calibrate again"


def version_differences(fingerprint: Fingerprint, here: Machine) -> Iterator[str]:
    """Other versions of torch and DeepSpeed, each as a clause; what is not installed here does not differ."""
    for name, run, installed in (
        ("torch", fingerprint.torch, here.torch),
        ("DeepSpeed", fingerprint.deepspeed, here.deepspeed),
    ):
        if installed is not None and installed != run:
            yield f"it is of {name} {run}, and {installed} is installed"


def machine_differences(fingerprint: Fingerprint, here: Machine) -> Iterator[str]:
    """The differences of this machine from that of the calibrated run, each as a clause."""
    if fingerprint.gpu not in here.gpus:
        yield f"this machine has no {fingerprint.gpu}"
    if fingerprint.cpu != here.cpu:
        yield f"it is of a host with {fingerprint.cpu}, this one has {here.cpu}"
    if not is_same_memory(fingerprint.host_memory_gib, here.host_memory_gib):
        yield f"it is of a host with {fingerprint.host_memory_gib} GiB, this one has {here.host_memory_gib}"
    for name, installed in (("torch", here.torch), ("DeepSpeed", here.deepspeed)):
        if installed is None:
            yield f"{name} is not installed here"


def _format_given(value: float | None) -> str:
    return "not given" if value is None else f"{value:g}"
