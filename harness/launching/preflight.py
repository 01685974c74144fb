"""Asks every host what it is and has, and who reaches whom: answers of `launch/probe.py` -> a Survey. Judges nothing.

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
from harness.facts import machine
from harness.facts.survey import HostFacts, Link, Survey, read_facts
from harness.launching import remote, torch_probe
from harness.launching.here import Here
from harness.launching.plan import DEFAULT_PORT
from harness.launching.remote import Answer
from harness.plan.run import Run
from harness.spec.cluster import Cluster, Host

PACKAGES = ("deepspeed", "torch", "transformers", "accelerate", "safetensors")
OUTPUT, OPTIMIZER, PARAMETERS = "launch.output_dir", "zero.offload_optimizer.nvme_path", "zero.offload_param.nvme_path"
"""Folders of a run that are looked at, by the key of the spec that names them."""
_CONNECT_SECONDS = 3.0
_MOST_ADDRESSES = 4
_TORCH_SHARE = 0.6
"""Of the time that a host has: so long torch may take, so that the host answers when torch does not."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How hosts are asked; `tell` is told what goes on."""

    seconds: float = remote.LIMIT_SECONDS
    fan_out: int = remote.FAN_OUT
    tell: Callable[[str], object] = str


def take_survey(run: Run, here: Here, ops: Sequence[str], asking: Asking | None = None) -> Survey:
    """Ask every host of the run's cluster. Nothing is left on them, nor here."""
    asking = asking or Asking()
    cluster = run.cluster or Cluster(())
    port = run.spec.launch.master_port or DEFAULT_PORT
    script = here.scripts / "probe.py"
    names = [host.name for host in cluster.hosts]
    asking.tell(f"asking {len(names)} host{'s' if len(names) != 1 else ''}, within {asking.seconds:.0f} s each")
    with _mark(here.folder / run.spec.launch.output_dir) as mark:
        request = _request(run, here, port, mark)
        if not _on_cpu(run, here):
            limit = _TORCH_SHARE * asking.seconds
            request["torch"] = torch_probe.request(here.scripts, _python_path(run, here), run.spec.launch.env, limit)
        answers = remote.ask_all(
            names, script, request, seconds=asking.seconds, fan_out=asking.fan_out, python=here.python
        )
    hosts = tuple(map(_host, cluster.hosts, answers))
    accelerated = not _on_cpu(run, here) and any(h.accelerators for h in hosts)
    survey = Survey(hosts, port=port, accelerated=accelerated, ops=tuple(ops))
    return replace(survey, links=tuple(_links(survey, script, asking)))


def _on_cpu(run: Run, here: Here) -> bool:
    """Whether ranks are told to take the CPU: the variable reaches every host."""
    return machine.on_cpu({**here.environ, **run.spec.launch.env})


def _python_path(run: Run, here: Here) -> str:
    return run.spec.launch.env.get("PYTHONPATH", here.environ.get("PYTHONPATH", ""))


def _request(run: Run, here: Here, port: int, mark: Path | None) -> dict[str, Any]:
    zero = run.spec.zero
    folders = {OUTPUT: str(here.folder / run.spec.launch.output_dir)}
    for key, block in ((OPTIMIZER, zero.offload_optimizer), (PARAMETERS, zero.offload_param)):
        if block is not None and block.device == "nvme" and block.nvme_path:
            folders[key] = str(block.nvme_path)
    return {
        "job": "facts",
        "packages": list(PACKAGES),
        "code": [str(Path(harness.__file__ or "").resolve().parent), str(here.scripts)],
        "path": [str(here.folder), *[p for p in _python_path(run, here).split(os.pathsep) if p]],
        "folders": folders,
        "marks": [str(mark)] if mark else [],
        "ports": [port],
        "numactl": run.spec.launch.bind_cores_to_rank,
        "libaio": any(key in folders for key in (OPTIMIZER, PARAMETERS)),
    }


@contextlib.contextmanager
def _mark(output_dir: Path) -> Iterator[Path | None]:
    """A file that all hosts see if they share the folder of the run directories; None where none can be made."""
    there = next((p for p in (output_dir, *output_dir.parents) if p.is_dir()), None)
    try:
        handle, name = tempfile.mkstemp(prefix=".harness-seen-by-", dir=there)
    except OSError:
        yield None
        return
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _host(host: Host, answer: Answer) -> HostFacts:
    seconds = answer.ended - answer.began
    if answer.state != "ok":
        return HostFacts(host.name, host.slots, answer.state, answer.words, seconds)
    try:
        then, took = float(answer.body["time"]), float(answer.body["took"])
        skew = (then - (answer.ended - took), then - answer.began)
        return read_facts(host.name, host.slots, answer.body, seconds, skew)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        words = f"its answer is not what the probe says: {type(error).__name__} {error}"
        return HostFacts(host.name, host.slots, "no probe", words[:200], seconds)


def _links(survey: Survey, script: Path, asking: Asking) -> Iterator[Link]:
    """From every host to the first one's rendezvous port and to another port, by each network that they share."""
    hosts, port = survey.answered, survey.port or 0
    if len(hosts) < 2 or not survey.hosts[0].ok or hosts[0].ports.get(port) != "free":
        return
    asking.tell(f"from {len(hosts) - 1} of them to port {port} of {hosts[0].name}")
    patience = _CONNECT_SECONDS * 2 * _MOST_ADDRESSES + asking.seconds
    with remote.listening(hosts[0].name, script, [port, 0], patience) as ports:
        if not ports:
            return
        targets = {host.name: [(a, p) for a in _addresses(hosts[0], host) for p in ports] for host in hosts[1:]}

        def request(name: str) -> Mapping[str, Any]:
            return {"job": "connect", "targets": targets[name], "seconds": _CONNECT_SECONDS}

        answers = remote.ask_all([*targets], script, request, seconds=patience, fan_out=asking.fan_out)
    for answer in answers:
        yield from _tried(answer)


def _addresses(first: HostFacts, other: HostFacts) -> list[str]:
    """The first host's addresses in the networks that the other is in too; where there are none, all of its own."""
    mine = first.networks
    shared: list[IPv4Network] = [
        n for n in mine if n in other.networks and other.networks[n].address != mine[n].address
    ]
    return [str(mine[network].address.ip) for network in shared or [*mine]][:_MOST_ADDRESSES]


def _tried(answer: Answer) -> Iterator[Link]:
    for row in answer.body.get("links") or ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            yield Link(answer.host, str(row["address"]), int(row["port"]), str(row["state"]))
