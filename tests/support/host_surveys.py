# SPDX-License-Identifier: Apache-2.0
"""Surveys of healthy hosts, with the answers that an example changes. No tests here."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

from harness.hostinfo.gpu_health import GpuHealth, HostGpus
from harness.hostinfo.host_survey import FolderFacts, HostFacts, Link, NetworkInterface, Survey
from harness.hostinfo.torch_devices import TorchDevices
from harness.spec.hostfile import Cluster

PACKAGES = {"deepspeed": "0.19.8", "torch": "2.13.0", "transformers": "5.24.0"}


def healthy(name: str, slots: int, number: int) -> HostFacts:
    """A host that nothing is wrong with."""
    return HostFacts(
        name,
        slots,
        machine=f"machine-of-{name}",
        hostname=name,
        python="3.11.7",
        packages=PACKAGES,
        code="the same",
        accelerators=("NVIDIA H100",) * slots,
        torch=TorchDevices("2.13.0", "13.0", count=slots, capabilities=((9, 0),) * slots, built_for=("sm_90",)),
        cores=64,
        memory_total=2 * 10**12,
        memory_available=2 * 10**12,
        nofile=65536,
        shm=10**12,
        folders={"launch.output_dir": FolderFacts("/runs", True, True, 10**15, "nfs4")},
        compiler="/usr/bin/c++",
        libaio=True,
        interfaces=(
            NetworkInterface("lo", IPv4Interface("127.0.0.1/8"), loopback=True),
            NetworkInterface("eth0", IPv4Interface(f"10.0.0.{number}/24")),
        ),
        own_addresses=(f"10.0.0.{number}",),
        ports={29500: "free"},
    )


def survey_of(cluster: Cluster, said: dict[str, Any]) -> Survey:
    """Healthy hosts, each with what is said of it by name; `links` and `ops` are the survey's own."""
    hosts = [_told(healthy(h.name, h.slots, i), said.get(h.name) or {}) for i, h in enumerate(cluster.hosts, start=1)]
    links = tuple(Link(**link) for link in said.get("links", ()))
    return Survey(tuple(hosts), links, 29500, True, tuple(said.get("ops", ())))


def _told(host: HostFacts, said: dict[str, Any]) -> HostFacts:
    said = dict(said)
    if "packages" in said:
        said["packages"] = PACKAGES | said["packages"]
    if "folders" in said:
        folders = {
            k: FolderFacts(**({"exists": True, "writable": True, "free": 10**15} | v))
            for k, v in said["folders"].items()
        }
        said["folders"] = {**host.folders, **folders}
    if "interfaces" in said:
        said["interfaces"] = tuple(
            NetworkInterface(name, IPv4Interface(address)) for name, address in said["interfaces"]
        )
    if "gpus" in said:
        said["gpus"] = HostGpus(tuple(GpuHealth(**gpu) for gpu in said["gpus"]))
    if "torch" in said:
        said["torch"] = TorchDevices(**said["torch"])
    for key in ("accelerators", "skew"):
        if key in said:
            said[key] = tuple(said[key])
    return replace(host, **said)
