# SPDX-License-Identifier: Apache-2.0
"""The choice of a learning-rate schedule, and its parameters."""

from __future__ import annotations

from typing import Any

from harness.gates.dtypes import model_dtype
from harness.gates.optimizer_facts import (
    REQUIRED,
    SCHEDULERS,
    TORCH_SCHEDULERS,
    get_parameter_key,
    get_scheduler_name,
    get_scheduler_params,
    has_misspelt_type,
    is_number,
    read_number,
    report_unknown_parameter,
)
from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate
from harness.spec.suggestions import Suggestions, nearest_name

_BLOCK = "deepspeed.scheduler"
_TYPE = "deepspeed.scheduler.type"
_PARAMS = "deepspeed.scheduler.params"


@gate(
    "OP021 unknown-scheduler",
    upstream="asserts",
    cites=Cite("runtime/engine.py", "DeepSpeed does not recognize LR scheduler {scheduler_name}"),
    when=lambda ctx: bool(ctx.scheduler),
)
def unknown_scheduler(ctx: Context) -> Findings:
    """A scheduler that DeepSpeed does not have.

    `scheduler.type` of the DeepSpeed configuration: `LRRangeTest`, `OneCycle`, `WarmupLR`, `WarmupDecayLR`,
    `WarmupCosineLR`, or a class of `torch.optim.lr_scheduler`, written exactly so.

    Why: `AssertionError: DeepSpeed does not recognize LR scheduler warmuplr` on every rank, after the optimizer has
    been built (run on 0.19.8).

    Example:
        zero.stage: 1
        deepspeed.scheduler.type: CosineWarmup
        deepspeed.scheduler.params.total_num_steps: 100
        deepspeed.scheduler.params.warmup_num_steps: 10
        deepspeed.scheduler.params.warmup_type: linear
        deepspeed.scheduler.params.warmup_min_ratio: 0.1
    """
    name = get_scheduler_name(ctx)
    if name in ("", "auto") or name in SCHEDULERS or name in TORCH_SCHEDULERS:
        return
    better = _find_nearest_scheduler(name)
    yield ctx.finding(
        f"`{name[:40]}` is no scheduler of DeepSpeed's or torch's",
        _TYPE,
        label=f"did you mean `{better}`?",
        notes=["DeepSpeed has " + ", ".join(SCHEDULERS)],
        fix=Fix(f"use `{better}`", {_TYPE: better}, effect=f"runs {better}"),
    )


_ALIASES = {"linear": "WarmupDecayLR", "cosine": "WarmupCosineLR", "constant": "WarmupLR", "decay": "WarmupDecayLR"}


def _find_nearest_scheduler(name: str) -> str:
    matches = [known for known in (*SCHEDULERS, *TORCH_SCHEDULERS) if known.lower() == name.lower()]
    matches += [known for word, known in _ALIASES.items() if word in name.lower()]
    if matches:
        return matches[0]
    return nearest_name(name, SCHEDULERS) or "WarmupLR"


@gate(
    "OP022 scheduler-without-type",
    unread="a block without `type` is no scheduler",
    cites=Cite("runtime/config.py", "return SCHEDULER_TYPE_DEFAULT"),
)
def scheduler_without_type(ctx: Context) -> Findings:
    """A scheduler block without a type.

    A DeepSpeed `scheduler` block without `type`, or with an empty one.

    Why: DeepSpeed then silently has no scheduler: the rate stays that of the optimizer (run on 0.19.8). In a run spec
    the block also stands instead of the section `scheduler`.

    Example: {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.0}},
        "scheduler": {"params": {"warmup_num_steps": 10}}
    }

    Use instead: {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.0}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-6, "warmup_num_steps": 10}}
    }
    """
    has_type = get_scheduler_name(ctx) != "" or ctx.is_auto("scheduler.type")
    if ctx.scheduler and not has_type and not has_misspelt_type(ctx.scheduler):
        yield ctx.finding(
            f"{ctx.key(_BLOCK)} has no `type`, so the learning rate is never changed",
            _BLOCK,
            notes=["DeepSpeed reads a block without `type` as no scheduler"],
            fix=Fix(
                f"write {ctx.key(f'{_BLOCK}.type')}, or remove the block",
                {_BLOCK: None},
                safe=True,
                effect=""
                if ctx.run.kind != "spec"
                else f"`scheduler.type: {ctx.run.spec.scheduler.type}` sets the rate",
            ),
            of_key=True,
        )


@spec_gate(
    "OP037 two-schedulers",
    severity="warning",
    cites=Cite("runtime/engine.py", "lr_scheduler = self._scheduler_from_config(self.optimizer)"),
    when=lambda ctx: bool(ctx.scheduler) and ctx.source.has_key("scheduler.type"),
)
def two_schedulers(ctx: Context) -> Findings:
    """Two schedulers, one of them unused.

    The run spec's own `scheduler` section next to `deepspeed.scheduler`.

    Why: There is one scheduler. If `deepspeed.scheduler` is there, the harness uses it and does not read the other
    section.

    Example:
        zero.stage: 1
        scheduler.type: cosine
        scheduler.warmup_steps: 2
        deepspeed.scheduler.type: WarmupLR
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_num_steps: 10
    """
    yield ctx.finding(
        f"{ctx.key('scheduler')} is not used: {ctx.key(_BLOCK)} counts",
        "scheduler.type",
        label="not used",
        related=[(_TYPE, "this one counts")],
        fix=ctx.fix_to_remove(_BLOCK, effect="the rate follows the spec's own section"),
    )


def _has_known_parameters(ctx: Context) -> bool:
    """Is it a scheduler of DeepSpeed's, or of torch's where those run (OP025 says where not)?"""
    name = get_scheduler_name(ctx)
    return name in SCHEDULERS or (name in REQUIRED and ctx.stage == 0 and model_dtype(ctx) == "fp32")


@gate(
    "OP023 scheduler-parameters",
    upstream="raises",
    cites=Cite("runtime/engine.py", "instantiated_scheduler = scheduler(optimizer, **scheduler_params)"),
    when=_has_known_parameters,
)
def wrong_scheduler_parameters(ctx: Context) -> Findings:
    """Parameters that a scheduler lacks, or does not take.

    `scheduler.params` of DeepSpeed's schedulers exists, has those without a default (`total_num_steps` of WarmupDecayLR
    and WarmupCosineLR, `cycle_min_lr` and `cycle_max_lr` of OneCycle), and no unknown ones. For torch's schedulers,
    where they can run at all (fp32 without ZeRO), required parameters are there.

    Why: The parameters go to the class as they are: `TypeError: WarmupLR.__init__() got an unexpected keyword argument
    'warmup_steps'`, or `argument after ** must be a mapping, not NoneType` without any, after the optimizer has been
    built (run on 0.19.8).

    Example:
        zero.stage: 1
        deepspeed.scheduler.type: WarmupLR
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_steps: 10
    """
    scheduler = get_scheduler_name(ctx)
    has_params = ctx.has_key("scheduler.params")
    missing_names = [name for name in REQUIRED.get(scheduler, ()) if not ctx.has_key(f"scheduler.params.{name}")]
    if missing_names or not has_params:
        names = " and ".join(f"`{name}`" for name in missing_names) or "a `params` block, even an empty one"
        values = {f"{_PARAMS}.{name}": _get_example_value(ctx, name) for name in missing_names}
        yield ctx.finding(
            f"{ctx.key(_BLOCK)} lacks {names}, which `{scheduler}` cannot do without",
            _PARAMS if has_params else _BLOCK,
            fix=Fix(
                f"add {names}",
                values or {_PARAMS: {}},
                effect="runs with these values; replace them by yours",
            ),
            of_key=True,
        )
    if scheduler not in SCHEDULERS:
        return  # of torch's schedulers only what they lack is checked
    known = SCHEDULERS[scheduler].split()
    suggestions = Suggestions()
    for name, value in get_scheduler_params(ctx).items():
        if name not in known:
            better = suggestions.nearest_name(str(name), known)
            if better is not None and ("max" in str(name)) != ("max" in better):
                better = None  # a peak is no minimum
            yield report_unknown_parameter(
                ctx,
                _PARAMS,
                str(name),
                value,
                owner=f"`{scheduler}`",
                known=known,
                better=better,
                is_free=better is not None and not ctx.has_key(f"scheduler.params.{better}"),
                effect="runs without it",
            )


_EXAMPLE_VALUES: dict[str, Any] = {
    "total_num_steps": 1000,
    "cycle_min_lr": 1e-6,
    "cycle_max_lr": 1e-4,
    "step_size": 1000,
    "milestones": [1000],
    "gamma": 0.999,
    "T_max": 1000,
    "T_0": 1000,
    "base_lr": 1e-6,
    "max_lr": 1e-4,
}


def _get_example_value(ctx: Context, name: str) -> Any:
    """A value for a parameter that is missing: the length of the run where it is known, else an example."""
    steps = ctx.run.spec.train.max_steps
    return steps if name in ("total_num_steps", "T_max") and steps else _EXAMPLE_VALUES[name]


@gate(
    "OP024 scheduler-value",
    upstream="raises",
    cites=(
        Cite("runtime/lr_schedules.py", "warmup_num_steps must be a positive integer, got {warmup_num_steps}"),
        Cite(
            "runtime/lr_schedules.py",
            "cycle_first_step_size must be positive, got {cycle_first_step_size}",
            since="0.19.4",
        ),
    ),
    since="0.19.3",
    when=lambda ctx: get_scheduler_name(ctx) in SCHEDULERS,
)
def bad_scheduler_values(ctx: Context) -> Findings:
    """Values that a scheduler refuses.

    Numbers in `scheduler.params` of DeepSpeed's schedulers: rates, ratios and steps are numbers, `warmup_num_steps` and
    `lr_range_test_step_size` whole ones above 0, `cycle_first_step_size` above 0, `cycle_second_step_size` not below 0.

    Why: From 0.19.3 on DeepSpeed refuses steps that are no positive whole numbers (`ValueError: warmup_num_steps must
    be a positive integer, got 0`). Texts fail in the first computation; before 0.19.3 the other values failed later or
    not at all (run on 0.19.8).

    Example:
        zero.stage: 1
        deepspeed.scheduler.type: WarmupLR
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_num_steps: 0
    """
    known = SCHEDULERS[get_scheduler_name(ctx)].split()
    for name, value in get_scheduler_params(ctx).items():
        problem = _check_value(name, value) if name in known else None
        if problem is None:
            continue
        requirement, better = problem
        key = f"{_PARAMS}.{name}"
        is_same = isinstance(value, (str, float)) and better == read_number(value)
        effect = "" if is_same else "runs with another value"
        if better is None:
            fix = ctx.fix_to_remove(key, safe=is_same, effect=effect)
        else:
            fix = Fix(f"set {ctx.key(key)} to {better:g}", {key: better}, safe=is_same, effect=effect)
        yield ctx.finding(f"{ctx.key(key)} is {_quote(value)}, it {requirement}", key, fix=fix)


_WHOLE_NUMBERS = ("warmup_num_steps", "lr_range_test_step_size")
_NO_NUMBERS = ("warmup_type", "cycle_momentum", "lr_range_test_staircase", "cycle_second_step_size")


def _check_value(name: str, value: Any) -> tuple[str, float | None] | None:
    """The requirement that a value misses, and a value that meets it, if any; None where the value is fine."""
    if value is None or value == "auto":
        return None
    as_float = read_number(value)
    if name in _WHOLE_NUMBERS:
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return None
        return "must be a whole number above 0", int(as_float) if as_float and as_float >= 1 else 1
    if isinstance(value, (int, float)):
        return _check_step_size(name, value)
    if name in _NO_NUMBERS or isinstance(value, (list, tuple)):
        return None
    return "must be a number", as_float


def _check_step_size(name: str, value: float) -> tuple[str, float] | None:
    """The requirement that a step size of OneCycle misses, and a value that meets it; None for all other numbers."""
    if name == "cycle_first_step_size":
        return None if value > 0 else ("must be above 0", 1.0)
    if name == "cycle_second_step_size":
        return None if value >= 0 else ("must not be below 0", 0.0)
    return None


def _quote(value: Any) -> str:
    return f'"{value[:20]}"' if isinstance(value, str) else f"{value}"[:30]


def _is_optimizer_wrapped(ctx: Context) -> bool:
    """Does DeepSpeed wrap the optimizer, so that no scheduler of torch's runs?"""
    return ctx.stage > 0 or model_dtype(ctx) in ("bf16", "fp16")


def _fix_torch_scheduler(ctx: Context) -> Fix:
    return Fix(f"use one of DeepSpeed's, or remove {ctx.key(_BLOCK)}", {_BLOCK: None}, effect="the rate is constant")


_SCRIPT_NEEDS = {
    "LRScheduler": "is the base class of all schedulers",
    "LambdaLR": "needs a function",
    "MultiplicativeLR": "needs a function",
    "SequentialLR": "needs other schedulers",
    "ChainedScheduler": "needs other schedulers",
    "ReduceLROnPlateau": "needs a metric, and is given the batch size",
}


@gate(
    "OP026 scheduler-that-needs-a-script",
    upstream="raises",
    cites=Cite("runtime/engine.py", "self.lr_scheduler.step(self.train_batch_size())"),
)
def script_only_scheduler(ctx: Context) -> Findings:
    """A scheduler that a configuration cannot describe.

    Schedulers of torch's that need a function, other schedulers or a metric, in `scheduler.type` where torch's
    schedulers run at all (fp32 at stage 0).

    Why: `LambdaLR` and `MultiplicativeLR` need a function, `SequentialLR` and `ChainedScheduler` need schedulers, and a
    configuration can give neither: TypeError when the engine is built (run on 0.19.8 with LambdaLR).
    `ReduceLROnPlateau` needs a metric at each step and gets the batch size instead, which never falls, so it lowers the
    rate.

    Example:
        zero.stage: 0
        deepspeed.scheduler.type: LambdaLR
        deepspeed.scheduler.params.lr_lambda: linear
    """
    name = get_scheduler_name(ctx)
    if name in _SCRIPT_NEEDS and not _is_optimizer_wrapped(ctx):
        yield ctx.finding(
            f"`{name}` {_SCRIPT_NEEDS[name]}, which a configuration cannot give it",
            _TYPE,
            notes=["a script can pass a scheduler of its own to `deepspeed.initialize`"],
            fix=_fix_torch_scheduler(ctx),
        )


@gate(
    "OP025 torch-scheduler-with-a-wrapped-optimizer",
    upstream="raises",
    cites=Cite("runtime/engine.py", "lr_scheduler = self._scheduler_from_config(self.optimizer)"),
)
def torch_scheduler_on_wrapper(ctx: Context) -> Findings:
    """A torch scheduler on DeepSpeed's wrapped optimizer.

    The name of a torch scheduler in `scheduler.type` at ZeRO stages 1 to 3, or in 16-bit at stage 0.

    Why: DeepSpeed gives the scheduler its own wrapper of the optimizer, which torch does not take: `TypeError:
    DeepSpeedZeroOptimizer is not an Optimizer` (run on 0.19.8). Only in fp32 at stage 0 there is no wrapper. A script
    can pass a scheduler of its own to `deepspeed.initialize`.

    Example:
        zero.stage: 2
        deepspeed.scheduler.type: CosineAnnealingLR
        deepspeed.scheduler.params.T_max: 100

    Use instead:
        zero.stage: 2
        deepspeed.scheduler.type: WarmupCosineLR
        deepspeed.scheduler.params.total_num_steps: 100
        deepspeed.scheduler.params.warmup_num_steps: 1
        deepspeed.scheduler.params.warmup_type: linear
        deepspeed.scheduler.params.warmup_min_ratio: 0.1
    """
    name = get_scheduler_name(ctx)
    if name in TORCH_SCHEDULERS and _is_optimizer_wrapped(ctx):
        yield ctx.finding(
            f"torch's `{name}` does not take the optimizer that DeepSpeed wraps "
            + (f"at ZeRO stage {ctx.stage}" if ctx.stage else f"in {model_dtype(ctx)}"),
            _TYPE,
            related=[("zero.stage", "the stage is set here")],
            notes=["DeepSpeed's own schedulers do: WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest"],
            fix=_fix_torch_scheduler(ctx),
        )


_MOMENTUM_LIMITS = {"cycle_min_mom": 0.8, "cycle_max_mom": 0.9}
"""Of the first beta, with DeepSpeed's defaults."""
_ONE_CYCLE_BETA2 = 0.99


@gate(
    "OP034 one-cycle-replaces-betas",
    severity="warning",
    cites=Cite("runtime/lr_schedules.py", "self.min_moms = ["),
    when=lambda ctx: get_scheduler_name(ctx) == "OneCycle",
)
def replaced_betas(ctx: Context) -> Findings:
    """OneCycle and Adam's betas.

    `scheduler.type: OneCycle` with `cycle_momentum` (the default) and an Adam whose `betas` are written.

    Why: OneCycle cycles the first beta between `cycle_min_mom` and `cycle_max_mom` and sets the second one to 0.99,
    before the first step; what `optimizer.params.betas` says trains nothing (run on 0.19.8).

    Example:
        zero.stage: 1
        optimizer.learning_rate: 1.0e-4
        optimizer.betas: [0.9, 0.95]
        deepspeed.scheduler.type: OneCycle
        deepspeed.scheduler.params.cycle_min_lr: 1.0e-6
        deepspeed.scheduler.params.cycle_max_lr: 1.0e-4
    """
    key = get_parameter_key(ctx, "betas")
    has_decay = bool(ctx.ds("scheduler.params.decay_mom_rate"))
    if not ctx.source.has_key(key) or not ctx.ds("scheduler.params.cycle_momentum", True):
        return
    betas = ctx.optimizer.params.get("betas")
    limits = [ctx.ds(f"scheduler.params.{name}", default) for name, default in _MOMENTUM_LIMITS.items()]
    if not isinstance(betas, (list, tuple)) or len(betas) != 2 or not all(map(is_number, limits)):
        return
    if [*betas] == [limits[0], _ONE_CYCLE_BETA2] and limits[0] == limits[1] and not has_decay:
        return
    yield ctx.finding(
        f"`OneCycle` replaces {ctx.key(key)} {[*betas]}: the first cycles between {limits[0]:g} and {limits[1]:g},"
        f" the second is {_ONE_CYCLE_BETA2}"[:159],
        key,
        label="replaced",
        related=[(_TYPE, "cycles the momentum by default")],
        fix=ctx.fix_to_set(f"{_PARAMS}.cycle_momentum", False, effect="the betas stay as written"),
    )


@gate(
    "OP035 range-test-left-on",
    severity="warning",
    cites=Cite("runtime/lr_schedules.py", "return (1 + self.step_rate * self.interval_fn())"),
)
def leftover_range_test(ctx: Context) -> Findings:
    """A learning-rate range test in a training run.

    `scheduler.type: LRRangeTest`.

    Why: Its purpose is to find a rate, not to train: the rate starts at `lr_range_test_min_lr`, whatever the optimizer
    says, and grows without a bound until the loss diverges.

    Example:
        zero.stage: 1
        deepspeed.scheduler.type: LRRangeTest
        deepspeed.scheduler.params.lr_range_test_min_lr: 1.0e-6
    """
    if get_scheduler_name(ctx) == "LRRangeTest":
        yield ctx.finding(
            "a learning-rate range test raises the rate until training diverges",
            _TYPE,
            notes=["it shows which rates can be used; train with another scheduler afterwards"],
            fix=ctx.fix_to_remove(_BLOCK, effect="the rate is the optimizer's"),
        )
