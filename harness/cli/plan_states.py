# SPDX-License-Identifier: Apache-2.0
"""`harness size --table`, `--non-state-peak` and `--params`: tables of model states and their traffic; `--network`,
`--gradients`.
"""

from __future__ import annotations

import json
from typing import Any

from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode, UserError
from harness.facts.model_lookup import find_model
from harness.findings import Finding, Fix
from harness.plan.degrees.degrees_request import CHOICES, validate_choice
from harness.plan.plan_usage import check_stage, parse_count_option, unknown_model, usage_error
from harness.plan.search.bare_count import count_model_states
from harness.plan.search.state_tables import (
    GPU_COUNTS,
    MODEL_SIZES,
    OTHER_OPTIMIZERS,
    RECIPES,
    tabulate_peak,
    tabulate_states,
)
from harness.plan.time.rates import parse_rate
from harness.units import parse_bytes
from harness.views import plan_states as view

_GRADIENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_STATES = {"momentum": "one state", "none": "no state"}
STATES_MODES = ("--table", "--non-state-peak")


def print_states(own: dict[str, Any], values: dict[str, Any]) -> None:
    """Raises UserError where an option is missing or is no size."""
    check_stage(values["zero_stage"])
    is_json = values["format"] is OutputFormat.json
    recipe, size = _find_recipe(own), _find_size(values)
    if own["non_state_peak"] is None:
        counts = GPU_COUNTS if values["gpus"] is None else (values["gpus"],)
        recipes = RECIPES if recipe is None else {recipe: {**RECIPES, **OTHER_OPTIMIZERS}[recipe]}
        rows = tabulate_states(MODEL_SIZES if size is None else dict([size]), counts, recipes)
        print(view.states_table_as_json(rows) if is_json else view.render_states_table(rows))
        return
    if size is None or values["gpu"] is None:
        example = "harness size --params 70e9 --gpu H100-80GB --non-state-peak 22GB"
        raise usage_error("a measured peak needs `--params` or `--model`, and `--gpu`", f"try `{example}`")
    try:
        peak = parse_bytes(own["non_state_peak"])
    except ValueError as error:
        raise usage_error(f"`--non-state-peak`: {error}", "write a size such as `22GB`") from None
    table = tabulate_peak(size[1], recipe or "mixed", values["gpu"], peak, values["gpus"], values["gpus_per_node"])
    print(view.peak_table_as_json(table) if is_json else view.render_peak_table(table))


def _find_recipe(own: dict[str, Any]) -> str | None:
    """The recipe of `--precision` and `--states`, None where neither is given."""
    precision, states = own["precision"], own["states"]
    if precision is None and states is None:
        return None
    findings = validate_choice("--precision", precision or "bf16", CHOICES["--precision"])
    findings += validate_choice("--states", states or "fp32", ("fp32", "int8", *_STATES))
    if not findings and (precision == "fp8" or (precision == "fp32" and states == "int8")):
        message = f"the tables of states have no recipe with {precision} and states in {states or 'fp32'}"
        findings.append(Finding("MM007", "error", message, fix=Fix("choose fp32, or bf16 with states in fp32 or int8")))
    if findings:
        raise UserError(findings, ExitCode.USAGE)
    if states in _STATES:
        return f"{'fp32' if precision == 'fp32' else 'mixed'}, {_STATES[states]}"
    if precision == "fp32":
        return "fp32"
    return "mixed, 8-bit states" if states == "int8" else "mixed"


def _find_size(values: dict[str, Any]) -> tuple[str, float] | None:
    """The name and the parameters of `--params` or of `--model`; None without either."""
    if values["params"] is not None:
        return values["params"], parse_count_option("--params", values["params"])
    if values["model"] is None:
        return None
    lookup = find_model(values["model"], by_name=True)
    if lookup.facts is None:
        raise UserError([unknown_model(lookup.why_not)], ExitCode.USAGE)
    return values["model"], float(lookup.facts.num_parameters)


def print_bare_count(own: dict[str, Any], values: dict[str, Any]) -> None:
    """Raises UserError for a count, a rate or a kind of GPU that does not exist."""
    check_stage(values["zero_stage"])
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
