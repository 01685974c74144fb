# SPDX-License-Identifier: Apache-2.0
"""Options of `harness simulate`, for typer. Nothing here looks at a value."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.completion import complete_run
from harness.cli.options import option_of

_panel_option = option_of("Simulation")
SimulateOption = Annotated[
    bool,
    _panel_option(
        "--simulate",
        help="Run DeepSpeed's engine at full size on a simulated GPU, and show bytes and time next to the plan's.",
    ),
]
RacesOption = Annotated[bool, _panel_option("--races", help="Find unordered accesses.")]
RankOption = Annotated[int | None, _panel_option("--rank", metavar="N", help="The rank. Default: 0.")]
LayersOption = Annotated[
    int | None, _panel_option("--layers", metavar="K", help="K layers and half as many, extrapolated to the model's.")
]
TraceOption = Annotated[
    str | None,
    _panel_option(
        "--trace",
        metavar="FILE",
        help="Write a step's kernels, collectives, copies and disk traffic for Perfetto (JSON).",
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
