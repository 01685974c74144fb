# SPDX-License-Identifier: Apache-2.0
"""The HTML report of runs. `write` makes the file; a module for each section."""

from harness.views.report.page import render_report, write_report, write_report_or_note

__all__ = ["render_report", "write_report", "write_report_or_note"]
