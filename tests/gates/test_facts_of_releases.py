# SPDX-License-Identifier: Apache-2.0
"""Facts that hold for some releases: the gate has the releases, `upgrade-check` and the log catalogue lead to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding

Write = Callable[[str, str], str]
BF16 = {"bf16": {"enabled": True}}
MUON = {"optimizer": {"type": "Muon", "params": {"lr": 0.02}}, "gradient_clipping": 0.0}


def findings(write: Write, body: dict[str, Any], release: str, **how: Any) -> dict[str, Finding]:
    file = write("ds.json", json.dumps({"train_micro_batch_size_per_gpu": 1, **body}))
    how = {"consumer": "deepspeed", "world_size": 8, **how}
    report = check_file(file, deepspeed=DeepSpeedTarget(release, "asked for"), **how).report
    return {finding.gate: finding for finding in report.findings}


@pytest.mark.parametrize(
    ("body", "release", "expected"),
    [
        (MUON, "0.17.6", True),
        (MUON, "0.18.6", True),
        (MUON, "0.19.6", True),
        (MUON, "0.19.7", False),
        ({**MUON, "zero_optimization": {"stage": 1}}, "0.18.6", False),
        (
            {**MUON, **BF16, "zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}},
            "0.18.6",
            True,
        ),
        (
            {**MUON, **BF16, "zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}},
            "0.19.7",
            True,
        ),
        (
            {**MUON, **BF16, "zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}},
            "0.19.8",
            False,
        ),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 0.02}}}, "0.18.6", False),
    ],
)
def test_muon_by_sgd(write: Write, body: dict[str, Any], release: str, expected: bool) -> None:
    assert ("OP121" in findings(write, body, release)) is expected


@pytest.mark.parametrize(
    ("release", "consumer", "expected"),
    [
        ("0.18.9", "hf", True),
        ("0.19.6", "accelerate", True),
        ("0.19.6", "deepspeed", False),
        ("0.19.7", "hf", False),
        ("0.18.8", "hf", False),
    ],
)
def test_muon_under_zero_init(write: Write, release: str, consumer: str, expected: bool) -> None:
    zero = {"zero_optimization": {"stage": 3, "reduce_scatter": False}}
    assert ("OP121" in findings(write, {**MUON, **zero}, release, consumer=consumer)) is expected


@pytest.mark.parametrize(
    ("zero", "more", "release", "severity"),
    [
        ({"zero_quantized_weights": True}, BF16, "0.15.0", "error"),
        ({"zero_quantized_weights": True}, BF16, "0.19.5", "error"),
        ({"zero_quantized_weights": True}, BF16, "0.19.6", ""),
        ({"zero_quantized_weights": True}, {"fp16": {"enabled": True}}, "0.18.3", ""),
        ({"zero_quantized_nontrainable_weights": True}, BF16, "0.18.3", "warning"),
        ({"zero_quantized_gradients": True}, BF16, "0.18.3", ""),
    ],
)
def test_quantized_weights_in_bf16(
    write: Write, zero: dict[str, Any], more: dict[str, Any], release: str, severity: str
) -> None:
    finding = findings(write, {**more, "zero_optimization": {"stage": 3, **zero}}, release).get("ZR061")
    assert (finding.severity if finding else "") == severity


@pytest.mark.parametrize(
    ("optimizer", "parameters", "release", "expected"),
    [
        ("cpu", "nvme", "0.15.1", True),
        ("none", "nvme", "0.16.3", True),
        ("nvme", "nvme", "0.15.1", False),
        ("cpu", "cpu", "0.15.1", False),
        ("cpu", "nvme", "0.16.4", False),
    ],
)
def test_parameters_on_nvme_alone(write: Write, optimizer: str, parameters: str, release: str, expected: bool) -> None:
    zero = {"stage": 3}
    for name, device in (("offload_optimizer", optimizer), ("offload_param", parameters)):
        zero[name] = {"device": device, **({"nvme_path": "/nvme"} if device == "nvme" else {})}
    assert ("OF061" in findings(write, {**BF16, "zero_optimization": zero}, release)) is expected


@pytest.mark.parametrize(
    ("zero", "world", "expected"),
    [
        ({"stage": 3}, 1, True),
        ({"stage": 3}, 2, False),
        ({"stage": 2}, 1, False),
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, 1, False),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, 1, False),
    ],
)
def test_stage_3_of_one_rank(write: Write, zero: dict[str, Any], world: int, expected: bool) -> None:
    found = findings(write, {**BF16, "zero_optimization": zero}, "0.19.8", world_size=world)
    assert ("ZR062" in found) is expected


@pytest.mark.parametrize(
    ("kind", "consumer", "expected"),
    [
        ("WarmupLR", "hf", ["warning"]),
        ("WarmupDecayLR", "hf", ["info"]),
        ("WarmupLR", "deepspeed", []),
        ("WarmupCosineLR", "hf", ["info"]),
        ("OneCycle", "hf", ["info"]),
    ],
)
def test_a_scheduler_that_replaces_the_trainers(write: Write, kind: str, consumer: str, expected: list[str]) -> None:
    params = {"warmup_num_steps": 10} | ({} if kind == "WarmupLR" else {"total_num_steps": 100})
    found = findings(write, {"scheduler": {"type": kind, "params": params}}, "0.19.8", consumer=consumer)
    assert [f.severity for gate, f in found.items() if gate == "HF109"] == expected
