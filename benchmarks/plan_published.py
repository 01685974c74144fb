# SPDX-License-Identifier: Apache-2.0
"""Error of the plan against measurements that others published, and the fit of its rates to a part of them.

Reads the rows of `benchmarks/published/*.jsonl` and of files given with `--rows`. Prints, and with --write keeps, the
error factors by group; `--fit` prints rates that are nearer to the sources that are not set aside.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.published.error_table import compare_rows, format_table, format_verdicts, format_widths  # noqa: E402
from benchmarks.published.fit import fit_rates, format_rates, samples_of  # noqa: E402
from benchmarks.published.offload_rows import format_host_rates, format_missed_rows  # noqa: E402
from benchmarks.published.published_rows import PlannedRow, plan_row, read_rows  # noqa: E402


def main() -> int:
    """Compare, fit or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", action="append", type=Path, default=[], help="further rows, in JSON lines")
    parser.add_argument("--fit", action="store_true", help="print rates fitted to the sources that are not set aside")
    parser.add_argument("--sources", action="store_true", help="also a table by source")
    parser.add_argument("--write", action="store_true", help="keep the result")
    args = parser.parse_args()
    files = [*sorted((ROOT / "benchmarks" / "published").glob("*.jsonl")), *args.rows]
    planned = _plan_rows(read_rows(files))
    if args.fit:
        print(format_rates(fit_rates(samples_of(planned))))
        return 0
    text = _report(planned, files, args.sources)
    print(text)
    if args.write:
        _write(text)
    return 0


def _plan_rows(rows: list[dict[str, Any]]) -> list[PlannedRow]:
    """The plan of each row; the count so far goes to stderr after each 100 rows, because the plans take minutes."""
    planned = []
    for row in rows:
        planned.append(plan_row(row))
        if len(planned) % 100 == 0:
            print(f"{len(planned)} of {len(rows)} rows", file=sys.stderr, flush=True)
    return planned


def _report(planned: list[PlannedRow], files: list[Path], by_source: bool) -> str:
    comparisons = compare_rows(planned)
    left_out = Counter(row.why_not for row in planned if row.plan is None)
    sources = len({row.row["source"] for row in planned})
    lines = [
        f"{len(planned)} rows of {sources} sources; {len(planned) - left_out.total()} can be planned. Error factor:"
        " exp(|log(planned / measured)|).",
        "",
        *format_table(comparisons),
        "",
        format_widths(comparisons),
        "",
        *format_verdicts(planned),
        "",
        "## Offload: what the plan misses",
        "",
        *format_missed_rows(planned),
        "",
        "## Offload: each publication's CPU optimizer by all others",
        "",
        *format_host_rates(planned),
        "",
        "Rows without a plan: "
        + ("; ".join(f"{count} {why}" for why, count in left_out.most_common()) or "none")
        + ".",
        "Rows: " + ", ".join(f"`{file.name}` (sha256 {_digest(file)[:16]})" for file in files) + ".",
    ]
    if by_source:
        for source in sorted({each.source for each in comparisons}):
            lines += ["", f"## {source}", "", *format_table(comparisons, lambda name, s=source: name == s)]  # type: ignore[misc]
    return "\n".join(lines)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _write(text: str) -> None:
    result = ROOT / "benchmarks" / "results" / f"plan-published-{date.today()}.md"
    head = "# Plans beside published measurements\n\n`python benchmarks/plan_published.py --sources --write`\n\n"
    result.write_text(f"{head}{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
