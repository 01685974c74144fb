# SPDX-License-Identifier: Apache-2.0
"""The output folder of a command."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix


def make_output_folder(path: Path, owner: str) -> Path:
    """Make the folder that `--folder` has named for the `owner`; its absolute path. Raises UserError (EN011)."""
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the folder `{path}` of the {owner} cannot be created: {(error.strerror or str(error)).lower()}"
        fix = Fix("name a writable folder with `--folder`")
        raise UserError([Finding("EN011", "error", message, fix=fix)], ExitCode.USAGE) from None
    return path
