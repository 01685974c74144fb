# SPDX-License-Identifier: Apache-2.0
"""Data efficiency and DeepSpeed's data loader."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate

_CURRICULUM = "data_efficiency.data_sampling.curriculum_learning"


@spec_gate(
    "UT005 data-efficiency-that-is-not-read",
    severity="warning",
    cites=Cite("runtime/engine.py", "def data_efficiency_enabled(self):"),
    when=lambda ctx: ctx.has_key("data_efficiency"),
)
def unread_data_efficiency(ctx: Context) -> Findings:
    """Data efficiency with the harness's own data loader.

    `data_efficiency.enabled` in a run spec.

    Why: Curriculum and dynamic batching are part of the data loader that DeepSpeed makes when `training_data` is handed
    to `deepspeed.initialize`; without it nothing changes (run on 0.19.8). The harness has its own loader.

    Example:
        deepspeed.data_efficiency.enabled: true
        deepspeed.data_efficiency.seed: 7

    Use instead:
        data.shuffle: true
    """
    if ctx.is_enabled("data_efficiency"):
        key = "deepspeed.data_efficiency"
        yield ctx.unread(
            f"{ctx.key(key)} works in DeepSpeed's own data loader, which the harness does not use",
            key,
            fix=ctx.fix_to_remove(key, effect="the same, without the block and its paths"),
            of_key=True,
        )


def _find_false_outer_switch(ctx: Context, block: str) -> str | None:
    """The spec key of the outermost `enabled` around the block that is not true; None where all are."""
    sections = block.split(".")
    for depth in range(1, len(sections)):
        switch = ".".join((*sections[:depth], "enabled"))
        if not ctx.ds(switch):
            return f"deepspeed.{switch}"
    return None


@gate(
    "UT006 inner-switch-without-the-outer",
    severity="warning",
    unread="the outer switch is off",
    cites=Cite("runtime/data_pipeline/constants.py", "DATA_EFFICIENCY_ENABLED_DEFAULT = False"),
    when=lambda ctx: ctx.has_key("data_efficiency.data_sampling"),
)
def data_sampling_without_outer_switch(ctx: Context) -> Findings:
    """Data sampling enabled inside a block that is off.

    `data_efficiency.data_sampling.enabled`, or one of its parts, while `data_efficiency.enabled` or an outer switch is
    not true.

    Why: DeepSpeed reads the outer switch first: the curriculum is off, whatever the inner ones say (run on 0.19.8).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "data_efficiency": {
        "data_sampling": {"enabled": true, "num_workers": 2}
      }
    }

    Use instead: {
      "data_efficiency": {
        "enabled": true,
        "data_sampling": {"enabled": true, "num_workers": 2}
      },
      "train_micro_batch_size_per_gpu": 1
    }
    """
    for block in (
        "data_efficiency.data_sampling",
        "data_efficiency.data_sampling.curriculum_learning",
        "data_efficiency.data_sampling.dynamic_batching",
    ):
        outer_key = _find_false_outer_switch(ctx, block)
        if ctx.is_enabled(block) and outer_key:
            key = f"deepspeed.{block}.enabled"
            yield ctx.unread(
                f"{ctx.key(key)} is true, but {ctx.key(outer_key)} is not",
                key,
                fix=Fix(f"set {ctx.key(outer_key)} to true, or this to false", {key: False}, safe=True),
            )
            return


@gate(
    "UT007 token-dropping-that-is-on-after-all",
    upstream="wrong",
    cites=Cite("runtime/engine.py", "def random_ltd_enabled(self):"),
    when=lambda ctx: ctx.has_key("data_efficiency.data_routing.random_ltd"),
)
def random_ltd_without_outer_switch(ctx: Context) -> Findings:
    """Random layer-token dropping inside a block that is off.

    `data_efficiency.data_routing.random_ltd.enabled: true` while an outer `enabled` is not true.

    Why: Here DeepSpeed reads only the innermost switch: it builds token dropping although the blocks around it are off,
    and fails with `KeyError: 'total_layer_num'` when its keys are missing (run on 0.19.8).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "data_efficiency": {
        "enabled": false,
        "data_routing": {"enabled": false, "random_ltd": {"enabled": true}}
      }
    }
    """
    block = "data_efficiency.data_routing.random_ltd"
    outer_key = _find_false_outer_switch(ctx, block)
    if ctx.is_enabled(block) and outer_key:
        key = f"deepspeed.{block}.enabled"
        yield ctx.finding(
            f"{ctx.key(key)} drops tokens although {ctx.key(outer_key)} is not true",
            key,
            label="DeepSpeed reads only this switch",
            fix=ctx.fix_to_set(key, False, effect="no tokens are dropped, as the outer switch says"),
        )


_LTD = "data_efficiency.data_routing.random_ltd"
REQUIRED_LTD_KEYS = (
    "total_layer_num",
    "random_ltd_layer_num",
    "random_ltd_schedule",
    "random_ltd_schedule.min_value",
    "random_ltd_schedule.max_value",
    "random_ltd_schedule.schedule_type",
    "random_ltd_schedule.schedule_config",
    "random_ltd_schedule.schedule_config.require_steps",
    "random_ltd_schedule.schedule_config.seq_per_step",
)
"""Keys of `random_ltd` without a default. The last two are read in the first forward pass, the others before it."""


@gate(
    "UT022 token-dropping-without-its-keys",
    upstream="crashes",
    cites=(
        Cite("runtime/data_pipeline/data_routing/scheduler.py", "config[RANDOM_LTD_TOTAL_LAYER_NUM]"),
        Cite("runtime/data_pipeline/data_routing/scheduler.py", "s_state[RANDOM_LTD_REQUIRE_STEP]"),
    ),
    when=lambda ctx: ctx.is_enabled(_LTD) and _find_false_outer_switch(ctx, _LTD) is None,  # otherwise UT007
)
def random_ltd_without_keys(ctx: Context) -> Findings:
    """Random layer-token dropping without the keys that it needs.

    `data_efficiency.data_routing.random_ltd.enabled: true` has `total_layer_num`, `random_ltd_layer_num` and
    `random_ltd_schedule` with `min_value`, `max_value`, `schedule_type` and `schedule_config`, and in that
    `require_steps` and `seq_per_step`.

    Why: None of them has a default. `KeyError: 'total_layer_num'` when the engine is built, for the last two in the
    first forward pass (each left out alone, run on 0.19.8). With all of them it runs.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "data_efficiency": {
        "enabled": true,
        "data_routing": {"enabled": true, "random_ltd": {"enabled": true, "total_layer_num": 24}}
      }
    }
    """
    missing_keys: list[str] = []
    for name in REQUIRED_LTD_KEYS:
        parent = name.rpartition(".")[0]
        if parent not in missing_keys and not ctx.has_key(f"{_LTD}.{name}"):
            missing_keys.append(name)
    missing_keys = [name for name in missing_keys if name.rpartition(".")[0] not in missing_keys]
    if not missing_keys:
        return
    key = f"deepspeed.{_LTD}.enabled"
    yield ctx.finding(
        f"{ctx.key(key)} is true and {_enumerate(missing_keys)} not given",
        key,
        notes=[f"DeepSpeed ends with KeyError '{missing_keys[0].rpartition('.')[2]}'"],
        fix=ctx.fix_to_set(key, False, "or complete the block", effect="no tokens are dropped"),
    )


def _enumerate(keys: list[str]) -> str:
    """The first two keys and the number of the others, with their verb."""
    names = ", ".join(f"`{key}`" for key in keys[:2])
    more = f" and {len(keys) - 2} more" if len(keys) > 2 else ""
    return f"{names}{more} {'is' if len(keys) == 1 else 'are'}"


@gate(
    "UT020 curriculum-without-its-own-switch",
    severity="warning",
    cites=(
        Cite("runtime/data_pipeline/config.py", "CURRICULUM_LEARNING_ENABLED_DEFAULT)"),
        Cite("runtime/data_pipeline/constants.py", "CURRICULUM_LEARNING_ENABLED_DEFAULT = False"),
    ),
    when=lambda ctx: ctx.has_key(_CURRICULUM),
)
def curriculum_without_own_switch(ctx: Context) -> Findings:
    """A curriculum with metrics and without `enabled`.

    `data_efficiency.data_sampling.curriculum_learning` that has `curriculum_metrics` and no `enabled`.

    Why: `enabled` is false unless it is written, also where both blocks around it are on: DeepSpeed drops the metrics
    and the data come in their own order (run on 0.19.8).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "data_efficiency": {
        "enabled": true,
        "data_sampling": {
          "enabled": true,
          "curriculum_learning": {"curriculum_metrics": {"seqlen": {"min_difficulty": 8}}}
        }
      }
    }

    Use instead: {
      "train_micro_batch_size_per_gpu": 1,
      "data_efficiency": {
        "enabled": true,
        "data_sampling": {
          "enabled": true,
          "curriculum_learning": {"enabled": false, "curriculum_metrics": {"seqlen": {"min_difficulty": 8}}}
        }
      }
    }
    """
    if ctx.has_key(f"{_CURRICULUM}.curriculum_metrics") and not ctx.has_key(f"{_CURRICULUM}.enabled"):
        key = f"deepspeed.{_CURRICULUM}"
        yield ctx.unread(
            f"{ctx.key(key)} has no `enabled: true`, so its metrics are not read",
            key,
            fix=Fix(
                "write `enabled`, true or false, in the block",
                {f"{key}.enabled": False},
                effect="says what happens now: no curriculum",
            ),
            of_key=True,
        )


@gate(
    "UT008 curriculum-without-metrics",
    upstream="asserts",
    severity=("error", "warning"),
    cites=Cite("runtime/data_pipeline/config.py", "must be specified"),
    when=lambda ctx: ctx.has_key("data_efficiency.data_sampling.curriculum_learning"),
)
def curriculum_without_metrics(ctx: Context) -> Findings:
    """A curriculum that does not say what is difficult.

    `data_efficiency.data_sampling.curriculum_learning.enabled: true` without `curriculum_metrics`, or with a metric
    that lacks `min_difficulty`, `max_difficulty` or `schedule_type`.

    Why: DeepSpeed asserts the first while it reads the file, also where an outer switch is off, and the second when its
    own data loader is built (run on 0.19.8). Without that loader, which needs `training_data`, the metrics have no
    effect: a warning.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "data_efficiency": {
        "enabled": true,
        "data_sampling": {"enabled": true, "curriculum_learning": {"enabled": true}}
      }
    }
    """
    block = _CURRICULUM
    if not ctx.is_enabled(block):
        return
    switch_key = f"deepspeed.{block}.enabled"
    fix = ctx.fix_to_set(switch_key, False, "or complete the block", effect="trains without a curriculum")
    metrics = ctx.ds(f"{block}.curriculum_metrics")
    if metrics is None:
        yield ctx.finding(f"{ctx.key(switch_key)} is true and no `curriculum_metrics` are given", switch_key, fix=fix)
        return
    if not isinstance(metrics, dict) or not ctx.is_enabled("data_efficiency"):
        return
    fields = ("min_difficulty", "max_difficulty", "schedule_type")
    for name, metric in metrics.items():
        if not isinstance(metric, dict):
            continue
        missing_fields = [f"`{field}`" for field in fields if field not in metric]
        if missing_fields:
            yield ctx.finding(
                f"the curriculum's metric `{name}` lacks {', '.join(missing_fields)}",
                ctx.spec_key(f"{block}.curriculum_metrics.{name}"),
                severity="warning",
                fix=fix,
                of_key=True,
            )


@gate(
    "UT009 dynamic-batching-without-max-tokens",
    upstream="asserts",
    since="0.16.5",
    cites=Cite("runtime/data_pipeline/config.py", "Dynamic batching is enabled, so "),
    when=lambda ctx: ctx.has_key("data_efficiency.data_sampling.dynamic_batching"),
)
def dynamic_batching_without_max_tokens(ctx: Context) -> Findings:
    """Dynamic batching without a size.

    `data_efficiency.data_sampling.dynamic_batching.enabled: true` without `max_tokens`.

    Why: Batches are filled up to `max_tokens`; DeepSpeed asserts that it is there while it reads the file, also where
    an outer switch is off (run on 0.19.8).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "data_efficiency": {
        "enabled": true,
        "data_sampling": {"enabled": true, "dynamic_batching": {"enabled": true}}
      }
    }

    Use instead: {
      "train_micro_batch_size_per_gpu": 1,
      "data_efficiency": {
        "enabled": true,
        "data_sampling": {"enabled": true, "dynamic_batching": {"enabled": true, "max_tokens": 4096}}
      }
    }
    """
    block = "data_efficiency.data_sampling.dynamic_batching"
    if ctx.is_enabled(block) and not ctx.has_key(f"{block}.max_tokens"):
        key = f"deepspeed.{block}.enabled"
        yield ctx.finding(
            f"{ctx.key(key)} is true and `max_tokens` is not given",
            key,
            notes=["batches are filled up to `max_tokens`"],
            fix=ctx.fix_to_set(key, False, "or set `max_tokens`", effect="batches of a fixed number of samples"),
        )


@spec_gate(
    "UT016 loader-option-that-is-not-read",
    severity="warning",
    unread="the harness has its own data loader",
    cites=Cite("runtime/engine.py", "dataloader_drop_last=self.dataloader_drop_last(),"),
)
def unread_loader_option(ctx: Context) -> Findings:
    """An option of DeepSpeed's data loader.

    `dataloader_drop_last` in a run spec.

    Why: Only the loader that DeepSpeed makes from `training_data` reads it. The harness has its own, in which every
    batch is full.

    Example:
        deepspeed.dataloader_drop_last: true

    Use instead:
        data.shuffle: true
    """
    if ctx.has_key("dataloader_drop_last"):
        key = "deepspeed.dataloader_drop_last"
        yield ctx.unread(f"{ctx.key(key)} is read by DeepSpeed's own data loader, which the harness does not use", key)


@gate(
    "UT023 old-curriculum-without-a-switch",
    upstream="crashes",
    cites=Cite("runtime/data_pipeline/config.py", "curriculum_params.pop(CURRICULUM_ENABLED_LEGACY)"),
    until="0.19.7",
    when=lambda ctx: ctx.has_key("curriculum_learning"),
)
def old_curriculum_without_switch(ctx: Context) -> Findings:
    """The old `curriculum_learning` block without `enabled`.

    `curriculum_learning` at the top level, a block without `enabled`, up to DeepSpeed 0.19.7.

    Why: DeepSpeed reads `enabled` without checking that it is there: `KeyError: 'enabled'` in `deepspeed.initialize`
    (run on 0.14.5, 0.17.0 and 0.18.0). 0.19.8 refuses the block whatever is in it.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "curriculum_learning": {"curriculum_type": "seqlen"}
    }
    """
    block = ctx.ds("curriculum_learning")
    if isinstance(block, dict) and "enabled" not in block:
        key = "deepspeed.curriculum_learning"
        yield ctx.finding(
            f"{ctx.key(key)} has no `enabled`, without which DeepSpeed does not start",
            key,
            fix=ctx.fix_to_remove(key, effect="trains without a curriculum, as a block without `enabled` means"),
            of_key=True,
        )
