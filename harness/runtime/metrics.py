"""`metrics.jsonl`: one JSON object a line, from rank 0, written at once, so that a killed run keeps what it has said.

What is in a line is in `harness.facts.metrics_schema`; nothing is measured here.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from harness.facts.metrics_schema import SCHEMA_VERSION as FORMAT_VERSION
from harness.runtime.telemetry.step_timer import StepTimer

__all__ = ["FORMAT_VERSION", "MetricsWriter", "StepTimer"]


class MetricsWriter:
    """The file. On ranks other than 0 (`path` None) it swallows what it is told."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("ab", buffering=0) if path else None
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []
        """Called with each line once it is written. None of them may raise or take long."""
        self.close_callbacks: list[Callable[[], None]] = []
        """Called when nothing more will be written but what they write themselves."""
        self._started_at = time.monotonic()

    @property
    def is_writer(self) -> bool:
        """False on the ranks that write nothing."""
        return self._file is not None

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line `{"type": kind, ...}`; fields that are None are left out, and a value that is not finite is
        null, since JSON has no NaN.
        """
        if kind == "run":
            self._started_at = time.monotonic()
        if self._file:
            body = {"type": kind, **{k: v for k, v in fields.items() if v is not None}, "time": round(time.time(), 3)}
            self._file.write(_encode_line(body) + b"\n")
            if self.listeners:
                body = {k: _finite_or_none(v) for k, v in body.items()}
            for listener in self.listeners:
                listener(body)

    @property
    def elapsed_seconds(self) -> float:
        """Since the line `run`."""
        return round(time.monotonic() - self._started_at, 3)

    def close(self) -> None:
        """Nothing more will be written."""
        for closer in self.close_callbacks:
            closer()
        self.close_callbacks.clear()
        if self._file:
            self._file.close()


def _encode_line(body: Mapping[str, Any]) -> bytes:
    """One line of JSON, five times as quick as `json` writes it. A text that is no UTF-8 is written with escapes."""
    try:
        return to_json(body, inf_nan_mode="null")
    except PydanticSerializationError:
        return json.dumps(body).encode()


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
