# SPDX-License-Identifier: Apache-2.0
"""The format of a file: programs that `harness adopt` converts, and files that are left alone with one sentence."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.convert.conversion import convert_file
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.spec.config_format import detect_format, looks_like_config
from harness.spec.parse.source_parser import parse
from harness.spec.spec_loader import load_spec

TARGET = DeepSpeedTarget("0.19.8", "asked for")
NEOX = {
    "pipe-parallel-size": 1, "model-parallel-size": 1, "num-layers": 12, "hidden-size": 768, "num-attention-heads": 12,
    "seq-length": 2048, "pos-emb": "rotary", "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "Adam", "params": {"lr": 0.0006}}, "lr-decay-iters": 320000, "fp16": {"enabled": True},
}  # fmt: skip
INFERENCE = [
    {"dtype": "bf16", "tensor_parallel": {"tp_size": 2}, "replace_with_kernel_inject": True, "max_out_tokens": 512},
    {"model_path": "a/b", "tp_size": 8, "mem_fraction_static": 0.8, "dtype": "auto", "quantization": "auto"},
    {"max_model_len": 4096, "gpu_memory_utilization": 0.9, "dtype": "auto", "kv_cache_dtype": "auto"},
]


@pytest.mark.parametrize(
    ("config", "name", "word"),
    [(NEOX, "neox.json", "a GPT-NeoX configuration"), (NEOX, "neox.yml", "a GPT-NeoX configuration"), *((config, "i.json", "for inference") for config in INFERENCE)],
)  # fmt: skip
def test_other_programs_files_are_left_alone_with_one_sentence(config, name, word, write):
    text = json.dumps(config)
    file = write(name, text)
    (finding,) = load_spec(file, (), TARGET).findings
    assert (finding.gate, word in finding.message, "it is not checked" in finding.message) == ("SP016", True, True)
    with pytest.raises(UserError) as refused:
        convert_file(file, TARGET)
    assert [f.message for f in refused.value.findings] == [finding.message]
    assert not looks_like_config(text, file)


def test_the_linter_passes_over_them_in_a_folder(write, tmp_path):
    write("in/neox.json", json.dumps(NEOX))
    write("in/serve.json", json.dumps(INFERENCE[0]))
    write("in/ds.json", json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 1}}))
    result = CliRunner().invoke(build_app(["validate-config"]), ["validate-config", str(tmp_path / "in")])
    assert result.exit_code == 0, result.output
    assert "SP005" not in result.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("base_model: a\nmicro_batch_size: 1\n", "axolotl-yaml"),
        ("lr_scheduler: cosine\ndeepspeed: ds/z2.json\n", "axolotl-yaml"),
        ("sequence_len: 4096\ndeepspeed: z3.json\n", "axolotl-yaml"),
        ("max_grad_norm: 0.5\ndeepspeed: ds/z2.json\n", "trainer-yaml"),
        ("lr_scheduler: cosine\nzero: {stage: 2}\ndeepspeed: {steps_per_print: 1}\n", "spec"),
        ("model_name_or_path: a\nstage: sft\nlearning_rate: 1.0\n", "llama-factory-yaml"),
        ("model_name_or_path: a\nlearning_rate: 1.0\n", "trainer-yaml"),
        ("model_name_or_path: a\nlearning_rate: 1.0\npacking: true\n", "trl-yaml"),
        ("model_name_or_path: a\nlearning_rate: 1.0\ndataset_name: b\n", "trl-yaml"),
        ("model_name_or_path: a\nlearning_rate: 1.0\ndataset_name: b\ndo_train: true\n", "trainer-yaml"),
        ("model_name_or_path: a\ntemplate: qwen\nlearning_rate: 1.0\npacking: true\n", "trainer-yaml"),
        ("model: a\nmodel_class: llm\ntrain_dataset: d\nlearning_rate: 1.0\n", "llama-factory-v1"),
        ("model: a\ndataset: [d]\ntuner_type: full\n", "swift-config"),
        ("model: {name_or_path: a}\ndata: {sources: [d]}\n", "arctic-yaml"),
        ("model: {name_or_path: a}\ndata: {train: d}\n", "spec"),
        ("model: {name_or_path: a}\nparallel: {pipeline_parallel_size: 2}\ntrain: {max_steps: 3}\n", "spec"),
    ],
)
def test_programs_have_marks(text, expected):
    assert detect_format(parse(text, "a.yaml")) == expected


def test_a_file_for_zero_inference_is_deepspeeds(write):
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "tensor_parallel": {"tp_size": 1}}
    assert load_spec(write("z.json", json.dumps(config)), (), TARGET).format == "deepspeed-json"


def test_a_named_program_is_sent_to_adopt(write):
    (finding,) = load_spec(write("a.yaml", "model: {name_or_path: a}\ndata: {sources: [d]}\n"), (), TARGET).findings
    assert "an ArcticTraining configuration" in finding.message
    assert "harness adopt" in finding.fix.title


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "qwen2", "hidden_size": 896, "vocab_size": 9, "use_cache": True, "tokenizer_class": "X"}, "config.json"),
        ({"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<pad>"}, "tokenizer_config.json"),
        ({"peft_type": "LORA", "r": 8, "base_model_name_or_path": "x"}, "adapter_config.json"),
        ({"metadata": {"total_size": 1}, "weight_map": {"a": "b"}}, "model.safetensors.index.json"),
        ({"log_history": [], "global_step": 3, "train_batch_size": 8}, "trainer_state.json"),
    ],
)  # fmt: skip
def test_a_file_of_a_models_folder_is_told_in_one_sentence(config, name, write):
    findings = load_spec(write("config.json", json.dumps(config)), target=TARGET).findings
    assert [finding.gate for finding in findings] == ["SP016"]
    assert f"this is the `{name}` of a Hugging Face model" in findings[0].message
    assert findings[0].fix.sets == {}
    assert not looks_like_config(json.dumps(config), "config.json")


PASTED = "# ZeRO-2\nds_config = {\n    'fp16': {'enabled': True},\n    'zero_optimization': {'stage': 2},\n}\n"


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("a.json", PASTED, 2),
        ("a.py", "import deepspeed\n" + PASTED, 3),
        ("a.json", PASTED.replace("ds_config = ", ""), 2),
        ("a.json", '{"train_batch_size": 8, "scheduler": None}', 1),
        ("a.json", '{"train_batch_size": 8, # of all\n "bf16": {"enabled": true,},}', 0),
        ("a.json", "{'train_batch_size': 8}", 0),
        ("a.json", '{"train_batch_size": 8, "bf16": {"enabled": true}}', 0),
        ("a.json", "{" * 5000, 0),
    ],
)
def test_a_python_dict_is_told_as_one(file, text, line, write):
    findings = [f for f in load_spec(write(file, text), target=TARGET).findings if "Python dict" in f.message]
    assert [finding.place.line for finding in findings] == ([line] if line else [])
    assert all("json.dump(" in finding.fix.title for finding in findings)
