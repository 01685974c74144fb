# SPDX-License-Identifier: Apache-2.0
"""The events that `op_builder.py` prints, one JSON object per line: parses them and passes them to the observer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.facts.required_ops import COMPILE_SECONDS
from harness.file_io import parse_json
from harness.findings import Finding
from harness.launching.setup.launch_context import LaunchObserver
from harness.planted_files import PlantedFile

_EVENT_START = b'{"event"'
_MAX_EVENT = 1 << 16
_DEFAULT_COMPILE_SECONDS = 60


@dataclass(slots=True)
class BuildProgress:
    """The progress of one builder. `host` is empty for this machine; `op` is the op that compiles now."""

    host: str = ""
    op: str = ""
    failed_op: str | None = None
    error: str = ""
    """The first line of the failed op's exception."""
    is_compiled: bool = False
    """A library of the op was there before."""
    planted: PlantedFile | None = None
    """A file that another user may have written; the builder then loads nothing."""
    unwritable: str = ""
    """Why the folder of the ops cannot be written."""
    refused: list[Finding] = field(default_factory=list)
    """What the model's own code answered, for which nothing is compiled."""
    _start: float = 0.0
    _rest: bytes = b""

    def feed(self, chunk: bytes, observer: LaunchObserver) -> None:
        """Handle the events in the next bytes of the builder's output."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._rest = self._rest[-_MAX_EVENT:]
        for line in lines:
            if line.startswith(_EVENT_START):
                with contextlib.suppress(
                    ValueError, KeyError, TypeError, AttributeError
                ):  # another host may send anything
                    self._handle(parse_json(line), observer)

    def report(self, observer: LaunchObserver) -> None:
        """Report to the observer how long the op has been compiling."""
        if self.op:
            expected = None if self.is_compiled else COMPILE_SECONDS.get(self.op, _DEFAULT_COMPILE_SECONDS)
            observer.on_op_build(self._label, time.monotonic() - self._start, expected)

    @property
    def _label(self) -> str:
        return f"{self.op} on {self.host}" if self.host else self.op

    def _handle(self, event: Mapping[str, Any], observer: LaunchObserver) -> None:
        match event.get("event"):
            case "start":
                self.op, self._start = str(event["op"]), time.monotonic()
                self.is_compiled = bool(event.get("compiled"))
            case "done" | "skipped":  # of a skipped op, the ranks say so
                if event.get("compiled"):
                    observer.on_op_built(self._label, time.monotonic() - self._start)
                self.op = ""
            case "failed":
                self.failed_op, self.op = str(event["op"]), ""
                self.error = next(iter(str(event.get("error", "")).strip().splitlines()), "")
            case "planted":
                reason, account = str(event["reason"]), str(event["account"])
                self.planted = PlantedFile(Path(str(event["file"])), reason, account)
            case "unwritable":
                self.unwritable = str(event["reason"])
            case "refused":
                self.refused = [*map(Finding.from_json, event["findings"])]
            case "lock":
                on_lock = observer.on_lock_removed if event.get("removed") else observer.on_lock_kept
                on_lock(Path(str(event["file"])), self.host)
            case "unloadable":
                self.is_compiled = False
                observer.on_op_unloadable(str(event["op"]), str(event.get("error", "")), self.host)
