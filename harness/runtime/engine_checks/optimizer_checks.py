# SPDX-License-Identifier: Apache-2.0
"""Engine checks of the optimizer: its class, device, settings, and that it starts new or resumed as asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from deepspeed.accelerator import get_accelerator

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    check_failed,
    check_passed,
    engine_check,
    format_ranks,
    format_value,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import master_weights
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


def _observe_optimizer_class(observations: Observations) -> Any:
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


def _evaluate_optimizer_class(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
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


OPTIMIZER_CLASS = engine_check("AT002", _observe_optimizer_class, _evaluate_optimizer_class)


def _observe_optimizer_device(observations: Observations) -> Any:
    optimizer = observations.engine.optimizer
    device = (
        "cpu" if getattr(optimizer, "offload_optimizer", False) or getattr(optimizer, "cpu_offload", False) else "none"
    )
    return {
        "place": "nvme" if getattr(optimizer, "swap_optimizer", False) else device,
        "devices": sorted({m.device.type for m in master_weights(observations.engine) if m.numel()}),
        "accelerator": get_accelerator().device_name(),
        "ratio": float(getattr(optimizer, "partial_offload", 1.0) or 1.0),
    }


def _evaluate_optimizer_device(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    device = expected.offload_optimizer
    ranks = [rank for rank, values in enumerate(rank_values) if values["place"] != device]
    if ranks:
        place = rank_values[ranks[0]]["place"]
        return check_failed(
            f"optimizer states are offloaded to {format_value(place)}, should be {format_value(device)}"
            f"{format_ranks(ranks, len(rank_values))}",
            place,
        )
    for rank, values in enumerate(rank_values):
        allowed = {values["accelerator"].split(":")[0]} if device == "none" else {"cpu"}
        if expected.offload_ratio == 1.0 and not set(values["devices"]) <= allowed:
            return check_failed(
                f"master weights of rank {rank} are on {format_value(values['devices'])},"
                f" should be on {format_value(allowed)}",
                values["devices"],
            )
        if device != "none" and expected.zero_stage == 3 and values["ratio"] != expected.offload_ratio:
            return check_failed(
                f"the share of the optimizer on the CPU is {values['ratio']:g}, should be {expected.offload_ratio:g}",
                values,
            )
    return check_passed(device)


OPTIMIZER_DEVICE = engine_check("AT003", _observe_optimizer_device, _evaluate_optimizer_device)


_SETTING_NAMES = ("betas", "eps", "momentum")
_CYCLED_NAMES = frozenset(("betas", "momentum"))
_FROM_CHECKPOINT = "a checkpoint was loaded, and brings its own settings: resume with those it was saved with"


def _observe_optimizer_settings(observations: Observations) -> Any:
    groups: list[dict[str, Any]] = []
    trained = [p for p in observations.parameters.values() if p.requires_grad]
    has_matrix = any(len(getattr(p, "ds_shape", p.shape)) > 1 for p in trained)  # a pipeline stage may have none
    names = (*_SETTING_NAMES, "weight_decay") if has_matrix else _SETTING_NAMES
    for group in observations.engine.optimizer.param_groups:
        cycled = _CYCLED_NAMES if _is_momentum_cycled(observations.engine, group) else frozenset()
        settings = {name: group[name] for name in names if name in group and name not in cycled}
        groups.append({name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()})
    return {"groups": groups, "loaded": int(observations.engine.global_steps) > 0}


def _evaluate_optimizer_settings(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    notes = (_FROM_CHECKPOINT,) if rank_values[0]["loaded"] else ()
    for values in rank_values:
        groups = values["groups"]
        for group in groups:
            text = _find_optimizer_settings_difference(expected, group)
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


def _find_optimizer_settings_difference(expected: ExpectedSettings, group: Mapping[str, Any]) -> str | None:
    """The setting in which a group differs from the spec; None where it agrees."""
    if expected.optimizer == "muon":
        return None  # one group of it steps with Adam, and has other numbers
    for name in _SETTING_NAMES:
        value, setting = group.get(name), _normalize_setting(expected.optimizer_params.get(name))
        if setting is not None and name in group and _normalize_setting(value) != setting:
            return f"`{name}` is {_setting_text(value)}, should be {_setting_text(setting)}"
    return None


def _setting_text(value: Any) -> str:
    return f"{value}" if isinstance(value, list) else format_value(value)  # a pair has an order


def _normalize_setting(value: Any) -> Any:
    if isinstance(value, Mapping) or value is None:
        return None
    return [float(v) for v in value] if isinstance(value, (list, tuple)) else value


OPTIMIZER_SETTINGS = engine_check("AT014", _observe_optimizer_settings, _evaluate_optimizer_settings)


def _observe_fresh_optimizer(observations: Observations) -> Any:
    base, count, moment = innermost_optimizer(observations.engine.optimizer), 0, 0.0
    for state in getattr(base, "state", {}).values():
        for name, value in state.items():
            if name == "step":
                count = max(count, int(value))
            elif torch.is_tensor(value) and value.numel() and name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
                moment = max(moment, float(value.detach().reshape(-1)[:4096].abs().max()))
    count = max([count, *(int(g["step"]) for g in base.param_groups if "step" in g)])
    return {"steps": count, "moment": moment}


def _evaluate_fresh_optimizer(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    for rank, values in enumerate(rank_values):
        if values["steps"]:
            text = f"the optimizer of rank {rank} has taken {values['steps']} step before the first one"
            return check_failed(text, values, "Adam's count would be ahead, and weight decay applied once too often")
        if values["moment"]:
            return check_failed(f"the optimizer of rank {rank} has moments before the first step", values)
    return check_passed(rank_values[0])


FRESH_OPTIMIZER = engine_check("AT013", _observe_fresh_optimizer, _evaluate_fresh_optimizer)
