# SPDX-License-Identifier: Apache-2.0
"""Files to specs: unknown keys with did-you-mean, wrong types, ranges, overrides; both kinds of file."""

from __future__ import annotations

import json

import pytest

from harness.errors import ExitCode
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.spec.spec_loader import load_spec

TARGET = DeepSpeedTarget("0.19.8", "requested")


def findings(path, *overrides, target=TARGET):
    return {f.key: f for f in load_spec(path, overrides, target).findings}


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("zero: {stage: 2, reduce_bucket_size: 5e8}\n", ("zero", "reduce_bucket_size"), 500_000_000),
        ("train: {max_steps: 1e3}\n", ("train", "max_steps"), 1000),
        ("launch: {env: {NCCL_IB_DISABLE: 1}}\n", ("launch", "env"), {"NCCL_IB_DISABLE": "1"}),
    ],
)
def test_numbers_as_people_write_them(text, path, value, write):
    spec = load_spec(write("a.yaml", text)).spec
    assert spec is not None
    assert getattr(getattr(spec, path[0]), path[1]) == value


@pytest.mark.parametrize(
    ("value", "key", "gate", "said"),
    [
        ("{recompute_every: 0}", ".recompute_every", "SP007", "at least 1"),
        ("{evry: 2}", ".evry", "SP005", "is not a key of `train.gradient_checkpointing`"),
        ("{keep: mlp}", ".keep", "SP007", "none of `attention`"),
        ("full", "", "SP006", "`true`, `false`, `auto` or a map"),
        ("5", "", "SP006", "`true`, `false`, `auto` or a map"),
    ],
)
def test_a_plain_value_or_a_section_is_one_finding(value, key, gate, said, write):
    found = findings(write("a.yaml", f"train: {{gradient_checkpointing: {value}}}\n"))
    assert list(found) == [f"train.gradient_checkpointing{key}"]
    finding = found[f"train.gradient_checkpointing{key}"]
    assert finding.gate == gate
    assert said in finding.message


@pytest.mark.parametrize("number", [".inf", ".nan"])
def test_what_is_not_finite_is_refused(number, write):
    by_key = findings(write("a.yaml", f"optimizer: {{weight_decay: {number}, learning_rate: {number}}}\n"))
    assert set(by_key) == {"optimizer.weight_decay", "optimizer.learning_rate"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n", "accelerate"),
        ("base_model: x\nmicro_batch_size: 1\ndeepspeed: ds.json\n", "axolotl"),
        ("model_name_or_path: x\nlearning_rate: 1e-4\nbf16: true\n", "LLaMA-Factory"),
        ("train_batch_size: 1\nzero_optimization: {stage: 2}\n", "DeepSpeed configuration in YAML"),
    ],
)
def test_another_programs_file_is_one_finding(text, said, write):
    loaded = load_spec(write("a.yaml", text))
    assert [f.gate for f in loaded.findings] == ["SP016"]
    assert said in loaded.findings[0].message


def test_a_syntax_error_can_be_quoted(write):
    loaded = load_spec(write("a.yaml", "a: 1\na: 2\n"))
    assert loaded.source is not None
    assert loaded.source.lines(loaded.file)[1] == "a: 2"


def test_an_empty_section_is_its_defaults(write):
    loaded = load_spec(write("a.yaml", "train:\nmodel: {}\nname: x\n"))
    assert loaded.spec is not None
    assert loaded.spec.train.seed == 42
    assert loaded.spec.zero.stage == 0


@pytest.mark.parametrize(
    ("text", "key", "gate", "line", "column", "said"),
    [
        ("train:\n  max_stepz: 1\n", "train.max_stepz", "SP005", 2, 3, "did you mean `train.max_steps`?"),
        ("trian:\n  max_steps: 1\n", "trian", "SP005", 1, 1, "did you mean `train`?"),
        ("zero_optimization:\n  stage: 3\n", "zero_optimization", "SP005", 1, 1, "did you mean `zero`?"),
        ("train_micro_batch_size_per_gpu: 1\nmodel: {}\n", "train_micro_batch_size_per_gpu", "SP005", 1, 1, "train.per_device_train_batch_size"),
        ("learning_rate: 1e-4\n", "learning_rate", "SP005", 1, 1, "belongs in `optimizer`"),
        ("train:\n  lr: 1e-4\n", "train.lr", "SP005", 2, 3, "did you mean `optimizer.learning_rate`?"),
        ("model:\n  frobnicate: 1\n", "model.frobnicate", "SP005", 2, 3, "known here"),
        ("zero:\n  offload_optimizer:\n    device: cpu\n    nvme_pth: x\n  stage: 3\n", "zero.offload_optimizer.nvme_pth", "SP005", 4, 5, "nvme_path"),
        ("train:\n  max_steps: ten\n", "train.max_steps", "SP006", 2, 14, "a whole number"),
        ("train:\n  max_steps: true\n", "train.max_steps", "SP006", 2, 14, "a whole number"),
        ("train:\n  max_steps: 1.5\n", "train.max_steps", "SP006", 2, 14, "a whole number"),
        ("train: 5\n", "train", "SP006", 1, 8, "a map of keys"),
        ("train: [1]\n", "train", "SP006", 1, 8, "a map of keys"),
        ("precision:\n  bf16: 'true'\n", "precision.bf16", "SP006", 2, 9, "`true` or `false`"),
        ("data:\n  train: 5\n", "data.train", "SP006", 2, 10, "a text"),
        ("optimizer:\n  betas: [0.9]\n", "optimizer.betas.1", "SP006", 2, 10, "two numbers"),
        ("train:\n  max_steps: 0\n", "train.max_steps", "SP007", 2, 14, "at least 1"),
        ("zero:\n  stage: 4\n", "zero.stage", "SP007", 2, 10, "at most 3"),
        ("optimizer:\n  type: adamww\n", "optimizer.type", "SP007", 2, 9, "did you mean `adamw`?"),
        ("name: a b\n", "name", "SP007", 1, 7, "letters, digits"),
        ("telemetry:\n  profile_steps: x\n", "telemetry.profile_steps", "SP007", 2, 18, "such as `10-12`"),
        ("telemetry:\n  profile_steps: 5-2\n", "telemetry.profile_steps", "SP007", 2, 18, "\"5-2\": `5-2` ends before"),
        ("parallel:\n  pipeline_partition_method: x\n", "parallel.pipeline_partition_method", "SP007", 2, 30, "`type:CLASS`"),
        ("zero:\n  overlap_comm: true\n", "zero.stage", "SP008", 1, 1, "write `zero.stage`"),
        ("deepspeed:\n  gradient_cliping: 1\n", "deepspeed.gradient_cliping", "SP005", 2, 3, "did you mean `train.max_grad_norm`?"),
        ("deepspeed:\n  comms_logger:\n    enabel: true\n", "deepspeed.comms_logger.enabel", "SP005", 3, 5, "did you mean `enabled`?"),
        ("deepspeed:\n  zero_optimization:\n    stage: 2\n", "deepspeed.zero_optimization.stage", "SP010", 3, 5, "zero.stage"),
        ("deepspeed:\n  wall_clock_breakdown: 'yes'\n", "deepspeed.wall_clock_breakdown", "SP006", 2, 25, "`true` or `false`"),
        ("deepspeed:\n  elasticity: {}\n", "deepspeed.elasticity", "SP012", 2, 3, "remove it"),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value_is_found_where_it_is(text, key, gate, line, column, said, write):
    by_key = findings(write("a.yaml", text))
    assert key in by_key, by_key
    finding = by_key[key]
    assert (finding.gate, finding.place.line, finding.place.column) == (gate, line, column), finding
    assert said in f"{finding.message} {finding.fix.title if finding.fix else ''}", finding
    assert finding.is_error


def test_every_problem_is_told_in_one_pass(write):
    by_key = findings(
        write("a.yaml", "train:\n  max_steps: ten\n  sed: 1\noptimizer:\n  type: x\ndeepspeed:\n  nope_key: 1\n")
    )
    assert set(by_key) == {"train.max_steps", "train.sed", "optimizer.type", "deepspeed.nope_key"}


def test_overrides_win_and_are_located_on_the_command_line(write):
    path = write("a.yaml", "train:\n  max_steps: 5\n")
    loaded = load_spec(
        path, ["train.max_steps=7", "optimizer.learning_rate=1e-3", "zero={stage: 2}", "data.train=[a.txt, b.txt]"]
    )
    assert loaded.spec is not None
    assert loaded.spec.train.max_steps == 7
    assert loaded.spec.optimizer.learning_rate == 1e-3
    assert loaded.spec.zero.stage == 2
    assert loaded.spec.data.train is not None
    assert [source.path for source in loaded.spec.data.train] == ["a.txt", "b.txt"]
    wrong = findings(path, "train.max_steps=0")["train.max_steps"]
    assert (wrong.place.file, wrong.place.line, wrong.place.column) == ("--set", 1, 17)


@pytest.mark.parametrize("override", ["bogus", "=1", "train..x=1", "train.max_steps.deep=1", "a=[1"])
def test_an_override_that_is_none_is_wrong_usage_or_a_finding(override, write):
    loaded = load_spec(write("a.yaml", "train:\n  max_steps: 5\n"), [override])
    assert loaded.spec is None
    assert loaded.findings[0].is_error
    assert loaded.code in (ExitCode.USAGE, ExitCode.FINDINGS)


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["parallel.pipeline_parallel_size=2"], ("parallel", "pipeline_parallel_size"), 2),
        (["launch.num_gpus=4"], ("launch", "num_gpus"), 4),
        (["train.max_grad_norm=0.5"], ("train", "max_grad_norm"), 0.5),
        (["gradient_clipping=0.5"], ("train", "max_grad_norm"), 0.5),
        (["zero_optimization.stage=3"], ("zero", "stage"), 3),
        (["zero.stage=3", "train_batch_size=4"], ("zero", "stage"), 3),
    ],
)
def test_a_deepspeed_json_takes_overrides_of_its_own_keys_and_of_a_spec(overrides, key, value, write):
    loaded = load_spec(
        write("ds.json", '{"train_batch_size": 8, "zero_optimization": {"stage": 1}}'), overrides, TARGET
    )
    assert loaded.spec is not None, loaded.findings
    assert getattr(getattr(loaded.spec, key[0]), key[1]) == value
    assert loaded.source.place(key).file == "--set"


def test_a_wrong_override_of_a_json_is_located_on_the_command_line(write):
    file = write("ds.json", '{"train_batch_size": 8}')
    for override, gate in (
        ("parallel.pipeline_parallel_size=0", "SP007"),
        ("paralel.x=1", "SP005"),
        ("bogus", "SP011"),
    ):
        loaded = load_spec(file, ["launch.num_gpus=2", override], TARGET)
        finding = next(f for f in loaded.findings if f.is_error)
        assert finding.gate == gate, loaded.findings
        assert finding.place.file == "--set", finding
        assert finding.place.line == 2


def ds(write, config, **kwargs):
    return load_spec(write("ds.json", json.dumps(config)), (), kwargs.get("target", TARGET))


def test_a_deepspeed_json_is_adopted_with_its_own_places(write):
    loaded = load_spec(
        write(
            "ds.json",
            '{\n  "train_batch_size": 8,\n  "zero_optimization": {\n    "stage": 2,\n    "offload_param": {"device": "cpu"}}\n}',
        )
    )
    assert loaded.kind == "deepspeed-json"
    assert loaded.spec is not None
    assert loaded.spec.zero.stage == 2
    assert loaded.spec.train.global_batch_size == 8
    assert loaded.source.user_key("zero.stage") == "zero_optimization.stage"
    assert loaded.source.place("zero.offload_param.device").line == 5


def test_auto_counts_as_not_given_and_is_told_once(write):
    loaded = ds(write, {"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}})
    assert loaded.spec is not None
    assert loaded.spec.train.global_batch_size is None
    assert [f.gate for f in loaded.findings] == ["SP015"]
    assert "2 values" in loaded.findings[0].message


@pytest.mark.parametrize(
    ("config", "key", "gate", "said"),
    [
        ({"zero_optimisation": {"stage": 3}, "train_batch_size": 1}, "zero_optimisation", "SP005", "zero_optimization"),
        ({"train_batch_size": 1, "zero_optimization": {"stagee": 3}}, "zero_optimization.stagee", "SP005", "stage"),
        ({"train_batch_size": 1, "stage": 3}, "stage", "SP005", "belongs in `zero_optimization`"),
        ({"train_batch_size": "8"}, "train_batch_size", "SP006", "whole number"),
        ({"train_batch_size": 1, "zero_optimization": {"stage": 5}}, "zero_optimization.stage", "SP007", "at most 3"),
        ({"train_batch_size": 1, "prescale_gradients": "false"}, "prescale_gradients", "SP006", "`true` or `false`"),
        ({"train_batch_size": 1, "amp": {"enabled": False}}, "amp", "SP012", "bf16"),
        (
            {"train_batch_size": 1, "zero_optimization": {"stage": 1, "cpu_offload": True}},
            "zero_optimization.cpu_offload",
            "SP014",
            "offload_optimizer",
        ),
        ({"train_batch_size": 1, "zero_optimization": True}, "zero_optimization", "SP014", "stage"),
    ],
)
def test_a_wrong_key_in_a_deepspeed_json(config, key, gate, said, write):
    by_key = {f.key: f for f in ds(write, config).findings}
    assert key in by_key, by_key
    assert by_key[key].gate == gate
    assert said in f"{by_key[key].message} {by_key[key].fix.title}"


def test_the_same_json_is_judged_by_version(write):
    config = {"train_batch_size": 1, "elasticity": {}, "torch_autocast": {"enabled": True}}
    new = {f.key: f.gate for f in ds(write, config, target=DeepSpeedTarget("0.19.8", "")).findings}
    old = {f.key: f.gate for f in ds(write, config, target=DeepSpeedTarget("0.16.9", "")).findings}
    assert new == {"elasticity": "SP012"}
    assert old == {"torch_autocast": "SP013"}
