# SPDX-License-Identifier: Apache-2.0
"""Readers of a DeepSpeed JSON, and their handling of "auto" and of loose JSON."""

from __future__ import annotations

import json

import pytest

from harness.errors import ExitCode
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.spec.auto_values import (
    FILLED_BY_ACCELERATE,
    FILLED_BY_TRAINER,
    auto_in_deepspeed,
    find_auto_values,
    guess_consumer,
)
from harness.spec.spec_loader import load_spec

TARGET = DeepSpeedTarget("0.19.8", "requested")


@pytest.mark.parametrize(
    ("config", "reader"),
    [
        ({"train_batch_size": 1}, "deepspeed"),
        ({}, "deepspeed"),
        ({"train_batch_size": "auto"}, "hf"),
        ({"fp16": {"enabled": "auto", "loss_scale": "auto"}}, "hf"),
        ({"zero_optimization": {"zenflow": {"select_strategy": "auto"}}}, "deepspeed"),
        ({"zero_optimization": {"overlap_comm": "auto"}}, "deepspeed"),
        ({"zero_optimization": {"stage": "auto"}}, "accelerate"),
        ({"zero_optimization": {"stage": "auto"}, "optimizer": {"params": {"betas": "auto"}}}, "hf"),
        ({"train_batch_size": "auto", "zero_optimization": {"offload_param": {"device": "auto"}}}, "accelerate"),
    ],
)
def test_the_reader_is_guessed(config, reader):
    assert guess_consumer(config) == reader


def test_lists_are_not_looked_into():
    assert list(find_auto_values({"a": ["auto"], "b": {"c": "auto"}})) == [("b", "c")]


@pytest.mark.parametrize(
    ("key", "meaning"),
    [
        ("zero_optimization.stage", "default"),
        ("zero_optimization.offload_param.device", "default"),
        ("bf16.enabled", "default"),
        ("bf16", "fails"),
        ("tensorboard", "default"),
        ("elasticity", "unknown"),
        ("zero_optimization", "fails"),
        ("prescale_gradients", "true"),
        ("torch_autocast.enabled", "true"),
        ("checkpoint.load_universal", "true"),
        ("wall_clock_breakdown", "fails"),
        ("train_batch_size", "fails"),
        ("optimizer.params.lr", "fails"),
        ("scheduler.params.total_num_steps", "fails"),
        ("tensor_parallel.autotp_size", "fails"),
        ("data_types.keep_in_fp32_modules", "own"),
        ("expert_parallel.top_k", "own"),
        ("zero_optimisation", "unknown"),
    ],
)
def test_what_deepspeed_itself_makes_of_auto(key, meaning):
    assert auto_in_deepspeed(tuple(key.split(".")), TARGET.version) == meaning


def test_every_key_that_somebody_fills_in_is_one_of_deepspeeds():
    from harness.facts.deepspeed_keys import block_keys

    for path in FILLED_BY_TRAINER | FILLED_BY_ACCELERATE:
        known = block_keys(".".join(map(str, path[:-1])))
        assert known is None or path[-1] in known, path


def found(write, text, **kwargs):
    return load_spec(
        write("ds.json", text if isinstance(text, str | bytes) else json.dumps(text)), (), TARGET, **kwargs
    )


@pytest.mark.parametrize("consumer", ["hf", "accelerate", "deepspeed", None])
def test_the_guess_is_said_in_one_line(consumer, write):
    loaded = found(write, {"train_batch_size": "auto", "gradient_clipping": "auto"}, consumer=consumer)
    infos = [f for f in loaded.findings if f.gate == "SP015"]
    assert loaded.consumer == (consumer or "hf")
    assert loaded.code is ExitCode.OK
    assert len(infos) == (consumer is None)
    if infos:
        assert "the Hugging Face Trainer" in infos[0].message
        assert "`--consumer deepspeed` of `harness validate-config`" in infos[0].notes[0]  # no other command has it
        assert infos[0].severity == "info"


LOOSE = '{\n  // a comment\n  "train_batch_size": 8,\n  "bf16": {"enabled": true},\n}'


@pytest.mark.parametrize(("consumer", "severity"), [("deepspeed", "warning"), ("hf", "error"), ("accelerate", "error")])
@pytest.mark.parametrize("text", [LOOSE, b'\xef\xbb\xbf{"train_batch_size": 8}', "train_batch_size: 8"])
def test_which_loaders_accept_the_file(text, consumer, severity, write):
    loaded = found(write, text, consumer=consumer)
    spelling = [f for f in loaded.findings if f.gate == "SP018"]
    assert [f.severity for f in spelling] == [severity]
    assert loaded.spec is not None
    assert loaded.spec.train.global_batch_size == 8


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('{"train_batch_size": 8, "prescale_gradients": False\n}', "prescale_gradients", "write `false`"),
        ('{"train_batch_size": 8,\n"prescale_gradients": True,\n"bf16": {}}', "prescale_gradients", "write `true`"),
        ('{"train_batch_size": 8, "communication_data_type": None\n}', "communication_data_type", "write `null`"),
        ('{"train_batch_size": 8, "gradient_clipping": .5\n}', "gradient_clipping", "write `0.5`"),
        ('{"train_batch_size": 8, "gradient_clipping": NaN\n}', "gradient_clipping", "a JSON number"),
        ('{"train_batch_size": 1_000\n}', "train_batch_size", "a JSON number"),
        ('{"train_batch_size": 8\n"log_level": info # quiet\n}', "log_level", "is the text"),
    ],
)
def test_a_text_that_was_meant_as_something_else(text, key, said, write):
    findings = [f for f in found(write, text).findings if f.key == key]
    assert [f.gate for f in findings] == ["SP019"], findings
    assert findings[0].is_error
    assert said in f"{findings[0].message} {findings[0].fix.title}"


def test_a_text_without_quotes_that_is_one_is_only_loose(write):
    loaded = found(write, '{"train_batch_size": 8\n"log_level": info\n}')
    assert [f.gate for f in loaded.findings] == ["SP018"]


def test_every_problem_is_told_although_a_key_is_written_twice(write):
    loaded = found(write, '{"train_batch_size": 8, "train_batch_size": 9, "bf_16": {}}')
    assert {f.gate for f in loaded.findings} == {"SP004", "SP005"}


def test_a_run_spec_in_json_is_read_strictly(write):
    loaded = load_spec(write("a.json", '{"train": {"max_steps": 1,}, "zero": {"stage": 1}}'))
    assert [f.gate for f in loaded.findings] == ["SP002"]


@pytest.mark.parametrize("text", ['{"name": "x", "version": 1, "dependencies": {}}', '{"hidden_size": 8, "vocab": 3}'])
def test_a_json_of_something_else_is_one_finding(text, write):
    loaded = load_spec(write("a.json", text))
    assert [f.gate for f in loaded.findings] == ["SP016"]
