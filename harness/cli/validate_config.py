# SPDX-License-Identifier: Apache-2.0
"""`harness validate-config`: is this run spec, or this DeepSpeed JSON, going to train what it says?"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.check.check_files import ValidateOptions, check_files, usage_outcome
from harness.cli.console import exit_with
from harness.cli.file_options import ConsumerOption, FilesArgument, StrictOption
from harness.cli.options import HereOption, HostfileOption, SetOption, VersionOption, WorldSizeOption
from harness.cli.output_format import FindingsFormat, FindingsFormatOption, print_for_programs
from harness.errors import UserError
from harness.printed_text import unguarded
from harness.views import validate_config as view
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


def validate_config(
    files: FilesArgument,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    deepspeed_version: VersionOption = None,
    consumer: ConsumerOption = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="IDS", help="Report only these findings or families, such as `ZR,OF001`. Repeatable."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="IDS", help="Leave out these findings or families, such as `SP015`. Repeatable."
        ),
    ] = None,
    strict: StrictOption = False,
    here: HereOption = False,
    fix: Annotated[bool, typer.Option("--fix", help="Apply safe fixes to the files, and show what changed.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", "--dry-run", help="Show what --fix would change; write nothing.")
    ] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="With --fix or --diff: also apply fixes that change a working value.")
    ] = False,
    stdin_filename: Annotated[
        str | None, typer.Option("--stdin-filename", metavar="NAME", help="File name to report for standard input.")
    ] = None,
    format: FindingsFormatOption = FindingsFormat.text,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also list the gates that were skipped.")] = False,
) -> None:
    """Check run specs, DeepSpeed JSONs and accelerate YAMLs, without importing torch or DeepSpeed.

    Exit codes: 0 fine (warnings allowed), 1 errors found, 2 wrong usage or an unreadable file.

    Example: harness validate-config ds_configs/demo.yaml --world-size 2
    """
    options = ValidateOptions(
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
        here=here,
        verbose=verbose,
    )
    try:
        outcome, results = check_files(options)
    except UserError as refused:
        if format is FindingsFormat.text:
            raise
        outcome, results = usage_outcome(refused), []
    for line in view.unapplied_fix_lines(results):
        print(line, file=sys.stderr)
    if options.prints_fixed_text and format is FindingsFormat.text:
        unguarded(sys.stdout).writelines(result.fix_result.after for result in results if result.fix_result is not None)
    if format is FindingsFormat.text:
        stream = sys.stderr if options.prints_fixed_text else sys.stdout
        print(view.render_validation(outcome, results, options, style_for(stream)), file=stream)
    else:
        if text := view.render_for_programs(outcome, format.value):
            print_for_programs(text, format)
        if verbose:
            print(view.render_validation(outcome, [], options, style_for(sys.stderr)), file=sys.stderr)
    exit_with(outcome.code)
