"""Cores of their own for the ranks, through the option of DeepSpeed's launcher and numactl behind it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from harness.findings import Finding, Fix
from harness.launching.hosts.local_host import LocalHost, find_program
from harness.plan.resolved_run import ResolvedRun


def core_binding_args(run: ResolvedRun) -> list[str]:
    """Options of the `deepspeed` command."""
    launch = run.spec.launch
    if not launch.bind_cores_to_rank:
        return []
    return ["--bind_cores_to_rank", *([f"--bind_core_list={launch.bind_core_list}"] if launch.bind_core_list else [])]


def check_core_binding(run: ResolvedRun, here: LocalHost, ranks_here: int | None) -> Iterator[Finding]:
    """What this machine lacks to bind the ranks that it starts itself."""
    launch = run.spec.launch
    if not launch.bind_cores_to_rank or ranks_here is None:
        return
    key = "launch.bind_cores_to_rank"
    if find_program("numactl") is None:
        yield Finding(
            "EN014",
            "error",
            "ranks are to be bound to cores, and `numactl` is not on PATH",
            key=key,
            notes=("DeepSpeed starts each rank through it, and would fail to",),
            fix=Fix("install it (apt install numactl), or leave the key out"),
        )
    cores = _count_physical_cores()
    if launch.bind_core_list is None and cores is not None and cores < ranks_here:
        yield Finding(
            "EN014",
            "error",
            f"{ranks_here} ranks are to have cores of their own, and this machine has {cores} physical ones",
            key=key,
            fix=Fix("leave the key out"),
        )
    if "KMP_AFFINITY" in here.environ:
        yield Finding(
            "EN014",
            "error",
            "KMP_AFFINITY is set, and DeepSpeed binds no rank to cores where it is",
            key=key,
            fix=Fix("unset KMP_AFFINITY in the shell that launches"),
        )


def _count_physical_cores() -> int | None:
    """As DeepSpeed counts them: two threads of one core are one."""
    try:
        psutil = import_module("psutil")
    except ImportError:  # then DeepSpeed is missing too, which is told elsewhere
        return None
    count: int | None = psutil.cpu_count(logical=False)
    return count
