# SPDX-License-Identifier: Apache-2.0
"""Options of `harness simulate`, for typer. Nothing here looks at a value."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.completion import complete_run

_PANEL = "Simulation"
SimulateOption = Annotated[
    bool,
    typer.Option(
        "--simulate",
        help="Run DeepSpeed's engine at full size on a simulated GPU, and show bytes and time next to the plan's.",
        rich_help_panel=_PANEL,
    ),
]
RacesOption = Annotated[bool, typer.Option("--races", help="Find unordered accesses.", rich_help_panel=_PANEL)]
RankOption = Annotated[
    int | None,
    typer.Option("--rank", metavar="N", help="The rank. Default: 0.", rich_help_panel=_PANEL),
]
LayersOption = Annotated[
    int | None,
    typer.Option(
        "--layers",
        metavar="K",
        help="K layers and half as many, extrapolated to the model's.",
        rich_help_panel=_PANEL,
    ),
]
TraceOption = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write a step's kernels, collectives, copies and disk traffic for Perfetto (JSON).",
        rich_help_panel=_PANEL,
    ),
]
CalibrateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--calibrate",
        metavar="RUN",
        help="Instead of planning, fit this machine's constants to the step times and peaks of a run. Repeatable.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
CalibrationOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="FILE",
        help="The file of calibrations. Default: your own, which `harness calibrate` writes and a plan reads.",
    ),
]
