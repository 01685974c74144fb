# SPDX-License-Identifier: Apache-2.0
"""The batch that was asked for comes before the ranks: a search divides the model where there are more ranks than rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.plan.search.plan_request import PlanRequest, replica_of, spec_from_request, validate_request

SPEC = """\
model: {name_or_path: llama-3.1-8b}
data: {train: "builtin:python-docs", max_length: 4096}
train: {max_steps: 10, per_device_train_batch_size: 1, global_batch_size: 8, gradient_checkpointing: true}
precision: {bf16: true}
zero: {stage: 3}
cluster: {gpu: H100, gpus_per_node: 8, num_nodes: 2, host_memory: 2TB}
"""


def plan(*arguments: str) -> dict[str, Any]:
    words = ["plan", *arguments, "--format", "json"]
    result = CliRunner().invoke(build_app(words), words, catch_exceptions=False)
    body: dict[str, Any] = json.loads(result.stdout)
    return body


@pytest.mark.parametrize(
    ("model", "gpus", "tokens", "replica"),
    [
        ("llama-3.1-405b", 16_384, 16_777_216, ("tensor_parallel_size", 4)),
        ("llama-3.1-70b", 256, 524_288, ("tensor_parallel_size", 2)),
        ("llama-3.1-70b", 256, 1_048_576, ("", 1)),
        ("llama-3.1-70b", 256, 65_536, ("pipeline_parallel_size", 16)),
    ],
)
def test_the_tokens_that_were_asked_for_are_planned(
    model: str, gpus: int, tokens: int, replica: tuple[str, int]
) -> None:
    request = PlanRequest(model, gpus, "H100-80GB", tokens_per_step=tokens)
    assert replica_of(request) == replica
    assert request.planned_tokens == tokens
    assert spec_from_request(request)["train"]["global_batch_size"] == tokens // 4096


def test_a_stage_or_a_degree_of_the_user_is_not_touched() -> None:
    for extra in ({"stage": 3}, {"overrides": ("parallel.tensor_parallel_size=1",)}):
        request = PlanRequest("llama-3.1-70b", 256, "H100-80GB", tokens_per_step=524_288, **extra)  # type: ignore[arg-type]
        assert (replica_of(request), request.planned_tokens) == (("", 1), 1_048_576)


def test_a_search_without_a_spec_keeps_the_tokens() -> None:
    body = plan("--model", "llama-3.1-8b", "--gpus", "16", "--gpu", "H100-80GB", "--batch-tokens", "32768")
    assert body["tokens_per_step"] == 32_768
    assert body["spec"]["train"]["global_batch_size"] == 8
    assert body["fits"] is not False


def test_a_search_from_a_spec_with_fewer_rows_than_ranks_starts(tmp_path: Path) -> None:
    spec = tmp_path / "few.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    body = plan(str(spec), "--search")
    assert (body["spec"]["train"]["global_batch_size"], body["tokens_per_step"]) == (8, 32_768)
    assert body["search"]["chosen"]


@pytest.mark.parametrize(
    ("gpu", "hosts"), [("H100-80GB", 9), ("GB200-186GB", 18), ("GB300-288GB", 18), ("GH200-96GB", 72)]
)
def test_hosts_are_those_of_the_kind(gpu: str, hosts: int) -> None:
    words = ["--model", "llama-3.1-8b", "--gpus", "72", "--gpu", gpu]
    assert PlanRequest("llama-3.1-8b", 72, gpu).gpus_per_host * hosts == 72
    arguments = ["degrees", *words, "--tensor", "1", "--batch-tokens", "9437184"]
    assert f"on {hosts} hosts of {gpu}" in CliRunner().invoke(build_app(arguments), arguments).stdout


def test_gpus_that_fill_no_host_of_the_kind_are_refused() -> None:
    assert [each.message for each in validate_request(PlanRequest("llama-3.1-8b", 6, "GB200-186GB"))] == [
        "6 GPUs do not fill hosts of 4"
    ]


@pytest.mark.parametrize(
    ("gpu", "overrides", "precision"),
    [
        ("V100-32GB", (), {"fp16": True}),
        ("Tesla T4", (), {"fp16": True}),
        ("A100-40GB", (), {"bf16": True}),
        ("V100-32GB", ("precision.bf16=false", "precision.fp16=false"), {"bf16": False, "fp16": False}),
        ("H100-80GB", ("precision.fp16=true",), {"fp16": True}),
    ],
)
def test_a_gpu_without_bf16_is_planned_in_fp16(
    gpu: str, overrides: tuple[str, ...], precision: dict[str, bool]
) -> None:
    request = PlanRequest("llama-2-7b", 4, gpu, overrides=overrides)
    assert spec_from_request(request)["precision"] == precision
