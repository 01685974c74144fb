# SPDX-License-Identifier: Apache-2.0
"""Run -> DeepSpeed JSON: what is rendered, what is left out, and why."""

from __future__ import annotations

import json

import pytest

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec


def rendered(world=2, **sections):
    spec = RunSpec.model_validate({"zero": {"stage": 0}, "train": {"per_device_train_batch_size": 2}, **sections})
    return render_ds_config(resolve_run(spec, world_size=world))


def test_every_leaf_has_a_reason():
    config = rendered(
        zero={
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/x"},
            "offload_param": {"device": "cpu"},
            "overlap_comm": True,
        },
        precision={"fp16": True},
        deepspeed={"comms_logger": {"enabled": True}, "wall_clock_breakdown": True},
    )

    def leaves(value, path=""):
        for key, item in value.items():
            yield from leaves(item, f"{path}{key}.") if isinstance(item, dict) else [f"{path}{key}"]

    assert set(leaves(config.config)) == set(config.reasons)
    assert all(config.reasons.values())
    assert json.loads(config.json_text) == config.config


def test_defaults_that_moved_between_releases_are_always_written():
    config = rendered(zero={"stage": 2, "offload_optimizer": {"device": "cpu"}}, precision={"bf16": True}).config
    assert config["gradient_clipping"] == 1.0
    assert config["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert config["optimizer"]["params"]["weight_decay"] == 0.0
    assert "steps_per_print" in config


@pytest.mark.parametrize(
    ("world", "parallel", "train", "expected"),
    [
        (2, {}, {"per_device_train_batch_size": 2}, (4, 2, 1)),
        (4, {}, {"global_batch_size": 16, "per_device_train_batch_size": 2}, (16, 2, 2)),
        (None, {}, {"global_batch_size": 16, "per_device_train_batch_size": 2}, (16, 2, None)),
        (None, {}, {"per_device_train_batch_size": 2}, (None, 2, 1)),
        (
            4,
            {"pipeline_parallel_size": 2},
            {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3},
            (12, 2, 3),
        ),
        (
            4,
            {"tensor_parallel_size": 2},
            {"per_device_train_batch_size": 2},
            (None, 2, 1),
        ),  # DeepSpeed would count the whole world
    ],
)
def test_the_batch_triangle(world, parallel, train, expected):
    config = rendered(world, parallel=parallel, train=train).config
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert tuple(config.get(k) for k in keys) == expected


@pytest.mark.parametrize(
    ("optimizer", "type_", "params"),
    [
        ({"type": "adamw"}, "AdamW", {"lr", "betas", "eps", "weight_decay"}),
        ({"type": "adam"}, "Adam", {"lr", "betas", "eps", "weight_decay", "adam_w_mode"}),
        ({"type": "sgd"}, "SGD", {"lr", "momentum", "weight_decay"}),
    ],
)
def test_optimizers(optimizer, type_, params):
    config = rendered(optimizer=optimizer, zero={"stage": 1}).config
    assert config["optimizer"]["type"] == type_
    assert set(config["optimizer"]["params"]) == params
    assert config.get("zero_allow_untested_optimizer", False) is (type_ == "SGD")


def test_offload_to_none_is_not_rendered_and_nvme_keys_only_for_nvme():
    config = rendered(
        zero={
            "stage": 3,
            "offload_optimizer": {"device": "none"},
            "offload_param": {"device": "nvme", "nvme_path": "/x"},
        }
    ).config
    assert "offload_optimizer" not in config["zero_optimization"]
    assert config["zero_optimization"]["offload_param"]["buffer_size"] == 100_000_000


def test_the_deepspeed_section_is_passed_on():
    config = rendered(deepspeed={"aio": {"queue_depth": 16}, "scheduler": {"type": "WarmupLR", "params": {}}}).config
    assert config["aio"] == {"queue_depth": 16}
    assert config["scheduler"] == {"type": "WarmupLR", "params": {}}
