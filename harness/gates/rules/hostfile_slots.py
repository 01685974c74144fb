# SPDX-License-Identifier: Apache-2.0
"""Hosts and slots of a hostfile."""

from __future__ import annotations

from harness.gates.divisors import largest_divisor
from harness.gates.host_names import format_hosts, list_reachable_hosts
from harness.gates.registry import Cite, Context, Findings, Fix, gate, hosts_gate
from harness.spec.hostfile import Host

_HOSTFILE = "launch.hostfile"


@gate(
    "HO006 parallel-group-across-hosts",
    severity="warning",
    cites=(
        Cite("utils/groups.py", "def _init_tp_mesh_device(", since="0.16.4"),
        Cite("utils/groups.py", "_get_sequence_parallel_group"),
    ),
    when=lambda ctx: ctx.tensor_parallel_size > 1 or ctx.sequence_parallel_size > 1,
    unseen="needs several hosts",
)
def groups_across_hosts(ctx: Context) -> Findings:
    """Tensor or sequence groups that span hosts.

    The slots of every host are a multiple of the tensor (or sequence) degree, so that each group of consecutive ranks
    stays on one host. Hosts are those of the hostfile, else `cluster.num_nodes` x `cluster.gpus_per_node`.

    Why: Nothing fails. A tensor group reduces activations twice a layer, a sequence group exchanges them four times;
    between hosts that goes over the network, which is ten times slower than the links inside one, in every layer of
    every micro-batch.

    Example:
        parallel.tensor_parallel_size: 8
        cluster.num_nodes: 4
        cluster.gpus_per_node: 4
    """
    slots = ctx.slots or _read_cluster_slots(ctx)
    if len(slots) < 2 or ctx.data_parallel_size is None:
        return
    sizes = str(slots[0]) if len(set(slots)) == 1 else ", ".join(map(str, slots[:8]))
    tensor, sequence = ctx.tensor_parallel_size, ctx.sequence_parallel_size
    for name, degree, step in (("tensor", tensor, 1), ("sequence", sequence, tensor)):
        if degree > 1 and _is_across_hosts(slots, degree * step):  # tensor ranks are neighbours, sequence ranks next
            key = f"parallel.{name}_parallel_size"
            smaller = max(1, _choose_degree(slots, degree * step) // step)
            yield ctx.finding(
                f"{name} groups of {degree} ranks span hosts of {sizes} slots",
                key,
                label=f"at most {max(slots)} on one host",
                related=[("cluster.gpus_per_node", "the ranks of a host"), (_HOSTFILE, "the hosts")],
                notes=["every layer communicates inside the group, over the network where it spans hosts"],
                fix=ctx.fix_to_set(key, smaller, effect="more data-parallel ranks, other memory"),
            )


def _read_cluster_slots(ctx: Context) -> tuple[int, ...]:
    cluster = ctx.run.spec.cluster
    return (cluster.gpus_per_node,) * (cluster.num_nodes or 0) if cluster.gpus_per_node else ()


def _is_across_hosts(slots: tuple[int, ...], degree: int) -> bool:
    # a group is of consecutive ranks: none is split where every host before the last holds whole groups
    return any(count % degree for count in slots[:-1])


def _choose_degree(slots: tuple[int, ...], degree: int) -> int:
    """The largest divisor of `degree` whose groups stay on a host each."""
    return largest_divisor(min(degree, max(slots)), degree, *slots[:-1])


def _list_hostfile_hosts(ctx: Context) -> tuple[Host, ...]:
    return ctx.run.cluster.hosts if ctx.run.cluster else ()


@gate("HO007 hosts-with-unequal-slots", severity="warning", needs=("hosts",), unseen="needs several hosts")
def unequal_slots(ctx: Context) -> Findings:
    """Hosts with different numbers of slots.

    Every line of the hostfile has the same `slots`.

    Why: Nothing fails with DeepSpeed's own launcher: ranks are numbered in the order of the file and the world is the
    sum. But every rank gets the same amount of data, so hosts with more ranks have more work for their network and
    CPUs, and the others wait at every collective; ZeRO++'s second partition and `--launcher openmpi`, `mpich`, `impi`
    and `slurm` assume equal hosts, and refuse or misplace ranks otherwise.

    Example:
        zero.stage: 2
    Hostfile:
        worker-0 slots=8
        worker-1 slots=4

    Use instead:
        zero.stage: 2
    Hostfile:
        worker-0 slots=4
        worker-1 slots=4
    """
    hosts = _list_hostfile_hosts(ctx)
    if len({host.slots for host in hosts}) > 1:
        small, large = min(hosts, key=lambda host: host.slots), max(hosts, key=lambda host: host.slots)
        yield ctx.finding(
            f"host `{large.name}` has {large.slots} slots, `{small.name}` has {small.slots}",
            _HOSTFILE,
            notes=["ranks are numbered in the order of the hostfile; MPI and slurm launchers need equal hosts"],
            fix=Fix(f"give every host {small.slots} slots in the hostfile", effect="fewer ranks"),
        )


@gate(
    "HO008 one-host-in-two-spellings",
    cites=Cite("launcher/runner.py", "Hostfile contains multiple entries for"),
    needs=("hosts",),
    unseen="needs several hosts",
)
def one_host_in_two_spellings(ctx: Context) -> Findings:
    """One host under two spellings.

    No two hosts of the hostfile differ only in upper and lower case.

    Why: Host names are case-insensitive, but not to DeepSpeed: it counts both lines and starts both sets of ranks on
    the same machine, where they share its devices (run on 0.19.8; the same spelling twice is refused).

    Example:
        zero.stage: 2
    Hostfile:
        worker-0 slots=4
        Worker-0 slots=4

    Use instead:
        zero.stage: 2
    Hostfile:
        worker-0 slots=4
    """
    spellings: dict[str, str] = {}
    for host in _list_hostfile_hosts(ctx):
        first = spellings.setdefault(host.name.lower(), host.name)
        if first != host.name:
            yield ctx.finding(
                f"`{first}` and `{host.name}` are one host to the network, and two to DeepSpeed",
                _HOSTFILE,
                notes=["both sets of ranks start on the same machine and share its devices"],
                fix=Fix("keep one line in the hostfile", effect="one set of ranks on that machine"),
            )


@gate("HO009 localhost-among-several-hosts", severity="warning", needs=("hosts",), unseen="needs several hosts")
def localhost_among_hosts(ctx: Context) -> Findings:
    """`localhost` among several hosts.

    A hostfile of two or more hosts names none of them `localhost` or a loopback address.

    Why: Every machine calls itself `localhost`. DeepSpeed sends the address of the first host to all others, and pdsh
    starts the ranks of `localhost` on the launching machine: this works at best from that one machine, and a name and
    `localhost` for the same machine start two sets of ranks on it.

    Example:
        zero.stage: 2
    Hostfile:
        localhost slots=4
        worker-1 slots=4

    Use instead:
        zero.stage: 2
    Hostfile:
        head-node slots=4
        worker-1 slots=4
    """
    names = [host.name for host in _list_hostfile_hosts(ctx)]
    loopback = next((name for name in names if name.lower() in ("localhost", "::1") or name.startswith("127.")), None)
    if loopback is not None and len(names) > 1:
        yield ctx.finding(
            f"`{loopback}` is another machine on each of {len(names)} hosts",
            _HOSTFILE,
            notes=["it works at best when launched from that machine"],
            fix=Fix("write the name under which the others reach it", effect="the same ranks from any machine"),
        )


@gate(
    "HO017 more-slots-than-devices",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts with CUDA",
)
def more_slots_than_devices(ctx: Context) -> Findings:
    """More slots than a host has accelerators.

    No host has more `slots` than accelerators, where any host has one.

    Why: DeepSpeed starts a rank for each slot. Those without a device fail once CUDA is touched, with `invalid device
    ordinal`, and the others wait for them.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {accelerators: [NVIDIA H100, NVIDIA H100]}
    """
    if ctx.survey is None or not ctx.survey.has_accelerators:
        return
    for host in ctx.survey.reachable_hosts:
        count = len(host.accelerators)
        if count < host.slots:
            yield ctx.finding(
                f"{format_hosts([host])} has {host.slots} slots and {count} accelerators",
                _HOSTFILE,
                notes=["the surplus ranks fail with `invalid device ordinal` while the others wait for them"],
                fix=Fix(f"write `slots={count}` there" if count else "take it out of the hostfile"),
            )


@hosts_gate("HO022 one-machine-twice")
def one_machine_twice(ctx: Context) -> Findings:
    """Two lines of the hostfile that are one machine.

    Every line of the hostfile is another machine.

    Why: Both lines start ranks on the same devices: they share memory and speed, or run out of it, and the plan of each
    host is wrong.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {machine: machine-of-worker-0}
    """
    names_by_machine: dict[str, list[str]] = {}
    for host in list_reachable_hosts(ctx):
        names_by_machine.setdefault(host.machine, []).append(host.name)
    for names in names_by_machine.values():
        if len(names) > 1:
            yield ctx.finding(
                f"{format_hosts(names)} are one machine",
                _HOSTFILE,
                notes=["their ranks would share its devices and its memory"],
                fix=Fix("keep one of the lines, with the slots that the machine has"),
            )
