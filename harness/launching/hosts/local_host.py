# SPDX-License-Identifier: Apache-2.0
"""The machine that launches: its programs, scripts, cores, devices and names, gathered once. Decides nothing."""

from __future__ import annotations

import errno
import importlib.util
import os
import random
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import harness
from harness.hostinfo import machine
from harness.interpreter import python_command

DISTRIBUTION = "deepspeed-harness"
DEFAULT_PORT = 29500
"""DeepSpeed's own default, used with several hosts, where a free port of the first host is not known."""
DEFAULT_HOSTFILE = Path("/job/hostfile")
"""The hostfile that DeepSpeed reads when none is named (`launcher/runner.py`, DLTS_HOSTFILE)."""


@dataclass(frozen=True, slots=True)
class LocalHost:
    """This machine as a launch plan needs it."""

    hostname: str
    cwd: Path
    python: str
    deepspeed: tuple[str, ...]
    scripts: Path
    cores: int
    accelerated: bool
    num_accelerators: int
    port: int
    supervisor_id: str
    environ: Mapping[str, str]
    local_names: frozenset[str]
    has_default_hostfile: bool
    mlflow_stub_dir: Path | None = None
    """A folder for the launcher's PYTHONPATH, where mlflow is installed: DeepSpeed would import it without using it."""
    is_root: bool = False
    """True if this user is root."""
    unresolved_names: tuple[str, ...] = ()
    """Names of the hostfile that no name server resolved in time: they count as other machines."""
    device_names: tuple[str, ...] = ()
    """Names of this machine's accelerators, whether ranks use them or not."""


def inspect_local_host(host_names: Iterable[str] = (), variables: Mapping[str, str] | None = None) -> LocalHost:
    """Gather the facts that a plan needs. `host_names` are a hostfile's: some may mean this machine. `variables` are
    those of `launch.env`, where DS_ACCELERATOR decides whether ranks use the accelerators at all.
    """
    devices = machine.accelerators()
    usable = () if machine.is_cpu_forced({**os.environ, **(variables or {})}) else devices
    local_names, unresolved = machine.find_local_names(host_names)
    visible = visible_devices(os.environ)
    return LocalHost(
        hostname=socket.gethostname(),
        cwd=Path.cwd(),
        python=sys.executable,
        deepspeed=deepspeed_command(),
        scripts=workers_folder(),
        cores=machine.usable_cores(),
        accelerated=bool(usable),
        num_accelerators=min(len(usable), len(visible)) if visible else len(usable),
        port=find_free_port(),
        supervisor_id=f"{machine.host_identity()}:{os.getpid()}:{machine.process_start_ticks(os.getpid())}",
        environ=dict(os.environ),
        local_names=frozenset(local_names),
        has_default_hostfile=DEFAULT_HOSTFILE.is_file(),
        mlflow_stub_dir=workers_folder() / "stubs" if importlib.util.find_spec("mlflow") else None,
        is_root=os.geteuid() == 0,
        unresolved_names=tuple(unresolved),
        device_names=tuple(device.name for device in devices),
    )


def deepspeed_command() -> tuple[str, ...]:
    """The command of DeepSpeed's launcher under this Python: the script in the same folder, else the module."""
    script = Path(sys.executable).parent / "deepspeed"
    return (str(script),) if os.access(script, os.X_OK) else tuple(python_command("-m", "deepspeed.launcher.runner"))


def workers_folder() -> Path:
    """The folder of the programs of ranks and other child processes. They are started by path, never imported."""
    return Path(harness.__file__ or "").resolve().parent / "workers"


def find_free_port() -> int:
    """A TCP port that is free now, below the range from which the kernel gives ports to outgoing connections."""
    for port in random.sample(range(20000, 32000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return 0


def is_port_taken(port: int) -> bool:
    """Does a program listen on this TCP port of this machine, so that a rendezvous could not?"""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's TCPStore does
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def visible_devices(environ: Mapping[str, str]) -> list[str]:
    """The devices that CUDA_VISIBLE_DEVICES names; empty where it names none. CUDA reads it up to the first that is
    none, such as -1, which hides the others; Slurm hides all by `NoDevFiles`.
    """
    names = [device.strip() for device in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    return list(takewhile(lambda name: name not in ("-1", "NoDevFiles"), names))


def unresolved_names_note(local_host: LocalHost) -> str | None:
    """One line about all names that no name server resolved in time; None where all were resolved."""
    names = local_host.unresolved_names
    if not names:
        return None
    more = f" and {len(names) - 1:,} more" if names[1:] else ""
    failure = f"could not be looked up within {machine.NAME_LOOKUP_SECONDS:.0f} s"
    return f"note: `{names[0]}`{more} {failure}: treated as other machines than {local_host.hostname}"


def find_program(program: str) -> str | None:
    """The path of a program, such as the one by which DeepSpeed reaches other hosts."""
    return shutil.which(program)
