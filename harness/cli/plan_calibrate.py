# SPDX-License-Identifier: Apache-2.0
"""`harness calibrate RUN` and `--calibration FILE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.check.run_calibration import measure_run
from harness.plan.plan_usage import usage_error
from harness.plan.planner import Plan
from harness.plan.time.calibration_file import Calibrations, add_runs, calibration_path
from harness.run_records.run_list import find_run_dir
from harness.views.plan_calibration import calibrations_as_dict, render_calibrations


def calibrate_by_runs(runs: Sequence[str], file: str | None) -> tuple[str, Mapping[str, Any]]:
    """Add runs to the file of calibrations, the user's own unless one is named. Text and JSON. Raises UserError."""
    measured = [measure_run(find_run_dir(run)) for run in runs]
    path = calibration_path() if file is None else Path(file)
    changed = add_runs(path, measured, datetime.now(UTC).date().isoformat())
    return render_calibrations(path, changed), calibrations_as_dict(path, changed)


def require_calibration(plan: Plan, calibrations: Calibrations) -> None:
    """Raises UserError where the user named a calibration that is not of the plan's machine."""
    if not calibrations.explicit or plan.calibration is not None:
        return
    reason = plan.calibration_note or "no time is planned for this run"
    fix = "calibrate by a run on such a machine, or leave `--calibration` out"
    raise usage_error(f"`{calibrations.path}` is not of the machine of this plan: {reason}", fix)
