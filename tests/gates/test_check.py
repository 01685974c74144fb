# SPDX-License-Identifier: Apache-2.0
"""The machinery of gates: order, suppression, a gate that fails, and both kinds of file."""

from __future__ import annotations

import json

import pytest

import harness.gates as package
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.gates import check_run
from harness.gates.registry import all_gates
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec


def report(path, version="0.19.8", **kwargs):
    target = DeepSpeedTarget(version, "asked for")
    loaded = load_spec(path, (), target)
    assert loaded.spec is not None, loaded.findings
    return check_run(resolve_run(loaded.spec, kind=loaded.kind, **kwargs), loaded.source, deepspeed=target)


def test_findings_come_in_the_order_of_the_file(write):
    text = "precision: {fp16: true, bf16: true}\nzero:\n  offload_param: {device: cpu}\n  stage: 1\ntrain:\n  max_steps: 1\nmodel: {name_or_path: x}\n"
    lines = [f.place.line for f in report(write("a.yaml", text)).findings]
    assert lines == sorted(lines)
    assert len(lines) == 4  # no data, both formats, parameter offload, no batch size


def test_an_ignore_that_ignores_nothing_is_told(write):
    found = report(write("a.yaml", "ignore: {PP001: why, XX999: why, SP005: why, EN027: why}\n")).findings
    assert [f.message for f in found if f.gate == "GT002"] == [
        "`ignore.PP001` ignored nothing",
        "`ignore.XX999` names no gate",
        "`ignore.SP005` names a finding that is always reported",
    ]


def test_a_claim_of_the_running_engine_may_be_ignored(write):
    found = report(write("a.yaml", "ignore: {AT012: own initialisation}\n")).findings
    assert not [f for f in found if f.gate == "GT002"]


def test_a_gate_that_fails_is_told_and_the_others_still_look(write, monkeypatch):
    def broken(ctx):
        raise RuntimeError("oops")
        yield

    monkeypatch.setattr(
        package, "all_gates", lambda: tuple(g._replace(check=broken) if g.id == "OF001" else g for g in all_gates())
    )
    found = report(write("a.yaml", "zero: {stage: 3}\nparallel: {pipeline_parallel_size: 2}\n")).findings
    assert {"GT001", "PP001"} <= {f.gate for f in found}


def test_a_deepspeed_json_meets_the_same_gates_at_its_own_keys(write):
    config = {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": True}, "bf16": {"enabled": True},
              "zero_optimization": {"stage": 2, "offload_param": {"device": "nvme"}}}  # fmt: skip
    found = {f.gate: f for f in report(write("ds.json", json.dumps(config, indent=1)), world_size=2).findings}
    assert set(found) == {"BT001", "PR001", "OF001"}
    assert found["OF001"].key == "zero_optimization.offload_param.device"
    assert "`zero_optimization.stage`" in found["OF001"].fix.title
    assert found["BT001"].place.line == 2


@pytest.mark.parametrize("more", ["", "allow_undocumented: [TP001]\n"])
@pytest.mark.parametrize(
    ("version", "refused"), [("0.16.4", True), ("0.19.3", True), ("0.19.4", False), ("0.19.8", False)]
)
def test_autotp_with_zero_3_is_refused_before_0_19_4_alone(version, refused, more, write):
    text = f"zero: {{stage: 3}}\nparallel: {{tensor_parallel_size: 2}}\n{more}"
    findings = report(write("a.yaml", text), version).findings
    assert [f.severity for f in findings if f.gate == "TP001"] == (["error"] if refused else [])
    assert not [f for f in findings if f.gate == "GT002"]
    json_text = '{"zero_optimization": {"stage": 3}, "tensor_parallel": {"autotp_size": 2}}'
    told = {f.gate for f in report(write("ds.json", json_text), version).findings}
    assert ("TP001" in told) == refused


@pytest.mark.parametrize("kind", ["spec", "json"])
def test_what_lacks_a_world_is_skipped_and_said(kind, write):
    path = (
        write("a.yaml", "train: {global_batch_size: 7}\n")
        if kind == "spec"
        else write("a.json", '{"train_batch_size": 7}')
    )
    skipped = {s.gate: s.needs for s in report(path).skipped}
    assert skipped["BT001"] == "world size"
    assert ("MD004" in skipped) == (kind == "spec")
