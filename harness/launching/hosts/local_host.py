"""The machine that launches: programs, workers, cores and names, gathered once. Decides nothing."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import harness
from harness.hostinfo import machine
from harness.interpreter import python_command

DISTRIBUTION = "deepspeed-harness"
DEFAULT_HOSTFILE = Path("/job/hostfile")
"""DeepSpeed reads this one when none is named (`launcher/runner.py`, DLTS_HOSTFILE)."""


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
    """A folder for the launcher's PYTHONPATH, where mlflow is installed, which DeepSpeed would import for nothing."""
    is_root: bool = False
    """Whether this user is root."""
    unresolved_names: tuple[str, ...] = ()
    """Names of the hostfile that no name server answered for in time: they are taken for other machines."""
    device_names: tuple[str, ...] = ()
    """Names of this machine's accelerators, whether ranks use them or not."""


def inspect_local_host(host_names: Iterable[str] = (), variables: Mapping[str, str] | None = None) -> LocalHost:
    """Gather what a plan needs. `host_names` are a hostfile's, to see which mean this machine; `variables` are those of
    the spec (`launch.env`), of which DS_ACCELERATOR says whether ranks use the accelerators at all.
    """
    devices = machine.accelerators()
    found = () if machine.is_cpu_forced({**os.environ, **(variables or {})}) else devices
    local_names, unresolved = machine.find_local_names(host_names)
    visible = [d for d in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if d.strip()]
    return LocalHost(
        hostname=socket.gethostname(),
        cwd=Path.cwd(),
        python=sys.executable,
        deepspeed=deepspeed_command(),
        scripts=workers_folder(),
        cores=machine.usable_cores(),
        accelerated=bool(found),
        num_accelerators=min(len(found), len(visible)) if visible else len(found),
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
    """How to start DeepSpeed's launcher with this Python: the script beside it, else the module behind that script."""
    beside = Path(sys.executable).parent / "deepspeed"
    found = str(beside) if os.access(beside, os.X_OK) else None
    return (found,) if found else tuple(python_command("-m", "deepspeed.launcher.runner"))


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


def ignored_env_files(folder: Path) -> list[Path]:
    """Files of variables that DeepSpeed would have sent to other hosts, had DS_ENV_FILE not named the plan's instead.

    Source: `launcher/runner.py`, DEEPSPEED_ENVIRONMENT_PATHS (the home folder and the current one).
    """
    places = dict.fromkeys((Path.home(), folder))
    return [place / ".deepspeed_env" for place in places if (place / ".deepspeed_env").is_file()]


def find_program(program: str) -> str | None:
    """Where a program is, such as the one that DeepSpeed reaches other hosts with."""
    return shutil.which(program)
