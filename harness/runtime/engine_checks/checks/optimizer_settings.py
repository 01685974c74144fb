# SPDX-License-Identifier: Apache-2.0
"""AT014: the optimizer's hyperparameters, also after a resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

_SETTING_NAMES = ("betas", "eps", "momentum")
_CYCLED_NAMES = frozenset(("betas", "momentum"))
_FROM_CHECKPOINT = "a checkpoint was loaded, and brings its own settings: resume with those it was saved with"


def _observe(observations: Observations) -> Any:
    groups: list[dict[str, Any]] = []
    trained = [p for p in observations.parameters.values() if p.requires_grad]
    has_matrix = any(len(getattr(p, "ds_shape", p.shape)) > 1 for p in trained)  # a pipeline stage may have none
    names = (*_SETTING_NAMES, "weight_decay") if has_matrix else _SETTING_NAMES
    for group in observations.engine.optimizer.param_groups:
        cycled = _CYCLED_NAMES if _is_momentum_cycled(observations.engine, group) else frozenset()
        settings = {name: group[name] for name in names if name in group and name not in cycled}
        groups.append({name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()})
    return {"groups": groups, "loaded": int(observations.engine.global_steps) > 0}


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    notes = (_FROM_CHECKPOINT,) if rank_values[0]["loaded"] else ()
    for values in rank_values:
        groups = values["groups"]
        for group in groups:
            text = _find_difference(expected, group)
            if text is not None:
                return check_failed(text, group, *notes)
        decays = {float(group["weight_decay"]) for group in groups if "weight_decay" in group}
        setting = expected.optimizer_params.get("weight_decay")
        if isinstance(setting, (int, float)) and decays and not {float(setting)} <= decays <= {float(setting), 0.0}:
            return check_failed(
                f"weight decay is {format_value(sorted(decays))}, should be {format_value(float(setting))}",
                sorted(decays),
                *notes,
            )
    return check_passed(rank_values[0]["groups"])


def _is_momentum_cycled(engine: Any, group: Mapping[str, Any]) -> bool:
    """Does a scheduler set betas or momentum? DeepSpeed's `OneCycle` does; torch's leave their limits in the group."""
    return bool(getattr(engine.lr_scheduler, "cycle_momentum", False)) or "max_momentum" in group


def _find_difference(expected: ExpectedSettings, group: Mapping[str, Any]) -> str | None:
    """What a group has other than the spec says; None where it agrees."""
    if expected.optimizer == "muon":
        return None  # one group of it steps with Adam, and has other numbers
    for name in _SETTING_NAMES:
        value, setting = group.get(name), _normalize(expected.optimizer_params.get(name))
        if setting is not None and name in group and _normalize(value) != setting:
            return f"`{name}` is {_to_text(value)}, should be {_to_text(setting)}"
    return None


def _to_text(value: Any) -> str:
    return f"{value}" if isinstance(value, list) else format_value(value)  # a pair has an order


def _normalize(value: Any) -> Any:
    if isinstance(value, Mapping) or value is None:
        return None
    return [float(v) for v in value] if isinstance(value, (list, tuple)) else value


CHECK = EngineCheck(
    id="AT014",
    name="other-optimizer-settings",
    question="does the optimizer have the decay, betas and epsilon of the spec, also after a resume?",
    moment="begun",
    observe=_observe,
    evaluate=_evaluate,
    key="optimizer",
    gates=("OP005",),
    fix="give the engine the settings of the spec",
)
