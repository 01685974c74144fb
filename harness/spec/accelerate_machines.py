# SPDX-License-Identifier: Apache-2.0
"""The machines of an accelerate YAML: how `accelerate launch` starts processes on them (accelerate 1.15), and how many.

Reads the hostfile that the file names, and contacts no host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from harness.findings import Finding, Fix, Label
from harness.spec.hostfile import Cluster, read_hostfile
from harness.spec.parse.source import KeyPath, Source, join_key
from harness.spec.referenced_files import find_referenced_file

_SECTION = "deepspeed_config"
_HOSTFILE_FIELD, _LAUNCHER_FIELD = "deepspeed_hostfile", "deepspeed_multinode_launcher"
_HOSTFILE: KeyPath = (_SECTION, _HOSTFILE_FIELD)
_LAUNCHER: KeyPath = (_SECTION, _LAUNCHER_FIELD)
_STANDARD = "standard"
_FILTERS = ("deepspeed_inclusion_filter", "deepspeed_exclusion_filter")


class Machines(NamedTuple):
    """The findings, and the hostfile that DeepSpeed's launcher reads, from the folder of the YAML on; None where it
    reads none or has filters for it.
    """

    findings: tuple[Finding, ...]
    hostfile: str | None = None


_OWN_ADDRESS = re.compile(r"localhost|127\.[\d.]+|0\.0\.0\.0|\[?::1?\]?")


def check_machines(source: Source, fields: Mapping[str, Any]) -> Machines:
    """Do all processes of several machines start, and do they find each other?"""
    hosts, ranks = source.data.get("num_machines"), source.data.get("num_processes")
    if not is_count(hosts) or hosts < 2:
        return Machines(())
    findings = list(_check_division(source, ranks, hosts))
    findings += _check_form_of_address(source)
    if (fields.get(_LAUNCHER_FIELD) or "pdsh") == _STANDARD:
        return Machines((*findings, *_check_address(source)))
    name = fields.get(_HOSTFILE_FIELD)
    if not name:
        return Machines((*findings, _alone_finding(source, fields)))
    found = find_referenced_file(source.file, str(name))
    if found is None:
        return Machines((*findings, _missing_hostfile_finding(source, str(name))))
    if source.file == "-" or any(fields.get(option) for option in _FILTERS):
        return Machines(tuple(findings))
    cluster, _ = read_hostfile(found, named_by_spec=True)  # a wrong line is reported where the hosts of a run are read
    if cluster is not None:
        findings += _check_hosts(source, cluster, hosts, ranks // hosts if is_count(ranks) else None)
    return Machines(tuple(findings), os.path.relpath(found, Path(source.file).parent))


def with_slots(cluster: Cluster, slots: int | None) -> Cluster:
    """The hosts as accelerate uses them: it tells DeepSpeed's launcher how many ranks each one has, whatever the
    hostfile says.
    """
    return cluster._replace(hosts=tuple(host._replace(slots=slots) for host in cluster.hosts)) if slots else cluster


def is_count(value: Any) -> TypeGuard[int]:
    """A whole number above 0, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_division(source: Source, ranks: Any, hosts: int) -> Iterator[Finding]:
    if not is_count(ranks) or ranks % hosts == 0:
        return
    each, total = ranks // hosts, ranks - ranks % hosts
    if each:
        message = (
            f"{ranks} processes do not divide over {hosts} machines: accelerate starts {each} on each, {total} in all"
        )
    else:
        message = f"`num_processes` counts those of all machines, and {ranks} are fewer than the {hosts} machines"
    yield Finding(
        "HF106",
        "warning" if each else "error",
        message,
        "num_processes",
        source.place(("num_processes",)),
        related=(Label(source.place(("num_machines",)), "the machines"),),
        fix=Fix(
            "write a multiple of `num_machines`", {"num_processes": total or hosts}, effect="as many as are written"
        ),
    )


def _alone_finding(source: Source, fields: Mapping[str, Any]) -> Finding:
    """DeepSpeed's launcher without a hostfile."""
    hosts, ranks = source.data["num_machines"], source.data.get("num_processes")
    launcher = str(fields.get(_LAUNCHER_FIELD) or "pdsh")
    has_address = bool(source.data.get("main_process_ip"))
    some = f", with {ranks // hosts} of {ranks} processes" if is_count(ranks) else ""
    notes = [
        'DeepSpeed\'s launcher says "Unable to find hostfile, will proceed with training with local resources only"',
    ]
    if has_address:
        notes.append("`main_process_ip` is not used: without hosts, DeepSpeed's launcher takes 127.0.0.1")
    if launcher == "nossh":
        message = f"without a `deepspeed_hostfile` machine 0 of {hosts} trains alone{some}, and no other one starts"
        notes.append("`nossh` wants a hostfile too: on other machines it asserts that `--node_rank` is in it")
    else:
        message = f"without a `deepspeed_hostfile` each of the {hosts} machines trains alone{some}"
    if fields.get(_LAUNCHER_FIELD) is None:
        notes.append("accelerate's default is `deepspeed_multinode_launcher: pdsh`")
    each = "launch on every machine with its own `--machine_rank`"
    address = "" if has_address else ", `main_process_ip` to the address of machine 0,"
    title = f"set `{join_key(_LAUNCHER)}` to `{_STANDARD}`{address} and {each}; or name a `deepspeed_hostfile`"
    sets = {join_key(_LAUNCHER): _STANDARD} if has_address else {}
    return Finding(
        "HF104",
        "error",
        message,
        "num_machines",
        source.place(("num_machines",)),
        notes=tuple(notes),
        fix=Fix(title, sets, effect="all machines train one model"),
    )


def _check_address(source: Source) -> Iterator[Finding]:
    """torchrun's rendezvous, which accelerate gives the text "None" for an address; one of each machine's own."""
    address, hosts = str(source.data.get("main_process_ip") or ""), source.data["num_machines"]
    if address and not _OWN_ADDRESS.fullmatch(address):
        return
    message = f"without `main_process_ip` {hosts} machines try to reach a host called `None`, and never connect"
    if address:
        message = f"`main_process_ip: {address}` lets each of {hosts} machines wait for machine 0 on itself"
    key = "main_process_ip" if address else "num_machines"
    yield Finding(
        "HF105",
        "warning",
        message,
        key,
        source.place((key,)),
        related=(Label(source.place(_LAUNCHER), "torchrun's rendezvous"),),
        notes=("right only where each `accelerate launch` has its own `--main_process_ip` and `--machine_rank`",),
        fix=Fix("write `main_process_ip: ADDRESS`, that of machine 0, or give it to every `accelerate launch`"),
    )


def _check_form_of_address(source: Source) -> Iterator[Finding]:
    """ssh takes `user@host`, torch's store does not."""
    address = str(source.data.get("main_process_ip") or "")
    host = re.sub(r"^(?:[a-z]+://|[^@]*@)+|[/:]\d*/?$", "", address.strip())
    if not address or re.fullmatch(r"[\w.-]+|\[?[\da-fA-F:]+(?:%\w+)?\]?", address):
        return
    yield Finding(
        "HF105",
        "error",
        f"`main_process_ip: {address}` is no address: ranks look for a host of that name, and time out",
        "main_process_ip",
        source.place(("main_process_ip",)),
        notes=("the user of ssh belongs into `~/.ssh/config`, the port into `main_process_port`",),
        fix=Fix(f"set `main_process_ip` to `{host}`", {"main_process_ip": host}, effect="the ranks find machine 0"),
    )


def _missing_hostfile_finding(source: Source, name: str) -> Finding:
    return Finding(
        "SP021",
        "warning",
        f"hostfile `{name}` is not found on this machine, so it was not checked",
        join_key(_HOSTFILE),
        source.place(_HOSTFILE),
        notes=("if it is missing at the launch, DeepSpeed's launcher continues with one machine",),
        fix=Fix("run it where the path exists, or check the hostfile with `--hostfile`"),
    )


def _check_hosts(source: Source, cluster: Cluster, hosts: int, each: int | None) -> Iterator[Finding]:
    """The hosts of the file against accelerate's counts, which it does not compare."""
    key, place = join_key(_HOSTFILE), source.place(_HOSTFILE)
    count = len(cluster.hosts)
    if count != hosts:
        started = f"{count * each} ranks start, not {hosts * each}" if each else "all of its hosts are used"
        yield Finding(
            "HF106",
            "warning",
            f"the hostfile has {count} host{'s' if count > 1 else ''}, `num_machines` is {hosts}: {started}",
            "num_machines",
            source.place(("num_machines",)),
            related=(Label(place, "the hosts"),),
            fix=Fix(
                f"set `num_machines` to {count}" + (f" and `num_processes` to {count * each}" if each else ""),
                {"num_machines": count, **({"num_processes": count * each} if each else {})},
                effect="the ranks that start now",
            ),
        )
    small = min(cluster.hosts, key=lambda host: host.slots)
    if each and small.slots < each:
        yield Finding(
            "HF106",
            "warning",
            f"accelerate starts {each} ranks on every host, and `{small.name}` has {small.slots} slots",
            key,
            place,
            related=(Label(source.place(("num_processes",)), f"over {hosts} machines"),),
            notes=("it gives DeepSpeed's launcher `--num_gpus`, which counts more than the slots",),
            fix=Fix(f"write `slots={each}` there if it has as many devices, or fewer `num_processes`"),
        )
