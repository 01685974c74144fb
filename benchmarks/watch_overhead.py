# SPDX-License-Identifier: Apache-2.0
"""The cost of `harness.watch`: two engines on two gloo ranks take their steps in turn, one of them watched.

    python benchmarks/watch_overhead.py [--steps 205] [--width 64] [--layers 48] [--write]

CPU time of this process, because wall time on a machine with other work says nothing; in percent of steps of 50 ms.
`--write` puts the table into `benchmarks/results/watch-overhead-DATE.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
STEP_S = 0.05
SAMPLED = (1, 2, 3, 4, 20, 200)
"""Steps at which ranks compare; 199 draws the sample of 200."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=205)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=48, help="linear layers; each has two parameters")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    from tests.support.training.forked_ranks import ForkedRanks

    forked = ForkedRanks()
    with tempfile.TemporaryDirectory(prefix="watch-overhead-") as folder:
        out, job = Path(folder) / "out.json", ROOT / "tests" / "training" / "jobs" / "watch_costs.py"
        sizes = [str(arguments.width), str(arguments.layers), str(arguments.steps)]
        forked.run(job, str(out), *sizes, timeout=900)
        report = json.loads(out.read_text(encoding="utf-8"))
    forked.close()
    extra = [watched - plain for plain, watched in report["cpu_seconds"]]
    ordinary = median(t for step, t in enumerate(extra, 1) if step not in (*SAMPLED, 199))
    sampled = {step: extra[step - 1] - ordinary for step in (*SAMPLED, 199) if step <= len(extra)}
    total = sum(sampled.values())
    percent = 100 * total / (200 * STEP_S)
    waits = sorted(map(int, report["calls"]))
    rows = [f"| {step} | {1e3 * t:.1f} ms |" for step, t in sorted(sampled.items())]
    lines = [
        "# The cost of `harness.watch`",
        "",
        f"`python benchmarks/watch_overhead.py`: {2 * arguments.layers} parameters, two gloo ranks on the CPU,"
        " CPU time of rank 0 beyond an engine without a watch, step by step in turn; the median of the other steps"
        f" ({1e6 * ordinary:+.0f} µs) is taken off as noise.",
        "",
        "| Step | More CPU time |",
        "| --- | --- |",
        *rows,
        f"| all of 200 | {1e3 * total:.0f} ms, {percent:.1f} % of 200 steps of 50 ms |",
        "",
        f"Steps that wait more often for a device or for other ranks: {', '.join(map(str, waits))}.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        file = ROOT / "benchmarks" / "results" / f"watch-overhead-{datetime.now(UTC):%Y-%m-%d}.md"
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
