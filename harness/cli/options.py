"""Options that several commands take, for typer. Nothing here looks at a value."""

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


class Progress(StrEnum):
    """What is shown while a run goes on."""

    auto = "auto"
    bar = "bar"
    plain = "plain"
    json = "json"
    quiet = "quiet"
