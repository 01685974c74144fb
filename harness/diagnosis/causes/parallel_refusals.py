# SPDX-License-Identifier: Apache-2.0
"""Tensor, expert and sequence parallelism that refuse a model, a layer or a call."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG167",
        "tensor-parallel-layer-refused",
        "AutoTP cannot shard a layer of this model",
        "leave that layer unsharded with `partition_type: skip` in `tensor_parallel.partition_config`, choose a "
        "tensor degree that divides its sizes, or lower `tensor_parallel.autotp_size`",
        (FailureSignature(r"AutoTP cannot shard"),),
    ),
    FailureCause(
        "LG168",
        "expert-layer-refused",
        "AutoEP cannot replace a mixture-of-experts layer of this model",
        "set `expert_parallel.preset_model` to the preset of this model, correct the key that the message names, or "
        "train without AutoEP (`expert_parallel.enabled: false`)",
        (FailureSignature(r"AutoEP: .*layer .*shape inference failed"),),
    ),
    FailureCause(
        "LG169",
        "expert-dispatch-failed",
        "the exchange of tokens between experts failed",
        "use the plain exchange: `expert_parallel.comm_backend: comm`, no `async_split_plan`, no "
        "`row_weighting_impl` or `combine_impl`; if the error stays, train without AutoTP and report it to DeepSpeed "
        "with the message",
        (),
    ),
    FailureCause(
        "LG170",
        "parallel-groups-missing",
        "a process group for tensor, expert, sequence or data parallelism was used before it was created, or "
        "created twice",
        "call `deepspeed.initialize` before code that uses these groups, and once for each set of parallel dims in "
        "a process; with your own `mpu` create its groups first",
        (FailureSignature(r"parallel group is not initialized"),),
    ),
    FailureCause(
        "LG171",
        "vocabulary-loss-refused",
        "a loss over a sharded vocabulary was called with arguments that do not fit",
        "pass the logits shard of this rank with its bounds (`vocab_start_index`, `vocab_end_index`, both or none), "
        "targets below the vocabulary's size, and `backend='torch'` for what Liger does not do",
        (),
    ),
    FailureCause(
        "LG172",
        "sequence-parallelism-refused",
        "sequence parallelism refused the model or its inputs",
        "choose a sequence degree that divides the attention heads and the length of the sequences, or train without "
        "it",
        (FailureSignature(r"AutoSP (?:requires|expects|cannot|currently supports) "),),
    ),
    FailureCause(
        "LG173",
        "parameter-api-misused",
        "a parameter function of DeepSpeed was called at a time or ZeRO stage at which it has no value",
        "call `safe_get_full_*` between `backward` and `step` on all ranks; the `local` variants exist at ZeRO stage 3 "
        "only; name leaf modules by a class or a name that the model has",
        (),
    ),
)
