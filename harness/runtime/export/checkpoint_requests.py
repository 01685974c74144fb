# SPDX-License-Identifier: Apache-2.0
"""The requests of `harness checkpoint import` and `convert`, as `workers/foreign_checkpoint_worker.py` gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.runtime.checkpoint.foreign.import_writer import ImportRequest, import_checkpoint
from harness.runtime.checkpoint.foreign.partial import write_partial
from harness.runtime.export.checkpoint_conversion import convert_checkpoint
from harness.runtime.patch_selection import check_usable
from harness.runtime.user_errors import user_error


def run_request(request: Mapping[str, Any], log: Callable[[str], None]) -> str:
    """Do it; returns the line to print. Raises UserError."""
    check_usable("torch-safe-globals")
    values = {key: value for key, value in request.items() if key != "action"}
    try:
        if request["action"] == "import":
            paths = {key: Path(values[key]) for key in ("tag", "folder", "run")}
            folder = import_checkpoint(ImportRequest(**{**values, **paths}), log)
            return f"imported into {folder}: each tensor has the hash of its source"
        if request["action"] == "partial":
            return write_partial(Path(values["tag"]), Path(values["out"]))
        return convert_checkpoint(Path(values["checkpoint"]), Path(values["out"]), values["to"], log)
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError when the disk is full
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise user_error(
            "CK121", f"the files could not be written: {reason}", fix="make room, or name another folder"
        ) from None
