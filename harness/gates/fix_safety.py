# SPDX-License-Identifier: Apache-2.0
"""May `--fix` apply a fix unattended? By the table of `harness.facts.key_effects`, for the run that the fix is for.

`check_run` applies it to every finding, so that no gate can call a fix safe that trains, fits or stores something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.facts.deepspeed_keys import block_keys
from harness.facts.key_effects import HARMLESS, KeyEffect, find_effect
from harness.findings import Fix
from harness.gates.context import Context
from harness.gates.dtypes import dtype_of, has_bf16_optimizer
from harness.gates.optimizer_facts import TYPES_WITH_MINIMUM, is_number, read_number
from harness.spec.auto_values import auto_in_deepspeed
from harness.spec.parse.source import KeyPath, join_key, split_key, value_at
from harness.spec.sections.data_spec import CHAT_FORMATS

_LAUNCHER_VARIABLES = frozenset(
    """RANK LOCAL_RANK WORLD_SIZE LOCAL_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES
    HARNESS_RUN_DIR HARNESS_SUPERVISOR HARNESS_LEADER HARNESS_ALLOWED_CODE""".split()
)
_PROMPTS = ("prompt-completion", "alpaca")


def _is_read_as_written(ctx: Context) -> bool:
    """Does DeepSpeed get the file as it is? The Trainer and accelerate look at optimizer and scheduler themselves."""
    return ctx.consumer in (None, "deepspeed")


def _is_spec(ctx: Context) -> bool:
    return ctx.run.kind == "spec"


def _record_formats(ctx: Context) -> set[str]:
    data = ctx.run.spec.data
    return {source.format or data.format for source in data.train or ()} or {data.format}


def _is_untyped_scheduler_of_json(ctx: Context) -> bool:
    """A block that is no scheduler. In a run spec it still stands instead of the spec's own `scheduler`."""
    return not _is_spec(ctx) and _is_read_as_written(ctx) and not ctx.scheduler.get("type")


def _has_outer_switch_off(ctx: Context, key: str) -> bool:
    """Is one of the `enabled` around the block of a key `deepspeed.a.b.c.enabled` not true?"""
    sections = key.split(".")[1:-2]
    return any(not ctx.ds(".".join((*sections[:depth], "enabled"))) for depth in range(1, len(sections) + 1))


def _has_fp32_master_weights(ctx: Context) -> bool:
    if ctx.optimizer.params.get("torch_adam") or ctx.optimizer.name not in ("adam", "adamw"):
        return False
    has_16_bit = ctx.ds("bf16.bf16_master_weights_and_grads") or ctx.ds("fp16.fp16_master_weights_and_grads")
    return not (ctx.stage > 0 and ctx.is_optimizer_offloaded and has_16_bit)


def _is_reduced_as_autocast_says(ctx: Context) -> bool:
    is_momentum_format = ctx.stage == 3 and ctx.optimizer.name == "muon"
    return ctx.is_enabled("torch_autocast") and ctx.stage > 0 and not is_momentum_format


def _has_idle_autotp_pass(ctx: Context) -> bool:
    is_alone = ctx.ds("compile.passes") == ["autotp"] and not ctx.ds("compile.deepcompile")
    return is_alone and ctx.tensor_parallel_size <= 1


def _is_offloaded_to_cpu_twice(ctx: Context) -> bool:
    devices = {ctx.offload_device("offload_param"), ctx.offload_device("offload_optimizer")}
    return ctx.stage == 3 and devices == {"cpu"} and ctx.ds("compile.deepcompile") is True


UNREAD_IN: Mapping[str, Callable[[Context, str], bool]] = {
    "below-stage-3": lambda ctx, _: ctx.stage < 3 and ctx.has_stage,
    "at-stage-0": lambda ctx, _: ctx.stage == 0 and (ctx.has_stage or not ctx.has_key("zero_optimization.stage")),
    "at-stages-0-and-3": lambda ctx, _: ctx.stage in (0, 3) and ctx.has_stage,
    "in-a-pipeline": lambda ctx, _: ctx.pipeline_parallel_size > 1 and _is_spec(ctx),
    "outside-a-pipeline": lambda ctx, _: ctx.pipeline_parallel_size == 1 and _is_spec(ctx),
    "with-offload-below-stage-3": lambda ctx, _: ctx.stage in (1, 2) and ctx.is_optimizer_offloaded,
    "without-offload-at-stages-1-and-2": lambda ctx, _: ctx.stage not in (1, 2) or not ctx.is_optimizer_offloaded,
    "without-zenflow": lambda ctx, _: not ctx.ds("zero_optimization.zenflow"),
    "with-optimizer-on-cpu": lambda ctx, _: ctx.offload_device("offload_optimizer") == "cpu",
    "with-parameters-on-cpu": lambda ctx, _: ctx.offload_device("offload_param") == "cpu",
    "without-nvme": lambda ctx, _: not ctx.is_nvme_used and not ctx.ds("checkpoint.writer"),
    "without-fp16": lambda ctx, _: not ctx.run.spec.precision.fp16,
    "with-bf16-block": lambda ctx, _: ctx.has_key("bf16") and _is_read_as_written(ctx),
    "outside-bf16-optimizer": lambda ctx, _: not has_bf16_optimizer(ctx),
    "with-autocast-and-zero": lambda ctx, _: _is_reduced_as_autocast_says(ctx),
    "with-deepspeed-optimizer": lambda ctx, _: _is_spec(ctx) and ctx.optimizer.key != "optimizer",
    "with-adam": lambda ctx, _: _is_spec(ctx) and ctx.run.spec.optimizer.type != "sgd",
    "with-sgd": lambda ctx, _: _is_spec(ctx) and ctx.run.spec.optimizer.type == "sgd",
    "with-adamw": lambda ctx, _: ctx.optimizer.name == "adamw",
    "with-fp32-master-weights": lambda ctx, _: _has_fp32_master_weights(ctx),
    "without-a-scheduler-type-in-json": lambda ctx, _: _is_untyped_scheduler_of_json(ctx),
    "with-warmup-steps": lambda ctx, _: ctx.run.spec.scheduler.warmup_steps is not None,
    "without-a-minimum-rate": lambda ctx, _: ctx.run.spec.scheduler.type not in TYPES_WITH_MINIMUM,
    "uncompiled": lambda ctx, _: _is_spec(ctx) and not ctx.run.spec.train.torch_compile,
    "with-an-idle-autotp-pass": lambda ctx, _: _has_idle_autotp_pass(ctx),
    "offloaded-anyway": lambda ctx, _: _is_offloaded_to_cpu_twice(ctx),
    "without-deepcompile": lambda ctx, _: not ctx.ds("compile.deepcompile") and not ctx.ds("compile.passes"),
    "without-tensor-degree": lambda ctx, _: ctx.tensor_parallel_size == 1,
    "without-experts": lambda ctx, _: ctx.model is not None and not ctx.model.built and not ctx.model.experts,
    "with-an-outer-switch-off": _has_outer_switch_off,
    "in-a-run-spec": lambda ctx, _: _is_spec(ctx),
    "with-max-steps": lambda ctx, _: ctx.run.spec.train.max_steps is not None,
    "with-evaluation-data": lambda ctx, _: ctx.run.spec.data.eval is not None,
    "without-evaluation-data": lambda ctx, _: ctx.run.spec.data.eval is None and not ctx.run.spec.data.eval_fraction,
    "without-chats": lambda ctx, _: _record_formats(ctx).isdisjoint(("auto", *CHAT_FORMATS)),
    "without-completions": lambda ctx, _: _record_formats(ctx).isdisjoint(("auto", *_PROMPTS)),
    "without-prompts": lambda ctx, _: _record_formats(ctx).isdisjoint(("auto", "prompt-completion")),
    "without-text": lambda ctx, _: _record_formats(ctx).isdisjoint(("auto", "text")),
    "without-turns": lambda ctx, _: _record_formats(ctx).isdisjoint(("auto", "messages", "sharegpt")),
    "without-skipped-records": lambda ctx, _: ctx.run.spec.data.on_bad_record != "skip",
    "with-equal-or-ordered-rows": lambda ctx, _: ctx.run.spec.data.packing or not ctx.run.spec.data.shuffle,
    "without-a-named-model": lambda ctx, _: ctx.run.spec.model.name_or_path is None,
    "without-periodic-saves": lambda ctx, _: ctx.run.spec.checkpoint.save_steps is None,
    "without-a-save-limit": lambda ctx, _: ctx.run.spec.checkpoint.save_total_limit is None,
    "without-an-export": lambda ctx, _: not ctx.run.spec.export.at_end,
    "with-variables-of-the-launcher": lambda _, key: key.split(".")[-1] in _LAUNCHER_VARIABLES,
}
"""The runs of the table's last column."""


def find_harm(fix: Fix, ctx: Context) -> str | None:
    """The first key of a fix that decides what is trained, how much memory it takes or what is stored, in words; None
    where the fix is safe.
    """
    for key, value in fix.sets.items():
        path = ctx.source.user_path(split_key(key))
        before = value_at(ctx.source.data, path)
        for leaf, old, new in _changed_leaves(split_key(key), before, value):
            effect = find_effect(join_key(leaf))
            if not (_is_harmless(effect, join_key(leaf), ctx) or _mean_the_same(leaf, old, new, ctx)):
                return f"it decides {effect.decides}" if effect else f"what `{join_key(leaf)}` decides is not known"
    return None


def _is_harmless(effect: KeyEffect | None, key: str, ctx: Context) -> bool:
    if effect is None:
        return False
    return effect.decides in HARMLESS or any(UNREAD_IN[run](ctx, key) for run in effect.unread_in)


def _changed_leaves(path: KeyPath, old: Any, new: Any) -> Iterator[tuple[KeyPath, Any, Any]]:
    """The values that differ, with their paths in the run spec, of blocks that are set or removed as a whole."""
    old_values, new_values = (value if isinstance(value, dict) else {} for value in (old, new))
    for name in {**old_values, **new_values}:
        yield from _changed_leaves((*path, name), old_values.get(name), new_values.get(name))
    if old != new and not old_values and not new_values:
        yield path, old, new


def _mean_the_same(path: KeyPath, old: Any, new: Any, ctx: Context) -> bool:
    """Are these two forms of one value? An "auto" that DeepSpeed drops, a number format or a number as a
    text, a text as a list of one.
    """
    if old == "auto" and new is None:
        if not _is_spec(ctx):
            user_path = ctx.source.user_path(path)
            return _is_read_as_written(ctx) and auto_in_deepspeed(user_path, ctx.target.version) == "default"
        key = (block_keys(join_key(path[1:-1])) or {}).get(str(path[-1]))
        has_one_default = key is None or key.was is None  # the harness writes out a default that a release changed
        return has_one_default and auto_in_deepspeed(path[1:], ctx.target.version) == "default"
    if isinstance(old, str) and is_number(new):
        return read_number(old) == new
    if isinstance(old, str) and isinstance(new, str):
        return dtype_of(old) is not None and dtype_of(old) == dtype_of(new)
    return isinstance(old, str) and new == [old]
