# SPDX-License-Identifier: Apache-2.0
"""The error with which `harness.watch` and `HarnessCallback` stop a training run, by what differs."""

from __future__ import annotations

MESSAGES = r"""
ZR040 EngineDifferenceError: error\[AT028\]: (?P<fault>[^()]+) \(ZR040\):
    title: {fault}: `harness.watch` measured it in the gradients
    change: upgrade to DeepSpeed 0.18.3 (under the Trainer 0.18.4), or set `zero_optimization.stage` to 1
HF012 EngineDifferenceError: error\[AT028\]: (?P<fault>[^()]+) \(HF012\):
    title: {fault}: `harness.watch` measured it in the gradients
    change: upgrade to DeepSpeed 0.18.4, or use one micro-batch per step
OF029 EngineDifferenceError: error\[AT028\]: (?P<fault>[^()]+) \(OF029\):
    title: {fault}: `harness.watch` measured it in the gradients
AT028 EngineDifferenceError: error\[AT028\]: (?P<fault>step \d+: [^(|]+)
    title: {fault}
    change: train with the newest DeepSpeed, or with ZeRO stage 1; `harness upgrade-check` shows what a release changes
AT029 EngineDifferenceError: error\[AT029\]: (?P<fault>step \d+: [^(|]+)
    title: {fault}
    change: train with the newest DeepSpeed, or with torch's optimizer (`"torch_adam": true`)
AT030 EngineDifferenceError: error\[AT030\]: (?P<fault>step \d+: [^(|]+)
    title: {fault}
    change: train with the newest DeepSpeed, or with ZeRO stage 1; resume from a checkpoint before that step
AT001 EngineDifferenceError: error\[AT001\]: (?P<fault>[^|]+)
    title: {fault}
    change: write `zero_optimization.stage` as a number, and give `harness.watch` the same file as
        `deepspeed.initialize`
AT002 EngineDifferenceError: error\[AT002\]: (?P<fault>[^|]+)
    title: {fault}
    change: keep either the section `optimizer` of the JSON or the optimizer of the script
AT003 EngineDifferenceError: error\[AT003\]: (?P<fault>[^|]+)
    title: {fault}
    change: set `zero_optimization.offload_optimizer.device` explicitly; `nvme` needs ZeRO stage 3, `cpu` stage 1
AT004 EngineDifferenceError: error\[AT004\]: (?P<fault>[^|]+)
    title: {fault}
    change: set `zero_optimization.stage` to 3, or remove `offload_param`
AT005 EngineDifferenceError: error\[AT005\]: (?P<fault>[^|]+)
    title: {fault}
    change: switch the format on with the boolean `true` in `bf16` or `fp16`
AT006 EngineDifferenceError: error\[AT006\]: (?P<fault>[^|]+)
    title: {fault}
    change: write `gradient_clipping` as a number of 0 or more, and give `harness.watch` the same file as the engine
AT007 EngineDifferenceError: error\[AT007\]: (?P<fault>[^|]+)
    title: {fault}
    change: write batch sizes as integers whose product with the number of ranks is `train_batch_size`
AT010 EngineDifferenceError: error\[AT010\]: (?P<fault>[^|]+)
    title: {fault}
    change: report it with `engine_checks.json`, and train with another ZeRO stage until it is fixed
AT014 EngineDifferenceError: error\[AT014\]: (?P<fault>[^|]+)
    title: {fault}
    change: give the engine and the spec or JSON the same optimizer settings; after a resume, those of the checkpoint
AT017 EngineDifferenceError: error\[AT017\]: (?P<fault>[^|]+)
    title: {fault}
    change: check the folder of `nvme_path`: another process may have emptied it
AT022 EngineDifferenceError: error\[AT022\]: (?P<fault>[^|]+)
    title: {fault}
    change: lower the learning rate, and look at the data
AT024 EngineDifferenceError: error\[AT024\]: (?P<fault>[^|]+)
    title: {fault}
    change: use bf16, or a lower `fp16.initial_scale_power`
AT026 EngineDifferenceError: error\[AT026\]: (?P<fault>[^|]+)
    title: {fault}
    change: resume from an earlier checkpoint, and report it with `engine_checks.json`
"""
