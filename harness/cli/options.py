# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, for typer."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

SpecArgument = Annotated[str, typer.Argument(metavar="SPEC", help="A run spec (YAML).", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the spec, such as `train.max_steps=10`. Repeatable."
    ),
]
HostfileOption = Annotated[
    str | None, typer.Option("--hostfile", metavar="FILE", help="Hosts and slots, in DeepSpeed's grammar.")
]
WorldSizeOption = Annotated[
    int | None, typer.Option("--world-size", min=1, metavar="N", help="Ranks, where no hostfile is given.")
]
VersionOption = Annotated[
    str | None,
    typer.Option("--deepspeed-version", metavar="V", help="Check against this DeepSpeed instead of the installed one."),
]
HostsOption = Annotated[
    str | None, typer.Option("--hosts", metavar="A:N,B:N", help="Hosts and slots, instead of a hostfile.")
]
AllowCodeOption = Annotated[
    bool,
    typer.Option(
        "--allow-local-code", help="Run code that the spec chooses: `plugins.file`, variables such as PYTHONPATH."
    ),
]
SlurmOption = Annotated[
    bool,
    typer.Option("--slurm", help="Use the hosts of the current Slurm job; outside a job, `launch` submits one."),
]
IncludeOption = Annotated[str, typer.Option("--include", metavar="A@B:0,2", help="Only these hosts, or slots of them.")]
ExcludeOption = Annotated[
    str,
    typer.Option("--exclude", metavar="A@B:0,2", help="All but these hosts, or slots of them."),
]
NumNodesOption = Annotated[int | None, typer.Option("--num-nodes", metavar="N", help="The first N hosts.")]
NumGpusOption = Annotated[
    int | None,
    typer.Option("--num-gpus", metavar="N", help="The first N slots of each host; without hosts, ranks here."),
]


class ProgressMode(StrEnum):
    """Progress styles of a run."""

    auto = "auto"
    bar = "bar"
    plain = "plain"
    json = "json"
    quiet = "quiet"
