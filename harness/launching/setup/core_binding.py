# SPDX-License-Identifier: Apache-2.0
"""Core binding of the ranks (`launch.bind_cores_to_rank`): the options of DeepSpeed's launcher, which uses numactl."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.launching.hosts.local_host import LocalHost, find_program
from harness.spec.sections.launch_spec import LaunchSpec
from harness.spec.sections.zero_spec import ZeroSpec


def core_binding_args(launch: LaunchSpec) -> list[str]:
    """Options of the `deepspeed` command."""
    if not launch.bind_cores_to_rank:
        return []
    return ["--bind_cores_to_rank", *([f"--bind_core_list={launch.bind_core_list}"] if launch.bind_core_list else [])]


def check_core_binding(launch: LaunchSpec, local_host: LocalHost, local_ranks: int | None) -> Iterator[Finding]:
    """Findings about programs and cores that this machine lacks to bind its own ranks."""
    if not launch.bind_cores_to_rank or local_ranks is None:
        return
    key = "launch.bind_cores_to_rank"
    if find_program("numactl") is None:
        yield Finding(
            "EN014",
            "error",
            "`launch.bind_cores_to_rank` needs `numactl`, which is not on PATH",
            key=key,
            notes=("DeepSpeed starts each rank through it",),
            fix=Fix("install it (apt install numactl), or leave the key out"),
        )
    cores = _count_physical_cores()
    if launch.bind_core_list is None and cores is not None and cores < local_ranks:
        yield Finding(
            "EN014",
            "error",
            f"{local_ranks} ranks need at least one core each, and this machine has {cores} physical ones",
            key=key,
            fix=Fix("leave the key out"),
        )
    if "KMP_AFFINITY" in local_host.environ:
        yield Finding(
            "EN014",
            "error",
            "KMP_AFFINITY is set, and DeepSpeed then binds no rank to cores",
            key=key,
            fix=Fix("unset KMP_AFFINITY in the shell that launches"),
        )


def suggest_core_binding(zero: ZeroSpec, launch: LaunchSpec, local_ranks: int | None) -> Iterator[Finding]:
    """The hint of the gate EN053 about several hosts, for the ranks of this machine alone."""
    offload, nodes = zero.offload_optimizer, machine.count_numa_nodes()
    is_offloaded = offload is not None and offload.device != "none"
    if is_offloaded and not launch.bind_cores_to_rank and local_ranks and nodes > 1:
        yield Finding(
            "EN053",
            "info",
            f"this machine has {nodes} NUMA nodes, and the optimizer's threads may run on any",
            key="launch.bind_cores_to_rank",
            fix=Fix("set `launch.bind_cores_to_rank` to true, and compare", {"launch.bind_cores_to_rank": True}),
        )


def _count_physical_cores() -> int | None:
    """Physical cores, as DeepSpeed counts them: two threads of one core are one."""
    try:
        psutil = import_module("psutil")
    except ImportError:  # then DeepSpeed is missing too, which is another finding
        return None
    count: int | None = psutil.cpu_count(logical=False)
    return count
