"""What pydantic says of a DeepSpeed JSON -> the finding that says the same before the job."""

from __future__ import annotations

import re

_KIND = re.compile(r"\[type=(\w+), input_value=")
_WRONG_KIND = {
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
_MODELS = re.compile(
    r"validation errors? for (?:DeepSpeed\w*|\w*(?:TP|Compile|Comms|Hybrid|Monitor|Zen|Quant|Config)\w*)"
)


def refused_value(text: str) -> str | None:
    """The id of the finding; None where the line is no refusal of pydantic's. The line holds the whole message."""
    kinds = _KIND.findall(text)
    if not kinds or not _MODELS.search(text):
        return None
    kind = kinds[0]
    if kind == "value_error":
        return None  # its own words say more
    if kind == "enum":
        return "SP006" if re.search(r"input_type=(?:NoneType|float|bool|list|dict)", text) else "SP007"
    return next((id_ for id_, words in _WRONG_KIND.items() if kind in words), "SP006")
