# SPDX-License-Identifier: Apache-2.0
"""accelerate's YAML: the JSON that it stands for, with places in the YAML or in the file that it names."""

from __future__ import annotations

import json

import pytest

from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.gates import check_run
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec

TARGET = DeepSpeedTarget("0.19.8", "asked for")
TOP = "distributed_type: DEEPSPEED\nnum_processes: 8\n"


def read(write, text, *overrides, name="accelerate.yaml", **kwargs):
    return load_spec(write(name, text), overrides, TARGET, **kwargs)


def test_its_own_fields_are_a_deepspeed_configuration(write):
    loaded = read(
        write,
        TOP + "num_machines: 1\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: nvme\n"
        "  offload_optimizer_nvme_path: /nvme\n  gradient_accumulation_steps: 4\n  gradient_clipping: 0.5\n  zero3_save_16bit_model: true\n",
    )  # fmt: skip
    spec = loaded.spec
    assert loaded.findings == ()
    assert (loaded.format, loaded.consumer) == ("accelerate-yaml", "accelerate")
    assert (spec.zero.stage, spec.zero.offload_optimizer.device, spec.zero.offload_optimizer.nvme_path) == (
        3,
        "nvme",
        "/nvme",
    )
    assert (spec.train.gradient_accumulation_steps, spec.train.max_grad_norm, spec.precision.bf16) == (4, 0.5, True)
    assert spec.zero.stage3_gather_16bit_weights_on_model_save is True
    assert resolve_run(spec, kind=loaded.kind).parallel_dims.world_size == 8
    assert loaded.source.user_key("zero.stage") == "deepspeed_config.zero_stage"
    assert str(loaded.source.place("zero.stage")).endswith("accelerate.yaml:6:15")


def test_gates_point_at_its_own_keys(write):
    loaded = read(write, TOP + "deepspeed_config:\n  zero_stage: 2\n  offload_param_device: cpu\n")
    report = check_run(
        resolve_run(loaded.spec, kind=loaded.kind), loaded.source, deepspeed=TARGET, consumer=loaded.consumer
    )
    finding = next(f for f in report.findings if f.gate == "OF001")
    assert finding.key == "deepspeed_config.offload_param_device"
    assert (finding.place.line, finding.place.column) == (5, 25)


def test_a_key_that_is_not_there_has_its_own_name(write):
    loaded = read(write, TOP + "deepspeed_config: {zero_stage: 3}\n")
    key = "zero.stage3_gather_16bit_weights_on_model_save"
    assert loaded.source.user_key(key) == "deepspeed_config.zero3_save_16bit_model"


def test_a_file_that_it_names_is_read_with_its_places(write):
    ds = write(
        "ds.json", json.dumps({"zero_optimization": {"stage": 1, "stagee": 1}, "train_batch_size": "auto"}, indent=1)
    )
    write("ds.json.note", "")
    loaded = read(write, TOP + "deepspeed_config:\n  deepspeed_config_file: ds.json\n")
    finding = next(f for f in loaded.findings if f.gate == "SP005")
    assert (finding.place.file, finding.place.line) == (ds, 4)
    assert '"stagee"' in loaded.source.lines(finding.place.file)[3]


def test_the_trainer_below_accelerate_launch_fills_in_what_accelerate_does_not(write):
    config = {"zero_optimization": {"stage": 3}, "gradient_clipping": "auto", "train_batch_size": "auto"}
    open_ = {**config, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}}
    text = TOP + "deepspeed_config:\n  deepspeed_config_file: ds.json\n"
    write("ds.json", json.dumps(open_))
    loaded = read(write, text)
    assert loaded.consumer == "hf"
    assert [f.gate for f in loaded.findings] == ["SP015"]
    assert read(write, text, consumer="accelerate").consumer == "accelerate"
    write("ds.json", json.dumps(config))
    assert read(write, text).consumer == "accelerate"


def test_a_file_in_a_folder_above_is_found(write):
    write("configs/ds.json", '{"zero_optimization": {"stage": 3}}')
    loaded = read(
        write, TOP + "deepspeed_config: {deepspeed_config_file: configs/ds.json}\n", name="configs/a/acc.yaml"
    )
    assert loaded.spec.zero.stage == 3


def test_a_file_that_is_not_here_is_a_warning(write):
    loaded = read(write, TOP + "deepspeed_config: {deepspeed_config_file: /nowhere/ds.json}\n")
    assert [(f.gate, f.severity) for f in loaded.findings] == [("SP021", "warning")]


@pytest.mark.parametrize(
    ("text", "gate", "key", "severity"),
    [
        ("deepspeed_config: {zero_stage: 2, zero_stagee: 3}\n", "HF102", "deepspeed_config.zero_stagee", "error"),
        ("deepspeed_config: {zero_stage: 2, bf16: {enabled: true}}\n", "HF102", "deepspeed_config.bf16", "error"),
        ("deepspeed_config: {zero_stage: 2, communication_data_type: bf16}\n", "HF102", "deepspeed_config.communication_data_type", "warning"),
        ("deepspeed_config: {zero_stage: 5}\n", "SP007", "deepspeed_config.zero_stage", "error"),
        ("deepspeed_config: {gradient_clipping: 1.0}\n", "HF103", "deepspeed_config.zero_stage", "info"),
        ("deepspeed_config: {zero_stage: 2}\nmixed_precision: no\n", "SP006", "mixed_precision", "error"),
        ("deepspeed_config: {zero_stage: 2}\nmixed_precision: bf61\n", "SP007", "mixed_precision", "error"),
        ("deepspeed_config: {zero_stage: 2}\nnum_process: 2\n", "SP005", "num_process", "error"),
        ("deepspeed_config: 2\n", "SP006", "deepspeed_config", "error"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_it_is_told_at_its_key(text, gate, key, severity, write):
    observed = {(f.gate, f.key, f.severity) for f in read(write, TOP + text).findings}
    assert (gate, key, severity) in observed, observed


def test_a_wrong_value_is_told_once_by_its_own_key(write):
    loaded = read(write, TOP + "deepspeed_config:\n  zero_stage: 5\n  offload_optimizer_device: cpuu\n")
    assert sorted((f.gate, f.key) for f in loaded.findings) == [
        ("SP007", "deepspeed_config.offload_optimizer_device"),
        ("SP007", "deepspeed_config.zero_stage"),
    ]


def test_fields_beside_the_file_are_refused(write):
    write("ds.json", '{"zero_optimization": {"stage": 1}}')
    text = TOP + "mixed_precision: bf16\ndeepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 2}\n"
    keys = {f.key for f in read(write, text).findings if f.gate == "HF101"}
    assert keys == {"mixed_precision", "deepspeed_config.zero_stage"}


@pytest.mark.parametrize("text", ["distributed_type: FSDP\nnum_processes: 2\n", "compute_environment: LOCAL_MACHINE\n"])
def test_one_without_deepspeed_is_one_finding(text, write):
    loaded = read(write, text)
    assert [f.gate for f in loaded.findings] == ["SP016"]
    assert "does not use DeepSpeed" in loaded.findings[0].message


@pytest.mark.parametrize("text", ['{"a": {{ x }}}', "nothing", '{"train_batch_size": $B}'])
def test_a_broken_file_that_it_names_is_told_there(text, write):
    ds = write("ds.json", text)
    loaded = read(write, TOP + "deepspeed_config: {deepspeed_config_file: ds.json}\n")
    assert [f.place.file for f in loaded.findings] == [ds]
    assert loaded.spec is None


def test_overrides_count_beside_it(write):
    loaded = read(write, TOP + "deepspeed_config: {zero_stage: 2}\n", "parallel.pipeline_parallel_size=2")
    assert loaded.spec.parallel.pipeline_parallel_size == 2


def test_overrides_of_its_own_keys(write):
    text = TOP + "deepspeed_config: {zero_stage: 2}\n"
    loaded = read(write, text, "parallel.pipeline_parallel_size=2", "deepspeed_config.zero_stage=3", "num_processes=4")
    assert loaded.spec.zero.stage == 3
    assert loaded.source.place("zero.stage").file == "--set"
    assert loaded.source.place("zero.stage").line == 2
    assert resolve_run(loaded.spec, kind=loaded.kind).parallel_dims.world_size == 4


@pytest.mark.parametrize(
    ("block", "sets", "title"),
    [
        ("  zero_stage: 2\n", {}, "`--bf16`"),
        (
            "  zero_stage: 2\n  gradient_accumulation_steps: 4\n",
            {"train.gradient_accumulation_steps": None},
            "remove `deepspeed_config.gradient_accumulation_steps`",
        ),
    ],
)
def test_auto_is_no_advice_for_a_key_that_takes_none(block, sets, title, write):
    """accelerate's `mixed_precision` is no, fp16, bf16 or fp8, and `Accelerator()` makes a number of "auto" steps."""
    loaded = read(write, f"{TOP}mixed_precision: bf16\ndeepspeed_config:\n{block}", consumer="hf")
    report = check_run(resolve_run(loaded.spec, kind=loaded.kind), loaded.source, deepspeed=TARGET, consumer="hf")
    (finding,) = [f for f in report.findings if f.gate == "HF008"]
    assert (finding.fix.sets, title in finding.fix.title) == (sets, True)


def findings_of(file, gate, *overrides, consumer=None):
    report = check_file(file, overrides=overrides, deepspeed=TARGET, consumer=consumer).report
    return [f for f in report.findings if f.gate == gate]


def test_its_explicit_values_must_be_those_of_the_trainer(write):
    block = "deepspeed_config:\n  zero_stage: 2\n  gradient_accumulation_steps: 4\n  gradient_clipping: 0.5\n"
    file = write("accelerate.yaml", TOP + "mixed_precision: fp16\n" + block)
    (finding,) = findings_of(file, "HF008")
    assert (finding.severity, finding.key) == ("info", "deepspeed_config.gradient_accumulation_steps")
    assert "`deepspeed_config.gradient_clipping` must say the same" in finding.message
    assert [label.place.line for label in finding.related] == [3, 7]
    assert "silently" in finding.notes[0]
    assert finding.fix.sets == {"train.gradient_accumulation_steps": None, "train.max_grad_norm": None}


@pytest.mark.parametrize("block", ["{zero_stage: 2}", "{zero_stage: 2, gradient_accumulation_steps: auto}"])
def test_what_it_leaves_open_is_filled_in(block, write):
    """The plugin writes "auto" for both, which the Trainer and accelerate fill in (run with accelerate 1.15)."""
    file = write("accelerate.yaml", f"{TOP}mixed_precision: bf16\ndeepspeed_config: {block}\n")
    for consumer in (None, "hf"):
        for gate in ("HF006", "HF010"):
            assert findings_of(file, gate, consumer=consumer) == []
    assert findings_of(file, "HF008") == []


def test_a_file_that_is_not_here_has_no_values_to_compare(write):
    file = write("accelerate.yaml", TOP + "deepspeed_config: {deepspeed_config_file: /nowhere/ds.json}\n")
    for consumer in ("hf", "accelerate", "deepspeed"):
        report = check_file(file, deepspeed=TARGET, consumer=consumer).report
        assert [f.gate for f in report.findings if "clipping" in f.message] == []


def test_a_clipping_of_zero_does_not_arrive(write):
    file = write("accelerate.yaml", TOP + "deepspeed_config: {zero_stage: 2, gradient_clipping: 0}\n")
    assert [f.key for f in findings_of(file, "HF108")] == ["deepspeed_config.gradient_clipping"]
    assert findings_of(file, "HF008") == []
    zero = write("false.yaml", TOP + "deepspeed_config: {zero_stage: 2, gradient_clipping: false}\n")
    assert findings_of(zero, "HF108") == []


@pytest.mark.parametrize("key", ["dynamo_config: {dynamo_backend: AOT_EAGER}", "dynamo_backend: eager"])
def test_a_back_end_for_debugging_is_told(key, write):
    file = write("accelerate.yaml", f"{TOP}deepspeed_config: {{zero_stage: 2}}\n{key}\n")
    (finding,) = findings_of(file, "HF107")
    assert list(finding.fix.sets) == [finding.key]
    other = write(
        "other.yaml", f"{TOP}deepspeed_config: {{zero_stage: 2}}\ndynamo_config: {{dynamo_backend: INDUCTOR}}\n"
    )
    assert findings_of(other, "HF107") == []
