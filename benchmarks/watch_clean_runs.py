# SPDX-License-Identifier: Apache-2.0
"""`harness.watch` and `HarnessCallback` over trainings in which nothing is wrong: how many false alarms?

    python benchmarks/watch_clean_runs.py [RELEASE ...] [--only TEXT] [--write]

Each release is put into a folder of its own by pip, without what it depends on. The trainings of a release run
one after the other on two gloo ranks: a bare loop, accelerate and the Trainer over stages, accumulation, clipping,
bf16, an optimizer on the CPU and tied weights. A release is not asked for what it computes wrongly, as the gates say.
`--write` puts the table into `benchmarks/results/watch-clean-runs-DATE.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "tests" / "training" / "jobs" / "watch_many.py"
RELEASES = ("0.16.9", "0.18.2", "0.18.5", "0.19.3", "0.19.8")
PROGRAMS = ("bare", "accelerate", "trainer")
LOSES_MICRO_BATCHES = ("0.18.2",)
"""Of these releases: ZeRO-2 with accumulation, and accumulation under an offloaded optimizer (gates ZR040, OF029)."""
sys.path.insert(0, str(ROOT))


def cases_of(release: str) -> list[dict[str, Any]]:
    """Every stage with accumulation 1 and 2 in every program, and one with each other setting."""
    cases = [{"program": p, "stage": s, "parts": n} for p, s, n in product(PROGRAMS, range(4), (1, 2))]
    for number, (program, more) in enumerate(product(PROGRAMS, ({"clip": 0.1}, {"tied": True}, {"format": "bf16"}))):
        cases.append({"program": program, "stage": 1 + number % 3, "parts": 2, **more})
    cases.append({"program": "bare", "stage": 1, "parts": 1, "offload": True, "clip": 0.1})
    cases.append({"program": "bare", "stage": 3, "parts": 1, "offload": True})
    wrong = release in LOSES_MICRO_BATCHES
    return [c | {"steps": 8} for c in cases if not (wrong and c["stage"] == 2 and c["parts"] == 2)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES, help="such as 0.18.2; the installed one needs no pip")
    parser.add_argument("--only", default="", help="cases whose settings have this in them, such as `trainer`")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    from tests.releases.rank_job import run_job

    rows, alarms = [], []
    for release in arguments.releases:
        cases = [case for case in cases_of(release) if arguments.only in json.dumps(case)]
        begin = time.monotonic()
        ranks = run_job(JOB, cases, release, has_harness=True)["ranks"]
        seconds = time.monotonic() - begin
        found = [describe(release, case, outcomes) for case, *outcomes in zip(cases, *ranks, strict=True)]
        alarms += [text for text in found if text]
        states = [claim["state"] for outcome in ranks[0] if outcome["file"] for claim in outcome["file"]["claims"]]
        compared = sum(len(o["file"]["gradient_witness"]["steps"]) for o in ranks[0] if o["file"])
        numbers = (len(cases), sum(map(bool, found)), states.count("holds"), states.count("skipped"), compared)
        rows.append(f"| {release} | " + " | ".join(map(str, numbers)) + f" | {seconds:.0f} s |")
        print(rows[-1], *filter(None, found), sep="\n", flush=True)
    text = page(rows, alarms, arguments)
    print(text)
    if arguments.write:
        file = ROOT / "benchmarks" / "results" / f"watch-clean-runs-{datetime.now(UTC):%Y-%m-%d}.md"
        file.write_text(text, encoding="utf-8")
    return int(bool(alarms))


def describe(release: str, case: dict[str, Any], outcomes: list[dict[str, Any]]) -> str:
    """Empty for a run that ended as it should, with every comparison made."""
    problems = []
    for rank, outcome in enumerate(outcomes):
        lines = [line for line in outcome["said"].splitlines() if line.startswith("harness.watch on rank")]
        problems += [f"rank {rank}: {line}" for line in lines]
        if outcome["error"] or outcome["ids"]:
            problems.append(f"rank {rank}: {outcome['error'].strip()[-700:]}")
    file = outcomes[0]["file"]
    if file and (file["gradient_witness"]["fault"] or file["gradient_witness"]["steps"][:3] != [1, 2, 3]):
        problems.append(str(file["gradient_witness"]))
    return f"{release} {json.dumps(case)}: " + " / ".join(problems) if problems else ""


def page(rows: list[str], alarms: list[str], arguments: argparse.Namespace) -> str:
    """Markdown: a row a release."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "accelerate"))
    lines = [
        "# Clean trainings under `harness.watch`",
        "",
        f"`python benchmarks/watch_clean_runs.py {' '.join(arguments.releases)}`: {versions}; two gloo ranks on the CPU"
        " accelerator, 8 steps a training. `Alarms`: trainings with a difference, a line about an error of ours, or a"
        " comparison that was not made. `Gradients`: steps whose gradient and update were compared.",
        "",
        "| DeepSpeed | Trainings | Alarms | Checks that hold | Skipped | Gradients | Time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        *(["", *(f"- {alarm}" for alarm in alarms)] if alarms else []),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
