# SPDX-License-Identifier: Apache-2.0
"""Findings for programs: JSON of our own, GitHub workflow annotations, and SARIF 2.1.0 (in `sarif`)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from harness.findings import CheckOutcome, Finding
from harness.views.findings_text import limit_per_gate
from harness.views.style import escape_unprintable

FORMAT_VERSION = 1
_GITHUB_LEVEL = {"error": "error", "warning": "warning", "info": "notice"}


def findings_as_json(outcome: CheckOutcome) -> str:
    """One object: `format_version`, totals, findings about the call itself, and each file with its findings."""
    reports = outcome.reports
    body = {
        "format_version": FORMAT_VERSION,
        "deepspeed_version": outcome.deepspeed,
        "deepspeed_version_origin": outcome.origin,
        "exit_code": outcome.code,
        "totals": {
            "files": len(reports),
            "files_with_errors": sum(not r.ok for r in reports),
            "errors": sum(f.is_error for f in _iter_findings(outcome)),
            "warnings": sum(f.severity == "warning" for f in _iter_findings(outcome)),
            "infos": sum(f.severity == "info" for f in _iter_findings(outcome)),
            "fixed": sum(len(r.fixed) for r in reports),
            "ignored": sum(len(r.ignored) for r in reports),
            "left_out": sum(len(r.left_out) for r in reports),
            "passed_over": len(outcome.passed_over),
        },
        "findings": [finding.to_json() for finding in outcome.general],
        "files": [report.to_json() for report in reports],
        "passed_over": list(outcome.passed_over),
    }
    return json.dumps(body, indent=2)


def _iter_findings(outcome: CheckOutcome) -> Iterable[Finding]:
    yield from outcome.general
    for report in outcome.reports:
        yield from report.findings


def findings_as_github(outcome: CheckOutcome) -> str:
    """One workflow command per finding, which GitHub shows at the line in the pull request. Of one kind in one file the
    first are written, as in text. What `--fix` has fixed is a notice, at its line before.
    """
    groups = [outcome.general, *(report.findings for report in outcome.reports)]
    lines = [_format_annotation(finding) for group in groups for finding in limit_per_gate(group)[0]]
    fixed = [finding for report in outcome.reports for finding in report.fixed]
    notices = [f._replace(severity="info", message=f"fixed: {f.message}") for f in fixed]
    return "\n".join([*map(_format_annotation, notices), *lines])


def _format_annotation(finding: Finding) -> str:
    place = finding.place
    where = {}
    if place is not None and place.file not in ("--set", "-"):
        where = {"file": place.file, "line": place.line, "col": place.column}
        if place.length:
            where |= {"endLine": place.line, "endColumn": place.column + place.length - 1}
    values = {**where, "title": finding.gate}
    head = ",".join(
        f"{name}={_escape(escape_unprintable(str(value)), property_=True)}" for name, value in values.items()
    )
    help_ = f"\n{escape_unprintable(finding.fix.title)}" if finding.fix else ""
    return f"::{_GITHUB_LEVEL[finding.severity]} {head}::{_escape(escape_unprintable(finding.message) + help_)}"


def _escape(text: str, *, property_: bool = False) -> str:
    """As GitHub's own toolkit writes it: a percent sign first, then what would end the line or the property."""
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")] + ([(":", "%3A"), (",", "%2C")] if property_ else [])
    for char, code in pairs:
        text = text.replace(char, code)
    return text
