# SPDX-License-Identifier: Apache-2.0
"""Selection of hosts: `--include`, `--exclude`, `--num-nodes`, `--num-gpus` with DeepSpeed's meaning, and hosts without
a file: `--hosts a:8,b:8`, or those of a Slurm job. Contacts no host.

Meaning: `launcher/runner.py`, `parse_resource_filter` and `apply_num_nodes_and_gpus`; errors that these ignore are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.findings import Finding, Fix, Place
from harness.spec.hostfile import Cluster, Host, parse_hostfile, printable_excerpt
from harness.spec.suggestions import nearest_name

_SLURM_PART = re.compile(r"(?P<prefix>[^\[\],]*)(?:\[(?P<ranges>[^\[\]]*)\](?P<suffix>[^\[\],]*))?(?:,|$)")
_RANGE = re.compile(r"\[[0-9]+[-,][0-9]")
_MAX_HOSTS = 100_000


@dataclass(frozen=True, slots=True)
class HostSelection:
    """The options about hosts; none of them means all hosts of the hostfile."""

    hosts: str | None = None
    slurm: bool = False
    include: str = ""
    exclude: str = ""
    num_nodes: int | None = None
    num_gpus: int | None = None

    @property
    def has_filters(self) -> bool:
        """Does it leave hosts or devices out?"""
        return bool(self.include or self.exclude or self.num_nodes is not None or self.num_gpus is not None)


class _SelectionError(Exception):
    def __init__(self, message: str, fix: str, *notes: str) -> None:
        self.finding = Finding("HO024", "error", message, notes=notes, fix=Fix(fix))


def select_hosts(cluster: Cluster, selection: HostSelection) -> tuple[Cluster | None, list[Finding]]:
    """The selected hosts and devices, in the order of the hostfile."""
    try:
        if selection.include and selection.exclude:
            raise _SelectionError("`--include` and `--exclude` cannot both be given", "give one of them")
        if (selection.include or selection.exclude) and (
            selection.num_nodes is not None or selection.num_gpus is not None
        ):
            raise _SelectionError(
                "`--num-nodes` and `--num-gpus` cannot be combined with `--include` or `--exclude`", "give one kind"
            )
        by_name = selection.include or selection.exclude
        hosts = _select_by_name(cluster, selection) if by_name else _select_by_count(cluster, selection)
    except _SelectionError as error:
        return None, [error.finding]
    return cluster._replace(hosts=tuple(hosts)), []


def _select_by_name(cluster: Cluster, selection: HostSelection) -> list[Host]:
    option = "--include" if selection.include else "--exclude"
    by_name = {host.name: host for host in cluster.hosts}
    filters = _parse_host_filter(option, selection.include or selection.exclude, by_name)
    remaining = []
    for host in cluster.hosts:
        devices = filters.get(host.name)
        if selection.include:
            remaining_ids = [] if devices is None else devices or list(host.device_ids)
        else:
            remaining_ids = [
                device for device in host.device_ids if devices is None or (devices and device not in devices)
            ]
        if remaining_ids:
            remaining.append(_with_devices(host, remaining_ids))
    if not remaining:
        raise _SelectionError(
            f"`{option} {printable_excerpt(selection.include or selection.exclude)}` leaves no host",
            "leave one at least",
        )
    return remaining


def _parse_host_filter(option: str, text: str, known: Mapping[str, Host]) -> dict[str, list[int]]:
    """`NAME[:SLOT[,SLOT]...][@...]`: name -> slots, none for all of them."""
    filters: dict[str, list[int]] = {}
    for part in text.split("@"):
        name, colon, device_list = part.rpartition(":") if part.rpartition(":")[0] in known else (part, "", "")
        if not colon and ":" in part and part not in known:
            name, colon, device_list = part.partition(":")
        if name not in known:
            hint = nearest_name(name, known)
            notes = ("hosts are separated by `@`, slots by commas: `a@b:0,1`",) if "," in name or not name else ()
            fix = f"did you mean `{hint}`?" if hint else "name hosts as the hostfile does"
            raise _SelectionError(
                f"`{option}` names `{printable_excerpt(name)}`, which is not in the hostfile", fix, *notes
            )
        words = device_list.split(",") if colon else []
        for word in words:
            if not (word.isascii() and word.isdigit() and int(word[:9]) in known[name].device_ids):
                most = known[name].slots - 1
                message = f"`{option}` names slot `{printable_excerpt(word)}` of `{name}`, which has 0 to {most}"
                raise _SelectionError(message, "name slots that the host has")
        filters.setdefault(name, []).extend(int(word) for word in words)
    return {name: sorted(set(slots)) for name, slots in filters.items()}


def _select_by_count(cluster: Cluster, selection: HostSelection) -> list[Host]:
    hosts = list(cluster.hosts)
    if selection.num_nodes is not None:
        if not 1 <= selection.num_nodes <= len(hosts):
            message = f"`--num-nodes {selection.num_nodes}` is requested, and the hostfile has {len(hosts)} hosts"
            raise _SelectionError(message, f"give 1 to {len(hosts)}", "DeepSpeed silently takes all of them")
        hosts = hosts[: selection.num_nodes]
    if selection.num_gpus is not None:
        smallest = min(hosts, key=lambda host: host.slots)
        if not 1 <= selection.num_gpus <= smallest.slots:
            message = (
                f"`--num-gpus {selection.num_gpus}` is requested, and `{smallest.name}` has {smallest.slots} slots"
            )
            note = "DeepSpeed still starts that many ranks, or with 0 one for each slot"
            raise _SelectionError(message, f"give 1 to {smallest.slots}", note)
        hosts = [_with_devices(host, list(range(selection.num_gpus))) for host in hosts]
    return hosts


def _with_devices(host: Host, devices: Sequence[int]) -> Host:
    """Devices need no list where they are the first ones."""
    are_first = tuple(devices) == tuple(range(len(devices)))
    return Host(host.name, len(devices), None if are_first else tuple(devices))


def parse_hosts(text: str) -> tuple[Cluster | None, list[Finding]]:
    """`a:8,b:8` or `a,b` (one slot each), as MPI writes hosts on a command line; `n[0-15].net:8` is sixteen hosts."""
    lines = []
    try:
        parts = expand_nodelist(text) if _RANGE.search(text) else text.split(",")
    except ValueError as error:
        return None, [Finding("HO025", "error", f"`--hosts`: {error}", fix=Fix("write ranges as `NAME[0-7]:SLOTS`"))]
    for part in parts:
        name, colon, slots = part.rpartition(":")
        name, slots = (name, slots) if colon and not name.endswith(":") and "]" not in slots else (part, "1")
        if not name or re.search(r"[\s#]", part):
            message = f"`--hosts` has `{printable_excerpt(part)}` where a host should be"
            return None, [Finding("HO025", "error", message, fix=Fix("write `--hosts NAME:SLOTS,NAME:SLOTS`"))]
        lines.append(f"{name} slots={slots}")
    cluster, findings = parse_hostfile("\n".join(lines), "--hosts")
    return cluster, [finding._replace(place=None, related=(), gate="HO025") for finding in findings]


def slurm_hosts(environ: Mapping[str, str]) -> tuple[Cluster | None, list[Finding]]:
    """The hosts of the Slurm job that this process is part of, with a slot for each GPU of a node, else for each task.

    Variables: `sbatch(1)`, OUTPUT ENVIRONMENT VARIABLES.
    """
    nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodelist:
        message = "`--slurm` is given, and there is no SLURM_JOB_NODELIST: this is not inside a Slurm job"
        return None, [Finding("HO026", "error", message, fix=Fix("run it in a job (sbatch, salloc)"))]
    try:
        names = expand_nodelist(nodelist)
        slots = _slurm_slots(environ, len(names))
    except ValueError as error:
        message = f"the variables of the Slurm job cannot be read: {error}"
        return None, [Finding("HO026", "error", message, fix=Fix("give `--hosts` or a hostfile"))]
    text = "\n".join(f"{name} slots={count}" for name, count in zip(names, slots, strict=True))
    cluster, findings = parse_hostfile(text, "SLURM_JOB_NODELIST")
    return cluster, [
        finding._replace(place=Place("SLURM_JOB_NODELIST", 1, 1), related=(), gate="HO026") for finding in findings
    ]


def expand_nodelist(nodelist: str) -> list[str]:
    """`n[01-03,7],login` -> n01 n02 n03 n7 login. Raises ValueError."""
    names: list[str] = []
    position = 0
    while position < len(nodelist):
        match = _SLURM_PART.match(nodelist, position)
        if match is None or match.end() == position:
            raise ValueError(f"`{printable_excerpt(nodelist[position:])}` is not a list of nodes")
        position = match.end()
        if match["ranges"] is None:
            names.append(match["prefix"])
        else:
            names += [
                f"{match['prefix']}{number}{match['suffix']}" for number in _expand_ranges(match["ranges"], len(names))
            ]
    return names


def _expand_ranges(ranges: str, num_names: int) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        low, dash, high = part.partition("-")
        high = high if dash else low
        if not (low.isascii() and low.isdigit() and high.isascii() and high.isdigit() and len(low) < 10 > len(high)):
            raise ValueError(f"`{printable_excerpt(part)}` is not a range of numbers")
        count = int(high) - int(low) + 1
        if count < 1 or num_names + len(numbers) + count > _MAX_HOSTS:
            raise ValueError(f"`{printable_excerpt(part)}` is {count} nodes")
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return numbers


def _slurm_slots(environ: Mapping[str, str], nodes: int) -> list[int]:
    for variable in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS_PER_NODE"):
        text = environ.get(variable, "").rpartition(":")[2]  # `h100:8` names the kind too
        if text:
            return [_parse_count(text, variable)] * nodes
    tasks = environ.get("SLURM_TASKS_PER_NODE")
    if not tasks:
        return [1] * nodes
    slots: list[int] = []
    for part in tasks.split(","):
        count, _, times = part.removesuffix(")").partition("(x")
        slots += [_parse_count(count, "SLURM_TASKS_PER_NODE")] * min(
            _parse_count(times or "1", "SLURM_TASKS_PER_NODE"), nodes + 1
        )
    if len(slots) != nodes:
        raise ValueError(f"SLURM_TASKS_PER_NODE lists {len(slots)} nodes, the job has {nodes}")
    return slots


def _parse_count(text: str, variable: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= 10**6):
        raise ValueError(f"{variable} is `{printable_excerpt(text)}`")
    return int(text)
