# SPDX-License-Identifier: Apache-2.0
"""ZeRO stages, and the keys that belong to some of them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.gates.registry import Cite, Context, Findings, Fix, gate
from harness.spec.suggestions import nearest_name


def _has_typo_of_stage(block: object) -> bool:
    """Has the block a key that is nearly `stage`?"""
    return isinstance(block, dict) and any(nearest_name(str(name), ("stage",)) for name in block)


_SIGNS_OF_STAGE_3 = (
    "offload_param",
    "sub_group_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save",
    "zero_hpz_partition_size",
    "leaf_module",
)


@gate(
    "ZR001 zero-without-a-stage",
    cites=Cite("runtime/zero/config.py", "stage: ZeroStageEnum = 0"),
    when=lambda ctx: ctx.has_key("zero_optimization") and not ctx.has_key("zero_optimization.stage"),
)
def zero_without_a_stage(ctx: Context) -> Findings:
    """A ZeRO block without a stage.

    A `zero_optimization` block that does not write `stage`.

    Why: DeepSpeed's default is stage 0, which is no ZeRO: every rank keeps the whole optimizer, all gradients and all
    parameters, and the rest of the block is not read. There is no warning; training is correct, but needs the memory
    that ZeRO was to save (run on 0.19.8).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "zero_optimization": {
        "overlap_comm": true
      }
    }
    """
    if ctx.source.has_key("zero.stage"):
        return  # the old form `zero_optimization: true`, which is a stage of its own
    if _has_typo_of_stage(ctx.ds("zero_optimization")):
        return  # that key has a finding
    key = "zero.stage"
    sign = next((name for name in _SIGNS_OF_STAGE_3 if ctx.has_key(f"zero_optimization.{name}")), None)
    if sign is not None:
        fix = ctx.fix_to_set(
            key, 3, f"which reads `{sign}`", effect="optimizer states and gradients are sharded, parameters too"
        )
    else:
        fix = ctx.fix_to_set(key, 2, "or the one you mean", effect="optimizer states and gradients are sharded")
    yield ctx.finding(
        f"{ctx.key('zero')} does not say its stage, so DeepSpeed takes 0: no ZeRO",
        key,
        label="which stage?",
        notes=["DeepSpeed reads nothing else of this block at stage 0"],
        fix=fix,
    )


def _count_keys(ctx: Context, keys: Sequence[str]) -> str:
    """The first of the spec keys and the number of the others: "`a` and 2 other keys"."""
    first = ctx.key(keys[0])
    others = len(keys) - 1
    if others == 0:
        return first
    return f"{first} and {others} other key{'s' if others > 1 else ''}"


_KEYS_OF_STAGE_3 = tuple(
    """stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_model_persistence_threshold
    stage3_max_live_parameters stage3_max_reuse_distance stage3_module_granularity_threshold
    stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save
    prefetch_bucket_size param_persistence_threshold model_persistence_threshold max_live_parameters max_reuse_distance
    module_granularity_threshold use_all_reduce_for_fetch_params allgather_sequential gather_16bit_weights_on_model_save
    sub_group_size leaf_module zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights
    zero_quantized_gradients pipeline_loading_checkpoint save_muon_momentum_buffer_in_memory""".split()
)


def _is_switched_on(ctx: Context, name: str) -> bool:
    """Is this key of `zero_optimization` written, but not as `auto`, null, `false`, 0, `{}` or groups of one rank?"""
    key = f"zero_optimization.{name}"
    value = ctx.ds(key)
    if name == "zero_hpz_partition_size":
        return isinstance(value, int) and value > 1
    return ctx.has_key(key) and value not in (None, False, {})


@gate(
    "ZR002 keys-of-stage-3-below-it",
    severity="warning",
    unread="stage 3 alone reads them",
    cites=Cite("runtime/engine.py", "zero_quantized_weights=self.zero_quantized_weights()"),
    when=lambda ctx: ctx.stage < 3 and ctx.has_stage,
)
def keys_of_stage_3_below_it(ctx: Context) -> Findings:
    """Keys of stage 3 below stage 3.

    Keys of `zero_optimization` that belong to sharded parameters, `stage3_*`, `sub_group_size`, `leaf_module`,
    `zero_hpz_partition_size`, `zero_quantized_*` and a few more, with a stage of 0, 1 or 2. Flags that are off do not
    count. (`offload_param` has its own gate, OF001.)

    Why: DeepSpeed passes them only to stage 3. Below, it accepts them and does not read them; losses are those of the
    same file without them (run on 0.19.8 with `stage3_*`, hpZ, quantized weights, quantized gradients and leaf
    modules).

    Example:
        zero.stage: 2
        deepspeed.zero_optimization.zero_quantized_weights: true

    Use instead:
        zero.stage: 3
        deepspeed.zero_optimization.zero_quantized_weights: true
    """
    names = [name for name in _KEYS_OF_STAGE_3 if _is_switched_on(ctx, name)]
    if not names:
        return
    keys = [ctx.spec_key(f"zero_optimization.{name}") for name in names]
    is_one = len(keys) == 1
    yield ctx.unread(
        f"{_count_keys(ctx, keys)} of stage 3 {'is' if is_one else 'are'} not read at ZeRO stage {ctx.stage}",
        keys[0],
        related=[("zero.stage", "the stage is set here")],
        notes=[] if is_one else [f"not read: {', '.join(f'`{name}`' for name in names)}"],
        fix=Fix(
            f"remove {'it' if is_one else 'them'}, or set {ctx.key('zero.stage')} to 3",
            dict.fromkeys(keys),
            safe=True,
        ),
        of_key=True,
    )


_KEYS_OF_STAGES_1_AND_2 = {
    "allgather_bucket_size": None,
    "round_robin_gradients": False,
    "use_multi_rank_bucket_allreduce": True,
    "parameter_alignment": False,
}
"""Each with the value that has no effect."""
_KEYS_OF_STAGES_1_TO_3 = {"overlap_comm": False, "reduce_bucket_size": None}
"""The same for keys that stage 3 reads as well."""


@gate(
    "ZR003 keys-that-this-stage-does-not-read",
    severity="info",
    unread="not read at this stage",
    cites=Cite("runtime/engine.py", "round_robin_gradients = self.zero_round_robin_gradients()"),
    when=lambda ctx: ctx.stage in (0, 3) and ctx.has_stage,
)
def keys_of_other_stages(ctx: Context) -> Findings:
    """Keys of stages 1 and 2 at another stage.

    Keys of `zero_optimization` that only stages 1 and 2 read, such as `allgather_bucket_size`, `round_robin_gradients:
    true`, `parameter_alignment: true` or `use_multi_rank_bucket_allreduce: false`, with stage 3 or 0; at stage 0 also
    `overlap_comm: true` and `reduce_bucket_size`.

    Why: DeepSpeed accepts them and does not read them: the losses are the same without (`round_robin_gradients`,
    `parameter_alignment` and `allgather_bucket_size` at stage 3 and `overlap_comm` at stage 0 were run on 0.19.8, the
    others were read there).

    Example:
        zero.stage: 3
        zero.round_robin_gradients: true
    """
    idle_values = _KEYS_OF_STAGES_1_AND_2
    if ctx.stage == 0:
        idle_values = idle_values | _KEYS_OF_STAGES_1_TO_3
    names = [name for name, idle in idle_values.items() if ctx.ds(f"zero_optimization.{name}", idle) != idle]
    if not names:
        return
    keys = [ctx.spec_key(f"zero_optimization.{name}") for name in names]
    is_one = len(keys) == 1
    yield ctx.unread(
        f"{_count_keys(ctx, keys)} {'is' if is_one else 'are'} not read at ZeRO stage {ctx.stage}",
        keys[0],
        related=[("zero.stage", "the stage is set here")],
        notes=[] if is_one else [f"not read: {', '.join(f'`{name}`' for name in names)}"],
        fix=Fix(f"remove {'it' if is_one else 'them'}", dict.fromkeys(keys), safe=True),
        of_key=True,
    )


@gate(
    "ZR010 legacy-zero-stage-1",
    upstream="raises",
    cites=Cite("runtime/engine.py", "The deprecated version of ZeRO Stage 1 is not supported in deepspeed >= 0.5.9"),
)
def legacy_stage_1(ctx: Context) -> Findings:
    """The old implementation of stage 1.

    `legacy_stage1: true` in `zero_optimization`, at any stage but 0.

    Why: The key is still accepted, the implementation was removed in DeepSpeed 0.5.9: an exception when the optimizer
    is built (run on 0.19.8).

    Example:
        zero.stage: 1
        deepspeed.zero_optimization.legacy_stage1: true
    """
    if ctx.stage > 0 and ctx.ds("zero_optimization.legacy_stage1") is True:
        key = "deepspeed.zero_optimization.legacy_stage1"
        yield ctx.finding(
            f"{ctx.key(key)} selects an implementation that DeepSpeed removed in 0.5.9",
            key,
            notes=["DeepSpeed raises only when the engine is built, after every rank has its weights"],
            fix=Fix("remove it", {key: None}, safe=True),
        )


@gate(
    "ZR015 sub-groups-of-one-parameter",
    severity="warning",
    cites=Cite("runtime/zero/stage3.py", "local_sub_group_size >= sub_group_size"),
)
def sub_groups_of_one_parameter(ctx: Context) -> Findings:
    """A sub-group size of zero.

    `zero.sub_group_size: 0` at stage 3.

    Why: It does not mean no sub-groups: every parameter becomes a sub-group of its own, and the optimizer is called
    once for each (run on 0.19.8: same losses, slow).

    Example:
        zero.stage: 3
        zero.sub_group_size: 0
    """
    if ctx.stage == 3 and ctx.ds("zero_optimization.sub_group_size") == 0:
        key = "zero.sub_group_size"
        yield ctx.finding(
            f"{ctx.key(key)} is 0, which steps the optimizer once for each parameter",
            key,
            label="one parameter a sub-group",
            fix=ctx.fix_to_set(key, 1_000_000_000, "DeepSpeed's default", effect="the same steps, faster"),
        )


@gate(
    "ZR062 partitioned-over-one-rank",
    severity="info",
    cites=Cite("runtime/zero/stage3.py", "self.partition_count = dist.get_world_size(group=self.dp_process_group)"),
    needs=("world size",),
    when=lambda ctx: (
        ctx.stage == 3 and not ctx.is_optimizer_offloaded and ctx.offload_device("offload_param") == "none"
    ),
)
def stage_3_on_one_rank(ctx: Context) -> Findings:
    """Stage 3 on one rank without offload.

    `zero.stage: 3` without `offload_optimizer` and `offload_param` in a run of one data-parallel rank.

    Why: ZeRO divides parameters, gradients and optimizer states over the data-parallel ranks. With one rank there is
    nothing to divide: each weight is still copied to be gathered, with buckets and prefetching, so that the run needs
    more memory and more time than at a lower stage (#4953: more than without DeepSpeed).

    Example:
        zero.stage: 3
        launch.num_gpus: 1
    """
    if ctx.data_parallel_size != 1 or ctx.sequence_parallel_size > 1 or ctx.accelerator == "cpu":
        return
    yield ctx.finding(
        "ZeRO stage 3 on one rank partitions nothing and gathers all the same: it needs more memory than stage 1",
        "zero.stage",
        label="one rank has everything",
        notes=["what does not fit needs more ranks, `offload_optimizer`, or fewer trained weights"],
        fix=ctx.fix_to_set("zero.stage", 1, effect="the same steps, with less memory and time"),
    )


@gate(
    "ZR023 unused-parameters-are-not-looked-for",
    severity="warning",
    unread="read with offload at stages 1 and 2 alone",
    cites=Cite("runtime/zero/stage_1_and_2.py", "assert self.ignore_unused_parameters"),
)
def unnoticed_unused_parameters(ctx: Context) -> Findings:
    """A search for unused parameters that does not happen.

    `ignore_unused_parameters: false` in `zero_optimization`, except at stages 1 and 2 with an offloaded optimizer.

    Why: DeepSpeed looks for parameters without a gradient in one place only: where stages 1 and 2 compute the norm of
    offloaded gradients. Everywhere else the key is not read, and a run with unused parameters silently continues (run
    on 0.19.8 at stages 1, 2 and 3).

    Example:
        zero.stage: 2
        deepspeed.zero_optimization.ignore_unused_parameters: false
    """
    if ctx.ds("zero_optimization.ignore_unused_parameters") is not False:
        return
    if ctx.stage in (1, 2) and ctx.is_optimizer_offloaded:
        return  # the one place where DeepSpeed looks for them
    key = "deepspeed.zero_optimization.ignore_unused_parameters"
    yield ctx.finding(
        f"{ctx.key(key)} is `false`, but DeepSpeed looks for unused parameters only at stages 1 and 2 with offload",
        key,
        label="not looked for here",
        related=[("zero.stage", "the stage is set here")],
        fix=Fix("remove it, and look for `p.grad is None` in the script", {key: None}, safe=True),
    )


_UNREAD_KEYS = {"zero_optimization.allgather_partitions": True, "disable_allgather": False}
"""Each with its default."""


@gate(
    "ZR024 keys-that-nothing-reads",
    severity="info",
    unread="nothing reads it",
    cites=(
        Cite("runtime/engine.py", "def zero_allgather_partitions(self)"),
        Cite("runtime/utils.py", "return all_gather_into_tensor_dp_groups(groups_flat"),
    ),
)
def keys_that_nothing_reads(ctx: Context) -> Findings:
    """Keys that nothing reads.

    `allgather_partitions: false` in `zero_optimization`, or `disable_allgather: true` at the top level; at stages 1 and
    2 `allgather_bucket_size`, unless ZenFlow uses it.

    Why: DeepSpeed still has getters for the first two, but nothing calls them: parameters are always gathered. With
    torch 1.13 and later they are gathered in place in one operation, so the bucket size affects neither speed nor
    memory (read in 0.19.8; `disable_allgather` and a small bucket were run there).

    Example:
        zero.stage: 2
        deepspeed.zero_optimization.allgather_partitions: false
    """
    names = [name for name, default in _UNREAD_KEYS.items() if ctx.ds(name, default) is not default]
    bucket = "zero_optimization.allgather_bucket_size"
    size = ctx.ds(bucket, 0)
    if size and size % 2 == 0 and ctx.stage in (1, 2) and not ctx.ds("zero_optimization.zenflow"):  # odd: ZR004
        names.append(bucket)
    for name in names:
        key = ctx.spec_key(name)
        yield ctx.unread(
            f"nothing in DeepSpeed uses {ctx.key(key)}", key, fix=Fix("remove it", {key: None}, safe=True), of_key=True
        )
