# SPDX-License-Identifier: Apache-2.0
"""A DeepSpeed JSON, adopted and rendered again, is the same configuration."""

from __future__ import annotations

import json

import pytest

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec

CONFIGS = [
    {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5, "bf16": {"enabled": True},
     "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8, "stage3_max_live_parameters": 1e9,
                           "offload_optimizer": {"device": "cpu", "pin_memory": True}, "offload_param": {"device": "nvme", "nvme_path": "/x", "buffer_count": 9}},
     "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}},
    {"train_batch_size": 8, "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "auto_cast": False}, "zero_optimization": {"stage": 2, "round_robin_gradients": True},
     "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}, "wall_clock_breakdown": True},
    {"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2}, "zero_optimization": {"stage": 1}, "flops_profiler": {"enabled": True, "profile_step": 2}},
]  # fmt: skip


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, value


@pytest.mark.parametrize("config", CONFIGS)
def test_adopting_loses_nothing(config, write):
    loaded = load_spec(write("ds.json", json.dumps(config)))
    assert loaded.spec is not None, loaded.findings
    rendered = dict(leaves(dict(render_ds_config(resolve_run(loaded.spec, kind=loaded.kind)).config)))
    for path, value in leaves(config):
        if path == ("train_batch_size",) and config.get("tensor_parallel"):
            continue  # never rendered with AutoTP, where DeepSpeed counts the whole world
        assert rendered.get(path) == value, path


@pytest.mark.parametrize("value", [0, 1])
def test_a_tensor_degree_of_zero_or_one_means_off(value, write):
    loaded = load_spec(write("ds.json", json.dumps({"train_batch_size": 1, "tensor_parallel": {"autotp_size": value}})))
    assert loaded.spec is not None
    assert loaded.spec.parallel.tensor_parallel_size == 1


@pytest.mark.parametrize("params", [{"lr": "auto"}, {"lr": 0}, {"lr": -1}, {"lr": 1, "amsgrad": True}, {"betas": [1]}])
def test_an_optimizer_that_the_spec_cannot_say_stays_whole(params, write):
    loaded = load_spec(
        write("ds.json", json.dumps({"train_batch_size": 1, "optimizer": {"type": "Adam", "params": params}}))
    )
    assert loaded.spec is not None, loaded.findings
    explicit = {k: v for k, v in params.items() if v != "auto"}
    if explicit:
        assert loaded.spec.deepspeed["optimizer"]["params"] == explicit
