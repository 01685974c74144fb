# SPDX-License-Identifier: Apache-2.0
"""`harness rehearse`: a small version of a run, through all its phases, before a week-long one."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from harness.check.check_file import check_file
from harness.cli.console import exit_on_errors, exit_with, print_findings
from harness.cli.error_handler import exit_refused
from harness.cli.options import AllowCodeOption, HostfileOption, SetOption, SpecArgument, WorldSizeOption
from harness.cli.output_format import FormatOption, OutputFormat
from harness.errors import UserError
from harness.launching.programs.rehearsal import (
    RehearsalPlan,
    RehearsalResult,
    plan_rehearsal,
    prepare_rehearsal,
    rehearse_run,
    remove_large_files,
)
from harness.views import rehearsal as view

NO_ARGS_IS_HELP = True
_NOTHING_WRITTEN = "Nothing was written or started"


def rehearse(
    spec: SpecArgument,
    overrides: SetOption = None,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    folder: Annotated[
        str,
        typer.Option(
            "--folder", metavar="FOLDER", help="Folder for the rehearsal's files; its disk is the one that is checked."
        ),
    ] = "rehearsals",
    allow_local_code: AllowCodeOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the changed keys and the plan of the small run; do nothing.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep model, checkpoints and export. Default: keep logs and figures only.")
    ] = False,
    format: FormatOption = OutputFormat.text,
) -> None:
    """Shrink a run to this machine and run all its phases: load, train, save, kill, resume, export.

    On accelerators the small run keeps the width, the sequence length and the settings of a rank, with fewer layers and
    ranks; on a CPU it has a smaller width, too. All changed keys are listed. Weights are random, records synthetic.
    Measured memory and time are compared with the plan of the small run, and extrapolated to the whole run.

    Exit codes: 0 all phases ran and the whole run fits by this estimate, 1 errors in the spec, or it does not fit,
    2 wrong usage, 4 this machine cannot run it, else the code of the phase that failed.

    Example: harness rehearse ds_configs/llama-3.1-70b-zero3-cpu-offload.yaml
    """
    checked = check_file(
        spec, overrides=overrides, hostfile=hostfile, world_size=world_size, allow_code=allow_local_code
    )
    run = exit_on_errors(checked, _NOTHING_WRITTEN)
    target = (Path(folder) / f"{run.name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    try:
        plan = plan_rehearsal(checked, run, target)
        if dry_run:
            _print_rehearsal(plan, RehearsalResult(), format)
            print(f"{_NOTHING_WRITTEN}.", file=sys.stderr)
            return
        prepare_rehearsal(plan)
    except UserError as refused:
        exit_refused(refused, _NOTHING_WRITTEN, checked.lines_of)
    result = rehearse_run(plan, lambda text: print(text, file=sys.stderr), allow_code=allow_local_code)
    body = view.rehearsal_as_json(plan, result)
    (target / "rehearsal.json").write_text(body + "\n", encoding="utf-8")
    _print_rehearsal(plan, result, format)
    if not keep:
        remove_large_files(target)
    print(f"Logs and figures: {target}", file=sys.stderr)
    exit_with(result.exit_code)


def _print_rehearsal(plan: RehearsalPlan, result: RehearsalResult, format: OutputFormat) -> None:
    if result.findings:
        print_findings(result.findings, None)
    if format is OutputFormat.json:
        print(view.rehearsal_as_json(plan, result))
    else:
        print(view.render_rehearsal(plan, result))
