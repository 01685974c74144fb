# SPDX-License-Identifier: Apache-2.0
"""The answer to a resume of a run that is complete."""

from __future__ import annotations

import json

from harness.launching.setup.launch_request import NOTHING_WRITTEN, RunComplete
from harness.verdicts import describe_verdict
from harness.views.launch import format_path


def render_complete(complete: RunComplete) -> str:
    """The answer to a resume of a complete run."""
    run_dir, verdict = format_path(complete.run_dir), complete.verdict
    first = f"already complete: {run_dir} {describe_verdict(verdict)} by this spec. {NOTHING_WRITTEN}."
    return (
        f"{first}\nNext: harness report {run_dir}, or harness export {run_dir} OUT. `--resume never` trains it again."
    )


def complete_as_json(complete: RunComplete) -> str:
    """The same for programs, with the fields of a launch that are known."""
    verdict = complete.verdict
    body = {"format_version": 1, "state": verdict.state, "exit_code": 0, "step": verdict.step}
    return json.dumps({**body, "already_complete": True, "run_dir": str(complete.run_dir)}, indent=2)
