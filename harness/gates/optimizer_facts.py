# SPDX-License-Identifier: Apache-2.0
"""Optimizers and schedulers as DeepSpeed reads them: names, parameters, and what ZeRO makes of them.

Facts, judged by the gates in `rules`, and what several of these share. Read in `runtime/engine.py`
(`_configure_basic_optimizer`, `_scheduler_from_config`) and in the classes' signatures; a test compares them with the
installed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from harness.findings import Finding, Fix
from harness.gates.registry import Context
from harness.spec.deepspeed_optimizer import NAME_BY_CLASS
from harness.spec.suggestions import nearest_name

_POPPED = frozenset(("torch_adam", "adam_w_mode", "fp32_optimizer_states"))
"""Adam, AdamW and Muon: taken out by the engine before the class sees them."""
MUON = frozenset(("lr", "muon_lr", "adam_lr", "momentum", "weight_decay", "ns_method", "betas", "eps", "per_head_muon"))
FUSED = {
    "adam": frozenset(("lr", "bias_correction", "betas", "eps", "weight_decay", "amsgrad", "set_grad_none")),
    "lamb": frozenset(
        "lr bias_correction betas eps eps_inside_sqrt weight_decay max_grad_norm max_coeff min_coeff amsgrad".split()
    ),
    "lion": frozenset(("lr", "betas", "weight_decay", "set_grad_none")),
}
"""DeepSpeed's own classes on the device."""
ON_CPU = {
    "adam": frozenset(("lr", "bias_correction", "betas", "eps", "weight_decay", "amsgrad")),
    "adagrad": frozenset(("lr", "eps", "weight_decay", "amsgrad", "fp32_optimizer_states")),
    "lion": frozenset(("lr", "betas", "weight_decay", "fp32_optimizer_states")),
}
"""DeepSpeed's classes for an offloaded optimizer."""
_COMMON = "lr weight_decay foreach maximize differentiable"
TORCH = {
    "ASGD": f"{_COMMON} lambd alpha t0 capturable",
    "Adadelta": f"{_COMMON} rho eps capturable",
    "Adafactor": "lr weight_decay foreach maximize beta2_decay eps d",
    "Adagrad": f"{_COMMON} lr_decay initial_accumulator_value eps fused",
    "Adam": f"{_COMMON} betas eps amsgrad capturable fused decoupled_weight_decay",
    "AdamW": f"{_COMMON} betas eps amsgrad capturable fused",
    "Adamax": f"{_COMMON} betas eps capturable",
    "NAdam": f"{_COMMON} betas eps momentum_decay decoupled_weight_decay capturable",
    "RAdam": f"{_COMMON} betas eps decoupled_weight_decay capturable",
    "RMSprop": f"{_COMMON} alpha eps momentum centered capturable",
    "Rprop": "lr foreach maximize differentiable etas step_sizes capturable",
    "SGD": f"{_COMMON} momentum dampening nesterov fused",
}
"""torch.optim's optimizers that a DeepSpeed engine can step, with their parameters."""
DEFAULT_RATES = {
    "adadelta": 1.0,
    "adafactor": 0.01,
    "adagrad": 0.01,
    "adamax": 0.002,
    "asgd": 0.01,
    "muon": 0.02,
    "nadam": 0.002,
    "rmsprop": 0.01,
    "rprop": 0.01,
}
"""The learning rate that an optimizer (in lower case) takes by itself; all others take 0.001."""
UNUSABLE = {
    "Optimizer": "the base class of all optimizers",
    "lr_scheduler": "a module",
    "swa_utils": "a module",
    "LBFGS": "needs a closure at every step, which the engine does not give",
    "SparseAdam": "takes sparse gradients only",
}
"""Names that DeepSpeed lets pass because torch.optim has them."""
OWN = ("Adam", "AdamW", "Adagrad", "Lamb", "Lion", "MuAdam", "MuAdamW", "MuSGD", "Muon")
"""DeepSpeed's own names, which it compares without regard to case."""
ONE_BIT = ("OneBitAdam", "OneBitLamb", "ZeroOneAdam")
TYPES_WITH_MINIMUM = frozenset(("cosine", "polynomial", "warmup_stable_decay"))
"""Schedules of the harness that end at `scheduler.min_lr_ratio` of the peak (`harness/runtime/lr_schedule.py`)."""
ZERO_TESTED = frozenset(("adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw"))
BY_SHAPE = frozenset(("lamb", "adafactor"))
"""Their update of an element depends on the whole tensor, which ZeRO flattens and cuts."""

_WARMUP = "warmup_num_steps warmup_type last_batch_iteration"
SCHEDULERS = {
    "LRRangeTest": "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase"
    " last_batch_iteration",
    "OneCycle": "cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size"
    " cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom cycle_max_mom"
    " decay_mom_rate last_batch_iteration",
    "WarmupLR": f"warmup_min_lr warmup_max_lr {_WARMUP}",
    "WarmupDecayLR": f"total_num_steps warmup_min_lr warmup_max_lr {_WARMUP}",
    "WarmupCosineLR": f"total_num_steps warmup_min_ratio cos_min_ratio {_WARMUP}",
}
REQUIRED = {
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
    "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
    "StepLR": ("step_size",),
    "MultiStepLR": ("milestones",),
    "ExponentialLR": ("gamma",),
    "CosineAnnealingLR": ("T_max",),
    "CosineAnnealingWarmRestarts": ("T_0",),
    "CyclicLR": ("base_lr", "max_lr"),
    "ConstantLR": (),
    "LinearLR": (),
    "PolynomialLR": (),
}
"""Parameters without a default, DeepSpeed's schedulers and those of torch's that a configuration can build."""
TORCH_SCHEDULERS = frozenset(
    """LRScheduler LambdaLR MultiplicativeLR StepLR MultiStepLR ConstantLR LinearLR ExponentialLR SequentialLR
    CosineAnnealingLR ChainedScheduler ReduceLROnPlateau CyclicLR CosineAnnealingWarmRestarts OneCycleLR
    PolynomialLR""".split()
)


def get_parameter_key(ctx: Context, name: str) -> str:
    """The spec key of a parameter of the optimizer, in the section that says it."""
    if ctx.optimizer.key == "optimizer":
        return "optimizer.learning_rate" if name == "lr" else f"optimizer.{name}"
    return f"deepspeed.optimizer.params.{name}"


def get_scheduler_name(ctx: Context) -> str:
    """The name in the DeepSpeed `scheduler` block; empty if there is none."""
    name = ctx.scheduler.get("type")
    return name if isinstance(name, str) else ""


def get_scheduler_params(ctx: Context) -> Mapping[str, Any]:
    """The `params` of the DeepSpeed `scheduler` block; empty if there are none."""
    params = ctx.scheduler.get("params")
    return params if isinstance(params, dict) else {}


def has_misspelt_type(block: Iterable[object]) -> bool:
    """Has the block a misspelt `type`? The check of its keys says so."""
    return any(str(name).lower() in ("typ", "name", "types", "kind") for name in block)


def is_number(value: object) -> TypeGuard[float]:
    """Is it a number, and no switch?"""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_number(value: object) -> float | None:
    """A number smaller than 1e15 in size, also one that is written as a text; None for anything else, NaN too."""
    if not is_number(value) and not isinstance(value, str):
        return None
    try:
        as_float = float(value)
    except (ValueError, OverflowError):
        return None
    return as_float if abs(as_float) < 1e15 else None


def report_unknown_parameter(
    ctx: Context,
    params_key: str,
    name: str,
    value: object,
    *,
    owner: str,
    known: Iterable[str],
    better: str | None,
    is_free: bool,
    effect: str,
) -> Finding:
    """The finding at a parameter that its owner does not take. `better` is the nearest name that it takes; if that
    `is_free`, the fix moves the value there. `effect` is that of removing the parameter.
    """
    key = f"{params_key}.{name}"
    if is_free:
        fix = Fix(f"write `{better}`", {key: None, f"{params_key}.{better}": value}, effect=f"sets `{better}`")
    else:
        fix = ctx.fix_to_remove(key, effect=effect)
    return ctx.finding(
        f"{ctx.key(key)} is no parameter of {owner}",
        key,
        of_key=True,
        label=f"did you mean `{better}`?" if better else "",
        notes=["it takes " + ", ".join(sorted(known))],
        fix=fix,
    )


def find_intended_optimizer(ctx: Context, name: str) -> str | None:
    """The optimizer that an unknown name stands for; None for a name that DeepSpeed or torch has."""
    own = _list_own_names(ctx)
    if name in ("auto", *TORCH, *UNUSABLE) or name.lower() in {own_name.lower() for own_name in own}:
        return None
    if name.lower() in NAME_BY_CLASS:
        return NAME_BY_CLASS[name.lower()]
    return "AdamW" if "adam" in name.lower() else nearest_name(name, [*TORCH, *own]) or "AdamW"


def is_one_bit(name: str) -> bool:
    """Is it one of the 1-bit optimizers, which DeepSpeed had up to 0.19.6?"""
    return name.lower() in {one_bit.lower() for one_bit in ONE_BIT}


def _list_own_names(ctx: Context) -> list[str]:
    """DeepSpeed's own names in this release."""
    version = ctx.target.version
    names = [name for name in OWN if name != "Muon" or version >= (0, 17, 6)]
    return [*names, *ONE_BIT] if version < (0, 19, 7) else names


def find_signature(ctx: Context, name: str | None = None) -> tuple[str, frozenset[str]] | None:
    """The class that gets the parameters of the optimizer block, and the ones it takes; None where neither is known.
    `name` is the optimizer where the block has another.
    """
    kind = ctx.optimizer.name if name is None else name.lower()
    if kind in ("adam", "adamw"):
        return _find_adam_signature(ctx, kind)
    if kind == "muon":
        return ("Muon", MUON | _POPPED) if ctx.target.version >= (0, 17, 6) else None
    if ctx.is_optimizer_offloaded and kind in ON_CPU:
        return ("DeepSpeedCPUAdagrad" if kind == "adagrad" else "DeepSpeedCPULion"), ON_CPU[kind]
    if kind in FUSED:
        return f"Fused{kind.capitalize()}", FUSED[kind]
    name = "Adagrad" if kind == "adagrad" else str(name or ctx.optimizer.type)
    return (f"torch.optim.{name}", frozenset(TORCH[name].split())) if name in TORCH else None


def _find_adam_signature(ctx: Context, kind: str) -> tuple[str, frozenset[str]]:
    params = ctx.optimizer.params
    if params.get("torch_adam"):
        name = "Adam" if kind == "adam" and params.get("adam_w_mode") is False else "AdamW"
        return f"torch.optim.{name}", frozenset(TORCH[name].split()) | _POPPED
    if ctx.is_optimizer_offloaded:
        return "DeepSpeedCPUAdam", ON_CPU["adam"] | _POPPED
    return "FusedAdam", FUSED["adam"] | _POPPED
