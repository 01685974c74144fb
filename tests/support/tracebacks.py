# SPDX-License-Identifier: Apache-2.0
"""Tracebacks as ranks print them, and their diagnosis."""

from __future__ import annotations

import io
from typing import Any

from harness.diagnosis import Diagnosis, diagnose

SITE = "/opt/conda/lib/python3.11/site-packages"


def traceback_text(frames: list[tuple[str, str, str]], error: str, rank: int | None = None) -> str:
    """The lines of a traceback: (file below site-packages or absolute, function, code) of each frame."""
    lines = ["Traceback (most recent call last):"]
    for number, (file, function, code) in enumerate(frames, 1):
        path = file if file.startswith("/") else f"{SITE}/{file}"
        lines += [f'  File "{path}", line {number}, in {function}', f"    {code}"]
    prefix = "" if rank is None else f"[rank{rank}]: "
    return "".join(f"{prefix}{line}\n" for line in [*lines, error])


def diagnose_text(text: str | bytes, **more: Any) -> Diagnosis:
    """The diagnosis of a log with this text. `more` are arguments of `diagnose`."""
    return diagnose([io.BytesIO(text.encode() if isinstance(text, str) else text)], **more)
