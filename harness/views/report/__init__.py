"""The HTML report of runs. `write` makes the file; a module for each section."""

from harness.views.report.page import page, write

__all__ = ["page", "write"]
