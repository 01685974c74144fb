"""Findings for programs: JSON of our own, GitHub workflow annotations, and SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.findings import Finding, Place, Report
from harness.gates.registry import gates

FORMAT_VERSION = 1
_SARIF_LEVEL = {"error": "error", "warning": "warning", "info": "note"}
_GITHUB_LEVEL = {"error": "error", "warning": "warning", "info": "notice"}


def as_json(reports: Sequence[Report], deepspeed: str) -> str:
    """One object: `format_version`, totals, and each file with its findings."""
    body = {
        "format_version": FORMAT_VERSION,
        "deepspeed_version": deepspeed,
        "totals": {
            "files": len(reports),
            "errors": sum(len(r.errors) for r in reports),
            "warnings": sum(len(r.warnings) for r in reports),
            "ignored": sum(len(r.ignored) for r in reports),
        },
        "files": [report_json(report) for report in reports],
    }
    return json.dumps(body, indent=2)


def report_json(report: Report) -> dict[str, Any]:
    """One file: its findings, and what was looked at and what not."""
    return {
        "file": report.file,
        "ok": report.ok,
        "findings": [finding_json(finding) for finding in report.findings],
        "ignored": [finding_json(finding) for finding in report.ignored],
        "gates_checked": report.checked,
        "gates_skipped": [{"gate": s.gate, "needs": s.needs} for s in report.skipped],
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding with plain values."""
    fix = finding.fix
    return {
        "gate": finding.gate,
        "severity": finding.severity,
        "message": finding.message,
        "key": finding.key,
        "place": _place(finding.place),
        "label": finding.label,
        "related": [{"place": _place(label.place), "text": label.text} for label in finding.related],
        "notes": list(finding.notes),
        "fix": {"title": fix.title, "sets": dict(fix.sets), "safe": fix.safe, "effect": fix.effect} if fix else None,
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    return {"file": place.file, "line": place.line, "column": place.column, "length": place.length} if place else None


def as_github(reports: Sequence[Report], deepspeed: str) -> str:  # noqa: ARG001  (one signature for all formats)
    """A workflow command a finding, which GitHub shows at the line in the pull request."""
    return "\n".join(_annotation(finding) for report in reports for finding in report.findings)


def _annotation(finding: Finding) -> str:
    place = finding.place
    in_a_file = place is not None and place.file not in ("--set", "-")
    where = {"file": place.file, "line": place.line, "col": place.column} if place and in_a_file else {}
    values = {**where, "title": finding.gate}
    head = ",".join(f"{name}={_escape(str(value), property_=True)}" for name, value in values.items())
    help_ = f"\n{finding.fix.title}" if finding.fix else ""
    return f"::{_GITHUB_LEVEL[finding.severity]} {head}::{_escape(finding.message + help_)}"


def _escape(text: str, *, property_: bool = False) -> str:
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")] + ([(":", "%3A"), (",", "%2C")] if property_ else [])
    for char, code in pairs:
        text = text.replace(char, code)
    return text


def as_sarif(reports: Sequence[Report], deepspeed: str) -> str:
    """SARIF 2.1.0, for code scanning."""
    names = {gate.id: gate for gate in gates()}
    used = sorted({finding.gate for report in reports for finding in report.findings})
    rules = [{"id": id_, "shortDescription": {"text": names[id_].title if id_ in names else id_}} for id_ in used]
    run = {
        "tool": {"driver": {"name": "harness", "rules": rules, "properties": {"deepspeed": deepspeed}}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding) for report in reports for finding in report.findings],
    }
    return json.dumps(
        {"version": "2.1.0", "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "runs": [run]}, indent=2
    )


def _result(finding: Finding) -> dict[str, Any]:
    text = "\n".join([finding.message, *finding.notes, *([f"help: {finding.fix.title}"] if finding.fix else [])])
    result: dict[str, Any] = {
        "ruleId": finding.gate,
        "level": _SARIF_LEVEL[finding.severity],
        "message": {"text": text},
    }
    if finding.place is not None:
        result["locations"] = [_sarif_location(finding.place)]
    if finding.related:
        result["relatedLocations"] = [
            {**_sarif_location(label.place), "message": {"text": label.text}} for label in finding.related
        ]
    return result


def _sarif_location(place: Place) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": place.line, "startColumn": place.column}
    if place.length:
        region["endColumn"] = place.column + place.length
    uri = place.file.replace("\\", "/")
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


FORMATS: Mapping[str, Callable[[Sequence[Report], str], str]] = {
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}
