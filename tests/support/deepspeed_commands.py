# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own launcher, up to the command that it would run. Needs DeepSpeed. No tests."""

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


def exported(variables: dict[str, str]) -> str:
    """The `export`s with which the command begins that DeepSpeed has pdsh run by a shell on every host."""
    pytest.importorskip("deepspeed")
    from deepspeed.launcher import multinode_runner, runner

    arguments = runner.parse_args(["--master_addr", "a", "--launcher", "pdsh", "train.py"])
    made = multinode_runner.PDSHRunner(arguments, "")
    for name, value in variables.items():
        made.add_export(name, value)
    words, _, _ = made.get_cmd({}, {"a": [0], "b": [0]})
    return next(word for word in words if word.startswith("export "))
