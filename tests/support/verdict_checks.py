# SPDX-License-Identifier: Apache-2.0
"""The end of a run as each place describes it, compared with its verdict. No tests."""

from __future__ import annotations

import html
from pathlib import Path

from harness.diagnosis.run_diagnosis import diagnose_run
from harness.run_records.run_list import list_run_summaries
from harness.units import format_seconds
from harness.verdicts import Verdict, describe_end, describe_verdict, read_verdict
from harness.views.log_diagnosis import render_diagnosis
from harness.views.runs import render_runs
from harness.views.style import Style


def assert_told_alike(run_dir: Path, text: str) -> Verdict:
    """The terminal, `harness runs`, the report and `harness explain --log RUN` have the verdict in the same words: rank,
    host, signal, step. Causes of slowness are for runs that completed.
    """
    verdict = read_verdict(run_dir)
    line, end = describe_verdict(verdict), describe_end(verdict)
    head = next(row for row in text.splitlines() if row.startswith(verdict.state))
    took = f" after {format_seconds(verdict.seconds)}" if verdict.state == "stopped" else ""
    assert head == f"{verdict.state}{took}{end}"
    assert not any(row.split()[:1] == ["slow"] for row in text.splitlines())
    (summary,) = list_run_summaries(run_dir)
    assert f"{summary.name}: {line}" in render_runs("runs", [summary], Style())
    assert (summary.state, summary.step) == (verdict.state, verdict.step)
    report = html.unescape((run_dir / "report.html").read_text())
    assert f"<b>{verdict.state}</b>{end}" in report or f"<li>{line}" in report
    assert report.count("<b>failed") == (verdict.state == "failed")
    assert f"<dt>time</dt><dd>{format_seconds(verdict.seconds)}<" in report
    diagnosis = diagnose_run(run_dir)
    assert render_diagnosis(diagnosis, Style()).splitlines()[0] == line
    assert (diagnosis.rank, diagnosis.host) == (verdict.rank, verdict.host)
    return verdict
