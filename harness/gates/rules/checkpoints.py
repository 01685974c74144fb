# SPDX-License-Identifier: Apache-2.0
"""Saves, exports, limits and restarts of a run."""

from __future__ import annotations

import math
from pathlib import Path

from harness.gates.registry import Context, Findings, Fix, gate, spec_gate
from harness.units import format_seconds

_SAVE_AT_END_KEY = "checkpoint.save_at_end"
_COSTLY_SHARE = 0.05
_HOUR = 3600
_MONTH = 30 * 24 * _HOUR


@spec_gate("CK009 training-that-saves-nothing", severity="info")
def training_without_saves(ctx: Context) -> Findings:
    """A run that keeps nothing of what it trained.

    `checkpoint.save_at_end: false` without a `checkpoint.save_steps`, and without `export.at_end`.

    Why: The run writes only metrics, which suits a measurement.

    Example:
        checkpoint.save_at_end: false
    """
    spec = ctx.run.spec
    if not spec.checkpoint.save_at_end and spec.checkpoint.save_steps is None and not spec.export.at_end:
        yield ctx.finding(
            "no checkpoint is ever saved: the trained weights are gone when the run ends",
            _SAVE_AT_END_KEY,
            notes=["fine for a measurement"],
            fix=_fix_missing_save(ctx),
        )


@spec_gate("CK008 export-without-a-checkpoint", upstream="wrong")
def export_without_checkpoint(ctx: Context) -> Findings:
    """An export at the end of a run that does not save its last step.

    `export.at_end: true` with `checkpoint.save_at_end: false`, unless `train.max_steps` is a multiple of
    `checkpoint.save_steps` and nothing ends the run earlier.

    Why: The export reads the checkpoint of the last step, never an older one. A run without it trains to the end, and
    then there is nothing to export.

    Example:
        export.at_end: true
        checkpoint.save_at_end: false

    Use instead:
        export.at_end: true
        checkpoint.save_total_limit: 1
        checkpoint.save_steps: 5
    """
    spec = ctx.run.spec
    if not spec.export.at_end or spec.checkpoint.save_at_end:
        return
    save_steps, max_steps = spec.checkpoint.save_steps, spec.train.max_steps
    ends_early = spec.eval.early_stopping_patience is not None
    if save_steps is None or max_steps is None or max_steps % save_steps or ends_early:
        key = "export.at_end"
        yield ctx.finding(
            f"{ctx.key(key)} may find no checkpoint of the last step, since {ctx.key(_SAVE_AT_END_KEY)} is false",
            key,
            related=[(_SAVE_AT_END_KEY, "nothing is saved at the end")],
            notes=["the run would train to its end, and the weights of its last step would be gone"],
            fix=_fix_missing_save(ctx),
        )


def _fix_missing_save(ctx: Context) -> Fix:
    return ctx.fix_to_set(_SAVE_AT_END_KEY, True, effect="a checkpoint at the end")


@spec_gate(
    "CK010 save-limit-without-saves",
    severity="warning",
    unread="nothing is saved that it could limit",
)
def save_limit_without_saves(ctx: Context) -> Findings:
    """A limit on checkpoints in a run that writes at most one.

    `checkpoint.save_total_limit` without `checkpoint.save_steps`.

    Why: The only checkpoint is the one at the end, so there is nothing to limit. It may be that `save_steps` was
    forgotten: a run that dies before its last step has then saved nothing.

    Example:
        checkpoint.save_total_limit: 2

    Use instead:
        checkpoint.save_total_limit: 2
        checkpoint.save_steps: 5
    """
    checkpoint = ctx.run.spec.checkpoint
    limit = checkpoint.save_total_limit
    if limit is not None and checkpoint.save_steps is None:
        key = "checkpoint.save_total_limit"
        yield ctx.unread(
            f"{ctx.key(key)} is {limit}, but without `checkpoint.save_steps` only one is written",
            key,
            notes=["a run that dies before its last step has saved nothing"],
            fix=Fix(f"set `checkpoint.save_steps`, or remove {ctx.key(key)}", {key: None}, safe=True),
        )


@spec_gate("CK011 interval-longer-than-the-run", severity="warning")
def interval_beyond_run(ctx: Context) -> Findings:
    """An interval that the run never reaches.

    `checkpoint.save_steps` and `eval.eval_steps` against `train.max_steps`.

    Why: An interval longer than the run is never reached: only the checkpoint or evaluation at the end remains, if
    there is one.

    Example:
        train.max_steps: 100
        checkpoint.save_steps: 500
    """
    spec = ctx.run.spec
    steps = spec.train.max_steps
    if steps is None:
        return
    half = max(1, steps // 2)
    intervals = {"checkpoint.save_steps": spec.checkpoint.save_steps, "eval.eval_steps": spec.eval.eval_steps}
    for key, interval in intervals.items():
        if interval is not None and interval > steps:
            yield ctx.finding(
                f"{ctx.key(key)} is {interval} and the run ends after {steps} steps",
                key,
                label="never comes up",
                related=[("train.max_steps", "the run ends here")],
                fix=ctx.fix_to_set(key, half, effect="it comes up twice"),
            )


@gate(
    "CK015 saves-that-cost-too-much",
    severity=("warning", "info"),
    needs=("a run spec", "world size", "model facts"),
    when=lambda ctx: ctx.run.spec.checkpoint.save_steps is not None and ctx.run.spec.cluster.gpu is not None,
)
def costly_saves(ctx: Context) -> Findings:
    """Saves that take much of the time, or so few that a failure loses hours.

    `checkpoint.save_steps` times the planned seconds of a step, on a `cluster.gpu` whose speed is known: saves above
    5 % of the time; or more than an hour of work that a failure loses on average, where the run is as likely as not to
    have a failure within a month.

    Why: A synchronous save stops all ranks while the states are written, in bf16 with Adam 12 to 14 bytes a parameter.
    Of a failure the run repeats half an interval on average. `harness plan --long` has the interval that loses least,
    from `cluster.failure_hours_per_gpu`; time, sizes and rates are planned, not measured.

    Example:
        model.config: llama-70b
        train.per_device_train_batch_size: 1
        train.max_steps: 100000
        zero.stage: 3
        precision.bf16: true
        checkpoint.save_steps: 1
        cluster.gpu: H100-80GB
        cluster.gpus_per_node: 8
        cluster.num_nodes: 8
    """
    from harness.plan.planner import make_plan

    plan = make_plan(ctx.run, Path(ctx.source.file).parent, with_alternatives=False, build=False)
    saves, key = plan.saves_at(plan.time), "checkpoint.save_steps"
    if saves is None or plan.time is None or plan.checkpoint_cost is None:
        return
    best = max(1, round(plan.checkpoint_cost.interval / plan.time.seconds))
    best = min(best, ctx.run.spec.train.max_steps or best)
    if saves.save_share > _COSTLY_SHARE and best > saves.save_steps:
        yield ctx.finding(
            f"saves every {format_seconds(saves.interval)} take {saves.save_share:.0%} of the time (planned)",
            key,
            fix=ctx.fix_to_set(key, best, effect="the interval that loses least, failures included"),
        )
    elif saves.failure_loses > _HOUR and plan.checkpoint_cost.failure_seconds < _MONTH and best < saves.save_steps:
        yield ctx.finding(
            f"a failure loses {format_seconds(saves.failure_loses)} on average, and the plan expects one every"
            f" {plan.checkpoint_cost.failure_seconds / _HOUR:,.0f} hours",
            key,
            severity="info",
            fix=ctx.fix_to_set(key, best, effect="the interval that loses least, failures included"),
        )


@spec_gate(
    "CK012 kept-where-all-are-kept",
    severity="warning",
    unread="nothing is removed that it could keep",
)
def retention_without_limit(ctx: Context) -> Findings:
    """Rules for keeping checkpoints where none is removed.

    `checkpoint.keep_every_steps` or `checkpoint.keep_best` without `checkpoint.save_total_limit`.

    Why: Both select checkpoints to keep in addition to the newest ones. Without a limit all are kept, and the disk
    fills.

    Example:
        checkpoint.save_steps: 5
        checkpoint.keep_every_steps: 10

    Use instead:
        checkpoint.save_steps: 5
        checkpoint.save_total_limit: 2
        checkpoint.keep_every_steps: 10
    """
    checkpoint = ctx.run.spec.checkpoint
    if checkpoint.save_total_limit is not None:
        return
    for name in ("keep_every_steps", "keep_best"):
        key = f"checkpoint.{name}"
        if getattr(checkpoint, name):
            yield ctx.unread(
                f"{ctx.key(key)} is set, but without `checkpoint.save_total_limit` every checkpoint is kept",
                key,
                fix=Fix(f"set `checkpoint.save_total_limit`, or remove {ctx.key(key)}", {key: None}, safe=True),
            )


@spec_gate("CK013 best-that-is-never-known", severity="warning")
def best_without_evaluation(ctx: Context) -> Findings:
    """`keep_best` where no saved step is ever evaluated.

    `checkpoint.keep_best` where evaluations and saves never fall on the same step before the last.

    Why: Which checkpoint is best is known from the held-out loss of its own step. An evaluation at the end of the run
    comes after the last removal, and one between two saves is of weights that nobody kept.

    Example:
        checkpoint.save_steps: 5
        checkpoint.save_total_limit: 1
        checkpoint.keep_best: true
    """
    spec = ctx.run.spec
    save_steps = spec.checkpoint.save_steps
    if not spec.checkpoint.keep_best or save_steps is None:
        return
    eval_steps = spec.eval.eval_steps
    max_steps = spec.train.max_steps
    # the first step that is both saved and evaluated
    common_step = math.lcm(save_steps, eval_steps) if eval_steps else None
    if common_step is None or (max_steps is not None and common_step >= max_steps):
        reason = "`eval.eval_steps` is not set"
        if common_step:
            reason = f"steps {save_steps} and {eval_steps} meet at step {common_step}"
        key = "checkpoint.keep_best"
        yield ctx.unread(
            f"{ctx.key(key)} never learns which checkpoint is best: {reason}",
            key,
            fix=Fix(
                f"set `eval.eval_steps: {save_steps}`",
                {"eval.eval_steps": save_steps},
                effect="an evaluation at each save",
            ),
        )


@spec_gate("CK014 patience-without-evaluations", severity="warning")
def patience_without_evaluations(ctx: Context) -> Findings:
    """Early stopping in a run that is evaluated only at its end.

    `eval.early_stopping_patience` without `eval.eval_steps`.

    Why: Patience counts evaluations in a row that are no better than the best before them. The only evaluation comes
    after the last step, when nothing is left to stop.

    Example:
        eval.early_stopping_patience: 2

    Use instead:
        eval.early_stopping_patience: 2
        eval.eval_steps: 5
    """
    spec = ctx.run.spec
    patience = spec.eval.early_stopping_patience
    is_evaluated = spec.data.eval is not None or spec.data.eval_fraction > 0  # else MD011 reports it
    if patience is not None and spec.eval.eval_steps is None and is_evaluated:
        key = "eval.early_stopping_patience"
        interval = max(1, (spec.train.max_steps or 1000) // 10)
        yield ctx.unread(
            f"{ctx.key(key)} is {patience}, but without `eval.eval_steps` the run is evaluated only at its end",
            key,
            fix=Fix(
                f"set `eval.eval_steps`, such as to {interval}",
                {"eval.eval_steps": interval},
                effect="evaluates at this interval, and stops once the loss no longer improves",
            ),
        )


@spec_gate("CK030 restarts-without-saves", severity="warning")
def restarts_without_saves(ctx: Context) -> Findings:
    """Restarts of a run that saves nothing before its end.

    `launch.max_restarts` above 0 without `checkpoint.save_steps`.

    Why: A restart resumes from the last complete checkpoint of the run. Without one, each begins at the first step, and
    a run that takes longer than the time between failures never ends.

    Example:
        launch.max_restarts: 3

    Use instead:
        launch.max_restarts: 3
        checkpoint.save_steps: 5
    """
    spec = ctx.run.spec
    if spec.launch.max_restarts and spec.checkpoint.save_steps is None:
        key = "launch.max_restarts"
        interval = max(1, (spec.train.max_steps or 1000) // 10)
        yield ctx.finding(
            f"{ctx.key(key)} starts from the first step each time: nothing is saved before the end",
            key,
            label="nothing to resume from",
            fix=Fix(
                f"set `checkpoint.save_steps` to as many steps as may be lost, such as {interval}",
                {"checkpoint.save_steps": interval},
                effect="a checkpoint so often",
            ),
        )


@spec_gate("MD013 export-options-without-export", severity="warning", unread="nothing is exported")
def export_options_without_export(ctx: Context) -> Findings:
    """Options of an export that does not take place.

    `export.dtype`, `export.sample_prompt` and `export.sample_tokens` without `export.at_end: true`; `sample_tokens`
    without `sample_prompt`.

    Why: They are for the export at the end of training. The command `harness export` has options of its own.

    Example:
        export.sample_prompt: "def main"

    Use instead:
        export.at_end: true
        export.sample_prompt: "def main"
    """
    export = ctx.run.spec.export
    if not export.at_end:
        switch = "export.at_end"
        names = ["dtype", "max_shard_size", "lora", "verify", "sample_prompt", "sample_tokens"]
    elif export.sample_prompt is None:
        switch = "export.sample_prompt"
        names = ["sample_tokens"]
    else:
        return
    for name in names:
        key = f"export.{name}"
        if export.is_written(name):
            yield ctx.unread(
                f"{ctx.key(key)} is read only with {ctx.key(switch)}",
                key,
                fix=Fix(f"set {ctx.key(switch)}, or remove it", {key: None}, safe=True),
            )
