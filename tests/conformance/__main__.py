# SPDX-License-Identifier: Apache-2.0
"""The suite by hand: `python -m tests.conformance --cases 500 --seed 1`. Exit code 1 when anything disagrees.

Progress and the time that is left go to stderr; `--write` puts the report into benchmarks/results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path

from . import pages, report
from .case import Case, file_text
from .draw import draw
from .judge import ROOT, Judge, Memory
from .outcome import Outcome, judged

SEED = 1
SAMPLE = 150


def main() -> int:
    args = _arguments()
    cases = chosen(args)
    if args.list:
        for case in cases:
            print(case.id, case.form, case.world, "; ".join(case.faults) or "good", case.features)
        return 0
    if args.show:
        for case in cases:
            print(f"# {case.id}: {'; '.join(case.faults) or 'good'}; {case.world} ranks", file_text(case)[1], sep="\n")
        return 0
    outcomes, versions = run(cases, args)
    about = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seed": args.seed,
        "deepspeed": "0.19.8",
        **{k: versions[k] for k in ("torch", "transformers") if k in versions},
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "minutes of DeepSpeed": round(sum(o.seconds for o in outcomes) / 60, 1),
    }
    text = report.markdown(outcomes, about)
    if args.write:
        name = f"conformance-{about['date']}"
        folder = ROOT / "benchmarks" / "results"
        (folder / f"{name}.md").write_text(text)
        (folder / f"{name}.json").write_text(report.as_json(outcomes, about))
        print(f"written: {folder / name}.md and .json", file=sys.stderr)
    else:
        print(text)
    return 1 if any(o.kind in report.SHOWN for o in outcomes) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--cases", type=int, default=SAMPLE, help="how many are drawn (default %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--only", action="append", default=[], metavar="ID", help="these alone: `1-00007`, `OF001-example`"
    )
    parser.add_argument(
        "--faults", default="", metavar="TEXT", help="only those whose fault contains the text, such as `OF:`"
    )
    parser.add_argument("--pages", action="store_true", help="also every gate's Example and Use instead")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="append results here, and leave out what is in it")
    parser.add_argument(
        "--answers", type=Path, metavar="FILE", help="keep DeepSpeed's answers here, and use them again"
    )
    parser.add_argument("--write", action="store_true", help="put the report into benchmarks/results")
    parser.add_argument("--list", action="store_true", help="name the cases and run nothing")
    parser.add_argument("--show", action="store_true", help="print the files of the cases and run nothing")
    parser.add_argument("--log", type=Path, metavar="FILE", help="what the server says")
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[Case]:
    """The cases that the options name, in order."""
    cases: list[Case] = []
    if args.only:
        for name in args.only:
            seed, _, number = name.partition("-")
            cases += [draw(int(seed), int(number))] if seed.isdigit() else pages.named(name)
        return cases
    cases = [draw(args.seed, n) for n in range(args.first, args.first + args.cases)]
    if args.pages:
        cases += pages.cases()
    return [c for c in cases if args.faults in "; ".join(c.faults)]


def run(cases: list[Case], args: argparse.Namespace) -> tuple[list[Outcome], dict[str, str]]:
    """Judge each case; one line each on stderr."""
    done: dict[str, Outcome] = {}
    if args.resume and args.resume.exists():
        lines = args.resume.read_text().splitlines()
        done = {o.case.id: o for o in (Outcome.of(json.loads(text)) for text in lines)}
    began, made, counts = time.monotonic(), 0, Counter(o.kind for o in done.values())
    with Judge(args.log) as judge:
        asked = Memory(judge, args.answers) if args.answers else judge
        for number, case in enumerate(cases):
            if case.id in done:
                continue
            outcome = done[case.id] = judged(case, asked)
            made += 1
            counts[outcome.kind] += 1
            if args.resume:
                with args.resume.open("a") as file:
                    file.write(json.dumps(outcome.to_json()) + "\n")
            left = (time.monotonic() - began) / made * (len(cases) - number - 1) / 60
            print(
                f"[{number + 1}/{len(cases)} {left:.0f} min left] {report.line(outcome)}", file=sys.stderr, flush=True
            )
        versions = judge.versions
    print(dict(counts), file=sys.stderr)
    return [done[c.id] for c in cases if c.id in done], versions


if __name__ == "__main__":
    sys.exit(main())
