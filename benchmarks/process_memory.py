# SPDX-License-Identifier: Apache-2.0
"""Memory of the processes of small CPU runs, part by part, compared with the plan.

    python benchmarks/process_memory.py [--steps 100] [--folder DIR] [--write]

A process imports what a rank imports, and its resident memory is read after each part. Then `harness launch` trains the
demo and variants of it; the demo also with MALLOC_MMAP_THRESHOLD_=1048576, with which freed blocks go back to the
kernel: the difference is what malloc keeps, and that run is compared with the plan without it. Six minutes on 2 idle
cores. Ends with 1 where a run held 10 % more or less than its plan. `--write` puts the tables into
`benchmarks/results/process-memory-DATE.md`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BOUND = 0.10
MIB = 1 << 20
PARTS = """
import sys
def show(name):
    rows = dict(line.split(":", 1) for line in open("/proc/self/smaps_rollup") if ":" in line)
    print(name, *(int(rows[key].split()[0]) >> 10 for key in ("Rss", "Anonymous")), sep="|", flush=True)
show("Python")
import torch
show("and torch")
import transformers
from harness.patches.no_mlflow import import_deepspeed
import_deepspeed({})
show("and transformers, DeepSpeed")
import harness.runtime.worker
show("and the program of a rank, with what it imports of these")
"""
BASE = ("train.max_steps={steps}", "export.at_end=false", "eval.eval_steps=null", "data.eval_fraction=0.0")
TRAINING = ("forward", "backward", "step", "save")
RETURNED = "demo, freed blocks returned"
CASES: dict[str, tuple[str, ...]] = {
    "demo": (),
    "micro-batch 1": ("train.per_device_train_batch_size=1",),
    "gradient checkpointing": ("train.gradient_checkpointing=true",),
    RETURNED: ('launch.env={MALLOC_MMAP_THRESHOLD_: "1048576"}',),
    "ZeRO-2, bf16": ("zero.stage=2", "precision.bf16=true"),
    "frozen MLPs": ("model.freeze=['*.mlp.*']",),
    "LoRA": ("model.lora.r=8",),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where runs go; default: a temporary folder")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = [*measure_parts(), ""]
    with tempfile.TemporaryDirectory(prefix="process-memory-", dir=arguments.folder) as folder:
        table, errors = measure_runs(Path(folder), arguments.steps)
    text = "\n".join([*head(arguments.steps), *lines, *table, ""])
    print(text)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"process-memory-{day}.md").write_text(text, encoding="utf-8")
    return int(any(abs(error) > BOUND for error in errors))


def head(steps: int) -> list[str]:
    """The title and the versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "deepspeed", "transformers"))
    command = f"`python benchmarks/process_memory.py --steps {steps}`"
    return ["# Memory of the processes of small CPU runs", "", f"{command}: {versions}, 2 ranks. In MiB.", ""]


def measure_parts() -> list[str]:
    """Resident memory after each import, and the part of it that no other process shares."""
    done = subprocess.run([sys.executable, "-c", PARTS], capture_output=True, text=True, check=True, cwd=ROOT)
    rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 2]
    return ["| Process | Resident | Its own |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]


def measure_runs(folder: Path, steps: int) -> tuple[list[str], list[float]]:
    """A row for each case, and how far each run was from its plan."""
    rows = [
        "| Run, a rank | Loaded | Planned | Peak | Planned | Peak / planned |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    errors = []
    for name, settings in CASES.items():
        loaded, peak, planned_load, planned = launch(folder, steps, settings, returned=name == RETURNED)
        errors.append(peak / planned - 1)
        figures = (loaded, planned_load, peak, planned)
        cells = " | ".join(f"{figure / MIB:.0f}" for figure in figures)
        rows.append(f"| {name} | {cells} | {peak / planned:.2f} |")
    return rows, errors


def launch(folder: Path, steps: int, settings: tuple[str, ...], *, returned: bool) -> tuple[float, float, float, float]:
    """(loaded, peak, planned when loaded, planned peak) of the rank that held most, in bytes."""
    options = [option for text in BASE + settings for option in ("--set", text.replace("{steps}", str(steps)))]
    command = [sys.executable, "-m", "harness", "launch", "ds_configs/demo.yaml", *options]
    done = subprocess.run(
        [*command, "--set", f"launch.output_dir={folder}"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(settings) or 'the demo'}: the run failed\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    run = (folder / "latest").resolve()
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    peaks = {line["phase"]: max(line["memory_host_peak_bytes"]) for line in lines if line["type"] == "memory"}
    last = max(line["memory_host_peak_bytes"] for line in lines if line["type"] == "step")
    planned = {phase: planned_bytes(plan, phase, returned=returned) for phase in ("load", *TRAINING)}
    return peaks["load"], max(last, *peaks.values()), planned["load"], max(planned[phase] for phase in TRAINING)


def planned_bytes(plan: dict[str, Any], phase: str, *, returned: bool) -> float:
    """What the plan has for a rank in a phase, without what malloc keeps where freed blocks are returned."""
    host = next(row["host_bytes"] for row in plan["phases"] if row["phase"] == phase)
    kept = sum(row["bytes_per_rank"] for row in plan["rows"] if row["kind"] == "heap" and phase in row["phases"])
    return host / plan["ranks_per_host"] - (kept if returned else 0)


if __name__ == "__main__":
    sys.exit(main())
