# SPDX-License-Identifier: Apache-2.0
"""When single gates fire and how severe they are, beyond the examples of their pages."""

from __future__ import annotations

import json

import pytest

from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding
from harness.gates import check_run
from harness.gates.registry import all_gates
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec
from tests.support.gate_examples import judge

GATES = {gate.id: gate for gate in all_gates()}
AUTOTP = {"tensor_parallel": {"autotp_size": 2}}
NVME = {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 8, "pipeline_read": True, "pipeline_write": True}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "vocab_size": 32000,
}


def found(write, config, *, version="0.19.8", consumer="deepspeed", world=None, overrides=()) -> dict[str, Finding]:
    """The findings of a DeepSpeed JSON by gate, the loader's too."""
    body = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, **config}
    body = {key: value for key, value in body.items() if value is not None}
    target = DeepSpeedTarget(version, "asked for")
    loaded = load_spec(write("ds.json", json.dumps(body)), overrides, target, consumer=consumer)
    assert loaded.spec is not None, loaded.findings
    assert loaded.source is not None
    run = resolve_run(loaded.spec, world_size=world, kind=loaded.kind)
    report = check_run(run, loaded.source, deepspeed=target, consumer=consumer)
    assert not [f for f in report.findings if f.gate == "GT001"]
    return {f.gate: f for f in (*loaded.findings, *report.findings)}


@pytest.mark.parametrize(
    ("sequence", "data", "extra", "gates"),
    [
        (1, 1, {}, {"SQ003"}),
        (1, 4, {}, {"SQ003"}),
        (1, 2, {}, set()),
        (None, 1, {}, set()),
        (1, None, {}, set()),
        (1, 2, AUTOTP, {"SQ012"}),
        (1, 1, AUTOTP, {"SQ003", "SQ012"}),
        (None, 2, AUTOTP, set()),
    ],
)  # fmt: skip
def test_a_mesh_at_a_sequence_degree_of_1(sequence, data, extra, gates, write):
    """As run on 0.19.8 with 2 ranks (`tests/training/gates/test_gate_claims.py`)."""
    config = {"sequence_parallel_size": sequence, "data_parallel_size": data, **extra}
    told = found(write, config, world=2)
    assert {gate for gate in told if gate.startswith("SQ")} == gates
    assert all(told[gate].severity == "error" for gate in gates)


@pytest.mark.parametrize(
    ("fp16", "consumer", "is_told"),
    [
        ({"auto_cast": True}, "deepspeed", True),
        ({"enabled": False, "auto_cast": True}, "deepspeed", True),
        ({"enabled": False, "auto_cast": True}, "accelerate", True),
        ({"enabled": False, "auto_cast": True}, "hf", False),
        ({"enabled": True, "auto_cast": True}, "deepspeed", False),
        ({"enabled": "auto", "auto_cast": True}, "accelerate", False),
        ({"enabled": False, "auto_cast": False}, "deepspeed", False),
    ],
)
def test_inputs_are_cast_to_half_although_fp16_is_off(fp16, consumer, is_told, write):
    told = found(write, {"fp16": fp16, "zero_optimization": {"stage": 1}}, consumer=consumer)
    assert ("PR037" in told) == is_told


def test_pipelined_swapping_is_an_error_for_a_model_that_is_known(write):
    config = {"zero_optimization": {"stage": 3, "sub_group_size": 10_000_000, "offload_optimizer": NVME}}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
    unknown = found(write, config)["OF011"]
    assert unknown.severity == "warning"
    assert "have up to 3 sub-groups in memory at once, which need 12 buffers: there are 8" in unknown.message
    known = found(write, config, world=2, overrides=[f"model.config={json.dumps(LLAMA)}"])["OF011"]
    assert known.severity == "error"
    assert "have 3 sub-groups" in known.message


@pytest.mark.parametrize(("version", "severity"), [("0.19.2", "warning"), ("0.19.3", "info"), ("0.19.8", "info")])
def test_missing_clipping_is_worth_a_warning_where_the_defaults_differ(version, severity, write):
    config = {"gradient_clipping": None, "zero_optimization": {"stage": 2}, "train_batch_size": "auto"}
    assert found(write, config, version=version, consumer="hf")["HF006"].severity == severity


@pytest.mark.parametrize(
    ("config", "severity"),
    [
        ({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}, "warning"),
        ({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"}}, "warning"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "buffer_count": "auto"}}}, "warning"),
        ({"wandb": {"enabled": "auto"}}, "warning"),
        ({"timers": {"throughput": {"enabled": "auto"}}}, "warning"),
        ({"fp16": {"enabled": True, "loss_scale_window": "auto"}, "zero_optimization": {"stage": 1}}, "warning"),
        ({"zero_optimization": {"stage": "auto"}}, "error"),
        ({"bf16": {"enabled": "auto"}}, "error"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "auto"}}}, "error"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": "auto"}}, "error"),
    ],
)  # fmt: skip
def test_an_auto_is_an_error_where_its_default_trains_something_else(config, severity, write):
    assert found(write, config)["HF001"].severity == severity


@pytest.mark.parametrize(("name", "notes"), [("Lamb", 2), ("RMSprop", 1)])
def test_an_optimizer_that_zero_refuses_is_told_with_the_key_that_lets_it_through(name, notes, write):
    config = {"optimizer": {"type": name, "params": {"lr": 1e-4}}, "zero_optimization": {"stage": 2}}
    finding = found(write, config)["OP011"]
    assert "without `zero_allow_untested_optimizer`" in finding.message
    assert len(finding.notes) == notes


def test_a_key_that_is_gone_and_its_successor_do_not_contradict_each_other(write):
    finding = found(write, {"zero_optimization": {"stage": 3, "mics_shard_size": 2}})["SP012"]
    assert finding.fix is not None
    assert finding.fix.title == "remove it, or use `zero_hpz_partition_size` instead"
    assert finding.fix.effect == "trains without either"


def test_one_micro_batch_is_singular(write):
    zenflow = {"update_interval": 4, "select_strategy": "step", "select_interval": 4, "topk_ratio": 0.1}
    offload = {"device": "cpu"}
    config = {"zero_optimization": {"stage": 2, "offload_optimizer": offload, "zenflow": zenflow}}
    finding = found(write, {**config, "gradient_accumulation_steps": 1})["ZR033"]
    assert finding.fix is not None
    assert finding.fix.effect.endswith("all gradients are applied at each micro-batch")


@pytest.mark.parametrize(("device", "is_told"), [("cpu", True), ("none", False)])
def test_ranks_on_any_core_matter_to_an_optimizer_on_the_cpu(device, is_told, write):
    gate = GATES["EN053"]
    example = gate.page.example
    example = example._replace(text=example.text.replace("device: cpu", f"device: {device}"))
    told = {f.gate for f in judge(gate, "Example", write, example=example).report.findings}
    assert ("EN053" in told) == is_told


@pytest.mark.parametrize(
    ("name", "severity"),
    [("torch.nn.Linearr", "error"), ("torch.nn.Qqq", "warning"), ("torch.nn.Linear", None), ("mine.Linearr", None)],
)
def test_a_class_that_torch_lacks(name, severity, write):
    block = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": [name]}
    told = found(write, {"torch_autocast": block})
    assert (told["PR038"].severity if "PR038" in told else None) == severity
    assert "PR038" not in found(write, {"torch_autocast": {**block, "enabled": False}})


AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
BF16 = {"bf16": {"enabled": True}}
FP16_MASTERS = {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}
CPU_ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 1e-4, "amsgrad": True}}}
STATES = {"optimizer": {"type": "Adam", "params": {"lr": 1e-4, "fp32_optimizer_states": False}}}
BF16_SUMS = {**BF16, "data_types": {"grad_accum_dtype": "bf16"}}
COMPILED = {"compile": {"deepcompile": True}}


@pytest.mark.parametrize(
    ("config", "stage", "gate", "version", "severity"),
    [
        ({**AUTOCAST, "fp16": {"enabled": True}}, 1, "PR010", "0.18.2", "error"),
        ({**AUTOCAST, "fp16": {"enabled": True}}, 1, "PR010", "0.18.3", "warning"),
        ({**AUTOCAST, **BF16}, 1, "PR011", "0.18.2", "error"),
        ({**AUTOCAST, **BF16}, 1, "PR011", "0.18.3", "warning"),
        ({**AUTOCAST, "communication_data_type": "bf16"}, 0, "PR016", "0.17.5", "error"),
        ({**AUTOCAST, "communication_data_type": "bf16"}, 1, "PR016", "0.17.6", "warning"),
        ({**AUTOCAST, "communication_data_type": "fp32"}, 1, "PR016", "0.17.5", "warning"),
        (FP16_MASTERS, 1, "PR021", "0.18.2", "error"),
        (FP16_MASTERS, 2, "PR021", "0.18.2", None),
        (FP16_MASTERS, 1, "PR021", "0.18.3", None),
        (BF16_SUMS, 0, "PR025", "0.17.5", "error"),
        (BF16_SUMS, 0, "PR025", "0.17.6", None),
        (COMPILED, 2, "CC002", "0.17.0", "error"),
        (COMPILED, 2, "CC002", "0.17.1", "warning"),
        (COMPILED, 2, "CC002", "0.17.2", None),
        (STATES, 1, "OF025", "0.19.0", "error"),
        (STATES, 1, "OF025", "0.19.1", "warning"),
        ({"data_types": {"param_dtype": "bf16"}}, 1, "SP013", "0.19.1", "error"),
        ({"checkpoint": {"writer": {"type": "fast"}}}, 1, "SP013", "0.17.0", "error"),
        ({"checkpoint": {"writer": {"type": "fast"}}}, 1, "SP013", "0.17.1", None),
    ],
)  # fmt: skip
def test_what_a_release_does_with_it(config, stage, gate, version, severity, write):
    """As read in the source of both releases (`benchmarks/citations.py` finds the quotes there)."""
    told = found(write, {**config, "zero_optimization": {"stage": stage}}, version=version)
    assert (told[gate].severity if gate in told else None) == severity


@pytest.mark.parametrize(("version", "words"), [("0.19.7", "silently"), ("0.19.8", "refuses it")])
def test_amsgrad_on_the_cpu_is_refused_only_from_0_19_8_on(version, words, write):
    zero = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    (note,) = found(write, {**CPU_ADAM, "zero_optimization": zero}, version=version)["OP016"].notes
    assert words in note
