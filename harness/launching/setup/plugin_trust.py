# SPDX-License-Identifier: Apache-2.0
"""Trust in the user's own code (`plugins.file`): a launch runs it only if allowed, and only these bytes.

Gate SE008 judges code that `launch.env` chooses.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.file_io import read_regular
from harness.findings import Finding, Fix
from harness.hostinfo.path_probe import answer_in_time
from harness.spec.parse.source import MAX_BYTES


def verify_plugin_allowed(file: str | None, folder: Path, *, allow_local_code: bool) -> str | None:
    """The sha256 of `plugins.file`, relative to `folder`; None where the spec names no code.

    Raises UserError (MD157 not allowed, MD158 unreadable).
    """
    if file is None:
        return None
    try:
        code = answer_in_time(folder / file, lambda: read_regular(folder / file, MAX_BYTES))
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        message = f"`{file}` cannot be read: {reason}"
        raise UserError(
            [Finding("MD158", "error", message, key="plugins.file", fix=Fix("name a Python file"))]
        ) from None
    if not allow_local_code:
        finding = Finding(
            "MD157",
            "error",
            f"`{file}` is code, and running it was not allowed",
            key="plugins.file",
            notes=("it would run with all your rights, on every host",),
            fix=Fix("read the file, then start with `harness launch --allow-local-code`"),
        )
        raise UserError([finding], ExitCode.FINDINGS)
    return hashlib.sha256(code).hexdigest()
