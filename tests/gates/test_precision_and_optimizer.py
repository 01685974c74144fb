# SPDX-License-Identifier: Apache-2.0
"""The PR and OP gates beyond the examples of their pages: other stages, releases, consumers, leftovers."""

from __future__ import annotations

import json

import pytest

from harness.check.autofix import apply_fixes
from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.gates import check_run
from harness.hostinfo.machine import Accelerator
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec

ADAMW = {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}}
FP16_CAST = {"enabled": True, "dtype": "float16"}


def said(
    write,
    config,
    *,
    version="0.19.8",
    consumer="deepspeed",
    overrides=(),
    accelerator="cuda",
    families=("PR", "OP"),
):
    """`{gate: severity}` of these families; infos left out, and PR067, since few of these files say their precision."""
    body = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, **config}
    target = DeepSpeedTarget(version, "asked for")
    loaded = load_spec(write("ds.json", json.dumps(body)), overrides, target, consumer=consumer)
    assert loaded.spec is not None, loaded.findings
    assert loaded.source is not None
    run = resolve_run(loaded.spec, kind=loaded.kind)
    report = check_run(run, loaded.source, deepspeed=target, consumer=consumer, accelerator=accelerator)
    assert not [f for f in report.findings if f.gate == "GT001"]
    found = [f for f in report.findings if f.gate.startswith(families) and f.severity != "info"]
    return {f.gate: f.severity for f in found if f.gate != "PR067"}


def stage(number, **more):
    return {"zero_optimization": {"stage": number, **more}}


def optimizer(kind, **params):
    return {"optimizer": {"type": kind, "params": params}}


def scheduler(kind, **params):
    return {"scheduler": {"type": kind, "params": params}}


BF16 = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True}}
CASES = [
    # blocks
    ("a leftover block beside a precision", {**BF16, "fp16": {"loss_scale": 0}, **stage(1)}, {}),
    ("an old name alone", {"bfloat16": {"enabled": True}, **stage(1)}, {}),
    ("the old name, and the new one on", {"bfloat16": {}, **BF16, **stage(1)}, {"PR005": "warning"}),
    ("a misspelt switch is told with the keys", {"torch_autocast": {"enable": True}}, {}),
    # autocast
    ("fp16 autocast without ZeRO", {"torch_autocast": FP16_CAST}, {}),
    ("fp16 autocast and fp16 without ZeRO", {"torch_autocast": FP16_CAST, **FP16}, {"PR002": "error", "PR010": "error"}),
    ("fp16 without ZeRO at a loss scale of 1", {"fp16": {"enabled": True, "loss_scale": 1}, "optimizer": ADAMW}, {"PR003": "warning"}),
    ("fp16 at a loss scale of 1", {"fp16": {"enabled": True, "loss_scale": 1}, **stage(1)}, {"PR069": "warning"}),
    ("fp16 at a loss scale of 2", {"fp16": {"enabled": True, "loss_scale": 2}, **stage(1)}, {}),
    ("the same with an optimizer without states", {"fp16": {"enabled": True, "loss_scale": 1}, **optimizer("SGD", lr=0.1)}, {}),
    ("accumulation in int8 at stage 1", {"data_types": {"grad_accum_dtype": "int8"}, **BF16, **stage(1)}, {"PR026": "error"}),
    ("accumulation in int8 at stage 2", {"data_types": {"grad_accum_dtype": "int8"}, **BF16, **stage(2)}, {"PR026": "warning"}),
    ("bf16 weights, fp16 autocast", {"torch_autocast": FP16_CAST, **BF16, **stage(2)}, {"PR011": "error"}),
    ("bf16 autocast and fp16", {"torch_autocast": {"enabled": True, "dtype": "bf16"}, **FP16, **stage(2)}, {"PR010": "warning"}),
    ("an autocast that is off", {"torch_autocast": {"enabled": False, "dtype": "float16"}, **stage(2)}, {}),
    # formats
    ("upper case in communication", {"communication_data_type": "BF16", **BF16, **stage(1)}, {}),
    ("fp16 communication of fp16", {"communication_data_type": "fp16", **FP16, **stage(1)}, {}),
    ("fp32 accumulation of fp32 without ZeRO", {"data_types": {"grad_accum_dtype": "float32"}}, {}),
    ("fp32 accumulation under ZeRO", {"data_types": {"grad_accum_dtype": "fp32"}, **BF16, **stage(3)}, {}),
    ("16-bit masters and states on the device", {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}, **stage(3), "optimizer": ADAMW}, {}),
    ("16-bit masters, SGD on the CPU", {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}, **stage(2, offload_optimizer={"device": "cpu", "pin_memory": True}), **optimizer("SGD", lr=1e-3), "zero_allow_untested_optimizer": True}, {"PR022": "error"}),
    ("16-bit masters of fp16, offloaded", {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}, **stage(2, offload_optimizer={"device": "cpu", "pin_memory": True}), "optimizer": ADAMW}, {}),
    ("a fixed loss scale that overflows", {"fp16": {"enabled": True, "loss_scale": 1e9}, **stage(1)}, {"PR019": "warning"}),
    ("a check that is not read", {"bf16": {"enabled": True, "check_grad_overflow": False}, **stage(3)}, {"PR020": "warning"}),
    # names of optimizers
    *((f"{name} in its own case", optimizer(name, lr=1e-3), {}) for name in ("adamw", "ADAM", "Lamb", "adagrad", "SGD")),
    *((f"{name} is no name", optimizer(name, lr=1e-3), {"OP001": "error"}) for name in ("sgd", "AdamW8bit", "OneBitAdam", "CPUAdam")),
    *((f"{name} cannot train", optimizer(name, lr=1e-3), {"OP003": "error"}) for name in ("lr_scheduler", "SparseAdam")),
    # parameters
    ("parameters of torch's Adam", optimizer("AdamW", lr=1e-3, weight_decay=0.0, torch_adam=True, foreach=True, fused=False), {}),
    ("the same without torch_adam", optimizer("AdamW", lr=1e-3, foreach=True), {"OP005": "error"}),
    ("set_grad_none, on the device", {**optimizer("AdamW", lr=1e-3, set_grad_none=True), **stage(1)}, {}),
    ("set_grad_none, offloaded", {**optimizer("AdamW", lr=1e-3, set_grad_none=True), **stage(1, offload_optimizer={"device": "cpu", "pin_memory": True})}, {"OP005": "error"}),
    ("both rates of Muon", {**optimizer("Muon", muon_lr=0.02, adam_lr=1e-3), **stage(2), "gradient_clipping": 0.0}, {}),
    ("a misspelt parameter of Muon", {**optimizer("Muon", lr=0.02, muonlr=1e-3), **stage(2), "gradient_clipping": 0.0}, {"OP005": "error"}),
    ("an iteration that Muon has not", {**optimizer("Muon", lr=0.02, ns_method="fast"), "gradient_clipping": 0.0}, {"OP006": "error"}),
    *((f"a rate of {lr:g} for {name}", optimizer(name, lr=lr), expected) for name, lr, expected in (("AdamW", 1e5, {"OP006": "warning"}), ("AdamW", 0.5, {}), ("Adagrad", 1.5, {}))),
    ("a rate as text", optimizer("AdamW", lr="1e-3"), {"OP006": "error"}),
    ("a rate of false", optimizer("AdamW", lr=False), {"OP006": "error"}),
    ("a rate of 1 or more", optimizer("AdamW", lr=2), {"OP006": "warning"}),
    ("a beta of 1", optimizer("AdamW", lr=1e-3, betas=[0.9, 1.0]), {"OP006": "error"}),
    ("a rate of 0", optimizer("AdamW", lr=0), {"OP006": "warning"}),
    ("a rate of 0 and a scheduler", {**optimizer("AdamW", lr=0), **scheduler("WarmupLR", warmup_max_lr=1e-4)}, {}),
    ("an epsilon of Adafactor's", optimizer("Adafactor", lr=1e-3, eps=[None, 1e-3]), {}),
    ("Adam without decay", optimizer("Adam", lr=1e-3), {}),
    ("Adam as it is meant", optimizer("Adam", lr=1e-3, weight_decay=0.1, adam_w_mode=False), {}),
    ("a rate that the scheduler sets", {**optimizer("AdamW", weight_decay=0.0), **scheduler("WarmupLR", warmup_max_lr=1e-4)}, {}),
    ("legacy fusion that is not read", {"optimizer": {**ADAMW, "legacy_fusion": True}}, {"OP017": "warning"}),
    ("legacy fusion that is", {"optimizer": {**ADAMW, "legacy_fusion": True}, **BF16}, {"OP017": "error", "PR003": "warning"}),
    ("Muon at stage 3 without reduce-scatter", {**optimizer("Muon", lr=0.02), **stage(3, reduce_scatter=False), "gradient_clipping": 0.0}, {}),
    ("Muon without ZeRO clips gradients", optimizer("Muon", lr=0.02), {}),
    # schedulers
    *((f"{name} is not {kind}", {**scheduler(name, total_num_steps=100, warmup_num_steps=5)}, {"OP021": "error"}) for name, kind in (("warmupdecaylr", "WarmupDecayLR"), ("cosine", "WarmupCosineLR"))),
    ("a torch scheduler in fp32 without ZeRO", scheduler("StepLR", step_size=10), {}),
    ("a torch scheduler in bf16", {**scheduler("StepLR", step_size=10), **BF16, **optimizer("SGD", lr=0.1)}, {"OP025": "error"}),
    ("WarmupLR without parameters", {"scheduler": {"type": "WarmupLR"}}, {"OP023": "error"}),
    ("steps as a fraction", scheduler("WarmupLR", warmup_num_steps=10.0), {"OP024": "error"}),
    ("a first half of no steps", scheduler("OneCycle", cycle_min_lr=1e-5, cycle_max_lr=1e-4, cycle_first_step_size=0), {"OP024": "error"}),
    ("a peak that is the default's", {**optimizer("AdamW", lr=1e-3), **scheduler("WarmupDecayLR", total_num_steps=100, warmup_num_steps=5)}, {}),
    ("a peak whose rate is unknown", scheduler("WarmupDecayLR", total_num_steps=100, warmup_num_steps=5), {"OP027": "warning"}),
    ("a block that is nothing", {"scheduler": {"params": {}}}, {"OP022": "error"}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_is_said(config, expected, write):
    assert said(write, config) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (FP16, {"PR002": "error"}),
        (BF16, {}),
        ({"torch_autocast": FP16_CAST}, {"PP011": "error"}),
        ({"torch_autocast": FP16_CAST, **stage(1)}, {"PP011": "error"}),
    ],
    ids=["fp16", "bf16", "fp16 autocast", "fp16 autocast at stage 1"],
)
def test_what_is_said_of_a_pipeline(config, expected, write):
    overrides = ["parallel.pipeline_parallel_size=2"]
    assert said(write, {**config, "optimizer": ADAMW}, overrides=overrides, families=("PR", "OP", "PP011")) == expected


VERSIONS = [
    ("0.19.2", {"torch_autocast": FP16_CAST, **stage(2)}, None, {}),
    ("0.19.3", {"torch_autocast": FP16_CAST, **stage(2)}, None, {"PR012": "error"}),
    ("0.18.4", {**BF16, "data_types": {"grad_accum_dtype": "fp32"}, **optimizer("SGD", lr=0.1)}, 0.0, {}),
    ("0.18.5", {**BF16, "data_types": {"grad_accum_dtype": "fp32"}, **optimizer("SGD", lr=0.1)}, 0.0, {"PR025": "error"}),
    ("0.19.6", optimizer("OneBitAdam", lr=1e-3), 0.0, {}),
    ("0.19.7", optimizer("OneBitAdam", lr=1e-3), 0.0, {"OP001": "error"}),
    ("0.19.6", {**optimizer("OneBitAdam", lr=1e-3), **stage(1)}, 0.0, {"OP011": "error"}),
    ("0.14.5", {**optimizer("OneBitLamb", lr=1e-3), **stage(2)}, 0.0, {"OP011": "error"}),
    ("0.16.4", {**optimizer("ZeroOneAdam", lr=1e-3), **stage(3), "zero_allow_untested_optimizer": True}, 0.0,
     {"OP011": "error"}),
    ("0.17.5", {**optimizer("Muon", lr=0.02), **stage(2)}, 0.0, {"OP001": "error"}),
    ("0.18.4", {**optimizer("Muon", lr=0.02), **stage(2)}, 0.0, {"OP011": "error"}),
    ("0.18.5", {**optimizer("Muon", lr=0.02), **stage(2)}, 0.0, {}),
    ("0.18.8", {**optimizer("Muon", lr=0.02), **stage(3, reduce_scatter=False)}, 0.0, {"OP018": "error"}),
    ("0.17.1", {**optimizer("AdamW", lr=1e-4), **scheduler("WarmupLR", warmup_num_steps=5)}, 0.0, {"OP027": "error"}),
    ("0.17.2", {**optimizer("AdamW", lr=1e-4), **scheduler("WarmupLR", warmup_num_steps=5)}, 0.0, {}),
]  # fmt: skip


@pytest.mark.parametrize(("version", "config", "clipping", "expected"), VERSIONS)
def test_what_is_said_by_release(version, config, clipping, expected, write):
    body = {"train_micro_batch_size_per_gpu": 1, **config}
    if clipping is not None:
        body["gradient_clipping"] = clipping
    target = DeepSpeedTarget(version, "asked for")
    loaded = load_spec(write("ds.json", json.dumps(body)), (), target, consumer="deepspeed")
    assert loaded.spec is not None
    assert loaded.source is not None
    report = check_run(
        resolve_run(loaded.spec, kind=loaded.kind), loaded.source, deepspeed=target, consumer="deepspeed"
    )
    ours = {f.gate: f.severity for f in report.findings if f.gate[:2] in ("PR", "OP") and f.severity != "info"}
    ours.pop("PR067", None)
    assert ours == expected


HUGGING_FACE = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "zero_optimization": {"stage": 2},
}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("WarmupLR", "warmup_min_lr warmup_max_lr warmup_num_steps"),
        ("WarmupDecayLR", "warmup_min_lr warmup_max_lr warmup_num_steps total_num_steps"),
        ("WarmupCosineLR", "warmup_num_steps total_num_steps"),
    ],
)
def test_the_trainers_own_template_is_left_alone(kind, keys, write):
    block = {"scheduler": {"type": kind, "params": dict.fromkeys(keys.split(), "auto")}}
    assert said(write, {**HUGGING_FACE, **block}, consumer="hf") == {}


def test_a_pipeline_takes_no_hidden_step(write):
    assert said(write, {**BF16, "optimizer": ADAMW}, overrides=["parallel.pipeline_parallel_size=2"]) == {}


def test_lamb_and_lion_on_a_cpu(write):
    offloaded = stage(2, offload_optimizer={"device": "cpu", "pin_memory": True})
    assert said(write, optimizer("Lamb", lr=1e-3), accelerator="cpu") == {"OP014": "error"}
    assert said(write, optimizer("Lion", lr=1e-3), accelerator="cpu") == {"OP014": "error", "OP039": "warning"}
    assert said(write, {**optimizer("lion", lr=1e-3), **offloaded}, accelerator="cpu") == {"OP039": "warning"}


WARMUP = {"deepspeed": scheduler("WarmupLR", warmup_num_steps=2)}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, "peak rate"),  # the default is a cosine
        ({"scheduler": {"type": "constant"}}, None),
        ({"scheduler": {"type": "constant", "warmup_steps": 2}}, "peak rate"),
        (
            {"scheduler": {"type": "constant"}, "optimizer": {"type": "adagrad", "weight_decay": 0.1}},
            "first backward",
        ),
        (WARMUP, None),  # DeepSpeed makes its own schedule for the new optimizer
        ({"zero": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, None),
        ({"zero": {"stage": 0}}, None),
    ],
    ids=str,
)
def test_adagrad_follows_no_schedule_under_zero(sections, expected, write):
    body = {"optimizer": {"type": "adagrad"}, "zero": {"stage": 2}, "train": {"per_device_train_batch_size": 1}}
    loaded = load_spec(write("a.yaml", json.dumps({**body, **sections})), (), DeepSpeedTarget("0.19.8", "asked for"))
    assert loaded.spec is not None, loaded.findings
    assert loaded.source is not None
    report = check_run(
        resolve_run(loaded.spec, world_size=2), loaded.source, deepspeed=DeepSpeedTarget("0.19.8", "asked for")
    )
    found = [f.message for f in report.findings if f.gate == "OP041"]
    assert len(found) == (expected is not None)
    assert all(expected in message for message in found)


def precision_findings(write, settings, *, accelerator=None, name="spec.yaml"):
    """`{gate: severity}` of a spec about its number format."""
    body = {"data": {"train": "builtin:python-docs"}, "train": {"max_steps": 4, "per_device_train_batch_size": 1}}
    loaded = load_spec(write(name, json.dumps({"model": {"name_or_path": "a/b"}, **body, **settings})), ())
    run = resolve_run(loaded.spec, kind=loaded.kind)
    report = check_run(run, loaded.source, accelerator=accelerator, launching=accelerator is not None)
    return {f.gate: f.severity for f in report.findings if f.gate in ("PR067", "PR068", "GT001")}


@pytest.mark.parametrize(
    ("gpu", "settings", "expected"),
    [
        ("H100-80GB", {}, {"PR067": "warning"}),
        ("A100-40GB", {"precision": {"loss_scale": 0}}, {"PR067": "warning"}),
        ("MI300X-192GB", {}, {"PR067": "warning"}),
        ("H100-80GB", {"precision": {"bf16": False}}, {}),
        ("H100-80GB", {"precision": {"fp16": True}}, {"PR068": "info"}),
        ("H100-80GB", {"deepspeed": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}}, {}),
        ("V100-32GB", {}, {}),
        ("V100-32GB", {"precision": {"fp16": True}}, {}),
        ("no such GPU", {}, {}),
        ("cpu", {}, {}),
    ],
)
def test_a_spec_for_gpus_with_bf16_says_its_precision(write, gpu, settings, expected):
    assert precision_findings(write, {"cluster": {"gpu": gpu}, **settings}) == expected


@pytest.mark.parametrize(
    ("model", "expected"), [("NVIDIA A100-SXM4-80GB", {"PR067": "warning"}), ("Tesla V100-SXM2-16GB", {})]
)
def test_a_launch_looks_at_the_gpu_of_this_machine(write, monkeypatch, model, expected):
    own = (Accelerator(0, model, 80 * 2**30),)
    monkeypatch.setattr("harness.gates.rules.bf16.accelerators_for", lambda _: own)
    assert precision_findings(write, {}, accelerator="cuda") == expected
    assert precision_findings(write, {}, accelerator="cpu", name="cpu.yaml") == {}


@pytest.mark.parametrize(
    ("consumer", "device", "block", "expected"),
    [
        ("deepspeed", "cpu", {}, ["PR067"]),
        ("hf", "cpu", {}, []),
        ("deepspeed", "none", {}, []),
        ("deepspeed", "cpu", {"bf16": {"enabled": False}}, []),
        ("deepspeed", "cpu", {"amp": {"enabled": True}}, []),
    ],
)
def test_a_zero_block_that_offloads_parameters_in_fp32(write, consumer, device, block, expected):
    """The Trainer and accelerate add the block of their own argument."""
    zero = {"stage": 3, "offload_param": {"device": device}}
    loaded = load_spec(write("ds.json", json.dumps({"zero_optimization": zero, **block})), (), consumer=consumer)
    report = check_run(resolve_run(loaded.spec, kind=loaded.kind), loaded.source, consumer=consumer)
    assert [f.gate for f in report.findings if f.gate == "PR067"] == expected


@pytest.mark.parametrize(
    ("consumer", "block", "expected"),
    [
        ("deepspeed", {}, ["warning"]),
        (None, {}, ["warning"]),
        ("hf", {}, []),
        ("accelerate", {}, []),
        ("deepspeed", {"bf16": {"enabled": False}}, []),
        ("deepspeed", {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, []),
        ("deepspeed", {"fp16": {"enabled": True}}, []),
    ],
)
def test_a_json_of_plain_deepspeed_says_its_precision(write, consumer, block, expected):
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, **block}
    loaded = load_spec(write("ds.json", json.dumps(config)), (), consumer=consumer)
    report = check_run(resolve_run(loaded.spec, kind=loaded.kind), loaded.source, consumer=consumer)
    assert [f.severity for f in report.findings if f.gate == "PR067"] == expected


def test_a_removed_one_bit_optimizer_is_one_finding_whose_fix_leaves_none():
    params = {"lr": 1e-5, "freeze_step": 400, "cuda_aware": True, "comm_backend_name": "nccl", "weight_decay": 0.0}
    config = {"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "OneBitAdam", "params": params}}
    config["bf16"] = {"enabled": False}
    text = json.dumps(config)

    def check(changed):
        return check_file(
            "a.json", text=changed, consumer="deepspeed", deepspeed=DeepSpeedTarget("0.19.8", "asked for")
        )

    assert [finding.gate for finding in check(text).report.findings if finding.is_error] == ["OP001"]
    fixed = apply_fixes("a.json", text, check, unsafe=True)
    assert json.loads(fixed.after)["optimizer"] == {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.0}}
    assert [finding.gate for finding in fixed.checked.report.findings] == []


def test_one_cycle_names_the_betas_that_train():
    cycle = {"cycle_min_lr": 1e-6, "cycle_max_lr": 1e-4}
    for betas, more, is_found in (
        ([0.9, 0.99], {}, True),
        ([0.9, 0.99], {"cycle_min_mom": 0.9}, False),
        ([0.9, 0.95], {"cycle_momentum": False}, False),
    ):
        optimizer = {"type": "AdamW", "params": {"lr": 1e-4, "betas": betas}}
        config = {"train_batch_size": 8, "optimizer": optimizer}
        config["scheduler"] = {"type": "OneCycle", "params": {**cycle, **more}}
        report = check_file("a.json", text=json.dumps(config), consumer="deepspeed").report
        found = [finding.message for finding in report.findings if finding.gate == "OP034"]
        assert bool(found) == is_found
        assert all("the first cycles between 0.8 and 0.9, the second is 0.99" in message for message in found)
