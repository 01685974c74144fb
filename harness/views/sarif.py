# SPDX-License-Identifier: Apache-2.0
"""Findings as SARIF 2.1.0 for code scanning. One run; findings about the call itself are notifications of it."""

from __future__ import annotations

import json
import os
from typing import Any

from harness import __version__
from harness.findings import CheckOutcome, Finding, Place

_LEVEL = {"error": "error", "warning": "warning", "info": "note"}


def findings_as_sarif(outcome: CheckOutcome) -> str:
    """The SARIF log, with the rules that its results name."""
    from harness.check.finding_index import list_rows

    pages = {row.id: row for row in list_rows()}
    findings = [finding for report in outcome.reports for finding in report.findings]
    used = sorted({finding.gate for finding in (*findings, *outcome.general)})
    driver = {
        "name": "harness",
        "version": __version__,
        "rules": [_rule_as_dict(id_, pages.get(id_)) for id_ in used],
        "properties": {"deepspeedVersion": outcome.deepspeed, "deepspeedVersionOrigin": outcome.origin},
    }
    invocation: dict[str, Any] = {"executionSuccessful": outcome.code < 2, "exitCode": outcome.code}
    if outcome.general:
        invocation["toolConfigurationNotifications"] = [_notification_as_dict(finding) for finding in outcome.general]
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [_result_as_dict(finding, used) for finding in findings],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"version": "2.1.0", "$schema": schema, "runs": [run]}, indent=2)


def _rule_as_dict(id_: str, row: Any) -> dict[str, Any]:
    """The metadata of a kind of finding: title, page, and versions."""
    if row is None:
        return {"id": id_, "shortDescription": {"text": id_}}
    from harness.views.gate_pages import render_page

    rule: dict[str, Any] = {
        "id": id_,
        "name": "".join(part.capitalize() for part in row.name.split("-")),
        "shortDescription": {"text": row.title},
        "help": {"text": render_page(id_) or row.title},
        "properties": {"tags": [id_[:2]], "deepspeedVersions": row.versions},
    }
    if row.gate is not None:
        rule["properties"] |= {"upstream": row.gate.upstream, "needs": list(row.gate.needs)}
        rule["defaultConfiguration"] = {"level": _LEVEL[row.gate.severities[0]]}
    return rule


def _format_message(finding: Finding) -> str:
    return "\n".join([finding.message, *finding.notes, *([f"help: {finding.fix.title}"] if finding.fix else [])])


def _result_as_dict(finding: Finding, rules: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.gate,
        "ruleIndex": rules.index(finding.gate),
        "level": _LEVEL[finding.severity],
        "message": {"text": _format_message(finding)},
    }
    if finding.key:
        result["properties"] = {"key": finding.key}
    if finding.place is not None:
        result["locations"] = [_location_as_dict(finding.place)]
    if finding.related:
        result["relatedLocations"] = [
            {**_location_as_dict(label.place), "message": {"text": label.text}} for label in finding.related
        ]
    return result


def _notification_as_dict(finding: Finding) -> dict[str, Any]:
    notification: dict[str, Any] = {
        "associatedRule": {"id": finding.gate},
        "level": _LEVEL[finding.severity],
        "message": {"text": _format_message(finding)},
    }
    if finding.place is not None:
        notification["locations"] = [_location_as_dict(finding.place)]
    return notification


def _location_as_dict(place: Place) -> dict[str, Any]:
    """A region of a file. Standard input and the command line are no files, and have only a name."""
    region: dict[str, Any] = {"startLine": place.line, "startColumn": place.column}
    if place.length:
        region["endColumn"] = place.column + place.length
    if place.file in ("-", "--set"):
        name = "standard input" if place.file == "-" else "the command line"
        return {"logicalLocations": [{"name": name}]}
    return {"physicalLocation": {"artifactLocation": {"uri": _format_uri(place.file)}, "region": region}}


def _format_uri(file: str) -> str:
    """A relative reference, or a file URI for a path from the root; characters as RFC 3986 wants them."""
    from urllib.parse import quote

    name = os.fsencode(file.replace("\\", "/").removeprefix("./"))  # a name on Linux may be no UTF-8
    path = quote(name, safe="/-._~!$&'()*+,;=@")
    return f"file://{path}" if path.startswith("/") else path
