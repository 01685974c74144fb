"""Who starts the ranks on other hosts: the words that DeepSpeed's command needs for each of its launchers, and what a
rank must be told where the launcher does not. Starts nothing.

Read in DeepSpeed's `launcher/multinode_runner.py` (0.19.8): only pdsh runs `launcher/launch.py` on the hosts, which
tells every rank its number and where rank 0 is. mpirun and srun start the ranks themselves; `train_worker.py` then
reads their variables.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

VariableEntry = tuple[str, str, str]
"""A variable, its value and where that comes from."""


@dataclass(frozen=True, slots=True)
class LauncherBackend:
    """One of DeepSpeed's launchers. `program` must be here, `package` has it."""

    name: str
    program: str
    package: str
    literal: bool
    """Whether variables reach the ranks as they are written; no shell then replaces `$PATH`, and DeepSpeed puts a value
    with special characters between quotes that stay."""


PDSH = LauncherBackend("pdsh", "pdsh", "pdsh", literal=False)
BACKENDS = {
    "pdsh": PDSH,
    "openmpi": LauncherBackend("openmpi", "mpirun", "openmpi-bin", literal=True),
    "slurm": LauncherBackend("slurm", "srun", "slurm-client", literal=True),
}


def backend_args(starter: LauncherBackend, hosts: Sequence[tuple[str, int]], interface: str | None) -> list[str]:
    """Options of the `deepspeed` command beyond those for pdsh. `hosts`: names and slots."""
    if starter.name == "openmpi":
        # By slot, so that ranks are numbered as the hostfile has them; unbound, or each rank would get one core.
        chosen = ["--map-by", "slot", "--bind-to", "none"]
        for part in ("btl", "oob") if interface else ():
            chosen += ["--mca", f"{part}_tcp_if_include", str(interface)]
    elif starter.name == "slurm":
        names = ",".join(name for name, _ in hosts)
        chosen = ["--overlap", "--kill-on-bad-exit=1", "--distribution=block", f"--nodelist={names}"]
        chosen += [f"--nodes={len(hosts)}", f"--ntasks-per-node={hosts[0][1]}"]
    else:
        return []
    return ["--launcher", starter.name, "--launcher_args", shlex.join(chosen)]


def backend_env(starter: LauncherBackend, master: str, port: int, *, is_root: bool) -> list[VariableEntry]:
    """What `launcher/launch.py` would have told the ranks, and what the launcher itself wants."""
    if not starter.literal:
        return []
    found = [
        ("MASTER_ADDR", master, f"harness, {starter.program} does not tell the ranks"),
        ("MASTER_PORT", str(port), f"harness, {starter.program} does not tell the ranks"),
    ]
    if starter.name == "openmpi" and is_root:
        why = "harness, mpirun refuses root without"
        found += [("OMPI_ALLOW_RUN_AS_ROOT", "1", why), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", why)]
    return found
