"""JSON, GitHub annotations and SARIF of the same findings."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from harness.cli.common import check_file
from harness.facts.deepspeed import Target
from harness.views.machine_readable import as_github, as_json, as_sarif

SARIF_SUBSET = json.loads((Path(__file__).parent / "sarif-2.1.0-subset.json").read_text())


@pytest.fixture
def reports(write):
    bad = "precision: {fp16: true, bf16: true}\nzero:\n  stage: 1\n  offload_param: {device: cpu}\nignore: {MD001: a, MD002: b, MD003: c, BT002: d, PP001: e}\n"
    files = [write("bad.yaml", bad), write("tab.yaml", "a:\n\tb: 1\n")]
    return [check_file(file, deepspeed=Target("0.19.8", "")).report for file in files]


def test_json_has_a_version_totals_and_places(reports):
    body = json.loads(as_json(reports, "0.19.8"))
    assert body["format_version"] == 1
    assert body["totals"] == {"files": 2, "errors": 3, "warnings": 1, "ignored": 4}
    first = body["files"][0]
    assert [(f["gate"], f["place"]["line"]) for f in first["findings"]] == [("PR001", 1), ("OF001", 4), ("GT002", 5)]
    assert first["findings"][1]["fix"]["sets"] == {"zero.stage": 3}
    assert {s["gate"] for s in first["gates_skipped"]} == {"BT001", "BT003", "CK003", "MD004", "MD005"}
    assert body["files"][1]["findings"][0]["gate"] == "SP002"


def test_github_annotations_are_one_line_each_and_escaped(reports):
    lines = as_github(reports, "0.19.8").splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("::error file=")
    assert ",line=1,col=" in lines[0]
    assert "title=PR001::" in lines[0]
    assert "%0A" in lines[0]
    assert any(line.startswith("::warning ") for line in lines)


def test_sarif_is_valid_and_complete(reports):
    body = json.loads(as_sarif(reports, "0.19.8"))
    jsonschema.validate(body, SARIF_SUBSET)
    run = body["runs"][0]
    assert [r["ruleId"] for r in run["results"]] == ["PR001", "OF001", "GT002", "SP002"]
    assert {r["id"] for r in run["tool"]["driver"]["rules"]} == {"PR001", "OF001", "GT002", "SP002"}
    assert run["results"][0]["relatedLocations"]
