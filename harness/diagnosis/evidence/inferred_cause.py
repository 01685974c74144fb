# SPDX-License-Identifier: Apache-2.0
"""A cause that follows from where an exception was raised or from what it demands, whatever its words: a release of
a package that is required, a kind of Python's exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from harness.diagnosis.diagnosis_types import LogEvent
from harness.diagnosis.evidence.missing_ranks import describe_mismatch
from harness.diagnosis.evidence.python_errors import InferredCause, infer_kind

_TIMEOUT_CAUSE = "LG070"
_MAX_CHARS = 1024
_REQUIREMENT = re.compile(
    r"(?<![\w./-])`{0,2}(?P<name>(?!python_?version)[A-Za-z][\w.-]{1,40}?)(?:\[[\w,]+\])?(?: version)? ?"
    r"(?P<spec>(?:[<>]=?|==|~=) ?v?\d+(?:\.\w+)*(?:, ?[<>!=~]+ ?v?\d+(?:\.\w+)*)*)"
)
_DEMANDS = re.compile(
    r"\b(?:requires?|required|needs?|only (?:supported|available|works)|minimum|at least|install|(?:up|down)grade)\b",
    re.IGNORECASE,
)
_EXCEPTION_NAME = re.compile(r"^(?:[\w.]+\.)?(?P<name>\w+(?:Error|Exception|Conflict|NotFound)): ")


def name_cause(first: LogEvent, events: Sequence[LogEvent], text: bytes = b"") -> LogEvent:
    """The event with the cause that follows; itself where a message has named it, or nothing follows. `text`: the
    starts and the ends of all logs.
    """
    if first.cause == _TIMEOUT_CAUSE and (mismatch := describe_mismatch(events)):
        return replace(first, cause="LG071", title=mismatch, change="")
    rules = _RULES if not first.cause else (infer_kind,)
    found = (rule(first, text) for rule in rules)
    inferred = next((cause for cause in found if cause is not None), None)
    return replace(first, **inferred._asdict()) if inferred is not None else first


def find_requirement(text: str) -> tuple[str, str]:
    """(package, releases) that a message demands, such as `torch` and `>=2.5`; empty texts where it demands none."""
    matches = list(_REQUIREMENT.finditer(text)) if _DEMANDS.search(text) else []
    wanted = [match for match in matches if not match["spec"].startswith("==")] or matches
    if not wanted:
        return "", ""
    name = re.sub("(?i)^pytorch$", "torch", wanted[0]["name"])
    return name, wanted[0]["spec"].replace(" ", "")


def _infer_requirement(event: LogEvent, _: bytes) -> InferredCause | None:
    text = event.text[:_MAX_CHARS]
    name, releases = find_requirement(text)
    if not name or not _EXCEPTION_NAME.match(text):
        return None
    return InferredCause(
        "LG227",
        f"`{name}{releases}` is required, and another release is installed",
        f'`pip install "{name}{releases}"` on every host, or a release of the package that asks for it which takes the '
        "installed one",
        sure=bool(re.search(r"but (?:found|\w+ is installed)", text)),
    )


_RULES = (_infer_requirement, infer_kind)
