# SPDX-License-Identifier: Apache-2.0
"""Cases of a large table that run at each push: faults x cases, and the fewest cases that see every fault.

    python -m benchmarks.tests_by_day conformance --file answers.jsonl
    python -m benchmarks.tests_by_day counts --file counts.json

`conformance`: the 150 configurations of `tests/conformance`; faults are each gate switched off, each error made a
warning and each warning an error, and drawn mutants of the gates. `counts`: the cases of
`tests/training/plan/test_plan_counts.py`; faults are drawn mutants of the planner's memory. DeepSpeed is asked once:
its answers go to `--file`. One case of each kind is chosen too, such as a ZeRO stage with an optimizer. The table is
written to benchmarks/results, the names of the chosen cases to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.code_mutants import count_mutants, install

ROOT = Path(__file__).resolve().parents[1]
MUTATED = {
    "conformance": ("harness/gates/rules",),
    "counts": (
        "harness/plan/memory/model_states.py",
        "harness/plan/memory/model_states_zero3.py",
        "harness/plan/memory/zero_partitions.py",
        "harness/plan/weights/trainable_split.py",
        "harness/plan/weights/optimizer_states.py",
    ),
}
SEED = 54
Killers = dict[str, list[str]]
"""Fault -> the names of the cases that see it."""


def main() -> int:
    """Measure, choose, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=sorted(MUTATED))
    parser.add_argument("--file", type=Path, required=True, help="DeepSpeed's answers, made where they are not there")
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--one", nargs=2, metavar=("FILE", "NUMBER"), help="print which cases see this mutant alone")
    options = parser.parse_args()
    os.environ["HARNESS_NIGHTLY"] = "1"  # the modules of the tests then have all cases
    table = TABLES[options.table]
    if options.one:
        words = install(ROOT / options.one[0], int(options.one[1]))
        print(json.dumps([words, sorted(table(options.file))]))
        return 0
    failing = table(options.file)
    if failing:
        print(f"these fail without a fault: {sorted(failing)}", file=sys.stderr)
        return 1
    found = _findings_changed(options.file) if options.table == "conformance" else {}
    found |= _mutants(options.table, options.file, options.mutants)
    chosen = _cover(found, _counted_by_day()) if options.table == "counts" else _cover(found | _kinds())
    _write(options.table, found, chosen)
    print(" ".join(chosen))
    return 0


def _conformance(file: Path) -> set[str]:
    """The cases on which the gates and DeepSpeed do not agree, by DeepSpeed's answers in the file."""
    from tests.conformance import report
    from tests.conformance.__main__ import SEED as DRAWN
    from tests.conformance.draw import draw
    from tests.conformance.judge import Judge, Memory
    from tests.conformance.outcome import judged
    from tests.conformance.test_against_deepspeed import CASES

    judge: Any = _Nobody() if file.exists() else Judge()
    memory, failed = Memory(judge, file), set()
    for number in range(CASES):
        try:
            if judged(draw(DRAWN, number), memory).kind in report.SHOWN:
                failed.add(str(number))
        except LookupError:  # a fault that changes what DeepSpeed is given: not judged here
            continue
    judge.close()
    return failed


class _Nobody:
    """Answers no job that is not in the file."""

    def run(self, _: Any) -> Any:
        raise LookupError

    def close(self) -> None:
        """Nothing was started."""


def _counts(file: Path) -> set[str]:
    """The cases whose rows are not what the engines held, by the counts in the file."""
    from tests.support.training.forked_ranks import ForkedRanks
    from tests.training.plan import test_plan_counts as counted

    if not file.exists():
        ranks = ForkedRanks()
        with tempfile.TemporaryDirectory() as folder:
            file.write_text(json.dumps(counted.count_states(ranks, Path(folder), range(len(counted.CASES)))))
        ranks.close()
    counts = {int(index): value for index, value in json.loads(file.read_text()).items()}
    tests: list[tuple[Callable[[int, Any], None], Iterable[int]]] = [
        (counted.test_every_kind_is_predicted_to_the_byte, counts),
        (counted.test_nothing_else_is_held_between_steps, counted.TOLD_APART),
    ]
    failed = set()
    for test, indices in tests:
        for index in indices:
            try:
                test(index, counts)
            except Exception:  # a mutant may do anything
                failed.add(counted.IDS[index])
    return failed


TABLES = {"conformance": _conformance, "counts": _counts}


def _kinds() -> Killers:
    """Feature, family of faults, form and number of ranks -> the cases that have it: one of each runs by day."""
    from tests.conformance.__main__ import SEED as DRAWN
    from tests.conformance.draw import draw
    from tests.conformance.test_against_deepspeed import CASES

    found: Killers = {}
    for number in range(CASES):
        case = draw(DRAWN, number)
        families = {fault.partition(":")[0] for fault in case.faults}
        for kind in {*case.features, *families, case.form, f"{case.world} ranks"}:
            found.setdefault(kind, []).append(str(number))
    return found


def _counted_by_day() -> list[str]:
    from tests.support.training.plan_grid import cases_by_day

    return sorted(cases_by_day())


def _findings_changed(file: Path) -> Killers:
    """Each gate that the sample meets switched off, and its severity turned round."""
    from tests.conformance import ours
    from tests.conformance.__main__ import SEED as DRAWN
    from tests.conformance.draw import draw
    from tests.conformance.test_against_deepspeed import CASES

    verdicts = {case.id: ours.verdict(case) for case in (draw(DRAWN, n) for n in range(CASES))}
    turned = {"error": "warning", "warning": "error"}
    said = {(gate, severity) for verdict in verdicts.values() for gate, severity, _ in verdict.findings}
    found: Killers = {}
    for gate, severity in sorted(pair for pair in said if pair[1] in turned):
        for fault, becomes in ((f"{gate} is off", None), (f"{gate} is a {turned[severity]}", turned[severity])):

            def changed(case: Any, _: str, gate: str = gate, to: str | None = becomes) -> Any:
                verdict = verdicts[case.id]
                kept = [(g, to if g == gate and to else s, text) for g, s, text in verdict.findings if g != gate or to]
                return replace(verdict, findings=tuple(kept))

            with mock.patch.object(ours, "verdict", changed):
                found[fault] = sorted(_conformance(file), key=int)
    return found


def _mutants(table: str, file: Path, count: int) -> Killers:
    """Drawn mutants, a process each: a module is imported once."""
    rooms = [ROOT / name for name in MUTATED[table]]
    files = [path for room in rooms for path in ([room] if room.suffix else sorted(room.rglob("*.py")))]
    every = [(path, n) for path in files for n in range(count_mutants(path.read_text(encoding="utf-8")))]

    def run(mutant: tuple[Path, int]) -> tuple[str, list[str]]:
        name = str(mutant[0].relative_to(ROOT))
        command = [sys.executable, "-m", "benchmarks.tests_by_day", table, "--file", str(file)]
        done = subprocess.run(
            [*command, "--one", name, str(mutant[1])], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"{name} mutant {mutant[1]}", ["every test: it does not load"]
        words, killers = json.loads(done.stdout.splitlines()[-1])
        return f"{name} {words}", killers

    drawn = random.Random(SEED).sample(every, min(count, len(every)))  # noqa: S311
    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(run, drawn))


def _cover(found: Killers, start: Iterable[str] = ()) -> list[str]:
    """The fewest cases beside those of `start`, found greedily, of which one sees every fault that any case sees."""
    chosen = list(start)
    left = {fault: set(cases) for fault, cases in found.items() if cases and not set(cases) & set(chosen)}
    while left:
        every = sorted(set().union(*left.values()))
        best = max(every, key=lambda case: sum(case in cases for cases in left.values()))
        chosen.append(best)
        left = {fault: cases for fault, cases in left.items() if best not in cases}
    return sorted(chosen, key=lambda name: (len(name), name))


def _write(table: str, found: Killers, chosen: list[str]) -> None:
    seen = {fault: cases for fault, cases in found.items() if cases}
    lines = [
        f"# Faults that the cases of `{table}` see, {date.today()}",
        "",
        f"`python -m benchmarks.tests_by_day {table}`: {len(found)} faults, of which the whole table sees {len(seen)};"
        f" {len(chosen)} cases see all of these and have one of each kind.",
        "",
        "| fault | cases that see it | by day |",
        "|---|---|---|",
    ]
    for fault, cases in found.items():
        by_day = [case for case in cases if case in chosen]
        text = f"{len(cases)}: {', '.join(cases[:4])}{' ...' if len(cases) > 4 else ''}" if cases else "none"
        lines.append(f"| {fault.replace('|', '/')} | {text} | {', '.join(by_day[:3]) or '-'} |")
    name = f"tests-by-day-{table}-{date.today()}.md"
    (ROOT / "benchmarks" / "results" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
