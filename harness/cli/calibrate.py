# SPDX-License-Identifier: Apache-2.0
"""`harness calibrate`: the constants of the plan, from runs of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.completion import complete_run
from harness.cli.plan_commands import make_command

NO_ARGS_IS_HELP = True
_TEXT = """Fit the constants of the plan to the step times and peaks of runs of this machine. `harness plan` uses them
from then on.

Example: harness calibrate latest
"""
_RUNS = typer.Argument(
    metavar="RUN...", help="Runs: folders, names, or `latest`.", show_default=False, autocompletion=complete_run
)

calibrate = make_command(
    "calibrate", _TEXT, "calibrate calibration format", arguments={"calibrate": Annotated[list[str], _RUNS]}
)
