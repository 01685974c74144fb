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


def _observe(observations: Observations) -> Any:
    groups = []
    trained = [p for p in observations.parameters.values() if p.requires_grad]
    has_matrix = any(len(getattr(p, "ds_shape", p.shape)) > 1 for p in trained)  # a pipeline stage may have none
    names = (*_SETTING_NAMES, "weight_decay") if has_matrix else _SETTING_NAMES
    for group in observations.engine.optimizer.param_groups:
        settings = {name: group[name] for name in names if name in group}
        groups.append({name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()})
    return groups


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    muon = expected.optimizer == "muon"  # one group of it steps with Adam, and has other numbers
    for groups in rank_values:
        for group in groups:
            for name in () if muon else _SETTING_NAMES:
                setting = _normalize(expected.optimizer_params.get(name))
                if setting is not None and name in group and _normalize(group[name]) != setting:
                    return check_failed(
                        f"`{name}` is {format_value(group[name])},"
                        f" should be {format_value(expected.optimizer_params[name])}",
                        group,
                    )
        decays = {float(group["weight_decay"]) for group in groups if "weight_decay" in group}
        setting = expected.optimizer_params.get("weight_decay")
        if isinstance(setting, (int, float)) and decays and not {float(setting)} <= decays <= {float(setting), 0.0}:
            return check_failed(
                f"weight decay is {format_value(sorted(decays))}, should be {format_value(float(setting))}",
                sorted(decays),
            )
    return check_passed(rank_values[0])


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
    fix="a checkpoint brings its own settings: resume with those it was saved with",
)
