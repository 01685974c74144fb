# SPDX-License-Identifier: Apache-2.0
"""Parameters of an optimizer: names, values and what is left out."""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.gates.optimizer_facts import (
    DEFAULT_RATES,
    find_intended_optimizer,
    find_signature,
    get_parameter_key,
    is_number,
    is_one_bit,
    read_number,
    report_unknown_parameter,
)
from harness.gates.registry import Cite, Context, Findings, Fix, Severity, gate, spec_gate
from harness.spec.suggestions import Suggestions


@gate(
    "OP005 unknown-optimizer-parameter",
    upstream="raises",
    cites=(
        Cite(
            "runtime/engine.py", "optimizer = adam_optimizer(model_parameters, **optimizer_parameters", since="0.19.6"
        ),
        Cite("runtime/engine.py", "optimizer = FusedAdam(", until="0.19.5"),
        Cite("runtime/engine.py", "_MUON_HALF_KEYS = ", since="0.19.7"),
        Cite("runtime/engine.py", '["lr", "momentum", "weight_decay"', since="0.17.6", until="0.19.6"),
    ),
    when=lambda ctx: ctx.optimizer.key == "deepspeed.optimizer",
)
def unknown_parameter(ctx: Context) -> Findings:
    """A parameter that the optimizer does not take.

    Each key of `optimizer.params` against the signature of the class that DeepSpeed picks: FusedAdam, DeepSpeedCPUAdam
    for an offloaded optimizer, torch's own with `torch_adam`, and so on.

    Why: The parameters go to the class as they are: `TypeError: FusedAdam.__init__() got an unexpected keyword argument
    'learning_rate'` when the engine is built. Muon alone silently drops what it does not know (both run on 0.19.8).

    Example:
        zero.stage: 1
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.learning_rate: 1.0e-5
    """
    kind = ctx.optimizer.type
    intended = find_intended_optimizer(ctx, kind) if isinstance(kind, str) else None  # OP001 has the name itself
    signature = find_signature(ctx, intended)
    if signature is None or (isinstance(kind, str) and intended is not None and is_one_bit(kind)):
        return  # a 1-bit optimizer has parameters of its own, which go with it
    class_name, known = signature
    owner = "Muon, which silently drops it" if class_name == "Muon" else class_name
    params = ctx.optimizer.params
    suggestions = Suggestions()
    for name, value in params.items():
        if name not in known and name != "max_grad_norm":
            better = _find_nearest_parameter(str(name), known, suggestions)
            yield report_unknown_parameter(
                ctx,
                "deepspeed.optimizer.params",
                str(name),
                value,
                owner=owner,
                known=known,
                better=better,
                is_free=better is not None and better not in params,
                effect="trains without it",
            )


_ALIASES = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps", "beta": "betas", "adamw_mode": "adam_w_mode"}


def _find_nearest_parameter(name: str, known: frozenset[str], suggestions: Suggestions) -> str | None:
    alias = _ALIASES.get(name.lower())
    return alias if alias in known else suggestions.nearest_name(name, sorted(known))


_RATES = ("lr", "muon_lr", "adam_lr")
_NUMBERS = (*_RATES, "weight_decay", "eps", "momentum")
_UNIT_STEP_OPTIMIZERS = frozenset(("adam", "adamw", "lion"))
"""Their step is about the learning rate, whatever the size of the gradient."""


@gate(
    "OP006 optimizer-parameter-value",
    severity=("error", "warning"),
    cites=Cite("ops/adam/fused_adam.py", "defaults = dict(lr=lr, bias_correction=bias_correction, betas=betas"),
)
def bad_parameter_values(ctx: Context) -> Findings:
    """Parameters of an optimizer that are no sensible numbers.

    `lr`, `weight_decay`, `eps`, `momentum` and `betas` in `optimizer.params`: numbers, not texts; none negative; two
    betas below 1; a learning rate above 0, and below 1 for Adam, AdamW and Lion; and Muon's `ns_method`.

    Why: A text such as `"1e-3"` is passed on and fails in the first step. A negative learning rate is accepted by
    DeepSpeed's own optimizers and climbs (losses 4.4, 1264, 22713 in a run on 0.19.8); torch's classes refuse it. With
    a rate of 0 nothing is trained. A step of Adam or Lion moves each weight by about the rate, whatever the gradient: a
    rate of 1 or more, such as `1e5` for `1e-5`, leaves nothing of the weights.

    Example:
        zero.stage: 1
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.lr: -1.0e-5
    """
    for name, value in ctx.optimizer.params.items():
        problem = None if value == "auto" else _check_value(ctx, str(name), value)
        if problem is None:
            continue
        better = problem.better
        key = get_parameter_key(ctx, str(name))
        if better is None:
            fix = ctx.fix_to_remove(key, effect="takes the optimizer's default")
        else:
            title = f"set {ctx.key(key)} to {better}"
            fix = Fix(title, {key: better}, safe=isinstance(value, str), effect=f"trains with {better}")
        yield ctx.finding(f"{ctx.key(key)} is {problem.description}", key, severity=problem.severity, fix=fix)


class _Problem(NamedTuple):
    """A bad value: a description, and one to write instead, if any."""

    description: str
    better: Any
    severity: Severity = "error"


def _check_value(ctx: Context, name: str, value: Any) -> _Problem | None:
    """The problem of a value; None where it is fine."""
    if value is None:
        return _Problem("null, which is no number", None) if name in _NUMBERS else None
    if name == "betas":
        return _check_betas(value)
    if name == "ns_method" and ctx.optimizer.name == "muon" and value not in ("standard", "gram"):
        return _Problem(f"`{value}`, Muon knows `standard` and `gram`", "gram")
    if name not in _NUMBERS or (name == "eps" and isinstance(value, (list, tuple))):
        return None
    if not is_number(value) or read_number(value) is None:
        is_zero_rate = value is False and name in _RATES
        reason = "which Python computes with as with 0" if is_zero_rate else "which is no number"
        return _Problem(f'"{str(value)[:20]}", {reason}', 1e-5 if is_zero_rate else read_number(value))
    return _check_range(ctx, name, value)


def _check_range(ctx: Context, name: str, value: float) -> _Problem | None:
    if value < 0:
        return _Problem(f"{value:g}, below 0", -value if name in _RATES else 0.0)
    if name in _RATES and value >= 1 and ctx.optimizer.name in _UNIT_STEP_OPTIMIZERS:
        return _Problem(f"{value:g}: each step moves each weight by about as much", _intended_rate(value), "warning")
    if name in _RATES and value == 0 and not ctx.scheduler:
        return _Problem("0, which trains nothing", 1e-5, "warning")
    return None


def _intended_rate(value: float) -> float:
    """The rate that was meant by one of 1 or more: a forgotten minus in the exponent, or nothing that can be told."""
    digits, exponent = f"{value:e}".split("e")
    return float(f"{digits}e-{int(exponent)}") if int(exponent) >= 3 else 1e-3


def _check_betas(value: Any) -> _Problem | None:
    better = [0.9, 0.999]
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return _Problem("not a pair of numbers", better)
    if all(is_number(beta) and 0 <= beta < 1 for beta in value):
        return None
    return _Problem(f"{list(value)}, and each must be from 0 to below 1"[:80], better)


_OTHER_RATES = ("muon_lr", "adam_lr", "learning_rate")
_SCHEDULED_RATES = tuple(
    f"scheduler.params.{name}" for name in ("warmup_max_lr", "cycle_max_lr", "lr_range_test_min_lr")
)
_MISPLACED_RATES = ("optimizer.lr", "optimizer.learning_rate", "learning_rate", "lr")


@gate(
    "OP010 rate-left-to-the-optimizer",
    severity="warning",
    cites=Cite("ops/adam/fused_adam.py", "lr=1e-3,"),
    when=lambda ctx: ctx.has_key("optimizer.type") and not ctx.has_key("optimizer.params.lr"),
)
def default_rate(ctx: Context) -> Findings:
    """No learning rate.

    A DeepSpeed `optimizer` block without `lr`, where no scheduler of the configuration sets the rate either.

    Why: The class's own default is taken silently: 0.001 for AdamW and SGD, 0.01 for Adagrad (run on 0.19.8). That is
    a hundred times what fine-tuning takes.

    Example:
        zero.stage: 1
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.weight_decay: 0.0
    """
    is_spec_section = ctx.run.kind == "spec" and ctx.optimizer.key == "optimizer"
    has_rate = any(map(ctx.has_key, _SCHEDULED_RATES)) or not ctx.optimizer.params.keys().isdisjoint(_OTHER_RATES)
    has_misplaced_rate = any(map(ctx.has_key, _MISPLACED_RATES))  # there is a finding at that key
    if is_spec_section or has_rate or has_misplaced_rate or find_signature(ctx) is None:
        return
    rate = DEFAULT_RATES.get(ctx.optimizer.name, 0.001)
    rate_key = "deepspeed.optimizer.params.lr"
    yield ctx.finding(
        f"no `lr`: {ctx.optimizer.type} trains with its own default of {rate:g}",
        f"{ctx.optimizer.key}.type",
        notes=["DeepSpeed passes on what is written and leaves the rest to the class"],
        fix=Fix(f"set {ctx.key(rate_key)} to {rate:g}, or to what is meant", {rate_key: rate}, effect="trains as now"),
    )


@spec_gate(
    "MD009 parameter-of-another-optimizer",
    severity="warning",
    unread="the optimizer has no such parameter",
)
def parameter_of_another_optimizer(ctx: Context) -> Findings:
    """A parameter that this optimizer does not have.

    `optimizer.momentum` with `adamw` and `adam`; `optimizer.betas` and `optimizer.eps` with `sgd`.

    Why: The harness hands DeepSpeed only what the optimizer takes, since DeepSpeed would refuse the rest. A parameter
    of another optimizer is left out.

    Example:
        optimizer.type: adamw
        optimizer.momentum: 0.9

    Use instead:
        optimizer.type: sgd
        optimizer.momentum: 0.9
    """
    if "optimizer" in ctx.run.spec.deepspeed:
        return
    optimizer = ctx.run.spec.optimizer
    kind = optimizer.type
    for name in ("betas", "eps") if kind == "sgd" else ("momentum",):
        if optimizer.is_written(name):
            key = f"optimizer.{name}"
            yield ctx.unread(
                f"{ctx.key(key)} is no parameter of {kind}",
                key,
                related=[("optimizer.type", "the optimizer is chosen here")],
                fix=ctx.fix_to_remove(key, "or change the type", safe=True),
            )
