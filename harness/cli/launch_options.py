# SPDX-License-Identifier: Apache-2.0
"""Options of `harness launch` alone, for typer, and the parsers of those that are more than a value."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.completion import complete_resume
from harness.cli.options import ProgressMode, host_option, option_of
from harness.cli.output_format import OutputFormat

_resume_option, _output_option = option_of("Resume and restart"), option_of("Output")
_Text = str | None
_Number = int | None


def check_notify(target: str | None) -> str | None:
    """The target of `--notify`. Raises BadParameter for an address that is neither a command nor http or https."""
    scheme, separator, rest = (target or "").partition("://")
    if separator and scheme.isalpha() and (scheme not in ("http", "https") or not rest.strip("/")):
        raise typer.BadParameter(f"`{scheme}://` is no URL of a web server; name http://HOST/..., or a command")
    return target


DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show files, environment, command and ranks; do nothing.")
]
ScriptOption = Annotated[
    _Text,
    typer.Option(
        metavar="FILE",
        help="Run this Python file of yours on every rank in place of the loop (`plugins.script`); it calls "
        "`harness.train`, `deepspeed.initialize` or `Accelerator`.",
    ),
]
ResumeOption = Annotated[
    str,
    _resume_option(
        metavar="auto|never|RUN",
        autocompletion=complete_resume,
        help="Resume from the newest complete checkpoint of this spec (`auto`; from step 0 if there is none), or from "
        "a run directory, a run's name such as `latest`, or a checkpoint. Verifies every byte first, and makes a new "
        "run directory.",
    ),
]
AllowChangeOption = Annotated[
    list[str] | None,
    _resume_option(
        metavar="KEY",
        help="Resume although KEY (or section) differs from the checkpoint, and train with its new value. Repeatable.",
    ),
]
MaxRestartsOption = Annotated[
    _Number,
    _resume_option(
        metavar="N",
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
_NOTIFY = (
    "POST JSON to the URL, or run the command with it on stdin, at the end, a failure, a stall. Or $HARNESS_NOTIFY."
)
NotifyOption = Annotated[
    _Text, _output_option(metavar="URL|COMMAND", help=_NOTIFY, envvar="HARNESS_NOTIFY", callback=check_notify)
]
DebugDistributedOption = Annotated[
    bool,
    typer.Option(
        "--debug-distributed", help="Verify and log every collective (TORCH_DISTRIBUTED_DEBUG, NCCL_DEBUG). Slow."
    ),
]
FormatOption = Annotated[OutputFormat, _output_option("--format", help="Output format of the plan or the result.")]
NoPreflightOption = Annotated[
    bool, host_option("--no-preflight", help="Skip the check of the hosts before the launch.")
]
ProgressOption = Annotated[
    ProgressMode, _output_option(help="Progress style on stderr; `quiet` shows warnings and errors only.")
]
QuietOption = Annotated[bool, _output_option("--quiet", "-q", help="The same as `--progress quiet`.")]
TeeOption = Annotated[
    bool, _output_option("--tee", help="Show the output of all ranks, prefixed by rank, not only rank 0's.")
]


def parse_profile(text: str | None) -> list[str]:
    """`--profile` as overrides of the spec. Raises BadParameter."""
    overrides: list[str] = []
    parts = text.split(",") if text else []
    names = [part.partition("=")[0] for part in parts]
    if "ranks" in names and "steps" not in names:
        raise typer.BadParameter("`ranks` needs `steps=A-B`, which these ranks profile", param_hint="--profile")
    if odd := next((name for name in names if names.count(name) > 1), None):
        raise typer.BadParameter(f"`{odd}` is given twice", param_hint="--profile")
    for part in parts:
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
