# SPDX-License-Identifier: Apache-2.0
"""Pydantic's error about a DeepSpeed JSON -> the finding that reports the same before the job."""

from __future__ import annotations

import re

_ERROR_TYPE = re.compile(r"\[type=(\w+), input_value=")
_ERROR_TYPES_BY_FINDING = {
    "SP005": {"extra_forbidden"},
    "SP007": {
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
        "literal_error",
        "string_too_short",
        "finite_number",
    },
    "SP008": {"missing"},
}
_DEEPSPEED_MODELS = re.compile(
    r"validation errors? for (?:DeepSpeed\w*|\w*(?:TP|Compile|Comms|Hybrid|Monitor|Zen|Quant|Config)\w*)"
)


def match_pydantic_error(text: str) -> str | None:
    """The id of the finding; None where the line is no error of pydantic. The line holds the whole message."""
    types = _ERROR_TYPE.findall(text)
    if not types or not _DEEPSPEED_MODELS.search(text):
        return None
    error_type = types[0]
    if error_type == "value_error":
        return None  # its message says more
    if error_type == "enum":
        return "SP006" if re.search(r"input_type=(?:NoneType|float|bool|list|dict)", text) else "SP007"
    return next((id_ for id_, error_types in _ERROR_TYPES_BY_FINDING.items() if error_type in error_types), "SP006")
