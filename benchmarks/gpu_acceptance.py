# SPDX-License-Identifier: Apache-2.0
"""Is the harness right on a GPU? Three parts of at most nine minutes each, on a machine with one GPU and no network.

    python benchmarks/gpu_acceptance.py --part 1 [--output FOLDER] [--only CHECK] [--from CHECK] [--minutes 9]
    python benchmarks/gpu_acceptance.py --rehearse [--shared]

Part 1: the device is used, weights are those of plain DeepSpeed although streams are held back, memory and gathers are
as planned. Part 2: kernels, host synchronisations, telemetry, saves, kills, resume. Part 3: a real size against bare
DeepSpeed, rates of the machine. A JSON line for each check goes to stdout and `part-N.jsonl`; the table comes last, in
`part-N.txt` too. Exit code 1: a check failed. `--rehearse` runs all checks at toy size on the CPU and says what that
leaves open.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_checks.check import Check  # noqa: E402
from benchmarks.gpu_checks.check_list import CHECKS  # noqa: E402
from benchmarks.gpu_checks.check_runner import Log, Outcome, Session, render_table, run_checks  # noqa: E402
from benchmarks.gpu_checks.checks.wire_probe import choose_wire  # noqa: E402
from benchmarks.gpu_checks.machine_facts import read_facts  # noqa: E402
from benchmarks.gpu_checks.rank_processes import ForkedStart, start_ranks  # noqa: E402

MINUTES = 9.0
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
    output = asked.output or Path(tempfile.mkdtemp(prefix="gpu-acceptance-"))
    output.mkdir(parents=True, exist_ok=True)
    if asked.rehearse:
        os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    forked = ForkedStart() if asked.shared else None
    try:
        failed = False
        for part in [asked.part] if asked.part else PARTS:
            checks = choose_checks(part, asked.only, asked.first)
            deadline = time.monotonic() + 60 * asked.minutes
            if checks:
                wire = find_wire(asked.wire, checks) if not asked.rehearse else "gloo"
                session = Session(forked or start_ranks, asked.rehearse, deadline, wire, asked.faults)
                failed |= run_part(part, checks, session, output)
    finally:
        if forked is not None:
            forked.close()
    print(f"files: {output}", file=sys.stderr)
    return int(failed)


def choose_checks(part: int, only: list[str] | None, first: str | None) -> list[Check]:
    """The checks of a part, in order."""
    names = [check.name for check in CHECKS]
    later = names[names.index(first) if first else 0 :]
    return [c for c in CHECKS if c.part == part and c.name in later and (not only or c.name in only)]


def find_wire(asked: str, checks: list[Check]) -> str:
    """What carries the tensors of two ranks on this GPU; tried out where nobody asked for one."""
    if asked == "auto":
        return choose_wire(start_ranks) if any(check.ranks > 1 for check in checks) else "gloo"
    return asked


def run_part(part: int, checks: list[Check], session: Session, output: Path) -> bool:
    """Did a check fail?"""
    began = time.monotonic()
    log = Log(output / f"part-{part}.jsonl")
    facts = {**read_facts(rehearse=session.rehearse, part=part), "wire": session.wire}
    outcomes = [Outcome("facts", "PASS", time.monotonic() - began, facts)]
    log.write_line(outcomes[0])
    for outcome in run_checks(checks, session):
        log.write_line(outcome)
        outcomes.append(outcome)
    log.close()
    table = render_table(outcomes[1:])
    (output / f"part-{part}.txt").write_text(table, encoding="utf-8")
    print(table, end="", flush=True)
    return any(outcome.state == "FAIL" for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
