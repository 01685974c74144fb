"""AT002: the optimizer, and what DeepSpeed has put around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    check_failed,
    check_passed,
    format_value,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations

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


def innermost_optimizer(optimizer: Any) -> Any:
    """The optimizer that computes, below DeepSpeed's wrappers."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer


def _observe(seen: Observations) -> Any:
    wrapper, base = seen.engine.optimizer, innermost_optimizer(seen.engine.optimizer)
    decoupled = getattr(base, "adam_w_mode", None)
    return {
        "wrapper": type(wrapper).__name__,
        "above": [kind.__name__ for kind in type(wrapper).__mro__],
        "base": type(base).__name__,
        "kinds": [kind.__name__ for kind in type(base).__mro__],
        "decoupled": None if decoupled is None else bool(decoupled),
        "decays": any(group.get("weight_decay") for group in base.param_groups),
    }


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    has = found[0]
    text = {key: has[key] for key in ("wrapper", "base")}
    for rank, other in enumerate(found):
        if (other["wrapper"], other["base"]) != (has["wrapper"], has["base"]):
            return check_failed(
                f"rank {rank} has {format_value(other['base'])} and rank 0 has {format_value(has['base'])}", text
            )
    bases = _BASE_CLASSES.get(asked.optimizer)
    if bases and not set(bases) & set(has["kinds"]):
        return check_failed(
            f"the optimizer is {format_value(has['base'])}, should be one of {format_value(bases)}", text
        )
    wrong = _find_decay_difference(asked, has)
    if wrong:
        return check_failed(wrong, text)
    if asked.zero_stage == 0:
        wanted = _HALF_PRECISION_WRAPPERS if asked.dtype != "float32" else (has["base"],)
    else:
        wanted = _WRAPPERS.get(asked.zero_stage, ()) if isinstance(asked.zero_stage, int) else ()
    if wanted and not set(wanted) & set(has["above"]):
        return check_failed(
            f"the optimizer is wrapped in {format_value(has['wrapper'])}, should be {format_value(wanted)}", text
        )
    return check_passed(text)


def _find_decay_difference(asked: ExpectedSettings, has: dict[str, Any]) -> str:
    """Adam's decay added to the gradient where AdamW was asked for, or the other way round."""
    if has["decoupled"] is None or not has["decays"] or asked.optimizer not in ("adam", "adamw"):
        return ""
    wanted = asked.optimizer == "adamw" or bool(asked.optimizer_params.get("adam_w_mode", True))
    if has["decoupled"] == wanted:
        return ""
    ways = {True: "apart from the gradient", False: "as a part of the gradient"}
    return f"weights decay {ways[has['decoupled']]}, should decay {ways[wanted]}"


CHECK = EngineCheck(
    id="AT002",
    name="another-optimizer",
    question="is it the optimizer that is asked for, in the wrapper of the stage and number format?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="optimizer.type",
    gates=("OP001", "OP002", "OF004"),
    fix="compare `optimizer` in `ds_config.json` with the spec, and render the JSON anew",
)
