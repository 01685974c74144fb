# SPDX-License-Identifier: Apache-2.0
"""The list of patches: data, switches, and what a changed target does."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from harness.facts.deepspeed_version import installed_source_folder
from harness.patches import patch_registry as registry
from harness.patches.no_mlflow import read_switches
from harness.patches.patch_registry import PatchFacts, all_patches, select_patches
from harness.patches.targets import Target, check_target

PATCH_LIST = all_patches()
PATCHES = pytest.mark.parametrize("patch", PATCH_LIST, ids=lambda patch: patch.name)
needs_deepspeed = pytest.mark.skipif(installed_source_folder() is None, reason="needs DeepSpeed's files")
RUNS = [
    PatchFacts(stage, optimizer, device, device, is_swapping_pipelined=True)
    for stage in range(4)
    for optimizer in ("adamw", "muon")
    for device in ("none", "cpu", "nvme")
]


def test_the_registry_imports_nothing_that_it_patches():
    code = (
        "import sys; from harness.patches.patch_registry import all_patches; assert len(all_patches()) > 10;"
        "assert not {'torch', 'deepspeed', 'transformers', 'cpuinfo', 'mlflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@PATCHES
def test_a_patch_says_when_it_goes(patch):
    assert patch.remove_when
    assert patch.tested
    assert patch.targets
    for target in patch.targets:
        assert ":" in target.name
        assert {len(digest) for digest in target.digest.split("|")} == {16}, target


@needs_deepspeed
@PATCHES
def test_the_targets_are_those_of_the_installed_release(patch):
    assert patch.find_changed_targets() == {}


@needs_deepspeed
@PATCHES
def test_the_switch(patch):
    for run in RUNS:
        for switches in ("off", {patch.name: "off"}):
            state = next(s for s in select_patches(run, switches) if s.patch == patch)
            off = "applied" if patch.kind == "use" else "switched off"
            assert state.state == (off if patch.is_needed(run) else "not needed")


@needs_deepspeed
@PATCHES
def test_a_changed_target_skips_or_refuses_this_patch_alone(patch, monkeypatch):
    if not patch.targets:
        return
    changed = patch._replace(targets=(patch.targets[0]._replace(digest="another"), *patch.targets[1:]))
    monkeypatch.setattr(registry, "all_patches", lambda: tuple(changed if p == patch else p for p in all_patches()))
    for run in RUNS:
        for state in registry.select_patches(run, "auto"):
            if state.patch != changed:
                assert state.state in ("applied", "not needed")
            elif patch.is_needed(run):
                assert state.state == ("skipped" if patch.may_be_skipped else "refused")
                assert patch.targets[0].name in state.reason
            else:
                assert state.state == "not needed"


@PATCHES
def test_the_module_of_a_patch_has_its_name(patch):
    assert patch == importlib.import_module(patch.module_name).PATCH


@needs_deepspeed
def test_a_run_is_refused_for_what_it_needs_and_at_the_use_for_what_it_may_need(monkeypatch):
    def states_with_changed(name, **facts):
        patches = tuple(
            p._replace(targets=(p.targets[0]._replace(digest="another"),)) if p.name == name else p for p in PATCH_LIST
        )
        monkeypatch.setattr(registry, "all_patches", lambda: patches)
        return registry.select_patches(PatchFacts(**facts), "auto")

    refused = states_with_changed("checkpoint-engine").find_refused()
    assert refused.patch.name == "checkpoint-engine"
    assert states_with_changed("checkpoint-engine", saves_checkpoints=False, is_resumed=False).find_refused() is None
    states = states_with_changed("universal-checkpoint")
    assert states.find_refused() is None
    assert states.to_json()["universal-checkpoint"].startswith("refused: ")


@needs_deepspeed
def test_a_name_without_a_digest_only_has_to_exist():
    assert check_target(Target("deepspeed.runtime.engine:DeepSpeedEngine")) == "as tested"
    assert check_target(Target("deepspeed.runtime.engine:NoEngine")) == "missing"


def test_facts_of_a_json_with_values_that_deepspeed_does_not_read():
    config = {"zero_optimization": {"stage": "auto", "offload_optimizer": {"device": "cpu", "ratio": "auto"}}}
    facts = PatchFacts.from_ds_config(config)
    assert (facts.stage, facts.optimizer_device, facts.offload_ratio) == (0, "cpu", 1.0)


@pytest.mark.parametrize(
    ("text", "switches"),
    [
        ('{"spec": {"launch": {"patches": {"no-mlflow": "off"}}}}', {"no-mlflow": "off"}),
        ('{"spec": {"launch": {"patches": "off"}}}', "off"),
        ('{"spec": {"launch": {}}}', "auto"),
        ("[1]", "auto"),
        ('{"torn', "auto"),
        (None, "auto"),
    ],
    ids=str,
)
def test_the_switches_of_patches_are_read_before_deepspeed_is_imported(tmp_path, text, switches):
    if text is not None:
        (tmp_path / "body.json").write_text(text)
    assert read_switches(tmp_path / "body.json") == switches
