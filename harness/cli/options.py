# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, for typer."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from harness.cli.completion import complete_override

HOSTS_PANEL = "Hosts"
SpecArgument = Annotated[str, typer.Argument(metavar="SPEC", help="A run spec (YAML).", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the spec, such as `train.max_steps=10`. Repeatable.",
        autocompletion=complete_override,
    ),
]
HostfileOption = Annotated[
    str | None,
    typer.Option(
        "--hostfile", metavar="FILE", help="Hosts and slots, in DeepSpeed's grammar.", rich_help_panel=HOSTS_PANEL
    ),
]
WorldSizeOption = Annotated[
    int | None,
    typer.Option(
        "--world-size", min=1, metavar="N", help="Ranks, where no hostfile is given.", rich_help_panel=HOSTS_PANEL
    ),
]
VersionOption = Annotated[
    str | None,
    typer.Option("--deepspeed-version", metavar="V", help="Check against this DeepSpeed instead of the installed one."),
]
HostsOption = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="A:N,B:N",
        help="Hosts and slots, instead of a hostfile; `n[0-7]:N` is eight hosts.",
        rich_help_panel=HOSTS_PANEL,
    ),
]
AllowCodeOption = Annotated[
    bool,
    typer.Option(
        "--allow-local-code",
        help="Run code that the spec chooses: `plugins.file`, Python files of the model, variables such as PYTHONPATH.",
    ),
]
HereOption = Annotated[
    bool,
    typer.Option(
        "--here", help="The run is for this machine: report paths, packages and devices that it lacks as errors."
    ),
]
SlurmOption = Annotated[
    bool,
    typer.Option(
        "--slurm",
        help="Use the hosts of the current Slurm job; outside a job, `launch` submits one.",
        rich_help_panel=HOSTS_PANEL,
    ),
]
IncludeOption = Annotated[
    str,
    typer.Option(
        "--include", metavar="A@B:0,2", help="Only these hosts, or slots of them.", rich_help_panel=HOSTS_PANEL
    ),
]
ExcludeOption = Annotated[
    str,
    typer.Option(
        "--exclude", metavar="A@B:0,2", help="All but these hosts, or slots of them.", rich_help_panel=HOSTS_PANEL
    ),
]
NumNodesOption = Annotated[
    int | None, typer.Option("--num-nodes", min=1, metavar="N", help="The first N hosts.", rich_help_panel=HOSTS_PANEL)
]
NumGpusOption = Annotated[
    int | None,
    typer.Option(
        "--num-gpus",
        min=1,
        metavar="N",
        help="The first N slots of each host; without hosts, ranks here.",
        rich_help_panel=HOSTS_PANEL,
    ),
]


def spell_out_arguments(ctx: typer.Context) -> tuple[str, ...]:
    """The command line as it was parsed, for another process: the command, its arguments, then each option that was
    given as one long word, `--name=value`. An argument that begins with `-` becomes a path.
    """
    arguments, options = [str(ctx.info_name)], []
    for param in ctx.command.params:
        if not is_given(ctx, str(param.name)):
            continue
        value = ctx.params[str(param.name)]
        values = value if isinstance(value, list | tuple) else [value]
        if param.param_type_name == "argument":
            arguments += [f"./{text}" if text.startswith("-") else text for text in map(str, values)]
        else:
            name = max(param.opts, key=len)
            options += [name if one is True else f"{name}={one}" for one in values]
    return (*arguments, *options)


def is_given(ctx: typer.Context, name: str) -> bool:
    """Was the option or argument on the command line? False for a default."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


class ProgressMode(StrEnum):
    """Progress styles of a run."""

    auto = "auto"
    bar = "bar"
    plain = "plain"
    json = "json"
    quiet = "quiet"
