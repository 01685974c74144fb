"""What DeepSpeed's own launcher makes of a command: the one that it would run. Needs DeepSpeed. No tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def understood(argv: Sequence[str], hosts: dict[str, int], launcher: str) -> list[str]:
    """The words of mpirun or srun that DeepSpeed's runner makes of `deepspeed`'s."""
    pytest.importorskip("deepspeed")
    from deepspeed.launcher import multinode_runner, runner

    arguments = runner.parse_args(list(argv[1:]))
    kind = {"openmpi": multinode_runner.OpenMPIRunner, "slurm": multinode_runner.SlurmRunner}[launcher]
    made = kind(arguments, "", hosts)
    return made.get_cmd({}, {name: list(range(slots)) for name, slots in hosts.items()})
