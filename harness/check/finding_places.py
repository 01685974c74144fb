# SPDX-License-Identifier: Apache-2.0
"""Findings of a plan with the places in the spec that they are about."""

from __future__ import annotations

from collections.abc import Sequence

from harness.findings import Finding, sort_findings
from harness.spec.parse.source import Source


def place_findings(findings: Sequence[Finding], source: Source | None) -> tuple[Finding, ...]:
    """Each finding with the place of its key, so that it points at what the user can edit."""
    if source is None:
        return tuple(findings)
    return sort_findings(f._replace(place=source.place(f.key)) if f.key else f for f in findings)
