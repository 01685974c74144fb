# SPDX-License-Identifier: Apache-2.0
"""Warm-up, peak, decay and length of a learning-rate schedule."""

from __future__ import annotations

import math
from typing import TypeGuard

from harness.gates.dtypes import model_dtype
from harness.gates.optimizer_facts import (
    TYPES_WITH_MINIMUM,
    get_parameter_key,
    get_scheduler_name,
    get_scheduler_params,
    is_number,
    read_number,
)
from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate

_ENDS = {"constant": "stays at the peak", "inverse_sqrt": "falls without a limit"}
"""The last rate of a schedule without a minimum, where it is not 0."""
_TYPE = "deepspeed.scheduler.type"
_PARAMS = "deepspeed.scheduler.params"
_TOTAL = f"{_PARAMS}.total_num_steps"
_FINITE_SCHEDULES = ("WarmupDecayLR", "WarmupCosineLR")
"""Schedulers with a last step."""


@gate(
    "OP027 peak-rate-by-default",
    severity=("error", "warning"),
    cites=Cite("runtime/lr_schedules.py", "warmup_max_lr: float = 0.001,"),
    when=lambda ctx: get_scheduler_name(ctx) in ("WarmupDecayLR", "WarmupLR"),
)
def default_peak(ctx: Context) -> Findings:
    """A schedule that peaks at its own default.

    `WarmupDecayLR` without `warmup_max_lr`, and `WarmupLR` without it up to DeepSpeed 0.17.1.

    Why: The peak is then 0.001, whatever `optimizer.params.lr` says (run on 0.19.8: 5e-4 requested, 0.001 trained).
    WarmupLR takes the optimizer's rate from 0.17.2 on; WarmupDecayLR still does not.

    Example:
        zero.stage: 1
        optimizer.learning_rate: 1.0e-5
        deepspeed.scheduler.type: WarmupDecayLR
        deepspeed.scheduler.params.total_num_steps: 100
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_num_steps: 10
    """
    name = get_scheduler_name(ctx)
    rate = ctx.optimizer.params.get("lr")
    is_rate_inherited = name == "WarmupLR" and ctx.target.version >= (0, 17, 2)
    if is_rate_inherited or ctx.has_key("scheduler.params.warmup_max_lr") or rate == 0.001:
        return
    has_rate = is_number(rate)
    peak = rate if has_rate else 0.001
    peak_key = f"{_PARAMS}.warmup_max_lr"
    contrast = f"not at the optimizer's {rate:g}" if has_rate else "whatever the optimizer says"
    yield ctx.finding(
        f"`{name}` peaks at 0.001, {contrast}",
        _TYPE,
        severity="error" if has_rate else "warning",
        related=[(get_parameter_key(ctx, "lr"), "replaced")],
        notes=["without `warmup_max_lr` the peak is 0.001"],
        fix=Fix(
            f"set {ctx.key(peak_key)} to {peak:g}",
            {peak_key: peak},
            effect="peaks at the optimizer's rate" if has_rate else "the same, in writing",
        ),
    )


_PEAK_NAMES = {"WarmupLR": "warmup_max_lr", "WarmupDecayLR": "warmup_max_lr", "OneCycle": "cycle_max_lr"}


@gate(
    "OP028 rate-replaced-by-the-scheduler",
    severity="warning",
    cites=Cite("runtime/lr_schedules.py", "param_group['lr'] = lr"),
    when=lambda ctx: get_scheduler_name(ctx) in _PEAK_NAMES,
)
def replaced_rate(ctx: Context) -> Findings:
    """Two learning rates, one of them replaced.

    A rate in the scheduler (`warmup_max_lr`, `cycle_max_lr`) that is not the optimizer's.

    Why: DeepSpeed's schedulers set the optimizer's rate; they do not scale it. With both written and different, the
    scheduler's counts. `lr` is only what the optimizer has before the scheduler exists: in 16-bit at stage 0 DeepSpeed
    takes a hidden first step with it, which decays the weights, and at stage 3 the part of `offload_optimizer.ratio` on
    the GPU keeps it (the step run, the part read, on 0.19.8). WarmupCosineLR alone scales `lr`.

    Example:
        zero.stage: 1
        optimizer.learning_rate: 1.0e-5
        deepspeed.scheduler.type: WarmupLR
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_max_lr: 3.0e-4
        deepspeed.scheduler.params.warmup_num_steps: 10
    """
    key = get_parameter_key(ctx, "lr")
    peak_name = _PEAK_NAMES[get_scheduler_name(ctx)]
    peak = get_scheduler_params(ctx).get(peak_name)
    rate = ctx.optimizer.params.get("lr")
    if not _is_rate(peak) or not _is_rate(rate) or abs(peak - rate) <= 1e-6 * rate or not ctx.source.has_key(key):
        return
    yield ctx.finding(
        f"the optimizer's rate of {rate:g} is replaced by the scheduler's {peak:g}",
        key,
        label="replaced",
        related=[(f"{_PARAMS}.{peak_name}", "this one counts")],
        fix=Fix(f"set {ctx.key(key)} to {peak:g} too", {key: peak}, effect=_explain_early_rate(ctx, rate, peak)),
    )


def _explain_early_rate(ctx: Context, rate: float, peak: float) -> str:
    """The effect of another `lr`: on what the optimizer does before the scheduler sets its rate."""
    if ctx.stage == 3 and ctx.ds("zero_optimization.offload_optimizer.ratio", 1.0) != 1.0:
        return f"the part of the optimizer on the GPU trains at {peak:g}, not at {rate:g}"
    if ctx.stage == 0 and model_dtype(ctx) != "fp32":
        return f"the hidden first step decays the weights at {peak:g}, not at {rate:g}"
    return "each step is at the scheduler's rate, as now"


def _is_rate(value: object) -> TypeGuard[float]:
    return is_number(value) and value > 0


@gate(
    "OP029 warm-up-from-above",
    severity="warning",
    cites=Cite("runtime/lr_schedules.py", "self.delta_lrs = [big - small for big, small in zip("),
    when=lambda ctx: bool(get_scheduler_params(ctx)),
)
def downward_warmup(ctx: Context) -> Findings:
    """A warm-up that goes down.

    `warmup_min_lr` above `warmup_max_lr` (or above the optimizer's rate, where WarmupLR takes that), `cycle_min_lr`
    above `cycle_max_lr`, and `warmup_min_ratio` above 1.

    Why: DeepSpeed interpolates from the first to the second, whichever is larger: training starts at the high rate,
    which falls (run on 0.19.8: 0.01, 0.0043, 0.001).

    Example:
        zero.stage: 1
        optimizer.learning_rate: 1.0e-5
        deepspeed.scheduler.type: WarmupLR
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-4
        deepspeed.scheduler.params.warmup_max_lr: 1.0e-5
        deepspeed.scheduler.params.warmup_num_steps: 10

    Use instead:
        zero.stage: 1
        optimizer.learning_rate: 1.0e-5
        deepspeed.scheduler.type: WarmupLR
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_max_lr: 1.0e-5
        deepspeed.scheduler.params.warmup_num_steps: 10
    """
    params = get_scheduler_params(ctx)
    rate = ctx.optimizer.params.get("lr")
    pairs = (
        ("warmup_min_lr", "warmup_max_lr", params.get("warmup_max_lr", rate)),
        ("cycle_min_lr", "cycle_max_lr", params.get("cycle_max_lr")),
        ("warmup_min_ratio", None, 1.0),  # a ratio has its peak at 1
    )
    for low_name, peak_name, peak in pairs:
        low = params.get(low_name)
        if not is_number(low) or not is_number(peak) or low <= peak:
            continue
        key = f"{_PARAMS}.{low_name}"
        yield ctx.finding(
            f"{ctx.key(key)} is {low:g}, above the peak of {peak:g}: the rate starts high and falls",
            key,
            related=[(f"{_PARAMS}.{peak_name}", "the peak")] if peak_name else [],
            fix=Fix(f"set {ctx.key(key)} to {peak / 10:g}", {key: peak / 10}, effect="the rate rises to its peak"),
        )


@gate(
    "OP030 warm-up-longer-than-the-schedule",
    severity=("error", "warning"),
    cites=Cite("runtime/lr_schedules.py", "total_num_steps {} is less than warmup_num_steps {}"),
    when=lambda ctx: get_scheduler_name(ctx) in _FINITE_SCHEDULES,
)
def warmup_longer_than_schedule(ctx: Context) -> Findings:
    """A warm-up as long as the whole schedule.

    `warmup_num_steps` (1000 when it is not given) not below `total_num_steps` of WarmupDecayLR and WarmupCosineLR.

    Why: DeepSpeed warns and continues. The rate is still rising when the schedule ends, and the step after the warm-up
    is at 0 or at the cosine's floor (run on 0.19.8).

    Example:
        zero.stage: 1
        deepspeed.scheduler.type: WarmupDecayLR
        deepspeed.scheduler.params.total_num_steps: 100
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_max_lr: 1.0e-5
        deepspeed.scheduler.params.warmup_num_steps: 1000
    """
    name = "scheduler.params.warmup_num_steps"
    if ctx.is_auto(name):
        return
    total = ctx.ds("scheduler.params.total_num_steps")
    warmup = ctx.ds(name, 1000)
    are_finite = all(is_number(steps) and read_number(steps) is not None for steps in (total, warmup))
    if not are_finite or warmup < total:
        return
    is_default = ctx.ds(name) is None
    origin = ", which is the default" if is_default else ""
    warmup_key = f"{_PARAMS}.warmup_num_steps"
    tenth = max(1, int(total) // 10)
    yield ctx.finding(
        f"the warm-up of {warmup} steps{origin} takes the whole schedule of {total}",
        _TOTAL if is_default else warmup_key,
        severity="error" if warmup > total else "warning",
        related=[] if is_default else [(_TOTAL, "all steps")],
        notes=["no step trains at the peak; afterwards the rate is 0 or the cosine's floor"],
        fix=ctx.fix_to_set(warmup_key, tenth, effect="reaches the peak, then decays"),
    )


@gate(
    "OP031 schedule-ends-before-training",
    severity="warning",
    cites=Cite("runtime/lr_schedules.py", "float(self.total_num_steps - self.last_batch_iteration)"),
    when=lambda ctx: get_scheduler_name(ctx) in _FINITE_SCHEDULES,
)
def short_schedule(ctx: Context) -> Findings:
    """Training that outlasts its schedule.

    `total_num_steps` of WarmupDecayLR and WarmupCosineLR below `train.max_steps`.

    Why: Scheduler steps are optimizer steps. After `total_num_steps` of them WarmupDecayLR is at 0 and stays there,
    WarmupCosineLR at its floor of a ten-thousandth: the rest of the run trains nothing (run on 0.19.8).

    Example:
        train.max_steps: 1000
        zero.stage: 1
        deepspeed.scheduler.type: WarmupDecayLR
        deepspeed.scheduler.params.total_num_steps: 100
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_max_lr: 1.0e-5
        deepspeed.scheduler.params.warmup_num_steps: 10
    """
    total = ctx.ds("scheduler.params.total_num_steps")
    steps = ctx.run.spec.train.max_steps
    if steps is None or not is_number(total) or total >= steps:
        return
    yield ctx.finding(
        f"the schedule ends after {total} of {steps} steps; the rest trains at a rate of about 0",
        _TOTAL,
        related=[("train.max_steps", "so long is trained")],
        fix=_fix_length(ctx, steps),
    )


def _fix_length(ctx: Context, steps: int) -> Fix:
    """The fix that makes the schedule as long as the run."""
    return ctx.fix_to_set(_TOTAL, steps, effect="decays over the whole run")


@gate(
    "OP032 unknown-warmup-type",
    severity="warning",
    cites=Cite("runtime/lr_schedules.py", "Using unknown warmup_type: {warmup_type}."),
    when=lambda ctx: get_scheduler_name(ctx).startswith("Warmup"),
)
def unknown_warmup_type(ctx: Context) -> Findings:
    """An unknown kind of warm-up.

    `warmup_type` of DeepSpeed's schedulers: `log` or `linear`.

    Why: DeepSpeed treats any other value as `log`, with one line in the log (run on 0.19.8).

    Example:
        zero.stage: 1
        deepspeed.scheduler.type: WarmupLR
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_num_steps: 10
        deepspeed.scheduler.params.warmup_type: cosine
    """
    kind = ctx.ds("scheduler.params.warmup_type")
    if kind not in (None, "log", "linear"):
        key = f"{_PARAMS}.warmup_type"
        better = "log" if str(kind).lower() == "log" else "linear"
        yield ctx.finding(
            f"{ctx.key(key)} is `{str(kind)[:30]}`, which DeepSpeed treats as `log`",
            key,
            label="`log` or `linear`",
            fix=ctx.fix_to_set(key, better, effect=f"the rate rises as {better}"),
        )


@gate(
    "OP033 first-steps-at-zero",
    severity="info",
    cites=Cite("runtime/lr_schedules.py", "self._last_lr = update_lr(self.optimizer.param_groups, self.get_lr())"),
    since="0.15.3",
    when=lambda ctx: get_scheduler_name(ctx) in ("WarmupLR", *_FINITE_SCHEDULES),
)
def first_steps_at_zero(ctx: Context) -> Findings:
    """Two first steps that train nothing.

    WarmupLR, WarmupDecayLR and WarmupCosineLR that start at 0 (the default of `warmup_min_lr` and `warmup_min_ratio`),
    for runs of at most 100 steps whose length is known.

    Why: DeepSpeed sets the rate to the minimum when it makes the scheduler and again for index 0: the first two
    optimizer steps run at it. At 0 they train nothing, which matters in a short run (run on 0.19.8; before 0.15.3 the
    first step ran at the full rate).

    Example:
        train.max_steps: 20
        zero.stage: 1
        deepspeed.scheduler.type: WarmupLR
        deepspeed.scheduler.params.warmup_num_steps: 5
    """
    steps = ctx.run.spec.train.max_steps
    name, low = ("warmup_min_ratio", 0.1) if get_scheduler_name(ctx) == "WarmupCosineLR" else ("warmup_min_lr", 1e-6)
    if steps is not None and steps <= 100 and ctx.ds(f"scheduler.params.{name}", 0) == 0:
        low_key = f"{_PARAMS}.{name}"
        yield ctx.finding(
            f"the first 2 of {steps} steps run at a learning rate of 0",
            low_key if ctx.has_key(f"scheduler.params.{name}") else _TYPE,
            notes=[f"the scheduler starts at `{name}`, and its index 0 is there too"],
            fix=ctx.fix_to_set(low_key, low, effect="the first steps train a little"),
        )


@gate(
    "OP036 schedule-counted-in-micro-batches",
    severity="warning",
    cites=Cite("runtime/engine.py", "self.lr_scheduler.step(**(lr_kwargs or {}))"),
    when=lambda ctx: get_scheduler_name(ctx) in _FINITE_SCHEDULES,
)
def schedule_in_micro_batches(ctx: Context) -> Findings:
    """A schedule counted in micro-batches.

    `total_num_steps` equal to `train.max_steps` times the accumulation steps.

    Why: DeepSpeed steps a scheduler with the optimizer, once a global batch, not with every micro-batch. A schedule
    that is that many times longer never reaches its end: the rate at the last step is still near the peak (read in
    0.19.8).

    Example:
        train.max_steps: 500
        train.per_device_train_batch_size: 1
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        deepspeed.scheduler.type: WarmupDecayLR
        deepspeed.scheduler.params.total_num_steps: 4000
        deepspeed.scheduler.params.warmup_min_lr: 1.0e-6
        deepspeed.scheduler.params.warmup_max_lr: 1.0e-5
        deepspeed.scheduler.params.warmup_num_steps: 10
    """
    steps = ctx.run.spec.train.max_steps
    accumulation = ctx.run.batch.accumulation
    total = ctx.ds("scheduler.params.total_num_steps")
    if steps is None or accumulation is None or accumulation < 2 or total != steps * accumulation:
        return
    yield ctx.finding(
        f"{total} is {steps} steps x {accumulation} micro-batches, and a scheduler counts optimizer steps",
        _TOTAL,
        related=[("train.max_steps", "so long is trained")],
        notes=[f"the run ends after 1/{accumulation} of the schedule, with the rate still high"],
        fix=_fix_length(ctx, steps),
    )


@spec_gate("OP040 decay-that-does-not-fit-the-run")
def decay_beyond_run(ctx: Context) -> Findings:
    """Warm-up and decay longer than the run.

    `scheduler.type: warmup_stable_decay`, where warm-up and decay take more steps than `train.max_steps`.

    Why: `transformers` counts the decay back from the end: the rate would jump from the warm-up into the middle of the
    decay. A launch is refused (OP110), also if the number of steps follows from the epochs.

    Example:
        train.max_steps: 100
        scheduler.type: warmup_stable_decay
        scheduler.warmup_steps: 50
        scheduler.decay_steps: 80
    """
    scheduler = ctx.run.spec.scheduler
    steps = ctx.run.spec.train.max_steps
    if scheduler.type != "warmup_stable_decay" or steps is None:
        return
    warmup = _count_steps(scheduler.warmup_steps, scheduler.warmup_ratio, steps)
    decay = _count_steps(scheduler.decay_steps, scheduler.decay_ratio, steps)
    if warmup + decay > steps:
        decay_key = "scheduler.decay_steps"
        yield ctx.finding(
            f"a warm-up of {warmup} steps and a decay of {decay} do not fit into {steps} steps",
            "scheduler.decay_ratio" if scheduler.decay_steps is None else decay_key,
            related=[("train.max_steps", "so long is trained")],
            fix=ctx.fix_to_set(decay_key, max(0, steps - warmup), effect="decays faster"),
        )


def _count_steps(count: int | None, ratio: float, steps: int) -> int:
    """The steps of a part of the schedule: their count, else a share of all steps."""
    return math.ceil(ratio * steps) if count is None else count


@spec_gate("MD007 two-lengths-of-warmup", severity="warning", unread="`warmup_steps` decides")
def two_warmup_lengths(ctx: Context) -> Findings:
    """Two lengths of the warm-up.

    `scheduler.warmup_steps` and `scheduler.warmup_ratio` are not both written.

    Why: `warmup_steps` takes precedence, also when it is 0, and the ratio is ignored.

    Example:
        scheduler.warmup_steps: 2
        scheduler.warmup_ratio: 0.1
    """
    scheduler = ctx.run.spec.scheduler
    if scheduler.warmup_steps is not None and scheduler.is_written("warmup_ratio"):
        key = "scheduler.warmup_ratio"
        yield ctx.unread(
            f"{ctx.key(key)} is not read, since `scheduler.warmup_steps` is {scheduler.warmup_steps}",
            key,
            related=[("scheduler.warmup_steps", "this one decides")],
            fix=Fix("remove one of the two", {key: None}, safe=True),
        )


@spec_gate("MD008 minimum-rate-that-is-not-read", severity="warning", unread="the schedule has no minimum")
def min_lr_not_read(ctx: Context) -> Findings:
    """A minimum learning rate for a schedule without one.

    `scheduler.min_lr_ratio` above 0 with a `scheduler.type` other than `cosine`, `polynomial` and
    `warmup_stable_decay`.

    Why: Only these end at a share of the peak. A constant rate stays there, a linear one and a cosine with restarts
    fall to 0, and the inverse square root keeps falling, whatever the ratio is.

    Example:
        scheduler.type: linear
        scheduler.min_lr_ratio: 0.1

    Use instead:
        scheduler.type: cosine
        scheduler.min_lr_ratio: 0.1
    """
    scheduler = ctx.run.spec.scheduler
    if scheduler.type not in TYPES_WITH_MINIMUM and scheduler.min_lr_ratio:
        key = "scheduler.min_lr_ratio"
        end = _ENDS.get(scheduler.type, "falls to 0")
        yield ctx.unread(
            f"{ctx.key(key)} is not read: a {scheduler.type} schedule {end}",
            key,
            related=[("scheduler.type", "the schedule is set here")],
            fix=Fix("remove it, or set `scheduler.type` to cosine", {key: None}, safe=True),
        )


@spec_gate("MD016 warmup-longer-than-the-run", severity="warning")
def warmup_beyond_run(ctx: Context) -> Findings:
    """A warm-up as long as the run.

    `scheduler.warmup_steps` against `train.max_steps`.

    Why: The rate is still rising when the run ends: the peak in `optimizer.learning_rate` is never reached, and nothing
    decays.

    Example:
        train.max_steps: 100
        scheduler.warmup_steps: 500
    """
    warmup = ctx.run.spec.scheduler.warmup_steps
    steps = ctx.run.spec.train.max_steps
    if warmup is not None and steps is not None and warmup >= steps:
        key = "scheduler.warmup_steps"
        yield ctx.finding(
            f"{ctx.key(key)} is {warmup} and the run ends after {steps} steps: the rate never reaches its peak",
            key,
            related=[("train.max_steps", "the run ends here")],
            fix=ctx.fix_to_set(key, steps // 10, effect="the rate reaches its peak"),
        )
