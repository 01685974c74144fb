# SPDX-License-Identifier: Apache-2.0
"""`harness launch --no-ssh` and the options that it needs, for typer, and their parser."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from harness.cli.options import option_of, refuse_unread
from harness.launching.setup.no_ssh import PerNodeLaunch

_no_ssh_option = option_of("Hosts without ssh")
_Text = str | None
_Number = int | None
NoSshOption = Annotated[
    bool,
    _no_ssh_option(
        "--no-ssh",
        help="Start the ranks of this host only. Run the same command on every host of the hostfile, such as in the "
        "pods of a job, with the same `--run-id` and a run directory that all hosts share.",
    ),
]
RunIdOption = Annotated[
    _Text, _no_ssh_option("--run-id", metavar="ID", help="With `--no-ssh`: name of the job, the same on all hosts.")
]
NodeRankOption = Annotated[
    _Number,
    _no_ssh_option(min=0, metavar="N", help="With `--no-ssh`: index of this host. Default: found by its hostname."),
]
MasterAddrOption = Annotated[
    _Text, _no_ssh_option(metavar="ADDRESS", help="With `--no-ssh`: address of node 0. Default: its hostname.")
]


def parse_no_ssh(
    no_ssh: bool, run_id: str | None, node_rank: int | None, master_addr: str | None, *, in_step: bool
) -> PerNodeLaunch | None:
    """The options of `--no-ssh`. With `in_step` srun started this process, and says which host of the job it is on.
    Raises BadParameter.
    """
    if not no_ssh:
        values = {"--run-id": run_id, "--node-rank": node_rank, "--master-addr": master_addr}
        refuse_unread("needs `--no-ssh`", values)
        return None
    if run_id is None:
        message = "is required with `--no-ssh`: one name for the job on all hosts, such as the scheduler's job number"
        raise typer.BadParameter(message, param_hint="--run-id")
    number = os.environ.get("SLURM_NODEID", "")
    if in_step and node_rank is None and number.isdecimal():
        node_rank = int(number)
    return PerNodeLaunch(run_id, node_rank, master_addr)
