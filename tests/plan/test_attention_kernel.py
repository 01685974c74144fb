# SPDX-License-Identifier: Apache-2.0
"""The kernel of `model.attn_implementation: auto`, by everything that decides; kept in what ranks read."""

from __future__ import annotations

from typing import Any

import pytest

from harness.plan.planner import make_plan
from harness.plan.tuned_defaults import attention_kernel
from harness.plan.tuned_defaults.attention_kernel import AttentionNeeds, choose_kernel
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.run.resolved_run import ATTN_IMPLEMENTATION, ResolvedRun, resolve_run
from harness.spec.run_spec import RunSpec

H100 = AttentionNeeds("NVIDIA H100 80GB HBM3", True, 128, "llama", 65_536, True, False, True, frozenset())
TWO, THREE = frozenset({"flash_attn"}), frozenset({"flash_attn", "flash_attn_interface"})


@pytest.mark.parametrize(
    ("changes", "kernel", "word"),
    [
        ({}, "sdpa_varlen", "`flash_attn_interface`"),
        ({"packages": TWO}, "flash_attention_2", "`flash_attn` is installed"),
        ({"packages": THREE}, "flash_attention_3", "`flash_attn_interface` is installed"),
        ({"packages": THREE, "dropout": True}, "flash_attention_2", "is installed"),
        ({"packages": THREE, "gpu": "A100-80GB"}, "flash_attention_2", "is installed"),
        ({"gpu": "A100-80GB"}, "sdpa_varlen", "same algorithm"),
        ({"dropout": True}, "sdpa_varlen", "one call per document"),
        ({"packages": THREE, "is_16bit": False}, "sdpa_varlen", "fp32"),
        ({"packages": THREE, "head_size": 512}, "sdpa_varlen", "heads of 512"),
        ({"packages": THREE, "gpu": "V100-32GB"}, "sdpa_varlen", "this GPU"),
        ({"gpu": ""}, "sdpa_varlen", "on the CPU"),
        ({"gpu": "", "max_length": 128}, "sdpa", "a mask of 128"),
        ({"packages": THREE, "packing": False}, "sdpa", "need no mask"),
        ({"packages": THREE, "family": "gemma2"}, "sdpa", "`gemma2`"),
        ({"packages": THREE, "family": ""}, "sdpa", "`the model`"),
        ({"packages": THREE, "whole_model": False}, "sdpa", "pipeline"),
    ],
)
def test_each_fact_decides(changes: dict[str, Any], kernel: str, word: str) -> None:
    value, reason = choose_kernel(H100._replace(**changes))
    assert value == kernel
    assert word in reason


def run_of(**sections: Any) -> ResolvedRun:
    model = {"name_or_path": "llama-3.1-8b", "attn_implementation": "auto"}
    data, train = {"packing": True, "max_length": 65_536}, {"per_device_train_batch_size": 1}
    spec = {"model": model, "data": data, "train": train, "cluster": {"gpu": "H100-80GB"}, **sections}
    return resolve_run(RunSpec.model_validate(spec), world_size=8)


@pytest.fixture(autouse=True)
def _no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_kernel, "find_spec", {}.get)


@pytest.mark.parametrize("tuned_defaults", [True, False])
def test_ranks_read_what_was_chosen(tuned_defaults: bool) -> None:
    run = run_of(tuned_defaults=tuned_defaults)
    assert run.attn_implementation == "sdpa", "not chosen yet"
    chosen = with_tuned_defaults(run)
    assert chosen.attn_implementation == "sdpa_varlen"
    assert ResolvedRun.from_json(chosen.to_json()).attn_implementation == "sdpa_varlen"


def test_a_kernel_that_the_spec_names_is_not_chosen() -> None:
    for name in ("sdpa", None):
        run = with_tuned_defaults(run_of(model={"name_or_path": "llama-3.1-8b", "attn_implementation": name}))
        assert run.attn_implementation == name
        assert ATTN_IMPLEMENTATION not in {default.key for default in run.tuned_defaults or ()}


def test_the_plan_shows_the_choice() -> None:
    plan = make_plan(run_of(), with_alternatives=False)
    (impact,) = (each for each in plan.tuned_defaults_impact if each.tuned_default.key == ATTN_IMPLEMENTATION)
    assert impact.tuned_default.value == "sdpa_varlen"


@pytest.mark.parametrize(
    ("kernel", "gpu", "is_said"), [("sdpa_varlen", "H100-80GB", 1), ("sdpa", "H100-80GB", 0), ("sdpa_varlen", "cpu", 0)]
)
def test_prices_that_no_gpu_has_confirmed_are_marked(kernel: str, gpu: str, is_said: int) -> None:
    model = {"name_or_path": "llama-3.1-8b", "attn_implementation": kernel}
    plan = make_plan(run_of(model=model, cluster={"gpu": gpu}), with_alternatives=False)
    assert [finding.gate for finding in plan.findings].count("MM020") == is_said


def test_masked_attention_computes_every_pair() -> None:
    model = {"name_or_path": "llama-3.1-8b"}
    plans = [
        make_plan(run_of(model={**model, "attn_implementation": kernel}), with_alternatives=False)
        for kernel in ("sdpa", "sdpa_varlen")
    ]
    masked, plain = (plan.time.seconds_of("compute") for plan in plans if plan.time is not None)
    assert masked > 1.4 * plain
