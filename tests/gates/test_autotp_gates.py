# SPDX-License-Identifier: Apache-2.0
"""The gates of AutoTP on every family; the training tier asks DeepSpeed whether they are right."""

from __future__ import annotations

import pytest

from harness.check.check_file import check_file
from tests.support.tensor_cases import CASES, tensor_gates

EACH_CASE = pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.name}" for i, case in enumerate(CASES)])


@EACH_CASE
def test_the_gates_of_a_model_are_those_of_its_first_step(case) -> None:
    assert tensor_gates(case) == set(case.gates.split())


def test_tp022_says_what_a_rank_keeps() -> None:
    text = """
model: {name_or_path: openai/gpt-oss-120b}
data: {train: "builtin:python-docs"}
train: {max_steps: 1, per_device_train_batch_size: 1}
parallel: {tensor_parallel_size: 8}
"""
    findings = check_file("spec.yaml", text=text, world_size=8).report.findings
    finding = next(finding for finding in findings if finding.gate == "TP022")
    assert finding.severity == "warning"
    assert (
        "216.67 GiB of weights in 16 bits on each tensor rank, where an even part would be 27.20 GiB" in finding.notes
    )


def test_tp023_says_how_much_of_the_model_the_experts_are() -> None:
    text = """
model: {name_or_path: mistralai/Mixtral-8x7B-v0.1}
data: {train: "builtin:python-docs"}
train: {max_steps: 1, per_device_train_batch_size: 1}
parallel: {tensor_parallel_size: 8}
deepspeed: {tensor_parallel: {preset_model: mixtral}}
"""
    findings = check_file("spec.yaml", text=text, world_size=8).report.findings
    finding = next(finding for finding in findings if finding.gate == "TP023")
    assert finding.severity == "warning"
    assert "97% of the model" in finding.message


@pytest.mark.parametrize(
    ("kind", "style"), [("olmo2", "rowwise_split_input"), ("glm4_moe", "moe_tp_experts"), ("qwen3", None)]
)
def test_tp007_knows_every_plan_of_the_table(kind: str, style: str | None) -> None:
    text = f"""
model: {{config: {{model_type: {kind}}}, tokenizer: bytes}}
data: {{train: "builtin:python-docs"}}
train: {{max_steps: 1, per_device_train_batch_size: 1}}
parallel: {{tensor_parallel_size: 2}}
"""
    findings = check_file("spec.yaml", text=text, world_size=2).report.findings
    found = [finding for finding in findings if finding.gate == "TP007"]
    assert [f"`{style}`" in finding.message for finding in found] == [True] * bool(style)
