# SPDX-License-Identifier: Apache-2.0
"""A file as a gate sees it: keys under every spelling, those of `--set`, and none that cannot be read."""

from __future__ import annotations

import json

import pytest

from harness.check.check_file import check_file
from harness.errors import UnreadableKeyError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.gates.context import Context
from harness.spec.partial_spec import guard_source

TARGET = DeepSpeedTarget("0.19.8", "asked for")


def context(config, *overrides, name="ds.json"):
    text = config if isinstance(config, str) else json.dumps(config)
    checked = check_file(name, text=text, overrides=overrides, deepspeed=TARGET)
    assert checked.run is not None
    assert checked.source is not None
    return Context(checked.run, checked.source, TARGET, "deepspeed")


BATCH = {"train_batch_size": 8}


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("deepspeed.aio.queue_depth=16", "aio.queue_depth", 16),
        ("deepspeed.steps_per_print=0", "steps_per_print", 0),
        ("zero.stage=3", "zero_optimization.stage", 3),
        ("train.max_grad_norm=0.5", "gradient_clipping", 0.5),
        ("aio.queue_depth=16", "aio.queue_depth", 16),
    ],
)
def test_a_key_that_is_set_on_the_command_line_is_a_key_of_the_json(override, key, value):
    ctx = context(BATCH, override)
    assert ctx.has_key(key)
    assert ctx.ds(key) == value
    assert not context(BATCH).has_key(key)


def test_a_gate_that_asks_for_a_key_sees_it_on_the_command_line():
    text = json.dumps({**BATCH, "gradient_clipping": 1.0})
    options = {"text": text, "deepspeed": TARGET, "overrides": ["deepspeed.aio.queue_depth=16"]}
    assert "OF024" in [f.gate for f in check_file("ds.json", **options).report.findings]
    options["overrides"] = ["deepspeed.optimizer.params.max_grad_norm=0.5", "deepspeed.optimizer.type=AdamW"]
    assert "OP004" in [f.gate for f in check_file("ds.json", **options).report.findings], "it asks `has_key`"


def test_a_key_that_is_taken_out_on_the_command_line_is_gone():
    assert not context({**BATCH, "gradient_accumulation_steps": 2}, "train.gradient_accumulation_steps=null").has_key(
        "gradient_accumulation_steps"
    )


def test_an_old_name_is_the_key_that_it_stands_for():
    ctx = context({**BATCH, "zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}})
    assert ctx.has_key("zero_optimization.stage3_gather_16bit_weights_on_model_save")
    assert ctx.has_key("zero_optimization.stage3_gather_fp16_weights_on_model_save")
    assert not ctx.has_key("zero_optimization.sub_group_size")


@pytest.mark.parametrize(
    ("text", "unreadable", "readable"),
    [
        ("train: {max_steps: x}", ["train.max_steps"], ["train.seed", "zero.stage"]),
        ("zero: {offload_optimizer: {device: cpu}}", ["zero.stage"], ["zero.offload_optimizer.device"]),
        ("zero: {stage: 2, offload_optimizer: {nvme_path: /x}}", ["zero.offload_optimizer"], ["zero.stage"]),
        ("zero: 3", ["zero"], ["train.seed"]),
        ("launch: {env: {A: [1]}}", ["launch.env"], ["launch.num_gpus"]),
        ("data: {train: [{path: 1}], max_length: 5}", ["data.train"], ["data.max_length"]),
        ("checkpoint: {save_stps: 5}", ["checkpoint.save_steps"], ["checkpoint.save_at_end"]),
    ],
)
def test_a_key_that_cannot_be_read_raises_and_the_others_do_not(text, unreadable, readable):
    from harness.spec.spec_loader import load_spec

    loaded = load_spec("a.yaml", (), TARGET, text=text)
    assert loaded.spec is None
    assert loaded.partial is not None
    assert loaded.source is not None

    def read(key):
        value = loaded.partial.spec
        for name in key.split("."):
            value = getattr(value, name)

    source = guard_source(loaded.source, loaded.partial.unreadable)
    for key in unreadable:
        for access in (read, source.has_key):
            with pytest.raises(UnreadableKeyError):
                access(key)
    for key in readable:
        read(key)
        source.has_key(key)
    with pytest.raises(UnreadableKeyError):
        loaded.partial.spec.model_dump()
