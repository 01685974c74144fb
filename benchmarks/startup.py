"""How much CPU time does `harness validate-config` take before and while it checks a spec, against `import deepspeed`?

Whole processes, user and system time as the kernel counts them (wait4), alternating, so that a busy machine hits all
alike. Writes nothing without --write.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import date
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AIM_SECONDS = 0.2
# Users have compiled bytecode from the second start on; a shell that forbids writing it would measure the compiler.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


@dataclass
class Case:
    """One command and the CPU and wall seconds of each of its runs."""

    name: str
    command: list[str]
    repeats: int
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
        if child.returncode:
            raise SystemExit(f"{' '.join(self.command)} ended with code {child.returncode}")


def cases(spec: str, repeats: int) -> list[Case]:
    """What is compared; DeepSpeed only where it is installed, and less often because it takes seconds."""
    program = [str(Path(sys.executable).parent / "harness")]
    if not Path(program[0]).exists():
        program = [sys.executable, "-m", "harness"]
    found = [
        Case("python -c pass", [sys.executable, "-c", "pass"], repeats),
        Case("python -c 'import pydantic'", [sys.executable, "-c", "import pydantic"], repeats),
        Case(f"harness validate-config {spec}", [*program, "validate-config", spec], repeats),
    ]
    if find_spec("deepspeed") is not None:
        slow = max(2, repeats // 5)
        found.append(Case("python -c 'import deepspeed'", [sys.executable, "-c", "import deepspeed"], slow))

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
    lines = ["| Command | CPU min | CPU median | wall median | runs |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in rows:
        seconds = (min(row.cpu), statistics.median(row.cpu), statistics.median(row.wall))
        lines.append(f"| `{row.name}` | {' | '.join(f'{s:.3f}' for s in seconds)} | {len(row.cpu)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", default="ds_configs/demo.yaml", help="what is validated")
    parser.add_argument("--repeats", type=int, default=15, help="runs of each fast command")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/startup-DATE.md, too")
    arguments = parser.parse_args()
    rows = cases(arguments.spec, max(3, arguments.repeats))
    measure(rows)
    best = min(rows[2].cpu)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    text = f"{table(rows)}\n\nCPU seconds of whole processes; {machine}.\n"
    text += f"`validate-config` takes {best:.3f} s at best, the aim is under {AIM_SECONDS} s.\n"
    print(text, end="")
    if arguments.write:
        file = ROOT / "benchmarks" / "results" / f"startup-{date.today().isoformat()}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# Start-up time, {date.today().isoformat()}\n\n{text}", encoding="utf-8")
        print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
