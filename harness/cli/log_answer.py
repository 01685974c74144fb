# SPDX-License-Identifier: Apache-2.0
"""The answer of `harness explain --log`: the diagnosis of a job's log, its decision, and the exit code; the
file that `--follow` reads, and the command of `--exec`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.cli.console import exit_with, log_to_stderr
from harness.cli.output_format import OutputFormat
from harness.diagnosis.decision import Decision
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix

if TYPE_CHECKING:
    from harness.diagnosis.diagnosis_types import Action, Diagnosis

_STDERR = 2
"""Of the command: standard output has the answer."""
_CODES: Mapping[Action, ExitCode] = {
    "retry": ExitCode.RETRY,
    "retry elsewhere": ExitCode.RETRY_ELSEWHERE,
    "change and retry": ExitCode.CHANGE_AND_RETRY,
    "stop": ExitCode.STOP,
}


def explain_log(
    names: list[str], format: OutputFormat, stall_seconds: float | None, command: str, *, redact: bool, decide: bool
) -> NoReturn:
    """Print it and end. `stall_seconds` is None for a log that is not followed, `command` that of `--exec`. Raises
    UserError.
    """
    from harness.check.log_opinion import review_config
    from harness.diagnosis.decision import decide_action
    from harness.diagnosis.run_diagnosis import diagnose_followed, diagnose_run
    from harness.views import log_diagnosis as view
    from harness.views.style import style_for

    try:
        followed = find_followed(names) if stall_seconds is not None else None
        diagnosis = diagnose_run(*names) if followed is None else diagnose_followed(followed, stall_seconds or 0.0)
    except OSError as error:
        fix = Fix("give a file that can be read, or `-` for standard input")
        message = f"the log `{error.filename or names[0]}` cannot be read: {error.strerror or error}"
        raise UserError([Finding("SP001", "error", message, fix=fix)], ExitCode.USAGE) from None
    except KeyboardInterrupt:
        exit_with(ExitCode.INTERRUPTED)
    decision, cause = decide_action(diagnosis), diagnosis.cause
    code = _CODES[decision.action] if decide and decision is not None else _exit_code_of(diagnosis)
    diagnosis, opinion = review_config(diagnosis, _folders_of(names))
    if redact:
        from harness.views.redaction import redact_answer

        diagnosis, opinion = redact_answer(diagnosis, opinion)
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    print(
        view.diagnosis_as_json(diagnosis, opinion)
        if format is OutputFormat.json
        else view.render_diagnosis(diagnosis, style_for(sys.stdout), width, opinion=opinion),
        flush=True,
    )
    if command and decision is not None:
        run_command(command, decision, cause)
    exit_with(code)


def _folders_of(logs: list[str]) -> list[Path]:
    """The folders whose files a log may name: the current one, and those of the logs."""
    paths = [Path(log) for log in logs if log != "-"]
    return list(dict.fromkeys([Path.cwd(), *(path if path.is_dir() else path.parent for path in paths)]))


def _exit_code_of(diagnosis: Diagnosis) -> ExitCode:
    if diagnosis.state in ("empty", "not text"):
        return ExitCode.USAGE
    if diagnosis.state == "failed":
        return ExitCode.FINDINGS if diagnosis.cause else ExitCode.UNKNOWN_CAUSE
    return ExitCode.NO_FAILURE_SEEN if diagnosis.state == "no failure seen" else ExitCode.OK


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
