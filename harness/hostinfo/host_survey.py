# SPDX-License-Identifier: Apache-2.0
"""The survey of a cluster's hosts: one value that gates look at. Contacts no host.

`harness.launching.hosts.preflight_survey` makes it from the answers of `harness/workers/host_probe.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface, IPv4Network
from typing import Any, Literal

from harness.hostinfo.gpu_health import HostGpus, parse_host_gpus
from harness.hostinfo.torch_devices import TorchDevices, parse_torch_devices

_INTERFACE = re.compile(r"[A-Za-z0-9_.:@-]{1,31}")
HostState = Literal["ok", "unreachable", "key refused", "host key", "no answer in time", "no probe"]


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """A network interface with an IPv4 address."""

    name: str
    address: IPv4Interface
    loopback: bool = False


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """A folder of the run as one host sees it; `free` is bytes."""

    path: str
    exists: bool
    writable: bool
    free: int | None
    filesystem: str = ""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host's answer. Bytes and seconds; None where it does not say. Everything is empty unless `state` is ok."""

    name: str
    slots: int
    state: HostState = "ok"
    words: str = ""
    """ssh's message, where there was no answer."""
    seconds: float = 0.0
    """Seconds until the answer."""
    skew: tuple[float, float] = (0.0, 0.0)
    """Its clock minus ours lies between these."""
    machine: str = ""
    hostname: str = ""
    python: str = ""
    packages: Mapping[str, str | None] = field(default_factory=dict)
    code: str | None = None
    accelerators: tuple[str, ...] = ()
    torch: TorchDevices | None = None
    """torch's answer about them; None without a question."""
    gpus: HostGpus | None = None
    """Their health by NVML; None without a question."""
    devices: tuple[int, ...] = ()
    """Those that ranks take."""
    cores: int = 0
    memory_total: int = 0
    memory_available: int = 0
    memlock: int | None = None
    nofile: int | None = None
    shm: int | None = None
    folders: Mapping[str, FolderFacts] = field(default_factory=dict)
    sees_run: bool = True
    """Does it see a new file at the place of the run directory?"""
    compiler: str | None = None
    libaio: bool | None = None
    nvcc: bool | None = None
    """Is there CUDA's compiler? None on a host without devices."""
    numactl: bool | None = None
    """Can ranks be bound to cores there? None where the survey did not ask."""
    numa_nodes: int = 1
    interfaces: tuple[NetworkInterface, ...] = ()
    own_addresses: tuple[str, ...] = ()
    """The addresses of its own name there."""
    ports: Mapping[int, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Did it answer?"""
        return self.state == "ok"

    @property
    def networks(self) -> dict[IPv4Network, NetworkInterface]:
        """Its interfaces by network, without loopback."""
        return {interface.address.network: interface for interface in self.interfaces if not interface.loopback}


@dataclass(frozen=True, slots=True)
class Link:
    """An attempt of a host to reach a port of the first host."""

    host: str
    address: str
    port: int
    state: str

    @property
    def ok(self) -> bool:
        """Did the connection succeed?"""
        return self.state == "ok"


@dataclass(frozen=True, slots=True)
class Survey:
    """All answers, in the order of the hostfile."""

    hosts: tuple[HostFacts, ...]
    links: tuple[Link, ...] = ()
    port: int | None = None
    """The port of the rendezvous on the first host."""
    has_accelerators: bool = False
    """Do ranks run on accelerators, as far as any host has one?"""
    ops: tuple[str, ...] = ()
    """Ops that ranks would compile at first use."""

    @property
    def reachable_hosts(self) -> tuple[HostFacts, ...]:
        """The hosts that answered."""
        return tuple(host for host in self.hosts if host.ok)

    def without(self, names: Collection[str]) -> Survey:
        """The same without these hosts."""
        hosts = tuple(host for host in self.hosts if host.name not in names)
        links = tuple(link for link in self.links if link.host not in names) if hosts[:1] == self.hosts[:1] else ()
        return replace(self, hosts=hosts, links=links)

    @property
    def shared_networks(self) -> dict[IPv4Network, str]:
        """The networks that all hosts are in, each with another address, and the name of its interface.

        A network in which two hosts have one address is another one on each of them, such as docker's bridge. A network
        without a link to the first host, though other networks have one, does not count either.
        """
        hosts = self.reachable_hosts
        if len(hosts) < 2:
            return {}
        addresses_tried = {link.address for link in self.links}
        reached = {
            address for address in addresses_tried if all(link.ok for link in self.links if link.address == address)
        }
        interface_names = {}
        for network, interface in hosts[0].networks.items():
            interfaces = [host.networks.get(network) for host in hosts]
            addresses = {other.address for other in interfaces if other is not None}
            first = str(interface.address.ip)
            if len(addresses) == len(hosts) and (first not in addresses_tried or first in reached or not reached):
                names = {other.name for other in interfaces if other is not None}
                interface_names[network] = names.pop() if len(names) == 1 else ""
        return interface_names

    @property
    def shared_interface(self) -> str | None:
        """The one interface of the one shared network, by the same name everywhere; else None."""
        names = set(self.shared_networks.values())
        return names.pop() or None if len(self.shared_networks) == 1 else None

    @property
    def master_address(self) -> str | None:
        """The first host's address in the one shared network; else None."""
        networks = list(self.shared_networks)
        return str(self.hosts[0].networks[networks[0]].address.ip) if len(networks) == 1 and self.hosts[0].ok else None


def parse_host_facts(
    name: str, slots: int, raw: Mapping[str, Any], seconds: float, skew: tuple[float, float]
) -> HostFacts:
    """One host's facts from the output of its probe. Raises KeyError, TypeError or ValueError for other output."""
    memory = raw["memory"]
    marks = raw.get("marks") or {}
    digests = list((raw.get("code") or {}).values())
    return HostFacts(
        name,
        slots,
        seconds=seconds,
        skew=skew,
        machine=str(raw["machine"]),
        hostname=str(raw["hostname"]),
        python=str(raw["python"]),
        packages={str(key): None if value is None else str(value) for key, value in raw["packages"].items()},
        code=None if None in digests or not digests else " ".join(map(str, digests)),
        accelerators=tuple(str(accelerator["name"]) for accelerator in raw["accelerators"]),
        torch=_parse_torch(raw.get("torch")),
        gpus=parse_host_gpus(raw["nvml"]) if "nvml" in raw else None,
        cores=int(raw["cores"]),
        memory_total=int(memory["total"]),
        memory_available=int(memory["available"]),
        memlock=_optional_int(raw["memlock"]),
        nofile=_optional_int(raw["nofile"]),
        shm=_optional_int(raw["shm"]),
        folders={str(key): _parse_folder(value) for key, value in raw["folders"].items()},
        sees_run=all(marks.values()),
        compiler=raw["compiler"] and str(raw["compiler"]),
        libaio=raw.get("libaio"),
        nvcc=raw.get("nvcc"),
        numactl=raw.get("numactl"),
        numa_nodes=int(raw.get("numa_nodes") or 1),
        interfaces=tuple(_parse_interface(interface) for interface in raw["interfaces"]),
        own_addresses=tuple(map(str, raw["own_addresses"])),
        ports={int(key): str(value) for key, value in raw["ports"].items()},
    )


def _parse_torch(raw: Mapping[str, Any] | None) -> TorchDevices | None:
    return None if raw is None else parse_torch_devices(raw["answer"], raw["driver"], raw["visible"], raw["seconds"])


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _parse_folder(raw: Mapping[str, Any]) -> FolderFacts:
    return FolderFacts(
        str(raw["path"]), bool(raw["exists"]), bool(raw["writable"]), _optional_int(raw["free"]), str(raw["filesystem"])
    )


def _parse_interface(raw: Mapping[str, Any]) -> NetworkInterface:
    """Raises ValueError for a name that Linux has for none: it gets into the environment of all hosts."""
    name = str(raw["name"])
    if not _INTERFACE.fullmatch(name):
        raise ValueError(f"`{name[:20]!a}` is no name of an interface")
    return NetworkInterface(name, IPv4Interface(f"{raw['address']}/{raw['prefix']}"), bool(raw["loopback"]))
