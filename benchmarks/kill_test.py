# SPDX-License-Identifier: Apache-2.0
"""Does a run that is killed again and again end as one that nobody touched?

Runs on 2 or 4 ranks are killed with SIGKILL at random moments (one rank, all ranks, DeepSpeed's launcher, its runner,
the harness, everything at once), many of them while a checkpoint is being written. Each start goes on from the newest
complete checkpoint of the last. In the end every step's loss and the final state must be those of the undisturbed run,
bit for bit; every folder with a checkpoint's name must be whole, and no process and no shared memory may be left.
Writes nothing without --write. Ends with 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.launching.hosts.local_host import find_free_port  # noqa: E402
from tests.kill import chain  # noqa: E402
from tests.kill.attempt import Report  # noqa: E402
from tests.kill.spec import LAYOUTS  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--launched", type=int, help="kills under the real launcher (default: four of ten)")
    parser.add_argument("--steps", type=int, default=60, help="length of the training")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--cases", nargs="+", choices=sorted(LAYOUTS), default=sorted(LAYOUTS))
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/kill-test-DATE.{md,json}")
    asked = parser.parse_args()
    launched = asked.kills * 2 // 5 if asked.launched is None else asked.launched
    kills = chain.draw(asked.kills, launched, asked.seed)
    with tempfile.TemporaryDirectory(prefix="kill-test-") as folder:
        plan = chain.Plan(kills, asked.steps, asked.cases, find_free_port(), asked.seed)
        result = chain.run(plan, Path(folder), lambda text: print(text, file=sys.stderr, flush=True))
    text = page(result, asked.seed, asked.steps, asked.cases)
    print(text)
    if asked.write:
        target = ROOT / "benchmarks" / "results" / f"kill-test-{date.today().isoformat()}.md"
        target.write_text(text)
        body = {"seed": asked.seed, "steps": asked.steps, "chains": result.chains, "wrong": result.wrong}
        starts = [report.to_json() for report in result.reports]
        target.with_suffix(".json").write_text(json.dumps({**body, "starts": starts}, indent=1) + "\n")
    return 1 if result.wrong or len(result.killed) < asked.kills else 0


def page(result: chain.Result, seed: int, steps: int, cases: Sequence[str]) -> str:
    """The figures as Markdown."""
    killed = result.killed
    resumed = sum(bool(report.resumed_from) for report in result.reports)
    well = (
        "- wrong: nothing. Each loss and the final state are those of the undisturbed run to the last bit; no torn "
        "checkpoint had its final name; no process and no buffer was left"
    )
    lines = [
        f"# Kill test, {date.today().isoformat()}",
        "",
        f"{len(killed)} kills with SIGKILL in {result.chains} chains of {steps} steps ({', '.join(cases)}), a "
        f"checkpoint at each step, seed {seed}; {result.seconds:.0f} s on {platform.machine()}.",
        "",
        "| Killed | Under the real launcher | Forked ranks | While a checkpoint was being written |",
        "| --- | ---: | ---: | ---: |",
        *_rows(killed),
        "",
        f"- starts: {len(result.reports)}, of which {resumed} went on from the newest complete checkpoint, verified "
        "byte by byte, and the rest had none yet",
        f"- steps trained and compared, lost ones again: {sum(len(r.steps) for r in result.reports)}",
        f"- wrong: {len(result.wrong)}" if result.wrong else well,
        *(f"  - {text}" for text in result.wrong),
    ]
    return "\n".join(lines) + "\n"


def _rows(killed: Sequence[Report]) -> list[str]:
    def counts(forked: bool) -> Counter[str]:
        return Counter(r.kill.target for r in killed if r.kill and r.kill.forked is forked)

    real, forked = counts(False), counts(True)
    saving = Counter(r.kill.target for r in killed if r.kill and r.mid_save)
    names = sorted({*real, *forked})
    rows = [f"| {name} | {real[name]} | {forked[name]} | {saving[name]} |" for name in names]
    return [*rows, f"| all | {real.total()} | {forked.total()} | {saving.total()} |"]


if __name__ == "__main__":
    sys.exit(main())
