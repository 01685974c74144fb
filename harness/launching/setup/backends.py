# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's launchers for several hosts (`launch.launcher`): their arguments in DeepSpeed's command, and variables
that a rank needs where the launcher sets none. Starts nothing.

From DeepSpeed's `launcher/multinode_runner.py` (0.19.8): only pdsh runs `launcher/launch.py` on the hosts, which gives
every rank its number and the address of rank 0. mpirun and srun start the ranks themselves; `train_worker.py` then
reads their variables.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_PDSH_FAN_OUT = 1024
"""Hosts that DeepSpeed lets pdsh start at once (`PDSH_MAX_FAN_OUT`). The others would wait until one of these ends."""
VariableEntry = tuple[str, str, str]
"""A variable, its value and its origin."""


@dataclass(frozen=True, slots=True)
class LauncherBackend:
    """One of DeepSpeed's launchers. `program` must be on PATH, `package` installs it."""

    name: str
    program: str
    package: str
    literal: bool
    """Variables reach the ranks unexpanded: no shell replaces `$PATH`, and DeepSpeed puts a value
    with special characters between quotes that stay."""


PDSH = LauncherBackend("pdsh", "pdsh", "pdsh", literal=False)
BACKENDS = {
    "pdsh": PDSH,
    "openmpi": LauncherBackend("openmpi", "mpirun", "openmpi-bin", literal=True),
    "slurm": LauncherBackend("slurm", "srun", "slurm-client", literal=True),
}


def backend_args(backend: LauncherBackend, hosts: Sequence[tuple[str, int]], interface: str | None) -> list[str]:
    """Options of the `deepspeed` command beyond those for pdsh. `hosts`: names and slots."""
    if backend.name == "openmpi":
        # By slot, so that ranks are numbered as the hostfile has them; unbound, or each rank would get one core.
        args = ["--map-by", "slot", "--bind-to", "none"]
        for component in ("btl", "oob") if interface else ():
            args += ["--mca", f"{component}_tcp_if_include", str(interface)]
    elif backend.name == "slurm":
        names = ",".join(name for name, _ in hosts)
        args = ["--overlap", "--kill-on-bad-exit=1", "--distribution=block", f"--nodelist={names}"]
        args += [f"--nodes={len(hosts)}", f"--ntasks-per-node={hosts[0][1]}"]
    elif len(hosts) > _PDSH_FAN_OUT:
        return ["--launcher_args", f"-f {len(hosts)}"]  # the last `-f` counts
    else:
        return []
    return ["--launcher", backend.name, "--launcher_args", shlex.join(args)]


def backend_env(backend: LauncherBackend, master: str, port: int, *, is_root: bool) -> list[VariableEntry]:
    """The variables that `launcher/launch.py` would have set for the ranks, and those of the launcher itself."""
    if not backend.literal:
        return []
    entries = [
        ("MASTER_ADDR", master, f"harness, {backend.program} does not set it"),
        ("MASTER_PORT", str(port), f"harness, {backend.program} does not set it"),
    ]
    if backend.name == "openmpi" and is_root:
        origin = "harness, mpirun refuses root without"
        entries += [("OMPI_ALLOW_RUN_AS_ROOT", "1", origin), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", origin)]
    return entries
