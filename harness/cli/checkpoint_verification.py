# SPDX-License-Identifier: Apache-2.0
"""`harness checkpoint verify`: checkpoints against their manifests, and the exit code."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.checkpoints.verify_paths import verify_paths
from harness.cli.console import print_findings
from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode
from harness.printed_text import unguarded
from harness.views import checkpoint as view
from harness.views.style import style_for


def verify_checkpoints(paths: list[Path], format: OutputFormat, *, deep: bool) -> ExitCode:
    """Print what is damaged; FINDINGS where anything is."""
    results = verify_paths(paths, deep=deep, progress=_print_progress if sys.stderr.isatty() else None)
    if format is OutputFormat.json:
        print(view.verification_as_json(results, deep=deep))
    else:
        findings = [finding for result in results for finding in result.findings]
        if findings:
            print_findings(findings, None)
        print(view.render_verification(results, style_for(sys.stdout), deep=deep))
    return ExitCode.FINDINGS if any(result.is_damaged for result in results) else ExitCode.OK


def _print_progress(done: int, total: int) -> None:
    """A line that is written over."""
    end = "\n" if done >= total else ""
    print(f"\r{view.format_read_progress(done, total)}", end=end, file=unguarded(sys.stderr), flush=True)
