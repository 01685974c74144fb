# SPDX-License-Identifier: Apache-2.0
"""`harness checkpoint inspect`: the answer about a checkpoint of any program, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

from harness.checkpoints.foreign.folder_reader import inspect_folder
from harness.checkpoints.foreign.inspection import lines_of
from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode


def print_inspection(folder: Path, format: OutputFormat) -> ExitCode:
    """Print it; FINDINGS where the checkpoint is not whole, or where there is none. Raises UserError."""
    found = inspect_folder(folder)
    print(json.dumps(found.to_json(), indent=2) if format is OutputFormat.json else "\n".join(lines_of(found)))
    return ExitCode.FINDINGS if found.is_whole is False else ExitCode.OK
