# SPDX-License-Identifier: Apache-2.0
"""The CPU time of `harness validate-config` on one file and on a thousand.

Whole processes, user and system time as the kernel counts them (wait4), alternating, so that a busy machine hits all
alike; bare Python and the imports of typer, pydantic and DeepSpeed beside it, because machines differ by more than
commands do. Writes nothing without --write.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AIM_SECONDS = 0.35
AIM_MANY_SECONDS = 5.0
MANY = 1000
PEERS = {
    "accelerate reads the JSON": (
        "import sys; from accelerate.utils import DeepSpeedPlugin as P; P(hf_ds_config=sys.argv[1])"
    ),
    "Trainer reads the JSON": (
        "import sys, tempfile; from transformers import TrainingArguments as A;"
        "A(output_dir=tempfile.mkdtemp(), deepspeed=sys.argv[1], use_cpu=True)"
    ),
}
"""Checks of a DeepSpeed JSON by other tools before a job begins. They find less, and take longer."""
# Users have compiled bytecode from the second start on; a shell that forbids writing it would measure the compiler.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


@dataclass
class Case:
    """One command and the CPU and wall seconds of each of its runs."""

    name: str
    command: list[str]
    repeats: int
    codes: tuple[int, ...] = (0,)
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def run(self) -> None:
        began = time.perf_counter()
        child = subprocess.Popen(
            self.command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.wall.append(time.perf_counter() - began)
        self.cpu.append(usage.ru_utime + usage.ru_stime)
        if child.returncode not in self.codes:
            raise SystemExit(f"{' '.join(self.command)} ended with code {child.returncode}")


def make_many(spec: str, folder: Path) -> str:
    """A thousand files in a folder: run specs and the DeepSpeed JSONs of all recipes, every tenth with a mistake."""
    recipes = [
        ROOT / spec,
        *sorted((ROOT / "ds_configs").glob("*.json")),
        *sorted((ROOT / "ds_configs").glob("*.yaml")),
    ]
    for number in range(MANY):
        recipe = recipes[number % len(recipes)]
        text = recipe.read_text(encoding="utf-8")
        text = text.replace("stage", "stagee") if number % 10 == 0 else text
        (folder / f"{number:04d}-{recipe.name}").write_text(text, encoding="utf-8")
    return str(folder)


def cases(spec: str, many: str, repeats: int) -> list[Case]:
    """The commands to compare; DeepSpeed only where it is installed, and less often because it takes seconds."""
    program = [str(Path(sys.executable).parent / "harness")]
    if not Path(program[0]).exists():
        program = [sys.executable, "-m", "harness"]
    found = [
        Case("python -c pass", [sys.executable, "-c", "pass"], repeats),
        Case("python -c 'import typer'", [sys.executable, "-c", "import typer"], repeats),
        Case("python -c 'import pydantic'", [sys.executable, "-c", "import pydantic"], repeats),
        Case(f"harness validate-config {spec}", [*program, "validate-config", spec], repeats),
        Case(f"harness validate-config FOLDER ({MANY:,} files)", [*program, "validate-config", many], 3, (0, 1)),
    ]
    if find_spec("deepspeed") is not None:
        slow = max(2, repeats // 5)
        found.append(Case("python -c 'import deepspeed'", [sys.executable, "-c", "import deepspeed"], slow))
        config = str((ROOT / spec).with_suffix(".json"))
        for name, code in PEERS.items():
            found.append(Case(name, [sys.executable, "-c", code, config], slow))
    return found


def measure(rows: list[Case]) -> None:
    """Round by round, each case in turn; the first round only warms the disk cache."""
    for row in rows:
        row.run()
        row.cpu.clear()
        row.wall.clear()
    for number in range(max(row.repeats for row in rows)):
        for row in rows:
            if number < row.repeats:
                row.run()


def table(rows: list[Case]) -> str:
    """A Markdown table, seconds."""
    bare = min(rows[0].cpu)
    lines = ["| Command | CPU min | CPU median | wall median | of bare Python | runs |", "| --- |" + " ---: |" * 5]
    for row in rows:
        seconds = (min(row.cpu), statistics.median(row.cpu), statistics.median(row.wall))
        cells = [f"`{row.name}`", *(f"{s:.3f}" for s in seconds), f"{min(row.cpu) / bare:.1f}", str(len(row.cpu))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", default="ds_configs/demo.yaml", help="what is validated")
    parser.add_argument("--repeats", type=int, default=15, help="runs of each fast command")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/startup-DATE.md, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = cases(arguments.spec, make_many(arguments.spec, Path(folder)), max(3, arguments.repeats))
        measure(rows)
    one, many = min(rows[3].cpu), min(rows[4].cpu)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    text = f"{table(rows)}\n\nCPU seconds of whole processes; {machine}.\n"
    text += f"One file takes {one:.3f} s at best, the aim is under {AIM_SECONDS} s; "
    text += f"{MANY:,} files take {many:.1f} s, the aim is under {AIM_MANY_SECONDS:.0f} s.\n"
    print(text, end="")
    if arguments.write:
        file = ROOT / "benchmarks" / "results" / f"startup-{date.today().isoformat()}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# Start-up time, {date.today().isoformat()}\n\n{text}", encoding="utf-8")
        print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
