# SPDX-License-Identifier: Apache-2.0
"""All mistakes of a file in one pass: combinations are checked for every key that can be read, and for no other."""

from __future__ import annotations

import json

import pytest
import yaml

from harness.check.check_file import check_file
from harness.check.check_files import ValidateOptions, check_files
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import UNREADABLE_KEYS
from harness.gates.registry import all_gates
from harness.spec.parse.source import copy_values
from tests.support.gate_examples import example_of

THIRTEEN_MISTAKES = """\
model: {name_or_path: some/model, revison: main}
data: {train: corpus.txt, max_length: "512"}
train:
  max_steps: 100
  num_train_epochs: 3
  learning_rate: 1e-4
  per_device_train_batch_size: 0
precision: {fp16: true, bf16: true}
zero:
  stage: 2
  offload_param: {device: cpu}
  overlap_com: true
  reduce_bucket_size: -1
checkpoint: {save_total_limit: 2, save_at_end: maybe}
scheduler: {type: linear, min_lr_ratio: 0.1}
deepspeed:
  aio: {queue_depth: 16, thread_count: 2}
  steps_per_print: 0
"""
GATES = {gate.id for gate in all_gates()}


def ids(text, name="a.yaml", **options):
    return [f.gate for f in check_file(name, text=text, **options).report.findings]


def test_mistakes_of_three_kinds_are_told_at_once():
    checked = check_file("a.yaml", text=THIRTEEN_MISTAKES, world_size=4)
    told = [(f.gate, f.place.line) for f in checked.report.findings if f.place]
    unknown_keys = [("SP005", 1), ("SP005", 6), ("SP005", 12)]
    wrong_values = [("SP006", 2), ("SP007", 7), ("SP007", 13), ("SP006", 14)]
    combinations = [("MD006", 5), ("PR001", 8), ("CK010", 14), ("MD008", 15), ("UT004", 18)]
    for expected in (*unknown_keys, *wrong_values, *combinations, ("OF001", 11), ("SP014", 17)):
        assert expected in told, expected
    assert checked.run is None, "nobody may launch it"
    assert checked.code == 1
    waiting = {gate.gate for gate in checked.report.skipped if gate.needs == UNREADABLE_KEYS}
    assert {"BT001", "BT002"} <= waiting, "they need the micro-batch"
    assert checked.report.checked > 230


@pytest.mark.parametrize(
    ("text", "false"),
    [
        ("train: {per_device_train_batch_size: many, max_steps: 1}", "BT002"),
        ("train: {max_step: 5, per_device_train_batch_size: 1}", "MD003"),
        ("train: 5", "MD003"),
        ("model: 5", "MD001"),
        ("data: {train: [{weight: 1}]}", "MD002"),
        ("zero: {offload_optimizer: {device: cpu}}", "OF003"),
        ("zero: {stage: two, offload_param: {device: cpu}}", "OF001"),
        ("zero: {stage: 3, offload_optimizer: {nvme_path: /x}}", "OF003"),
        ("scheduler: {type: cosin, min_lr_ratio: 0.1}", "MD008"),
        ("optimizer: {typ: sgd, momentum: 0.9}", "MD009"),
        ("precision: {fp_16: true, loss_scale_window: 10}", "MD010"),
        ("parallel: {pipeline_parallel_size: 0}\ndeepspeed: {checkpoint: {parallel_write: {pipeline_stage: true}}}", "CK007"),
        ("export: {at_end: yep, sample_prompt: a}", "MD013"),
        ("ignore: [PR001]\nprecision: {fp16: true, bf16: true}", "PR001"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_read_gives_no_second_finding(text, false):
    known = {"model": "model: {name_or_path: x}", "data": "data: {train: y}", "train": "train: {max_steps: 1}"}
    rest = [line for name, line in known.items() if not text.startswith(name)]
    found = ids("\n".join([text, *rest]))
    assert false not in found
    assert found[0].startswith("SP")


def test_an_ignored_finding_stays_ignored_beside_a_wrong_key():
    text = "model: {name_or_path: x}\ndata: {train: y, packing: 1}\ntrain: {max_steps: 1, num_train_epochs: 2}\n"
    assert "MD006" in ids(text)
    checked = check_file("a.yaml", text=text + "ignore: {MD006: both on purpose, ZR001: never}\n")
    assert "MD006" not in [f.gate for f in checked.report.findings]
    assert [f.gate for f in checked.report.ignored] == ["MD006"]
    assert "GT002" not in [f.gate for f in checked.report.findings], "what a skipped gate has to say is not known"


def test_blocks_of_a_json_that_are_no_maps():
    text = '{"train_batch_size": 8, "zero_optimization": "stage2", "aio": {"queue_depth": 8}, "steps_per_print": 0}'
    found = ids(text, "ds.json")
    assert "SP006" in found
    assert "UT004" in found
    assert "OF024" not in found, "whether something is on NVMe is not known"
    optimizer = '{"train_batch_size": 8, "optimizer": "AdamW", "zero_optimization": {"stage": 4}, "steps_per_print": 0}'
    optimizer = optimizer.replace("{", '{"bf16": {"enabled": false}, ', 1)
    assert set(ids(optimizer, "ds.json")) & GATES == {"UT004"}


def test_values_that_the_run_spec_cannot_hold_do_not_end_the_check_of_a_json():
    text = '{"train_batch_size": "x", "fp16": {"enabled": true}, "bf16": {"enabled": true}}'
    found = ids(text, "ds.json", world_size=2)
    assert "PR001" in found
    assert "SP006" in found
    assert not {"BT001", "BT002"} & {*found}


def test_a_selection_leaves_out_gates_of_a_file_with_wrong_keys(write):
    file = write("a.yaml", THIRTEEN_MISTAKES)
    outcome, _ = check_files(ValidateOptions((file,), select=("PR001",)))
    found = {f.gate for f in outcome.reports[0].findings}
    assert {"PR001", "SP005"} <= found, "errors that keep a file from being read are always told"
    assert found & GATES == {"PR001"}


def leaves(value, path=()):
    """Each key of a file that has no map below it."""
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from leaves(inner, (*path, name))
        else:
            yield (*path, name)


def with_value(data, path, value):
    changed = copy_values(data)
    section = changed
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = value
    return changed


READ_AS_TRUE = "data_efficiency.enabled"  # any value but 0 is true there, which the finding about it says


@pytest.mark.parametrize("wrong", [{"wrong": 1}, ["wrong"]], ids=["map", "list"])
def test_a_wrong_value_brings_up_no_finding_about_another_key(wrong):
    """One key after the other of every example gets a value of no sense. What the gates then find, they found before,
    or it is at that key.
    """
    broken = 0
    for gate in all_gates():
        example = example_of(gate, "Example")
        data = json.loads(example.text) if example.kind == "json" else yaml.safe_load(example.text)
        options = {"deepspeed": DeepSpeedTarget("0.19.8", "asked for"), "world_size": 4, "consumer": "deepspeed"}
        before = check_file(f"a.{example.kind}", text=example.text, **options)
        for path in leaves(data):
            text = json.dumps(with_value(data, path, wrong), indent=1)
            after = check_file(f"a.{example.kind}", text=text, **options)
            mistakes = [f.key for f in after.report.findings if f.gate.startswith("SP") and f.is_error]
            key = ".".join(path)
            if not any(key.startswith(mistake) for mistake in mistakes) or key.endswith(READ_AS_TRUE):
                continue
            broken += 1
            known = {(f.gate, f.key) for f in before.report.findings}
            new = [f for f in after.report.findings if f.gate in GATES and (f.gate, f.key) not in known]
            assert all(f.key.startswith(key) for f in new), (gate.id, key, new)
    assert broken > 700
