"""`harness validate-config`: is this run spec, or this DeepSpeed JSON, going to train what it says?"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from harness.cli.options import HostfileOption, SetOption, VersionOption, WorldSizeOption
from harness.cli.validation import ValidateOptions, validate

NO_ARGS_IS_HELP = True


class FindingsFormat(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"


class ConsumerName(StrEnum):
    """Who reads a DeepSpeed JSON."""

    hf = "hf"
    accelerate = "accelerate"
    deepspeed = "deepspeed"


def validate_config(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Run specs, DeepSpeed JSONs, or folders that hold some; `-` is standard input."
        ),
    ],
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    deepspeed_version: VersionOption = None,
    consumer: Annotated[
        ConsumerName | None,
        typer.Option("--consumer", help='Who reads the DeepSpeed JSON and fills its "auto" values. Default: guessed.'),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="IDS", help="Only these findings or families, such as `ZR,OF001`. Repeatable."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="IDS", help="Not these findings or families, such as `SP015`. Repeatable."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend the files where that is safe, and show what changed.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", "--dry-run", help="Show what --fix would change, and change nothing.")
    ] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="With --fix or --diff: also fixes that change a value that works.")
    ] = False,
    stdin_filename: Annotated[
        str | None, typer.Option("--stdin-filename", metavar="NAME", help="The name that standard input goes by.")
    ] = None,
    format: Annotated[FindingsFormat, typer.Option("--format", help="How findings are printed.")] = FindingsFormat.text,
) -> None:
    """Check run specs and DeepSpeed JSONs without importing torch or DeepSpeed.

    Exit codes: 0 fine (warnings allowed), 1 errors found, 2 wrong usage or an unreadable file.

    Example: harness validate-config ds_configs/demo.yaml --world-size 2
    """
    validate(
        ValidateOptions(
            tuple(files),
            hostfile=hostfile,
            world_size=world_size,
            overrides=tuple(overrides or ()),
            deepspeed_version=deepspeed_version,
            consumer=consumer.value if consumer else None,
            select=tuple(select or ()),
            ignore=tuple(ignore or ()),
            strict=strict,
            fix=fix,
            diff=diff,
            unsafe_fixes=unsafe_fixes,
            stdin_filename=stdin_filename,
            format=format.value,
        )
    )
