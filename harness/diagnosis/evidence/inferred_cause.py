# SPDX-License-Identifier: Apache-2.0
"""A cause that follows from where an exception was raised, from its kind, or from what several ranks say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.diagnosis.diagnosis_types import LogEvent
from harness.diagnosis.evidence.missing_ranks import describe_mismatch
from harness.diagnosis.evidence.python_errors import infer_kind

_TIMEOUT_CAUSE = "LG070"


def name_cause(first: LogEvent, events: Sequence[LogEvent], text: bytes = b"") -> LogEvent:
    """The event with the cause that follows; itself where a message has named it, or nothing follows. `text`: the
    starts and the ends of all logs.
    """
    if first.cause == _TIMEOUT_CAUSE and (mismatch := describe_mismatch(events)):
        return replace(first, cause="LG071", title=mismatch, change="")
    inferred = infer_kind(first, text)
    return replace(first, **inferred._asdict()) if inferred is not None else first
