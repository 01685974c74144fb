# SPDX-License-Identifier: Apache-2.0
"""Fuzz every reader of the harness.

Each case changes a file that is right and reads it by a command, in a forked child. A case fails that ends with an
exception or a signal, takes more than 2 s of CPU time, or whose memory grows by more than 500 MiB.

    python benchmarks/fuzz_readers.py [--minutes M | --cases N] [--reader NAME ...] [--seed S] [--write]
    python benchmarks/fuzz_readers.py --repeat FOLDER

The minutes are divided among the readers. A failed case is kept in `fuzz-failures/`, for `--repeat`. `--write` writes
the dated table in `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib
import io
import json
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fuzzing.case_runner import CaseResult, run_case
from benchmarks.fuzzing.readers import READERS, Reader, call_reader, draw_case

RESULTS = Path(__file__).parent / "results"
FAILURES = Path("fuzz-failures")
_IMPORTED = (
    "harness.cli.app",
    "harness.cli.validate_config",
    "harness.cli.plan",
    "harness.cli.adopt",
    "harness.cli.report",
    "harness.cli.checkpoint",
    "harness.cli.explain",
    "harness.cli.runs",
    "harness.cli.render",
    "harness.cli.launch",
    "harness.cli.preflight",
    "harness.cli.upgrade_check",
    "harness.views.report.page",
    "harness.diagnosis",
)
"""Imported once, before the children are forked."""


@dataclass
class ReaderScore:
    """What the cases of a reader did. `slowest_seconds`: CPU; `growth_bytes`: the largest."""

    reader: str
    cases: int = 0
    faults: dict[str, int] = field(default_factory=lambda: {"crash": 0, "hang": 0, "memory": 0})
    slowest_seconds: float = 0.0
    growth_bytes: int = 0

    def add(self, result: CaseResult) -> None:
        """Count one case."""
        self.cases += 1
        self.slowest_seconds = max(self.slowest_seconds, result.seconds)
        self.growth_bytes = max(self.growth_bytes, result.growth_bytes)
        if result.fault:
            self.faults[result.fault] += 1


def prepare_process() -> None:
    """Import what the children need, and make what they would make once each."""
    for module in _IMPORTED:
        importlib.import_module(module)
    from harness.diagnosis import diagnose

    diagnose([io.BytesIO(b"Error\n")])
    gc.freeze()


def fuzz_reader(reader: Reader, seed: str, *, seconds: float | None, cases: int | None) -> Iterator[CaseResult]:
    """Cases of one reader, until the time or the number is used up."""
    ends = None if seconds is None else time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        scratch = Path(temporary)
        index = 0
        while (ends is None or time.monotonic() < ends) and (cases is None or index < cases):
            name, content, command = draw_case(reader, random.Random(f"{seed}:{reader.name}:{index}"))  # noqa: S311
            folder = scratch / "case"
            result = _run_in_folder(reader, name, content, list(command), folder)
            if result.fault:
                _keep_case(reader, f"{seed}-{index}", name, content, list(command), result)
            index += 1
            yield result


def _run_in_folder(reader: Reader, name: str, content: bytes, command: list[str], folder: Path) -> CaseResult:
    folder.mkdir()
    try:
        reader.prepare(folder)
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return run_case(lambda: call_reader(name, command, folder), folder.parent, reader.hang_seconds)
    finally:
        shutil.rmtree(folder)


def _keep_case(reader: Reader, label: str, name: str, content: bytes, command: list[str], result: CaseResult) -> None:
    folder = FAILURES / f"{reader.name.replace(' ', '-')}-{label}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "content").write_bytes(content)
    facts = {"reader": reader.name, "name": name, "command": command, "fault": result.fault, "reason": result.reason}
    (folder / "case.json").write_text(json.dumps(facts, indent=1))
    (folder / "output.txt").write_text(result.output)


def repeat_case(folder: Path) -> CaseResult:
    """Run a case that was kept."""
    facts = json.loads((folder / "case.json").read_text())
    reader = next(reader for reader in READERS if reader.name == facts["reader"])
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        content = (folder / "content").read_bytes()
        return _run_in_folder(reader, facts["name"], content, facts["command"], Path(temporary) / "case")


def render_table(scores: list[ReaderScore], head: str) -> str:
    """The table of all readers."""
    rows = [head, "", "| Reader | Cases | Crashes | Hangs | Memory | Slowest, CPU s | Growth, MiB |"]
    rows.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for s in scores:
        faults = " | ".join(str(s.faults[kind]) for kind in ("crash", "hang", "memory"))
        rows.append(f"| {s.reader} | {s.cases:,} | {faults} | {s.slowest_seconds:.2f} | {s.growth_bytes / 2**20:.0f} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Fuzz, print the table, and perhaps write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cases", type=int, help="cases of each reader, instead of minutes")
    parser.add_argument("--reader", action="append", choices=[reader.name for reader in READERS])
    parser.add_argument("--seed", default="1")
    parser.add_argument("--repeat", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    prepare_process()
    if options.repeat:
        result = repeat_case(options.repeat)
        print(f"{result.fault or 'fine'}: {result.reason} ({result.seconds:.2f} s of CPU time)\n{result.output}")
        return 1 if result.fault else 0
    readers = [reader for reader in READERS if not options.reader or reader.name in options.reader]
    seconds = None if options.cases else options.minutes * 60 / len(readers)
    scores = []
    for reader in readers:
        if reader.name == "safetensors":
            importlib.import_module("harness.runtime.models.safetensors_reader")
        score = ReaderScore(reader.name)
        scores.append(score)
        for result in fuzz_reader(reader, options.seed, seconds=seconds, cases=options.cases):
            score.add(result)
        print(f"{reader.name}: {score.cases} cases, {score.faults}", file=sys.stderr, flush=True)
    amount = f"--cases {options.cases}" if options.cases else f"--minutes {options.minutes:g}"
    today = datetime.date.today()
    head = (
        f"# Fuzzing of every reader, {today}\n\n"
        f"`python benchmarks/fuzz_readers.py {amount} --seed {options.seed}`, Python {platform.python_version()}. "
        "A crash is an exception or a signal, a hang more than 2 s of CPU time, memory a growth of more than 500 MiB."
    )
    table = render_table(scores, head)
    print(table)
    if options.write:
        (RESULTS / f"fuzz-readers-{today}.md").write_text(table)
    return 1 if any(sum(score.faults.values()) for score in scores) else 0


if __name__ == "__main__":
    sys.exit(main())
