"""Starts `launch/data.py`, which prepares a run's data, and reads what it says. Knows nothing of tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.launching.hosts.local_host import scripts_folder
from harness.plan.resolved_run import ResolvedRun

_REQUIRED_PACKAGES = ("torch", "transformers", "datasets", "numpy")


def preview_data(run: ResolvedRun, examples: int) -> dict[str, Any]:
    """What the program found. Raises Refused with its findings, or where it cannot be started."""
    missing = [name for name in _REQUIRED_PACKAGES if machine.package_version(name) is None]
    if missing:
        names = " and ".join(f"`{name}`" for name in missing)
        fix = Fix("install the training extra there: pip install 'deepspeed-harness[train]'")
        raise UserError(
            [Finding("EN002", "error", f"{names} cannot be found by {sys.executable}", fix=fix)], ExitCode.PREFLIGHT
        )
    with tempfile.TemporaryDirectory(prefix="harness-data-") as folder:
        file = Path(folder) / "spec.resolved.json"
        file.write_text(json.dumps(run.to_json()), encoding="utf-8")
        command = [sys.executable, str(scripts_folder() / "data.py"), "--run", str(file), "--examples", str(examples)]
        kind = "bar" if sys.stderr.isatty() else "plain"
        done = subprocess.run(  # noqa: S603
            command, env={**os.environ, "HARNESS_PROGRESS": kind}, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(f"the program that prepares data ended with code {done.returncode}")
    body: dict[str, Any] = json.loads(done.stdout)
    if "refused" in body:
        raise UserError([_to_finding(entry) for entry in body["refused"]], ExitCode.FINDINGS)
    return body


def _to_finding(body: dict[str, Any]) -> Finding:
    fix = Fix(body["fix"]["title"]) if body["fix"] else None
    return Finding(
        body["gate"], body["severity"], body["message"], key=body["key"], notes=tuple(body["notes"]), fix=fix
    )
