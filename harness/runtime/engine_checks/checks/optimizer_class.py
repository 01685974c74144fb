# SPDX-License-Identifier: Apache-2.0
"""AT002: the class of the optimizer and of DeepSpeed's wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    check_failed,
    check_passed,
    format_value,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.engine_protocol import EngineOptimizer

_BASE_CLASSES = {
    "adam": ("FusedAdam", "DeepSpeedCPUAdam", "Adam", "AdamW"),
    "adamw": ("FusedAdam", "DeepSpeedCPUAdam", "AdamW"),
    "sgd": ("SGD",),
    "lion": ("FusedLion", "DeepSpeedCPULion"),
    "adagrad": ("Adagrad", "DeepSpeedCPUAdagrad"),
    "lamb": ("FusedLamb",),
    "muon": ("Muon", "MuonWithAuxAdam"),
}
_HALF_PRECISION_WRAPPERS = ("FP16_Optimizer", "FP16_UnfusedOptimizer", "BF16_Optimizer")
_WRAPPERS = {
    1: ("DeepSpeedZeroOptimizer", "BF16_Optimizer"),
    2: ("DeepSpeedZeroOptimizer",),
    3: ("DeepSpeedZeroOptimizer_Stage3",),
}


def innermost_optimizer(optimizer: EngineOptimizer) -> torch.optim.Optimizer:
    """The optimizer that computes, below DeepSpeed's wrappers."""
    inner: Any = optimizer
    while getattr(inner, "optimizer", None) is not None:
        inner = inner.optimizer
    return cast("torch.optim.Optimizer", inner)


def _observe(observations: Observations) -> Any:
    wrapper, base = observations.engine.optimizer, innermost_optimizer(observations.engine.optimizer)
    is_decoupled = getattr(base, "adam_w_mode", None)
    return {
        "wrapper": type(wrapper).__name__,
        "above": [kind.__name__ for kind in type(wrapper).__mro__],
        "base": type(base).__name__,
        "kinds": [kind.__name__ for kind in type(base).__mro__],
        "decoupled": None if is_decoupled is None else bool(is_decoupled),
        "decays": any(group.get("weight_decay") for group in base.param_groups),
    }


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    values = rank_values[0]
    text = {key: values[key] for key in ("wrapper", "base")}
    for rank, other_values in enumerate(rank_values):
        if (other_values["wrapper"], other_values["base"]) != (values["wrapper"], values["base"]):
            return check_failed(
                f"rank {rank} has {format_value(other_values['base'])} and rank 0 has {format_value(values['base'])}",
                text,
            )
    bases = _BASE_CLASSES.get(expected.optimizer)
    if bases and not set(bases) & set(values["kinds"]):
        return check_failed(
            f"the optimizer is {format_value(values['base'])}, should be one of {format_value(bases)}", text
        )
    difference = _find_decay_difference(expected, values)
    if difference:
        return check_failed(difference, text)
    wrappers: tuple[str, ...]
    if expected.zero_stage == 0:
        wrappers = _HALF_PRECISION_WRAPPERS if expected.dtype != "float32" else (values["base"],)
    else:
        wrappers = _WRAPPERS.get(expected.zero_stage, ()) if isinstance(expected.zero_stage, int) else ()
    if wrappers and not set(wrappers) & set(values["above"]):
        return check_failed(
            f"the optimizer is wrapped in {format_value(values['wrapper'])}, should be {format_value(wrappers)}", text
        )
    return check_passed(text)


def _find_decay_difference(expected: ExpectedSettings, values: dict[str, Any]) -> str:
    """Adam's decay in place of AdamW's, or the other way round."""
    if values["decoupled"] is None or not values["decays"] or expected.optimizer not in ("adam", "adamw"):
        return ""
    is_decoupled = expected.optimizer == "adamw" or bool(expected.optimizer_params.get("adam_w_mode", True))
    if values["decoupled"] == is_decoupled:
        return ""
    ways = {True: "apart from the gradient", False: "as a part of the gradient"}
    return f"weights decay {ways[values['decoupled']]}, should decay {ways[is_decoupled]}"


CHECK = EngineCheck(
    id="AT002",
    name="another-optimizer",
    question="is it the optimizer of the spec, in the wrapper of the stage and number format?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="optimizer.type",
    gates=("OP001", "OP002", "OF004"),
    fix="compare `optimizer` in `ds_config.json` with the spec, and render the JSON again",
)
