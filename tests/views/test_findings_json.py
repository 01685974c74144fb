# SPDX-License-Identifier: Apache-2.0
"""JSON, GitHub annotations and SARIF of the same findings."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import CheckOutcome, Finding, Fix, Label, Place, Report
from harness.views.findings_json import findings_as_github, findings_as_json
from harness.views.sarif import findings_as_sarif
from harness.views.style import escape_unprintable

SARIF_SUBSET = json.loads((Path(__file__).parent / "sarif-2.1.0-subset.json").read_text())
OFFICIAL = os.environ.get("SARIF_SCHEMA")
"""The official schema's file, for whoever has it; it is not part of this project."""


def valid(text: str) -> dict:
    body = json.loads(text)
    jsonschema.Draft7Validator(SARIF_SUBSET).validate(body)
    if OFFICIAL:
        jsonschema.Draft7Validator(json.loads(Path(OFFICIAL).read_text())).validate(body)
    return body


@pytest.fixture
def outcome(write):
    bad = "precision: {fp16: true, bf16: true}\nzero:\n  stage: 1\n  offload_param: {device: cpu}\nignore: {MD001: a, MD002: b, MD003: c, BT002: d, PP001: e}\n"
    files = [write("bad.yaml", bad), write("tab.yaml", "a:\n\tb: 1\n")]
    reports = tuple(check_file(file, deepspeed=DeepSpeedTarget("0.19.8", "installed")).report for file in files)
    general = (Finding("SP011", "error", "`x` is wrong", fix=Fix("do it")),)
    return CheckOutcome(reports, "0.19.8", "installed", general, ("other.json",), 2)


def test_json_has_a_version_totals_and_places(outcome):
    body = json.loads(findings_as_json(outcome))
    assert body["format_version"] == 1
    assert (body["deepspeed_version"], body["deepspeed_version_origin"]) == ("0.19.8", "installed")
    everything = [f for file in body["files"] for f in file["findings"]] + body["findings"]
    totals = body["totals"]
    for level in ("error", "warning", "info"):
        assert totals[f"{level}s"] == sum(f["severity"] == level for f in everything)
    assert (totals["files"], totals["files_with_errors"], totals["ignored"], totals["passed_over"]) == (2, 2, 4, 1)
    found = {f["gate"]: f for f in body["files"][0]["findings"]}
    assert {"PR001", "OF001", "GT002"} <= set(found)
    assert found["OF001"]["place"]["line"] == 4
    assert found["OF001"]["fix"]["sets"] == {"zero.stage": 3}
    skipped = {s["gate"]: s["needs"] for s in body["files"][0]["gates_skipped"]}
    assert skipped["BT001"] == "world size"
    assert skipped["MD004"] == "model facts"
    assert body["files"][0]["consumer"] is None
    assert body["files"][1]["findings"][0]["gate"] == "SP002"
    assert body["findings"][0]["place"] is None
    assert body["passed_over"] == ["other.json"]


def test_github_annotations_are_one_line_each(outcome):
    lines = findings_as_github(outcome).splitlines()
    assert lines[0] == "::error title=SP011::`x` is wrong%0Ado it"
    assert len(lines) == 1 + sum(len(r.findings) for r in outcome.reports)
    assert any(
        re.match(r"::error file=\S+,line=1,col=\d+,endLine=1,endColumn=\d+,title=PR001::", line) for line in lines
    )
    assert any(line.startswith("::warning ") for line in lines)


def undone(text: str, *, property_: bool = False) -> str:
    """What GitHub's runner makes of an escaped text."""
    pairs = [("%0D", "\r"), ("%0A", "\n")] + ([("%3A", ":"), ("%2C", ",")] if property_ else [])
    for code, char in pairs:
        text = text.replace(code, char)
    return text.replace("%25", "%")


@given(
    message=st.text(min_size=1, max_size=40),
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
def test_whatever_is_said_and_however_a_file_is_called_it_stays_one_command(message, name):
    finding = Finding("SP001", "info", message, place=Place(name, 1, 1))
    line = findings_as_github(CheckOutcome((Report(name, (finding,)),)))
    assert not set(line) & {"\n", "\r"}
    if name in ("-", "--set"):
        return
    head, _, said = line.removeprefix("::notice ").partition("::")
    properties = dict(part.partition("=")[::2] for part in head.split(","))
    assert properties.keys() == {"file", "line", "col", "title"}
    assert undone(properties["file"], property_=True) == escape_unprintable(name)
    assert undone(said) == escape_unprintable(message)


def test_sarif_is_valid_and_complete(outcome):
    run = valid(findings_as_sarif(outcome))["runs"][0]
    found = [f for r in outcome.reports for f in r.findings]
    assert [r["ruleId"] for r in run["results"]] == [f.gate for f in found]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    for rule in rules:  # findings that are no gates have their title and page, too
        assert rule["shortDescription"]["text"] not in ("", rule["id"])
        assert len(rule["help"]["text"]) > 20
        assert rule["properties"]["deepspeedVersions"]
    assert {"SP002", "SP011", "OF001"} <= {rule["id"] for rule in rules}
    assert next(r for r in run["results"] if r["ruleId"] == "PR001")["relatedLocations"]
    invocation = run["invocations"][0]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (2, False)
    assert invocation["toolConfigurationNotifications"][0]["associatedRule"] == {"id": "SP011"}


def test_nothing_found_is_a_valid_log_too():
    assert (
        valid(findings_as_sarif(CheckOutcome((Report("a.yaml"),), "0.19.8", "installed")))["runs"][0]["results"] == []
    )


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("a b/c#d.yaml", "a%20b/c%23d.yaml"),
        ("./a.yaml", "a.yaml"),
        ("/r/a.yaml", "file:///r/a.yaml"),
        ("a\\b.yaml", "a/b.yaml"),
        ("c:d.yaml", "c%3Ad.yaml"),
        ("\u00e9.yaml", "%C3%A9.yaml"),
    ],
)
def test_file_names_become_uris(file, uri):
    place = Place(file, 2, 3, 4)
    found = Finding(
        "OF001",
        "warning",
        "m",
        "k",
        place,
        related=(Label(Place("-", 1, 1), "here"), Label(Place("--set", 1, 1), "there")),
    )
    result = valid(findings_as_sarif(CheckOutcome((Report(file, (found,)),))))["runs"][0]["results"][0]
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == uri
    assert location["region"] == {"startLine": 2, "startColumn": 3, "endColumn": 7}
    names = [r["logicalLocations"][0]["name"] for r in result["relatedLocations"]]
    assert names == ["standard input", "the command line"]
