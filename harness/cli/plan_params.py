# SPDX-License-Identifier: Apache-2.0
"""`harness size --params COUNT`: model states and traffic of a bare count of parameters; `--network`, `--gradients`."""

from __future__ import annotations

import json
from typing import Any

from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode, UserError
from harness.plan.degrees.degrees_request import validate_choice
from harness.plan.plan_usage import check_stage_and_price, parse_count_option, usage_error
from harness.plan.search.bare_count import count_model_states
from harness.plan.time.rates import parse_rate
from harness.views import plan_params as view

_GRADIENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def print_bare_count(own: dict[str, Any], values: dict[str, Any]) -> None:
    """Raises UserError for a count, a rate or a kind of GPU that does not exist."""
    check_stage_and_price(values["zero_stage"], None)
    states = count_model_states(
        parse_count_option("--params", values["params"]),
        1 if values["gpus"] is None else values["gpus"],
        values["zero_stage"],
        values["gpu"],
        parse_gradients(own["gradients"]) or 2,
        parse_network(own["network"]),
    )
    is_json = values["format"] is OutputFormat.json
    print(json.dumps(view.model_states_as_dict(states), indent=2) if is_json else view.render_model_states(states))


def parse_gradients(word: str | None) -> int | None:
    """Bytes of a gradient between ranks; None where the option is not given. Raises UserError for another word."""
    if word is None:
        return None
    if findings := validate_choice("--gradients", word, tuple(_GRADIENT_BYTES)):
        raise UserError(findings, ExitCode.USAGE)
    return _GRADIENT_BYTES[word]


def parse_network(text: str | None) -> float | None:
    """Bytes a second; None where the option is not given. Raises UserError for a text that is no rate."""
    if text is None:
        return None
    try:
        return parse_rate(text)
    except ValueError as error:
        raise usage_error(f"`--network`: {error}", "write a rate such as `50GB/s` or `400Gb/s`") from None
