# SPDX-License-Identifier: Apache-2.0
"""The table of dependency sets in docs/limits.md: a row for each set, with what passed there and when.

Usage: python -m tests.releases.dependency_sets SET RESULTS.xml, in the environment of the set; `.ci/run deps SET` does it.
"""

from __future__ import annotations

import argparse
import datetime
import platform
from pathlib import Path
from xml.etree import ElementTree

from harness.facts.tested_releases import TESTED_RELEASES
from harness.hostinfo.installed_packages import find_version

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
BEGIN, END = "<!-- dependency sets: python -m tests.releases.dependency_sets -->\n", "<!-- end -->\n"
HEAD = f"| Set | Python | {' | '.join(TESTED_RELEASES)} | Passed | Failed | Skipped | Date |\n"


def count_results(file: Path) -> tuple[int, int, int]:
    """Tests that passed, failed (errors count) and were skipped, of a JUnit XML."""
    suites = list(ElementTree.parse(file).iter("testsuite"))  # noqa: S314  (pytest wrote it)
    total, skipped = (sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "skipped"))
    failed = sum(int(suite.get(name, 0)) for suite in suites for name in ("failures", "errors"))
    return total - failed - skipped, failed, skipped


def replace_row(page: str, name: str, row: str) -> str:
    """The page with the row of this set, in the place of its older one."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = [line for line in table.splitlines(keepends=True)[2:] if line.strip() and not line.startswith(f"| {name} |")]
    rule = "| --- " * HEAD.count(" | ") + "| --- |\n"
    return before + BEGIN + HEAD + rule + "".join(sorted([*rows, row])) + END + after


def main() -> None:
    """Write the row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("set")
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    versions = [find_version(name) or "none" for name in TESTED_RELEASES]
    counts = map(str, count_results(options.results))
    cells = [options.set, platform.python_version(), *versions, *counts, datetime.date.today().isoformat()]
    row = f"| {' | '.join(cells)} |\n"
    PAGE.write_text(replace_row(PAGE.read_text(encoding="utf-8"), options.set, row), encoding="utf-8")
    print(row, end="")


if __name__ == "__main__":
    main()
