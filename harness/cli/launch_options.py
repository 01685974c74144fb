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
        help="Go on from the newest complete checkpoint of this spec (`auto`; from the start if there is none) or "
        "from a run directory or checkpoint. Every byte is verified first; a new run directory is made.",
    ),
]
AllowChangeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY",
        help="Go on although this key of the spec, or section, is not what the checkpoint was trained with.",
    ),
]
MaxRestartsOption = Annotated[
    _Number,
    typer.Option(
        min=0,
        help="Start again from the last complete checkpoint so many times when a rank, a node or the launcher died "
        "or the run hung (`launch.max_restarts`).",
    ),
]
ProfileOption = Annotated[
    _Text,
    typer.Option(
        metavar="steps=A-B[,flops][,comms][,ranks=R+R]",
        help="Record these steps with torch's profiler: a trace and a table of time by kind, in the run's folder "
        "`profile`. `flops`, `comms`: DeepSpeed's FLOPs profiler and communication log too, which slow the run.",
    ),
]
DebugDistributedOption = Annotated[
    bool, typer.Option("--debug-distributed", help="Have torch and NCCL check and tell each collective; slow.")
]
FormatOption = Annotated[OutputFormat, typer.Option("--format", help="How the plan or the result is printed.")]
SbatchOption = Annotated[
    list[str] | None,
    typer.Option(metavar="OPTION", help="With `--slurm` outside a job: an option of sbatch, such as `--nodes=2`."),
]
NoPreflightOption = Annotated[
    bool, typer.Option("--no-preflight", help="Do not ask the hosts of a hostfile first what they have.")
]
NoSshOption = Annotated[
    bool,
    typer.Option(
        "--no-ssh",
        help="Start the ranks of this host alone: the same command runs on every host of the hostfile, such as in "
        "the pods of a job, with the same `--run-id` and a run directory that all see.",
    ),
]
RunIdOption = Annotated[
    _Text, typer.Option("--run-id", metavar="ID", help="With `--no-ssh`: what this job is called on all hosts.")
]
NodeRankOption = Annotated[
    _Number,
    typer.Option(min=0, metavar="N", help="With `--no-ssh`: which host this is, from 0, where its name does not tell."),
]
MasterAddrOption = Annotated[
    _Text,
    typer.Option(metavar="ADDRESS", help="With `--no-ssh`: how all reach the first host, if not by its name."),
]
ProgressOption = Annotated[
    ProgressMode,
    typer.Option(help="What is shown meanwhile, on stderr: a bar, lines, JSON lines, or trouble alone (`quiet`)."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="The same as `--progress quiet`.")]
TeeOption = Annotated[
    bool, typer.Option("--tee", help="Show what every rank prints, marked by its rank, not only rank 0's.")
]


def parse_no_ssh(
    *, no_ssh: bool, run_id: str | None, node_rank: int | None, master_addr: str | None
) -> PerNodeLaunch | None:
    """The options of `--no-ssh`. Raises BadParameter."""
    values = {"--run-id": run_id, "--node-rank": node_rank, "--master-addr": master_addr}
    if not no_ssh:
        odd = next((name for name, value in values.items() if value is not None), None)
        if odd:
            raise typer.BadParameter("goes with `--no-ssh`", param_hint=odd)
        return None
    if run_id is None:
        message = "is needed with `--no-ssh`: one name for the job on all hosts, such as the scheduler's number of it"
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
