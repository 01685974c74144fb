# SPDX-License-Identifier: Apache-2.0
"""Software on the hosts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from harness.facts.required_ops import CUDA_OPS, WITHOUT_NVCC
from harness.gates.host_names import format_hosts, list_reachable_hosts
from harness.gates.registry import Cite, Context, Findings, Fix, hosts_gate
from harness.hostinfo.torch_devices import TorchProblem, find_torch_problem, format_device_names

if TYPE_CHECKING:
    from harness.hostinfo.host_survey import HostFacts

_HOSTFILE = "launch.hostfile"


def _get_versions(host: HostFacts) -> dict[str, str]:
    return {"Python": host.python} | {name: version or "none" for name, version in host.packages.items()}


@hosts_gate("EN040 versions-differ")
def different_versions(ctx: Context) -> Findings:
    """Hosts with different versions of Python or a package.

    Python and the packages `deepspeed`, `torch`, `transformers`, `accelerate` and `safetensors` have the same version
    on every host.

    Why: Ranks of different releases disagree about collectives, formats and defaults: they hang, or train different
    things and average them.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {packages: {deepspeed: 0.18.3}}
    """
    hosts = list_reachable_hosts(ctx)
    if not hosts:
        return
    for package in _get_versions(hosts[0]):
        versions = [_get_versions(host)[package] for host in hosts]
        counts = Counter(versions)
        usual = counts.most_common(1)[0][0]
        for version in sorted(set(counts) - {usual}):
            others = [host for host, other in zip(hosts, versions, strict=True) if other == version]
            yield ctx.finding(
                f"{format_hosts(others)} has {package} {version}, {counts[usual]} of {len(hosts)} hosts have {usual}",
                _HOSTFILE,
                notes=["ranks of different releases hang, or train different things"],
                fix=Fix("install the same environment on every host, or on a disk that they share"),
            )


@hosts_gate("EN041 harness-differs")
def different_harness_code(ctx: Context) -> Findings:
    """Hosts with different code of the harness.

    The package of the harness is the same, byte by byte, at the same path on every host.

    Why: The launcher starts `harness/workers/train_worker.py` by the path that it has where the run is launched. A host
    without it fails, and another version may read the run directory differently.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {code: another}
    """
    hosts = list_reachable_hosts(ctx)
    usual = Counter(host.code for host in hosts).most_common(1)[0][0] if hosts else None
    hosts_without = [host for host in hosts if host.code is None]
    hosts_with_another = [host for host in hosts if host.code not in (None, usual)]
    fix = Fix("install the same harness at the same path on every host, or on a disk that they share")
    if hosts_without:
        message = f"the harness is not on {format_hosts(hosts_without)}, at the path that it has here"
        yield ctx.finding(message, _HOSTFILE, fix=fix)
    if hosts_with_another:
        message = f"the harness on {format_hosts(hosts_with_another)} differs from that of the other hosts"
        yield ctx.finding(message, _HOSTFILE, fix=fix)


@hosts_gate("EN047 no-libaio-there", upstream="raises")
def missing_libaio(ctx: Context) -> Findings:
    """NVMe offload on a host without libaio.

    With offload to NVMe, a program that uses libaio compiles and links on every host.

    Why: DeepSpeed compiles its op `async_io` on each host. Without the headers the ranks there fail at start-up, and
    the others wait for them.

    Example:
        model.config: llama-70b
        zero.stage: 3
        zero.offload_optimizer: {device: nvme, nvme_path: /nvme}
    Probe:
        worker-1: {libaio: false}
    """
    hosts = [host for host in list_reachable_hosts(ctx) if host.libaio is False]
    if hosts:
        section = "offload_optimizer" if ctx.offload_device("offload_optimizer") == "nvme" else "offload_param"
        yield ctx.finding(
            f"{format_hosts(hosts)} has no libaio, which offload to nvme needs",
            f"zero.{section}.device",
            fix=Fix("install it there: apt install libaio-dev (or libaio-devel)"),
        )


@hosts_gate("EN048 no-compiler-there", upstream="raises", severity="warning")
def missing_compiler(ctx: Context) -> Findings:
    """A host without a compiler for the ops of the run.

    Every host has a C++ compiler when DeepSpeed has ops to compile for this run, and with NVIDIA devices also nvcc for
    those of the GPU: Adam, Lion and Lamb there, and `async_io`.

    Why: DeepSpeed compiles its optimizers on each host at first use. Ops that were compiled before need no compiler;
    otherwise the ranks there fail at start-up. nvcc is part of the CUDA toolkit, not of the driver.

    Example:
        zero.stage: 2
    Probe:
        ops: [cpu_adam]
        worker-1: {compiler: null}
    """
    ops = ctx.survey.ops if ctx.survey else ()
    hosts = [host for host in list_reachable_hosts(ctx) if host.compiler is None]
    if ops and hosts:
        yield ctx.finding(
            f"{format_hosts(hosts)} has no C++ compiler, and the ranks load {format_hosts(ops)}",
            _HOSTFILE,
            notes=["where they were compiled before, that is enough"],
            fix=Fix("install one there: apt install g++"),
        )
    cuda_ops = sorted(CUDA_OPS & {*ops})
    hosts = [host for host in list_reachable_hosts(ctx) if host.nvcc is False]
    if cuda_ops and hosts:
        yield ctx.finding(
            f"{format_hosts(hosts)} has no nvcc, and the ranks load {format_hosts(cuda_ops)}",
            _HOSTFILE,
            notes=["where they were compiled before and CUDA_HOME is there, that is enough"],
            fix=Fix(
                "install the CUDA toolkit of torch's CUDA release there and set CUDA_HOME; or "
                + "; ".join(dict.fromkeys(WITHOUT_NVCC[op] for op in cuda_ops))
            ),
        )


@hosts_gate(
    "EN054 torch-cannot-use-devices",
    severity=("error", "warning"),
    cites=Cite("accelerator/real_accelerator.py", "Setting accelerator to CPU", since="0.14.1"),
    unseen="needs several hosts with CUDA",
)
def unusable_devices(ctx: Context) -> Findings:
    """Hosts whose accelerators torch cannot use.

    Where a host has NVIDIA devices, torch there can use as many as the host has ranks. `harness preflight` asks torch
    on every host with devices, in a process of its own, unless DS_ACCELERATOR=cpu selects the CPU.

    Why: torch is a build without CUDA, the driver is older than the CUDA that torch was built for, or the container
    lets programs see the devices without computing on them. DeepSpeed asks torch, uses the CPU where torch has no
    device, and logs one warning; 0.14.0 does not ask, and its ranks fail (read). Ranks on the CPU use another
    communication backend than those of the other hosts.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {torch: {version: 2.13.0+cpu}}
    """
    hosts_by_problem: dict[TorchProblem, list[HostFacts]] = {}
    for host in list_reachable_hosts(ctx):
        if host.torch is not None:
            problem = find_torch_problem(host.torch, min(host.slots, len(host.accelerators)))
            if problem is not None:
                hosts_by_problem.setdefault(problem, []).append(host)
    for problem, hosts in hosts_by_problem.items():
        devices = format_device_names(hosts[0].accelerators)
        yield ctx.finding(
            f"on {format_hosts(hosts)} {problem.reason}",
            _HOSTFILE,
            severity="error" if problem.certain else "warning",
            notes=[f"{format_hosts(hosts[:1])} has {devices}; {problem.consequence}"],
            fix=Fix(problem.fix),
        )
