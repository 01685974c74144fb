# SPDX-License-Identifier: Apache-2.0
"""The survey of the hosts before a launch: their facts and connections, from `host_probe.py`. Judges nothing.

Two rounds: facts of all hosts at once, then connections from all to the first host's rendezvous port.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import harness
from harness.facts.environment_variables import is_secret
from harness.hostinfo import machine, nvml_probe, torch_probe
from harness.hostinfo.host_survey import HostFacts, Link, Survey, parse_host_facts
from harness.launching.hosts import ssh
from harness.launching.hosts.local_host import DEFAULT_PORT, LocalHost
from harness.launching.hosts.ssh import HostResult
from harness.spec.hostfile import Cluster, Host
from harness.spec.sections.launch_spec import LaunchSpec
from harness.spec.sections.zero_spec import ZeroSpec

PACKAGES = ("deepspeed", "torch", "transformers", "accelerate", "safetensors")
OUTPUT_KEY, OPTIMIZER_KEY, PARAMETERS_KEY = (
    "launch.output_dir",
    "zero.offload_optimizer.nvme_path",
    "zero.offload_param.nvme_path",
)
"""Folders of a run that the survey checks, by the key of the spec that names them."""
_CONNECT_SECONDS = 3.0
_MAX_ADDRESSES = 4
_TORCH_TIME_SHARE = 0.6
"""The share of a host's time limit for torch, so that the host answers even when torch does not."""
_NVML_TIME_SHARE = 0.7
"""Of the same time limit, when NVML must have answered; it is asked at the same time as torch."""


@dataclass(frozen=True, slots=True)
class SurveyOptions:
    """The options of a survey; `log` gets a line for each round."""

    timeout_seconds: float = ssh.HOST_TIMEOUT_SECONDS
    fan_out: int = ssh.FAN_OUT
    log: Callable[[str], object] = str


def survey_hosts(
    cluster: Cluster,
    launch: LaunchSpec,
    zero: ZeroSpec,
    local_host: LocalHost,
    ops: Sequence[str],
    options: SurveyOptions | None = None,
) -> Survey:
    """Ask every host of the cluster. Leaves no file on any of them."""
    options = options or SurveyOptions()
    port = launch.master_port or DEFAULT_PORT
    script = local_host.scripts / "host_probe.py"
    names = [host.name for host in cluster.hosts]
    options.log(
        f"checking {len(names)} host{'s' if len(names) != 1 else ''}, within {options.timeout_seconds:.0f} s each"
    )
    with _shared_fs_marker(local_host.cwd / launch.output_dir) as marker:
        request = _facts_request(launch, zero, local_host, port, marker)
        if not _uses_cpu(launch, local_host):
            limit = _TORCH_TIME_SHARE * options.timeout_seconds
            python_path = _python_path(launch, local_host)
            request["torch"] = build_torch_request(local_host.scripts, python_path, launch.env, limit)
            request["nvml"] = nvml_probe.build_request(_NVML_TIME_SHARE * options.timeout_seconds)
        answers = ssh.run_on_hosts(
            names,
            script,
            request,
            timeout_seconds=options.timeout_seconds,
            fan_out=options.fan_out,
            python=local_host.python,
        )
    hosts = tuple(map(_to_host_facts, cluster.hosts, answers))
    accelerated = not _uses_cpu(launch, local_host) and any(h.accelerators for h in hosts)
    survey = Survey(hosts, port=port, has_accelerators=accelerated, ops=tuple(ops))
    return replace(survey, links=tuple(_probe_links(survey, script, options)))


def _uses_cpu(launch: LaunchSpec, local_host: LocalHost) -> bool:
    """Whether ranks use the CPU: the variable reaches every host."""
    return machine.is_cpu_forced({**local_host.environ, **launch.env})


def build_torch_request(
    scripts: Path, python_path: str, variables: Mapping[str, str], seconds: float
) -> dict[str, Any]:
    """The question about torch, without the secrets of `variables`: everybody on the hosts can list the command line
    that it is on.
    """
    public = {name: value for name, value in variables.items() if not is_secret(name, value)}
    return torch_probe.build_request(scripts, python_path, public, seconds)


def _python_path(launch: LaunchSpec, local_host: LocalHost) -> str:
    return launch.env.get("PYTHONPATH", local_host.environ.get("PYTHONPATH", ""))


def _facts_request(
    launch: LaunchSpec, zero: ZeroSpec, local_host: LocalHost, port: int, marker: Path | None
) -> dict[str, Any]:
    folders = {OUTPUT_KEY: str(local_host.cwd / launch.output_dir)}
    for key, block in ((OPTIMIZER_KEY, zero.offload_optimizer), (PARAMETERS_KEY, zero.offload_param)):
        if block is not None and block.device == "nvme" and block.nvme_path:
            folders[key] = str(block.nvme_path)
    return {
        "job": "facts",
        "packages": list(PACKAGES),
        "code": [str(Path(harness.__file__ or "").resolve().parent)],
        "path": [str(local_host.cwd), *[p for p in _python_path(launch, local_host).split(os.pathsep) if p]],
        "folders": folders,
        "marks": [str(marker)] if marker else [],
        "ports": [port],
        "numactl": launch.bind_cores_to_rank,
        "nvcc": {name: launch.env[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in launch.env},
        "libaio": any(key in folders for key in (OPTIMIZER_KEY, PARAMETERS_KEY)),
    }


@contextlib.contextmanager
def _shared_fs_marker(output_dir: Path) -> Iterator[Path | None]:
    """A file that all hosts see if they share the folder of the run directories; None where it cannot be made."""
    existing = next((p for p in (output_dir, *output_dir.parents) if p.is_dir()), None)
    try:
        handle, name = tempfile.mkstemp(prefix=".harness-seen-by-", dir=existing)
    except OSError:
        yield None
        return
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _to_host_facts(host: Host, answer: HostResult) -> HostFacts:
    seconds = answer.ended_at - answer.started_at
    if answer.state != "ok":
        return HostFacts(host.name, host.slots, answer.state, answer.message, seconds)
    try:
        host_time, duration = float(answer.body["time"]), float(answer.body["took"])
        skew = (host_time - (answer.ended_at - duration), host_time - answer.started_at)
        facts = parse_host_facts(host.name, host.slots, answer.body, seconds, skew)
        return replace(facts, devices=host.device_ids)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        message = f"its answer is not that of the probe: {type(error).__name__} {error}"
        return HostFacts(host.name, host.slots, "no probe", message[:200], seconds)


def _probe_links(survey: Survey, script: Path, options: SurveyOptions) -> Iterator[Link]:
    """From every host to the first one's rendezvous port and to another port, by each network that they share."""
    hosts, port = survey.reachable_hosts, survey.port or 0
    if len(hosts) < 2 or not survey.hosts[0].ok or hosts[0].ports.get(port) != "free":
        return
    options.log(f"from {len(hosts) - 1} of them to port {port} of {hosts[0].name}")
    timeout = _CONNECT_SECONDS * 2 * _MAX_ADDRESSES + options.timeout_seconds
    with ssh.run_listener(hosts[0].name, script, [port, 0], timeout) as ports:
        if not ports:
            return
        targets = {host.name: [(a, p) for a in _shared_addresses(hosts[0], host) for p in ports] for host in hosts[1:]}

        def request(name: str) -> Mapping[str, Any]:
            return {"job": "connect", "targets": targets[name], "seconds": _CONNECT_SECONDS}

        answers = ssh.run_on_hosts([*targets], script, request, timeout_seconds=timeout, fan_out=options.fan_out)
    for answer in answers:
        yield from _to_links(answer)


def _shared_addresses(first: HostFacts, other: HostFacts) -> list[str]:
    """The first host's addresses in the networks that it shares with the other; without any, all of its addresses."""
    networks = first.networks
    shared: list[IPv4Network] = [
        n for n in networks if n in other.networks and other.networks[n].address != networks[n].address
    ]
    return [str(networks[network].address.ip) for network in shared or [*networks]][:_MAX_ADDRESSES]


def _to_links(answer: HostResult) -> Iterator[Link]:
    links = answer.body.get("links")
    for row in links if isinstance(links, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            yield Link(answer.host, str(row["address"]), int(row["port"]), str(row["state"]))
