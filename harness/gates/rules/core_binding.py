# SPDX-License-Identifier: Apache-2.0
"""Ranks bound to CPU cores."""

from __future__ import annotations

from itertools import pairwise

from harness.gates.host_names import format_hosts, list_reachable_hosts
from harness.gates.registry import Cite, Context, Findings, Fix, gate, hosts_gate

MAX_CORES = 1 << 16
"""No host has as many cores: a higher number is a typing error, and its range is not expanded."""


def parse_core_list(text: str) -> list[int]:
    """The cores of a list. Raises ValueError, with a sentence, for a list that the launcher refuses
    (`deepspeed/utils/numa.py` `parse_range_list`): anything but numbers and ranges, in ascending order, each core once.
    """
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"`{part[:40]}` is neither a core's number nor a range such as `0-27`")
        if max(len(first), len(last)) > 5 or int(last or first) >= MAX_CORES:
            raise ValueError(f"`{part[:40]}` names a core that no host has")
        if dash and int(last) < int(first):
            raise ValueError(f"`{part[:40]}` ends before it begins")
        cores += range(int(first), int(last or first) + 1)
    if any(next_core <= core for core, next_core in pairwise(cores)):
        raise ValueError("cores are named twice, or not in ascending order")
    return cores


_BINDING = "launch.bind_cores_to_rank"
_CORE_LIST = "launch.bind_core_list"


@gate(
    "HO029 cores-that-cannot-be-dealt-out",
    upstream="raises",
    cites=Cite("utils/numa.py", "parse_range_list"),
    when=lambda ctx: ctx.run.spec.launch.bind_cores_to_rank and ctx.run.spec.launch.bind_core_list is not None,
    unseen="refused by the launcher, before there is an engine",
)
def unusable_core_list(ctx: Context) -> Findings:
    """A list of cores that the launcher cannot distribute.

    `launch.bind_core_list` names cores as DeepSpeed reads them, numbers and ranges in ascending order, at least one for
    each rank of a host.

    Why: The launcher reads the list on each host, after it has been reached, and raises there: `Bad range`, or `At
    least one core needs to be assigned to each rank`.

    Example:
        launch.num_gpus: 4
        launch.bind_cores_to_rank: true
        launch.bind_core_list: "0-1,1-3"

    Use instead:
        launch.num_gpus: 4
        launch.bind_cores_to_rank: true
        launch.bind_core_list: 0-3
    """
    launch = ctx.run.spec.launch
    ranks = max(ctx.slots) if ctx.slots else launch.num_gpus or 1
    message = _describe_core_list_problem(ctx, launch.bind_core_list or "", ranks)
    if message:
        yield ctx.finding(
            message,
            _CORE_LIST,
            fix=Fix(
                "name cores as `0-27,56-83`, at least one for each rank, or leave it out",
                {_CORE_LIST: None},
                effect="all physical cores are used",
            ),
        )


def _describe_core_list_problem(ctx: Context, text: str, ranks: int) -> str:
    """The message for a list that the launcher refuses; empty for one that it can deal out."""
    try:
        cores = parse_core_list(text)
    except ValueError as error:
        return f"{ctx.key(_CORE_LIST)}: {error}"
    if len(cores) < ranks:
        return f"{ctx.key(_CORE_LIST)} names {len(cores)} cores, for {ranks} ranks on a host"
    return ""


@gate(
    "HO030 binding-read-by-nothing",
    severity="warning",
    cites=Cite("launcher/multinode_runner.py", "bind_cores_to_rank"),
    when=lambda ctx: ctx.run.spec.launch.bind_cores_to_rank or ctx.run.spec.launch.bind_core_list is not None,
    unseen="settled by the launcher, before there is an engine",
)
def binding_without_reader(ctx: Context) -> Findings:
    """Core binding with a launcher that does not bind.

    `launch.bind_cores_to_rank` and `launch.bind_core_list` are used with a launcher that reads them.

    Why: DeepSpeed binds ranks where its own `launcher/launch.py` starts them: on one machine and through pdsh. With
    `openmpi` and `slurm` both options are accepted and ignored (read in `launcher/multinode_runner.py` of 0.19.8), and
    nothing reads a list without `bind_cores_to_rank`. A launcher that binds also sets OMP_NUM_THREADS of each rank, and
    overrides that of `launch.env` (run on 0.19.8).

    Example:
        launch.launcher: slurm
        launch.bind_cores_to_rank: true
    Hostfile:
        worker-0 slots=8
        worker-1 slots=8

    Use instead:
        launch.bind_cores_to_rank: true
    Hostfile:
        worker-0 slots=8
        worker-1 slots=8
    """
    launch = ctx.run.spec.launch
    if not launch.bind_cores_to_rank:
        yield ctx.unread(
            f"nothing reads {ctx.key(_CORE_LIST)} without {ctx.key(_BINDING)}",
            _CORE_LIST,
            fix=Fix(
                "set `launch.bind_cores_to_rank: true`", {_BINDING: True}, effect="each rank keeps to its own cores"
            ),
        )
    elif launch.launcher != "pdsh" and len(ctx.slots or ()) > 1:
        yield ctx.unread(
            f"`{launch.launcher}` starts the ranks itself and does not bind them to cores",
            _BINDING,
            fix=Fix(
                "remove it, and let `srun` or `mpirun` bind them; or start them by pdsh",
                {_BINDING: None},
                effect="as now",
            ),
        )
    elif "OMP_NUM_THREADS" in launch.env:
        key = "launch.env.OMP_NUM_THREADS"
        yield ctx.unread(
            f"{ctx.key(key)} is overwritten: a rank that is bound has as many threads as cores",
            key,
            fix=Fix("remove it", {key: None}, safe=True, effect="as now"),
        )


@hosts_gate("EN052 no-numactl-there", upstream="raises", cites=Cite("utils/numa.py", "get_numactl_cmd"))
def missing_numactl(ctx: Context) -> Findings:
    """Ranks bound to cores on a host without numactl.

    With `launch.bind_cores_to_rank`, every host has the program numactl.

    Why: DeepSpeed's launcher starts each rank on a host by `numactl -C ...`. Where that is missing no rank starts, and
    those of the other hosts wait for them.

    Example:
        launch.bind_cores_to_rank: true
    Probe:
        worker-1: {numactl: false}
    """
    hosts = [host for host in list_reachable_hosts(ctx) if host.numactl is False]
    if hosts:
        yield ctx.finding(
            f"{format_hosts(hosts)} has no numactl, through which ranks are bound to cores",
            _BINDING,
            fix=Fix("install it there: apt install numactl"),
        )


@hosts_gate("EN053 ranks-on-any-core", severity="info", cites=Cite("utils/numa.py", "get_numactl_cmd"))
def ranks_on_any_core(ctx: Context) -> Findings:
    """CPU Adam on hosts with several NUMA nodes, without core binding.

    Where the optimizer runs on the CPU and a host has more than one NUMA node, the ranks are bound to cores. A launch
    says the same of this machine for its own ranks.

    Why: Nothing fails. CPU Adam waits for memory: a thread that the kernel moves to another socket than its rank's
    weights reads them through the link between the sockets. A bound rank stays on its share of the cores and, where
    these lie in one node, of the memory (`deepspeed --bind_cores_to_rank`; read in `utils/numa.py`, not measured here).
    DeepSpeed assigns cores by the local rank, not by the socket of its GPU: `harness doctor` reports where these
    differ.

    Example:
        zero.stage: 3
        zero.offload_optimizer: {device: cpu}
    Probe:
        worker-0: {numa_nodes: 2}
        worker-1: {numa_nodes: 2}

    Use instead:
        zero.stage: 3
        zero.offload_optimizer: {device: cpu}
        launch.bind_cores_to_rank: true
    Probe:
        worker-0: {numa_nodes: 2, numactl: true}
        worker-1: {numa_nodes: 2, numactl: true}
    """
    launch = ctx.run.spec.launch
    hosts = [host for host in list_reachable_hosts(ctx) if host.numa_nodes > 1]
    is_unbound = not launch.bind_cores_to_rank and launch.launcher == "pdsh"
    if hosts and ctx.is_optimizer_offloaded and is_unbound:
        yield ctx.finding(
            f"{format_hosts(hosts)} has {hosts[0].numa_nodes} NUMA nodes, and the optimizer's threads may run on any",
            _BINDING,
            fix=ctx.fix_to_set(_BINDING, True, "and compare", effect="each rank keeps to its own cores"),
        )
