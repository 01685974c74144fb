# SPDX-License-Identifier: Apache-2.0
"""Hosts that ssh, the probe or a port does not reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gates.host_names import format_hosts, list_reachable_hosts
from harness.gates.registry import Context, Findings, Fix, hosts_gate

if TYPE_CHECKING:
    from harness.hostinfo.host_survey import HostState

_HOSTFILE = "launch.hostfile"


def _find_hosts(ctx: Context, state: HostState, message: str, fix: str) -> Findings:
    """The finding about all hosts in this state, which are `{}` in the message, with what ssh said of them."""
    hosts = [host for host in ctx.survey.hosts if host.state == state] if ctx.survey else []
    if hosts:
        notes = [f"`{host.name}`: {host.words or 'ssh printed nothing'}" for host in hosts[:8]]
        yield ctx.finding(message.format(format_hosts(hosts)), _HOSTFILE, notes=notes, fix=Fix(fix))


@hosts_gate("HO012 host-not-reached", upstream="hangs")
def unreachable_hosts(ctx: Context) -> Findings:
    """A host that ssh does not reach.

    `ssh HOST` reaches every host of the hostfile from the launching machine, without a prompt.

    Why: DeepSpeed tests only the first host of the file. If another one is down or misspelt, pdsh starts the ranks of
    all other hosts, and these wait half an hour for ranks that never start.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {state: unreachable, words: 'ssh: connect to host worker-1 port 22: No route to host'}
    """
    yield from _find_hosts(
        ctx,
        "unreachable",
        "{} cannot be reached by ssh",
        "check the name, and that the host runs an ssh server, or remove it from the hostfile",
    )


@hosts_gate("HO013 ssh-key-refused", upstream="hangs")
def refused_ssh_key(ctx: Context) -> Findings:
    """A host that refuses our ssh key.

    Every host accepts the ssh key of the launching user, without a password.

    Why: DeepSpeed and pdsh cannot type a password: the ranks of this host never start and those of the others wait for
    them.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {state: key refused, words: 'root@worker-1: Permission denied (publickey)'}
    """
    yield from _find_hosts(
        ctx,
        "key refused",
        "{} refuses the ssh key",
        "put the public key into `~/.ssh/authorized_keys` there: ssh-copy-id HOST",
    )


@hosts_gate("HO014 unknown-or-changed-host-key", upstream="hangs")
def unexpected_host_key(ctx: Context) -> Findings:
    """A host whose host key is unknown or has changed.

    The key that each host presents is the one in `known_hosts`.

    Why: ssh refuses to connect when it cannot ask. A changed key means a machine that was reinstalled under an old
    name, or an attacker in between.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {state: host key, words: Host key verification failed}
    """
    yield from _find_hosts(
        ctx,
        "host key",
        "the host key of {} is not the known one",
        "if the machine was reinstalled: ssh-keygen -R HOST, then `ssh HOST` once and compare the fingerprint",
    )


@hosts_gate("HO015 no-answer-in-time", upstream="hangs")
def no_answer_in_time(ctx: Context) -> Findings:
    """A host that does not answer in time.

    Every host answers the probe within its time limit.

    Why: A host that is swapping, whose file server hangs or whose login scripts wait for something holds up all ranks
    in every step, if its ranks start at all.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {state: no answer in time, words: nothing within 20 s}
    """
    yield from _find_hosts(
        ctx,
        "no answer in time",
        "{} does not answer in time",
        "log in there and find what it waits for, remove it from the hostfile, or allow more time with `--timeout`",
    )


@hosts_gate("HO016 host-without-this-python", upstream="hangs")
def host_without_this_python(ctx: Context) -> Findings:
    """A host where the probe does not run.

    The Python that launches is at the same path on every host and runs the probe.

    Why: DeepSpeed starts the ranks everywhere with the path of the Python that launches (`sys.executable`). On a host
    without it the shell prints `not found`, and the other ranks wait.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {state: no probe, words: 'bash: line 1: /opt/venv/bin/python: No such file or directory'}
    """
    yield from _find_hosts(
        ctx,
        "no probe",
        "the probe does not run on {}",
        "install the same environment at the same path on every host, or on a disk that they share",
    )


@hosts_gate("HO018 rendezvous-port-taken", upstream="raises")
def taken_rendezvous_port(ctx: Context) -> Findings:
    """A rendezvous port that is taken.

    No program listens on the rendezvous port of the first host (`launch.master_port`, else 29500). A launch on one
    machine looks by itself, and takes a free port without the key.

    Why: Rank 0 cannot listen there: `Address already in use`. If another run of the same user listens there, ranks of
    this run may even join it.

    Example:
        zero.stage: 2
    Probe:
        worker-0: {ports: {29500: taken}}
    """
    survey = ctx.survey
    if survey is None or not survey.hosts:
        return
    first = survey.hosts[0]
    state = first.ports.get(survey.port or 0, "free")
    if first.ok and state != "free":
        yield ctx.finding(
            f"port {survey.port} of the first host, `{first.name}`, is not free: {state}",
            "launch.master_port",
            notes=["rank 0 listens there for all others"],
            fix=Fix("set `launch.master_port` to another port, or stop the run that uses it"),
        )


@hosts_gate("HO019 port-not-reached", upstream="hangs")
def unreachable_port(ctx: Context) -> Findings:
    """A port of the first host that another host does not reach.

    Every host can connect to the rendezvous port of the first host, and to another port there.

    Why: Where ssh works and a firewall blocks everything else, ranks wait for the rendezvous until it times out after
    half an hour. gloo and NCCL listen on ports that the kernel chooses, so that one open port is not enough.

    Example:
        zero.stage: 2
    Probe:
        links:
        - {host: worker-1, address: 10.0.0.1, port: 29500, state: no answer}
    """
    survey = ctx.survey
    if survey is None:
        return
    for is_rendezvous in (True, False):
        links = [link for link in survey.links if (link.port == survey.port) is is_rendezvous]
        connected = {link.host for link in links if link.ok}
        failures = [link for link in links if link.host not in connected]
        if failures:
            names = dict.fromkeys(link.host for link in failures)
            first_host = survey.hosts[0].name
            port = f"port {survey.port}" if is_rendezvous else "a port that the kernel chose"
            yield ctx.finding(
                f"{format_hosts(names)} cannot reach {port} of the first host, `{first_host}`: {failures[0].state}",
                _HOSTFILE,
                notes=[
                    f"tried {failures[0].address}",
                    "gloo and NCCL use ports that the kernel chooses, on every host",
                ],
                fix=Fix("open all ports between the hosts of a run"),
            )
            return


_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@hosts_gate(
    "HO020 several-networks",
    severity="warning",
    when=lambda ctx: not any(name in ctx.run.spec.launch.env for name in _INTERFACE_VARIABLES),
)
def several_networks(ctx: Context) -> Findings:
    """Several networks between the hosts, and none is chosen.

    The hosts share one network, or `launch.env` names the interface (`NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`).

    Why: gloo takes the address that the host's own name resolves to, NCCL the first interface that it finds: on one
    host the slow one, on another one that the others do not see. With one network that all share, the launch sets both
    variables itself.

    Example:
        zero.stage: 2
    Probe:
        worker-0: {interfaces: [[eth0, 10.0.0.1/24], [ib0, 10.1.0.1/24]]}
        worker-1: {interfaces: [[eth0, 10.0.0.2/24], [ib0, 10.1.0.2/24]]}
    """
    networks = ctx.survey.shared_networks if ctx.survey else {}
    if len(networks) > 1:
        listing = ", ".join(f"{name or 'by several names'} ({network})" for network, name in networks.items())
        interfaces = sorted({name for name in networks.values() if name}) or ["eth0"]
        yield ctx.finding(
            f"the hosts share {len(networks)} networks: {listing}",
            "launch.env",
            notes=["gloo and NCCL each choose for themselves, on every host"],
            fix=Fix(f"set `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` in `launch.env`, such as to {interfaces[-1]}"),
        )


@hosts_gate("HO023 clock-off", severity="warning")
def wrong_clock(ctx: Context) -> Findings:
    """A host whose clock is off.

    No host's clock differs from that of the launching machine by more than 5 seconds.

    Why: Training itself is not affected. But the rank that failed first is found by the times that ranks record, files
    on a shared disk look too new or too old, and tokens and certificates are refused.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {skew: [61.2, 61.4]}
    """
    limit = 5.0
    for host in list_reachable_hosts(ctx):
        low, high = host.skew
        if low > limit or high < -limit:
            difference = f"{low:.0f} s ahead" if low > 0 else f"{-high:.0f} s behind"
            yield ctx.finding(
                f"the clock of {format_hosts([host])} is {difference}",
                _HOSTFILE,
                notes=["the rank that failed first is found by the times that ranks record"],
                fix=Fix("synchronise the clock on every host (chrony, systemd-timesyncd)"),
            )
