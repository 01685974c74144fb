# SPDX-License-Identifier: Apache-2.0
"""Is the harness right on a GPU? Three parts of at most nine minutes each, on a machine with one GPU and no network.

    python benchmarks/gpu_acceptance.py --part 1 [--output FOLDER] [--only CHECK] [--from CHECK] [--minutes 9]
    python benchmarks/gpu_acceptance.py --rehearse [--shared]

Part 1: the device is used, weights are those of plain DeepSpeed although streams are held back, memory and gathers are
as planned. Part 2: kernels, host synchronisations, telemetry, saves, kills, resume. Part 3: a real size against bare
DeepSpeed, rates of the machine. A JSON line for each check goes to stdout and `part-N.jsonl`; the table comes last, in
`part-N.txt` too. Exit code 1: a check failed, or none passed. `--rehearse` runs all checks at toy size on the CPU and
says what that leaves open.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_checks.check import Check  # noqa: E402
from benchmarks.gpu_checks.check_list import CHECKS  # noqa: E402
from benchmarks.gpu_checks.check_runner import Log, Outcome, Session, render_table, run_checks  # noqa: E402
from benchmarks.gpu_checks.checks.wire_probe import choose_wire  # noqa: E402
from benchmarks.gpu_checks.device_problem import find_device_problem  # noqa: E402
from benchmarks.gpu_checks.machine_facts import read_facts  # noqa: E402
from benchmarks.gpu_checks.rank_processes import ForkedStart, start_ranks  # noqa: E402

MINUTES = 9.0
STATES = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
PARTS = (1, 2, 3)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=int, choices=PARTS, help="all of them where it is left out")
    parser.add_argument("--only", action="append", metavar="CHECK", choices=[check.name for check in CHECKS])
    parser.add_argument("--from", dest="first", metavar="CHECK", choices=[check.name for check in CHECKS])
    parser.add_argument("--minutes", type=float, default=MINUTES, help="a part starts no check that takes longer")
    parser.add_argument("--output", type=Path, help="folder of the result files; default: a temporary one")
    parser.add_argument("--rehearse", action="store_true", help="toy sizes on the CPU")
    parser.add_argument("--shared", action="store_true", help="with --rehearse: fork the processes of checks from one")
    parser.add_argument("--wire", choices=("auto", "gloo", "nccl"), default="auto", help="between ranks on one GPU")
    parser.add_argument("--break", dest="faults", action="append", default=[], help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.shared and not asked.rehearse:
        parser.error("--shared needs --rehearse: CUDA does not survive a fork")
    if asked.rehearse and asked.wire == "nccl":
        parser.error("--wire nccl needs a GPU: ranks of a rehearsal use gloo")
    parts = {part: choose_checks(part, asked.only, asked.first) for part in ([asked.part] if asked.part else PARTS)}
    parts = {part: checks for part, checks in parts.items() if checks}
    if not parts:
        parser.error(f"part {asked.part} has none of these checks: it has {', '.join(names_of_part(asked.part))}")
    output = asked.output or Path(tempfile.mkdtemp(prefix="gpu-acceptance-"))
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output: {error}")
    if asked.rehearse:
        os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    forked = ForkedStart() if asked.shared else None
    code = 0
    try:
        for part, checks in parts.items():
            deadline = time.monotonic() + 60 * asked.minutes
            problem = "" if asked.rehearse else find_device_problem()
            wire = "gloo" if asked.rehearse or problem else find_wire(asked.wire, checks)
            session = Session(forked or start_ranks, asked.rehearse, deadline, wire, asked.faults)
            code |= int(not run_part(part, checks, session, output, problem))
            if problem:
                break
    except KeyboardInterrupt:
        code = 130
    finally:
        if forked is not None:
            forked.close()
    print(f"files: {output}", file=sys.stderr)
    return code


def names_of_part(part: int | None) -> list[str]:
    """The names of a part's checks; of all without one."""
    return [check.name for check in CHECKS if part in (None, check.part)]


def choose_checks(part: int, only: list[str] | None, first: str | None) -> list[Check]:
    """The checks of a part, in order."""
    names = [check.name for check in CHECKS]
    later = names[names.index(first) if first else 0 :]
    return [c for c in CHECKS if c.part == part and c.name in later and (not only or c.name in only)]


def find_wire(asked: str, checks: list[Check]) -> str:
    """What carries the tensors of two ranks on this GPU; tried out where nobody asked for one."""
    if asked != "auto":
        return asked
    if not any(check.ranks > 1 for check in checks):
        return "gloo"
    print("wire: tries NCCL between two ranks on one GPU", file=sys.stderr, flush=True)
    return choose_wire(start_ranks)


def run_part(part: int, checks: list[Check], session: Session, output: Path, problem: str = "") -> bool:
    """True if checks passed and none failed. With a `problem` of the machine none is started."""
    began = time.monotonic()
    log = Log(output / f"part-{part}.jsonl")
    facts = {**read_facts(rehearse=session.rehearse, part=part), "wire": session.wire}
    first = Outcome("facts", "FAIL" if problem else "PASS", time.monotonic() - began, facts, problem)
    log.write_line(first)
    outcomes = [first] if problem else []
    for outcome in () if problem else run_checks(checks, session):
        log.write_line(outcome)
        outcomes.append(outcome)
    log.close()
    counts = Counter(outcome.state for outcome in outcomes)
    words = ", ".join(f"{counts[state]} {word}" for state, word in STATES.items() if counts[state])
    table = f"{render_table(outcomes)}part {part}: {words}, {time.monotonic() - began:.0f} s\n"
    (output / f"part-{part}.txt").write_text(table, encoding="utf-8")
    print(table, end="", flush=True)
    return counts["PASS"] > 0 and not counts["FAIL"]


if __name__ == "__main__":
    sys.exit(main())
