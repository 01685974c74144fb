# SPDX-License-Identifier: Apache-2.0
"""Runs `preview_worker.py`, which prepares a run's data, and reads its answer. Does no tokenization itself."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, UserError
from harness.findings import Finding
from harness.hostinfo.hub_access import is_hub_unreachable
from harness.hostinfo.training_packages import missing_packages_finding
from harness.interpreter import python_command
from harness.launching.hosts.local_host import workers_folder
from harness.launching.process.child_process import read_child_answer
from harness.launching.setup.code_trust import AllowedCode
from harness.launching.setup.environment import ALLOWED_CODE_VARIABLE
from harness.run.resolved_run import ResolvedRun
from harness.spec.named_paths import is_hub_name

_REQUIRED_PACKAGES = ("torch", "transformers", "datasets", "numpy")


def preview_data(run: ResolvedRun, examples: int, log: Callable[[str], None], allowed: AllowedCode) -> dict[str, Any]:
    """The preview of a run's data. Raises UserError with its findings, or where the worker cannot be started."""
    missing = missing_packages_finding(_REQUIRED_PACKAGES)
    if missing is not None:
        raise UserError([missing], ExitCode.PREFLIGHT)
    with tempfile.TemporaryDirectory(prefix="harness-data-") as folder:
        file = Path(folder) / "spec.resolved.json"
        file.write_text(json.dumps(run.to_json()), encoding="utf-8")
        worker = str(workers_folder() / "preview_worker.py")
        command = python_command(worker, "--run", str(file), "--examples", str(examples))
        variables = {"HARNESS_PROGRESS": "bar" if sys.stderr.isatty() else "plain"}
        if allowed.plugin_sha256 is not None:
            variables[ALLOWED_CODE_VARIABLE] = allowed.plugin_sha256
        names = _names_on_hub(run)
        if names and is_hub_unreachable():
            log(f"the Hub cannot be reached; of {', '.join(names)} only what is cached is used")
            variables["HF_HUB_OFFLINE"] = "1"
        answer = read_child_answer(command, variables, stderr=None)
    if answer.code or answer.body is None:
        raise RuntimeError(f"data preparation ended with code {answer.code}")
    if "refused" in answer.body:
        raise UserError([*map(Finding.from_json, answer.body["refused"])], ExitCode.FINDINGS)
    return answer.body


def _names_on_hub(run: ResolvedRun) -> list[str]:
    """Names of the tokenizer and the data that are no files here."""
    spec = run.spec
    sources = [source.path for source in (*(spec.data.train or ()), *(spec.data.eval or ()))]
    names = [spec.model.tokenizer or spec.model.name_or_path, *sources]
    return [name for name in names if name and "/" in name and is_hub_name(name) and not Path(name).exists()]
