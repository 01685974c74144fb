# SPDX-License-Identifier: Apache-2.0
"""The file that `explain --follow` reads, and the command of `--exec`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from harness.cli.console import log_to_stderr
from harness.diagnosis.decision import Decision
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix

_STDERR = 2
"""Of the command: standard output has the answer."""


def find_followed(names: list[str]) -> Path:
    """The one file to follow, also one that does not exist yet; of a run directory its launcher's log."""
    from harness.diagnosis.reader.log_files import find_logs

    if len(names) == 1 and names[0] != "-":
        path = Path(names[0])
        if path.is_file() or (not path.exists() and path.suffix and path.parent.is_dir()):
            return path
        logs = find_logs(names)
        if len(logs.files) == 1:
            return logs.files[0]
    fix = Fix("give one file, such as the output of the launcher, or one run")
    raise UserError([Finding("SP001", "error", "`--follow` follows one log", fix=fix)], ExitCode.USAGE)


def run_command(command: str, decision: Decision, cause: str) -> None:
    """Run the scheduler's command. Its exit code is said, and changes nothing."""
    variables = {
        "HARNESS_DECISION": decision.action,
        "HARNESS_CAUSE": cause,
        "HARNESS_HOSTS": ",".join(decision.hosts),
        "HARNESS_CHANGES": json.dumps(dict(decision.changes)),
    }
    done = subprocess.run(command, shell=True, env={**os.environ, **variables}, stdout=_STDERR, check=False)  # noqa: S602
    if done.returncode:
        log_to_stderr(f"the command of `--exec` ended with code {done.returncode}")
