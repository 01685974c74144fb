# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, for typer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from harness.cli.completion import complete_override


def option_of(panel: str) -> Callable[..., Any]:
    """`typer.Option`, for options that the help shows in this panel."""
    return partial(typer.Option, rich_help_panel=panel)


host_option = option_of("Hosts")
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
    str | None, host_option("--hostfile", metavar="FILE", help="Hosts and slots, in DeepSpeed's grammar.")
]
WorldSizeOption = Annotated[
    int | None, host_option("--world-size", min=1, metavar="N", help="Ranks, where no hostfile is given.")
]
VersionOption = Annotated[
    str | None,
    typer.Option("--deepspeed-version", metavar="V", help="Check against this DeepSpeed instead of the installed one."),
]
HostsOption = Annotated[
    str | None,
    host_option(
        "--hosts", metavar="A:N,B:N", help="Hosts and slots, instead of a hostfile; `n[0-7]:N` is eight hosts."
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
    bool, host_option("--slurm", help="Use the hosts of the current Slurm job; outside a job, `launch` submits one.")
]
IncludeOption = Annotated[str, host_option("--include", metavar="A@B:0,2", help="Only these hosts, or slots of them.")]
ExcludeOption = Annotated[
    str, host_option("--exclude", metavar="A@B:0,2", help="All but these hosts, or slots of them.")
]
NumNodesOption = Annotated[int | None, host_option("--num-nodes", min=1, metavar="N", help="The first N hosts.")]
NumGpusOption = Annotated[
    int | None,
    host_option("--num-gpus", min=1, metavar="N", help="The first N slots of each host; without hosts, ranks here."),
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


def refuse_unread(reason: str, options: Mapping[str, object]) -> None:
    """Refuse the first of these options, by name, that is given: its value is not None, False or an empty list; 0 is
    one. Raises BadParameter.
    """
    for name, value in options.items():
        if value is not None and value is not False and value != []:
            raise typer.BadParameter(reason, param_hint=name)


def refuse_combined(lists: Mapping[str, bool], others: Mapping[str, object]) -> None:
    """Refuse, beside one of `lists`, which prints everything, the other ones and `others`. Raises BadParameter."""
    asked = [name for name, is_given in lists.items() if is_given]
    if asked:
        refuse_unread(
            f"cannot be used with `{asked[0]}`, which prints all", {**others, **dict.fromkeys(asked[1:], True)}
        )
