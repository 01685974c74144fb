# SPDX-License-Identifier: Apache-2.0
"""The effect of each key that a safe fix may touch: what its value decides, and in which runs nothing reads it.

`--fix` runs unattended, as in a pre-commit hook. So a fix is safe only if what it renders trains, fits and stores the
same: each of its keys decides nothing but speed or logs, or this run does not read it, or the value means what the old
one meant. A key that is in no row is not safe. `harness.gates.fix_safety` applies the table to every finding, and knows
the runs that are named in the last column.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple, cast

from harness.facts.deepspeed_keys import block_keys

Decision = Literal["training", "memory", "storage", "speed", "logs", "nothing"]
HARMLESS: frozenset[Decision] = frozenset(("speed", "logs", "nothing"))

_TABLE = """
    # key of the run spec                                       decides    read by nothing
    # A key without a field of its own stands below `deepspeed`. A last part `*` is every key of the section.

    # ZeRO
    zero.stage                                                  memory
    zero.stage3_prefetch_bucket_size                            memory     below-stage-3
    zero.stage3_param_persistence_threshold                     memory     below-stage-3
    zero.stage3_max_live_parameters                             memory     below-stage-3
    zero.stage3_max_reuse_distance                              memory     below-stage-3
    zero.stage3_gather_16bit_weights_on_model_save              storage    below-stage-3
    zero.sub_group_size                                         memory     below-stage-3
    zero.reduce_bucket_size                                     memory     at-stage-0
    zero.overlap_comm                                           memory     at-stage-0,in-a-pipeline
    zero.contiguous_gradients                                   memory     with-offload-below-stage-3
    zero.round_robin_gradients                                  storage    at-stages-0-and-3
    zero.pin_memory_backend                                     memory
    zero.allgather_bucket_size                                  memory     without-zenflow,at-stages-0-and-3
    deepspeed.zero_optimization.stage3_model_persistence_threshold      memory   below-stage-3
    deepspeed.zero_optimization.stage3_module_granularity_threshold     memory   below-stage-3
    deepspeed.zero_optimization.stage3_use_all_reduce_for_fetch_params  speed
    deepspeed.zero_optimization.stage3_allgather_sequential     speed
    deepspeed.zero_optimization.leaf_module.*                   memory     below-stage-3
    deepspeed.zero_optimization.zero_hpz_partition_size         memory     below-stage-3
    deepspeed.zero_optimization.zero_quantized_weights          training   below-stage-3
    deepspeed.zero_optimization.zero_quantized_nontrainable_weights     training below-stage-3
    deepspeed.zero_optimization.zero_quantized_gradients        training   below-stage-3
    deepspeed.zero_optimization.pipeline_loading_checkpoint     memory     below-stage-3
    deepspeed.zero_optimization.save_muon_momentum_buffer_in_memory     memory   below-stage-3
    deepspeed.zero_optimization.use_multi_rank_bucket_allreduce memory     at-stages-0-and-3
    deepspeed.zero_optimization.parameter_alignment             storage    at-stages-0-and-3
    deepspeed.zero_optimization.ignore_unused_parameters        training   without-offload-at-stages-1-and-2
    deepspeed.zero_optimization.compute_grad_norm               logs
    deepspeed.zero_optimization.allgather_partitions            nothing
    deepspeed.zero_optimization.legacy_stage1                   nothing
    deepspeed.disable_allgather                                 nothing

    # offload
    zero.offload_optimizer.device                               storage
    zero.offload_optimizer.nvme_path                            storage
    zero.offload_optimizer.ratio                                storage
    zero.offload_param.device                                   storage
    zero.offload_param.nvme_path                                storage
    zero.offload_optimizer.fast_init                            speed
    zero.offload_optimizer.pipeline_read                        memory     with-optimizer-on-cpu
    zero.offload_optimizer.pipeline_write                       memory     with-optimizer-on-cpu
    zero.offload_optimizer.buffer_count                         memory     with-optimizer-on-cpu
    zero.offload_param.buffer_count                             memory     with-parameters-on-cpu
    zero.offload_param.buffer_size                              memory     with-parameters-on-cpu
    zero.offload_param.max_in_cpu                               memory     with-parameters-on-cpu
    deepspeed.zero_optimization.offload_optimizer.super_offload memory     below-stage-3
    deepspeed.zero_optimization.offload_optimizer.cpuadam_cores_perc    speed
    deepspeed.aio.use_gds                                       memory     without-nvme
    deepspeed.aio.*                                             speed

    # precision and the optimizer
    precision.loss_scale                                        training   without-fp16
    precision.initial_scale_power                               training   without-fp16
    precision.loss_scale_window                                 training   without-fp16
    precision.hysteresis                                        training   without-fp16
    precision.min_loss_scale                                    training   without-fp16
    deepspeed.bfloat16.*                                        training   with-bf16-block
    deepspeed.bf16.check_grad_overflow                          training   at-stages-0-and-3
    deepspeed.bf16.immediate_grad_update                        training   outside-bf16-optimizer
    deepspeed.communication_data_type                           training   with-autocast-and-zero
    deepspeed.data_types.keep_in_fp32_modules                   training
    optimizer.*                                                 training   with-deepspeed-optimizer
    optimizer.momentum                                          training   with-adam,with-deepspeed-optimizer
    optimizer.betas                                             training   with-sgd,with-deepspeed-optimizer
    optimizer.eps                                               training   with-sgd,with-deepspeed-optimizer
    deepspeed.optimizer.params.adam_w_mode                      training   with-adamw
    deepspeed.optimizer.params.fp32_optimizer_states            memory     with-fp32-master-weights
    deepspeed.optimizer.legacy_fusion                           nothing
    deepspeed.scheduler.*                                       training   without-a-scheduler-type-in-json
    scheduler.warmup_ratio                                      training   with-warmup-steps
    scheduler.min_lr_ratio                                      training   without-a-minimum-rate

    # ways to train
    deepspeed.compile.deepcompile                               memory     uncompiled,at-stage-0,in-a-pipeline
    deepspeed.compile.autoep_non_moe                            memory     uncompiled
    deepspeed.compile.passes                                    memory     with-an-idle-autotp-pass
    deepspeed.compile.offload_parameters                        memory     without-deepcompile,offloaded-anyway
    deepspeed.compile.*                                         memory     without-deepcompile
    deepspeed.tensor_parallel.tp.tp_size                        nothing
    deepspeed.tensor_parallel.tensor_parallel.tp_size           nothing
    deepspeed.tensor_parallel.*                                 training   without-tensor-degree
    deepspeed.expert_parallel.enabled                           training   without-experts
    deepspeed.pipeline.stages                                   nothing
    deepspeed.pipeline.partition                                nothing
    deepspeed.pipeline.seed_layers                              nothing
    deepspeed.hybrid_engine.*                                   training   in-a-pipeline
    deepspeed.activation_checkpointing.*                        memory     in-a-pipeline
    deepspeed.data_efficiency.data_sampling.enabled             training   with-an-outer-switch-off
    deepspeed.data_efficiency.data_sampling.curriculum_learning.enabled training with-an-outer-switch-off
    deepspeed.data_efficiency.data_sampling.dynamic_batching.enabled    training with-an-outer-switch-off
    deepspeed.dataloader_drop_last                              training   in-a-run-spec

    # logs
    deepspeed.steps_per_print                                   logs
    deepspeed.wall_clock_breakdown                              logs

    # the harness's own keys
    train.num_train_epochs                                      training   with-max-steps
    data.eval_fraction                                          training   with-evaluation-data
    data.assistant_only_loss                                    training   without-chats
    data.completion_only_loss                                   training   without-completions
    data.max_bad_records                                        training   without-skipped-records
    data.group_by_length                                        training   with-equal-or-ordered-rows
    eval.*                                                      training   without-evaluation-data
    model.revision                                              training   without-a-named-model
    model.random_init                                           training   without-a-named-model
    checkpoint.save_total_limit                                 storage    without-periodic-saves
    checkpoint.keep_every_steps                                 storage    without-a-save-limit
    checkpoint.keep_best                                        storage    without-a-save-limit
    deepspeed.checkpoint.parallel_write.pipeline_stage          storage    outside-a-pipeline
    export.sample_prompt                                        logs
    export.sample_tokens                                        logs
    export.*                                                    storage    without-an-export
    launch.env.*                                                training   with-variables-of-the-launcher
"""


class KeyEffect(NamedTuple):
    """The decision of a key; `unread_in` names the runs in which nothing reads it (`harness.gates.fix_safety`)."""

    decides: Decision
    unread_in: tuple[str, ...] = ()


@cache
def load_effects() -> dict[str, KeyEffect]:
    """The table by key; a key that ends in `.*` stands for the others of its section."""
    rows = [line.split() for line in _TABLE.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {
        key: KeyEffect(cast("Decision", word), tuple(",".join(runs).split(",")) if runs else ())
        for key, word, *runs in rows
    }


def find_effect(key: str) -> KeyEffect | None:
    """The row of a key of the run spec, or that of its section; None if there is none."""
    effects = load_effects()
    key = section = _current_name(key)
    if key in effects:
        return effects[key]
    while "." in section:
        section = section.rpartition(".")[0]
        if f"{section}.*" in effects:
            return effects[f"{section}.*"]
    return None


def _current_name(key: str) -> str:
    """A key of `zero_optimization` that is another name of a `stage3_` key, by that name."""
    section, _, name = key.rpartition(".")
    own = (block_keys("zero_optimization") or {}).get(name) if section == "deepspeed.zero_optimization" else None
    if own is None or own.alias is None:
        return key
    field = f"zero.{own.alias}"
    return field if field in load_effects() else f"{section}.{own.alias}"
