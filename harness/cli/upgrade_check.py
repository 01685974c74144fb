# SPDX-License-Identifier: Apache-2.0
"""`harness upgrade-check`: differences of a configuration under another DeepSpeed release."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.cli.console import exit_with
from harness.cli.file_options import ConsumerOption, FilesArgument, StrictOption
from harness.cli.options import HostfileOption, WorldSizeOption
from harness.cli.output_format import FindingsFormat, FindingsFormatOption, print_for_programs
from harness.upgrades.compare_files import UpgradeOptions, compare_files
from harness.views import validate_config as view
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


def upgrade_check(
    files: FilesArgument,
    from_: Annotated[str, typer.Option("--from", metavar="V", help="The DeepSpeed release in use today.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="V", help="The newer release. Default: the installed one.")
    ] = None,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    consumer: ConsumerOption = None,
    strict: StrictOption = False,
    format: FindingsFormatOption = FindingsFormat.text,
) -> None:
    """Show what changes for a file under a newer DeepSpeed: refused keys, changed meanings, new defaults, fixed bugs.

    Findings that both releases share are left to `validate-config`. Imports neither release.

    Exit codes: 0 no change of what is trained, 1 a change, or a refused key, 2 wrong usage or an unreadable file.

    Example: harness upgrade-check ds_configs/demo.json --from 0.19.2 --to 0.19.8
    """
    options = UpgradeOptions(
        files,
        from_,
        to,
        hostfile=hostfile,
        world_size=world_size,
        consumer=consumer.value if consumer else None,
        strict=strict,
    )
    outcome, results = compare_files(options)
    if format is FindingsFormat.text:
        print(view.render_upgrade(outcome, results, style_for(sys.stdout)))
    elif text := view.render_for_programs(outcome, format.value):
        print_for_programs(text, format)
    exit_with(outcome.code)
