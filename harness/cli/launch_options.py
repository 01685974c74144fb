# SPDX-License-Identifier: Apache-2.0
"""Options of `harness launch` alone, for typer, and the parsers of those that are more than a value."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.options import ProgressMode
from harness.cli.output_format import OutputFormat
from harness.launching.setup.no_ssh import PerNodeLaunch

_Text = str | None
_Number = int | None
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show files, environment, command and ranks; do nothing.")
]
ResumeOption = Annotated[
    str,
    typer.Option(
        metavar="auto|never|PATH",
        help="Resume from the newest complete checkpoint of this spec (`auto`; from step 0 if there is none), or from "
        "a run directory or checkpoint. Verifies every byte first, and makes a new run directory.",
    ),
]
AllowChangeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY",
        help="Allow resume although KEY (or section) differs from the checkpoint. Repeatable.",
    ),
]
MaxRestartsOption = Annotated[
    _Number,
    typer.Option(
        min=0,
        help="Restarts at most, each from the last complete checkpoint, when a rank, a node or the launcher dies or "
        "the run hangs (`launch.max_restarts`).",
    ),
]
ProfileOption = Annotated[
    _Text,
    typer.Option(
        metavar="steps=A-B[,flops][,comms][,ranks=R+R]",
        help="Profile these steps with torch's profiler: a trace and a table of time by kind, in the run's folder "
        "`profile`. `flops` and `comms` add DeepSpeed's FLOPs profiler and communication log, which slow the run.",
    ),
]
DebugDistributedOption = Annotated[
    bool,
    typer.Option(
        "--debug-distributed", help="Verify and log every collective (TORCH_DISTRIBUTED_DEBUG, NCCL_DEBUG). Slow."
    ),
]
FormatOption = Annotated[OutputFormat, typer.Option("--format", help="Output format of the plan or the result.")]
SbatchOption = Annotated[
    list[str] | None,
    typer.Option(metavar="OPTION", help="With `--slurm` outside a job: an option of sbatch, such as `--nodes=2`."),
]
NoPreflightOption = Annotated[
    bool, typer.Option("--no-preflight", help="Skip the check of the hosts before the launch.")
]
NoSshOption = Annotated[
    bool,
    typer.Option(
        "--no-ssh",
        help="Start the ranks of this host only. Run the same command on every host of the hostfile, such as in the "
        "pods of a job, with the same `--run-id` and a run directory that all hosts share.",
    ),
]
RunIdOption = Annotated[
    _Text, typer.Option("--run-id", metavar="ID", help="With `--no-ssh`: name of the job, the same on all hosts.")
]
NodeRankOption = Annotated[
    _Number,
    typer.Option(min=0, metavar="N", help="With `--no-ssh`: index of this host. Default: found by its hostname."),
]
MasterAddrOption = Annotated[
    _Text,
    typer.Option(metavar="ADDRESS", help="With `--no-ssh`: address of node 0. Default: its hostname."),
]
ProgressOption = Annotated[
    ProgressMode,
    typer.Option(help="Progress style on stderr; `quiet` shows warnings and errors only."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="The same as `--progress quiet`.")]
TeeOption = Annotated[
    bool, typer.Option("--tee", help="Show the output of all ranks, prefixed by rank, not only rank 0's.")
]


def parse_no_ssh(
    *, no_ssh: bool, run_id: str | None, node_rank: int | None, master_addr: str | None
) -> PerNodeLaunch | None:
    """The options of `--no-ssh`. Raises BadParameter."""
    values = {"--run-id": run_id, "--node-rank": node_rank, "--master-addr": master_addr}
    if not no_ssh:
        odd = next((name for name, value in values.items() if value is not None), None)
        if odd:
            raise typer.BadParameter("needs `--no-ssh`", param_hint=odd)
        return None
    if run_id is None:
        message = "is required with `--no-ssh`: one name for the job on all hosts, such as the scheduler's job number"
        raise typer.BadParameter(message, param_hint="--run-id")
    return PerNodeLaunch(run_id, node_rank, master_addr)


def parse_profile(text: str | None) -> list[str]:
    """`--profile` as overrides of the spec. Raises BadParameter."""
    overrides = []
    for part in text.split(",") if text else ():
        key, _, value = part.partition("=")
        first, _, last = value.partition("-")
        if (
            key == "steps"
            and first.isdigit()
            and int(first)
            and (not last or (last.isdigit() and int(last) >= int(first)))
        ):
            overrides.append(f"telemetry.profile_steps='{value}'")
        elif key == "ranks" and all(rank.isdigit() for rank in value.split("+")):
            overrides.append(f"telemetry.profile_ranks=[{value.replace('+', ',')}]")
        elif part in ("flops", "comms"):
            overrides.append(f"telemetry.{'flops_profiler' if part == 'flops' else 'comms_logger'}=true")
        else:
            message = f"`{part}` is not `steps=A-B`, `ranks=R+R`, `flops` or `comms`"
            raise typer.BadParameter(message, param_hint="--profile")
    return overrides
