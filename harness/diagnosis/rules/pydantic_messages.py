# SPDX-License-Identifier: Apache-2.0
"""Pydantic's error about a DeepSpeed JSON -> the finding that reports the same fault before the job."""

from __future__ import annotations

import re

_ERROR_TYPE = re.compile(r"\[type=(\w+), input_value=")
_FIRST_IS_AUTO = re.compile(r"^[^\[]*\[type=\w+, input_value='auto'")
"""The first error is about a value that only a program around DeepSpeed fills in."""
_OF_A_VALUE = re.compile(r"(?:greater|less)_than(?:_equal)?|literal_error|string_too_short|finite_number")
_FINDINGS = (("SP005", re.compile("extra_forbidden")), ("SP007", _OF_A_VALUE), ("SP008", re.compile("missing")))
_DEEPSPEED_MODELS = re.compile(
    r"validation errors? for (?:DeepSpeed\w*|\w*(?:TP|Compile|Comms|Hybrid|Monitor|Zen|Quant|Config)\w*)"
)


def match_pydantic_error(text: str) -> str | None:
    """The id of the finding; None where the line is no error of pydantic. The line holds the whole message."""
    types = _ERROR_TYPE.findall(text)
    if not types or not _DEEPSPEED_MODELS.search(text):
        return None
    if _FIRST_IS_AUTO.search(text):
        return "HF003"
    error_type = types[0]
    if error_type in ("value_error", "int_from_float"):
        return None  # its message says more
    if error_type == "enum":
        return "SP006" if re.search(r"input_type=(?:NoneType|float|bool|list|dict)", text) else "SP007"
    return next((id_ for id_, pattern in _FINDINGS if pattern.fullmatch(error_type)), "SP006")


_EXTRA = re.compile(r"\| (?P<key>[\w.]+) \|[^\[|]*\[type=extra_forbidden")
_MODEL = re.compile(r"validation errors? for (?:DeepSpeed)?(?P<model>\w+?)(?:Config)? \|")
_BLOCKS = {
    "Zero": "zero_optimization",
    "ZeroOffloadOptimizer": "offload_optimizer",
    "ZeroOffloadParam": "offload_param",
}
"""Blocks that are not named as pydantic's class, in lower case."""


def describe_pydantic_error(text: str) -> tuple[str, str]:
    """(title, change) where the message says more than its finding; else empty texts."""
    if (keys := _EXTRA.findall(text)) and (model := _MODEL.search(text)):
        block = _BLOCKS.get(model["model"], model["model"].lower())
        names = " and ".join(f"`{block}.{key}`" for key in dict.fromkeys(keys))
        return (
            f"the installed DeepSpeed knows no {names}",
            f"remove {names} from the DeepSpeed JSON, or move it to the block that has it; `harness validate-config` "
            "names the block, and a release of DeepSpeed that knows it",
        )
    return "", ""
