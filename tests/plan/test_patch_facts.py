# SPDX-License-Identifier: Apache-2.0
"""The facts that decide which patches a run needs: the same before its DeepSpeed JSON is rendered and from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.gates.registry import all_gates
from harness.patches.patch_registry import PatchFacts
from harness.plan.settings.patch_facts import patch_facts
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render.ds_config import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.spec.spec_loader import load_spec
from tests.support.gate_examples import judge

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "ds_configs").rglob("*.yaml"))


def facts_before_and_after(run):
    return patch_facts(run), patch_facts(run, render_ds_config(run).config)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_of_our_own_specs(file):
    run = with_tuned_defaults(resolve_run(load_spec(str(file)).spec, world_size=8), file.parent)
    before, after = facts_before_and_after(run)
    assert before == after


def test_of_every_example_of_a_gate(write):
    seen = set()
    for gate in all_gates():
        run = judge(gate, "Example", write).run
        if run.kind == "spec":
            before, after = facts_before_and_after(run)
            assert before == after, gate.id
            seen.add(before)
    assert len(seen) > 30


@pytest.mark.parametrize(
    ("raw", "facts"),
    [
        ({"optimizer": {"type": "Lion"}}, {"optimizer_type": "lion"}),
        ({"zero_optimization": {"zenflow": {}}}, {"has_zenflow": True}),
        ({"zero_optimization": {"offload_optimizer": {"super_offload": True}}}, {"has_super_offload": True}),
        ({"compile": {"deepcompile": True}}, {"has_deepcompile": True}),
        ({"zero_optimization": 5, "optimizer": "adam", "bf16": "auto"}, {"stage": 0, "optimizer_type": ""}),
    ],
    ids=str,
)
def test_of_keys_that_only_deepspeed_has(raw, facts):
    body = {"zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "deepspeed": raw}
    found = patch_facts(resolve_run(RunSpec.model_validate(body), world_size=1))
    assert found._asdict() | facts == found._asdict()


def test_pipelined_swaps_that_are_a_tuned_default():
    body = {"zero": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}}
    body["train"] = {"per_device_train_batch_size": 1}
    run = resolve_run(RunSpec.model_validate(body), world_size=1)
    assert not patch_facts(run).is_swapping_pipelined
    tuned = with_tuned_defaults(run, Path())
    assert any(default.key.endswith("pipeline_read") for default in tuned.tuned_defaults)
    assert patch_facts(tuned).is_swapping_pipelined
    assert patch_facts(tuned) == patch_facts(tuned, render_ds_config(tuned).config)


def test_a_run_may_be_resumed_unless_it_is_known_not_to_be():
    run = resolve_run(RunSpec(), world_size=1)
    assert patch_facts(run).is_resumed
    assert not patch_facts(run, is_resumed=False).is_resumed
    assert isinstance(patch_facts(run), PatchFacts)
