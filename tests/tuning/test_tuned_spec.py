# SPDX-License-Identifier: Apache-2.0
"""The fastest as a spec, and the tuning as text and JSON. Needs nothing, no time."""

from __future__ import annotations

import json

import yaml

from harness.findings import Finding
from harness.tuning.tuned_spec import add_header, edit_spec, strip_header
from harness.views import tune as view
from harness.views.style import Style
from tests.support.tune_reports import candidate, evidence, trial

TEXT = """\
# mine
model: {name_or_path: llama-3.1-8b}  # the model
train:
  per_device_train_batch_size: 2  # small
  gradient_accumulation_steps: 8
zero:
  stage: 3      # as on the node
  offload_optimizer:
    device: cpu
    pin_memory: false
"""
MICRO, STEPS = ("train", "per_device_train_batch_size"), ("train", "gradient_accumulation_steps")


def test_only_the_changed_keys_are_edited_and_comments_stay() -> None:
    sets = {("zero", "offload_optimizer"): None, ("zero", "stage"): 2, MICRO: 8, STEPS: 2}
    text, is_kept = edit_spec(TEXT, "spec.yaml", sets, [], yaml.safe_load(TEXT))
    assert is_kept
    assert text == TEXT.replace("size: 2 ", "size: 8 ").replace("steps: 8", "steps: 2").replace(
        "stage: 3 ", "stage: 2 "
    ).replace("  offload_optimizer:\n    device: cpu\n    pin_memory: false\n", "")


def test_options_of_the_command_line_are_in_it_unless_the_candidate_has_the_key() -> None:
    raw = {**yaml.safe_load(TEXT), "data": {"max_length": 64}}
    options = ["train.seed=7", "train.per_device_train_batch_size=4", "zero.offload_optimizer.device=none"]
    text, is_kept = edit_spec(TEXT, "spec.yaml", {MICRO: 8, ("zero", "offload_optimizer"): None}, options, raw)
    assert is_kept
    data = yaml.safe_load(text)
    assert data["train"] == {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 8, "seed": 7}
    assert data["zero"] == {"stage": 3}


def test_a_layout_that_cannot_be_edited_is_written_anew() -> None:
    text = "train: &t {per_device_train_batch_size: 2}\nmodel: *t\n"
    raw = {"train": {"per_device_train_batch_size": 2}}
    edited, is_kept = edit_spec(text, "spec.yaml", {MICRO: 8}, [], raw)
    assert not is_kept
    assert yaml.safe_load(edited) == {"train": {"per_device_train_batch_size": 8}}


def test_the_evidence_stands_above_it_once() -> None:
    known = evidence(trial(1.0, 1.0, 1.0), trial(0.5, 0.5, 0.5, sets=1), trial(sets=2, state="out of memory"))
    first = add_header(TEXT, "spec.yaml", known)
    assert first.endswith("\n\n" + TEXT)
    head = first[: -len(TEXT)]
    assert all(line.startswith("#") for line in head.strip().split("\n"))
    assert "train.per_device_train_batch_size=2" in head
    assert ">   500 ms  micro-batch 2: 1,000 tokens/s" in head
    assert "micro-batch 4: out of memory" in head
    assert strip_header(first) == TEXT
    assert strip_header(TEXT) == TEXT
    assert yaml.safe_load(first) == yaml.safe_load(TEXT)
    assert add_header("{}", "spec.json", known) == "{}"


def test_the_table_has_every_trial_with_its_cause() -> None:
    bad = trial(sets=2, state="failed")
    known = evidence(
        trial(1.0, 1.1, 1.0), trial(0.5, 0.5, 0.5, sets=1), bad, refused=(("ZeRO-2", Finding("OF001", "error", "no")),)
    )
    shown = view.render_tune_report(known, Style(), 140)
    lines = shown.split("\n")
    assert "the same global batch of 16" in lines[0]
    assert "planned" not in shown, "nothing was"
    assert next(line for line in lines if line.startswith(">")).split()[1:5] == ["micro-batch", "2", "500", "ms"]
    assert "Fastest: micro-batch 2, 2.00 times as fast" in shown
    assert "by `train.per_device_train_batch_size: 2`" in shown
    assert "refused by OF001: ZeRO-2 (no)" in shown


def test_a_spec_that_stays_is_said_to_stay() -> None:
    style = Style()
    slower = evidence(trial(1.0, 1.0, 1.0), trial(2.0, 2.0, 2.0, sets=1))
    assert "The unchanged spec was the fastest; it is kept" in view.render_tune_report(slower, style, 120)
    alike = evidence(trial(1.0, 1.0, 1.0), trial(0.999, 0.999, 0.999, sets=1), complete=False)
    shown = view.render_tune_report(alike, style, 120)
    assert "Interrupted" in shown
    assert (
        "No candidate beat the unchanged spec by more than the noise of its steps (0.1% per step); it is kept" in shown
    )
    assert "No candidate could be measured" in view.render_tune_report(evidence(trial(state="failed")), style, 120)


def test_the_json_has_the_same() -> None:
    keys = {("zero", "offload_optimizer"): None, ("zero", "stage"): 1}
    body = json.loads(json.dumps(evidence(trial(1.0, 1.0), trial(0.5, 0.5, sets=1, keys=keys)).to_json()))
    assert body["best"] == 1
    assert body["faster"] is True
    assert body["gain"] == 0.5
    assert body["trials"][1]["sets"] == {"zero.offload_optimizer": None, "zero.stage": 1}
    assert body["trials"][0]["step_seconds"] == 1.0
    assert candidate(1).planned_step_seconds is None
