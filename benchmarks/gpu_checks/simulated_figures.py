# SPDX-License-Identifier: Apache-2.0
"""Simulated figures of the checks of memory: bytes of a rank by phase, and elements that it gathers.

    python -m benchmarks.gpu_checks.simulated_figures --write

runs `harness simulate` for the spec of each check, at full and at toy size (two minutes on one core, no GPU),
and writes `simulated_figures.json`. A machine with a GPU reads that file: its minutes are for what only it has, and the
simulated device was not tried with a torch for CUDA. Without `--write` it prints the figures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_suffix(".json")
PHASES = ("forward", "backward")


def find_simulated(spec: dict[str, Any], ranks: int) -> dict[str, Any] | None:
    """The figures of this spec; None where none were written for what it is rendered to today."""
    figures: dict[str, Any] | None = json.loads(FILE.read_text(encoding="utf-8")).get(digest_spec(spec, ranks))
    return figures


def digest_spec(spec: dict[str, Any], ranks: int) -> str:
    """sha256 of all that the figures depend on: the model, rows, and the rendered JSON without folders."""
    from benchmarks.gpu_checks.training import render, resolve

    run = resolve(spec, ranks, tuned=True)
    config = render(run)
    for section in config["zero_optimization"].values():
        if isinstance(section, dict) and "nvme_path" in section:
            section["nvme_path"] = ""
    parts = [spec["model"]["config"], spec["data"]["max_length"], ranks, config]
    parts += [spec["train"], run.spec.train.loss_chunk_size, spec["cluster"]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def make_cases(folder: Path) -> Iterator[tuple[str, bool, dict[str, Any], int]]:
    """Check, rehearsal or not, spec and ranks, for all checks of memory."""
    from benchmarks.gpu_checks.check_list import CHECKS
    from benchmarks.gpu_checks.checks import gather_memory

    for check in CHECKS:
        if check.module == "gather_memory":
            for rehearse in (False, True):
                yield check.name, rehearse, gather_memory.make_case(folder, check.name, rehearse=rehearse), check.ranks


def simulate_spec(file: Path, spec: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The figures, by the command that a user has. `gathered_elements` are those of two steps, the first with them."""
    from benchmarks.gpu_checks.plan_command import plan_spec

    answer = plan_spec(file, spec, ranks, "--simulate", seconds=600)
    rows = {row["phase"]: row["simulated"] for row in answer["phases"] if row["tier"] == "gpu"}
    gathers = answer["simulation"]["gathers"]
    return {
        **{phase: rows[phase] for phase in PHASES},
        "gathered_elements": sum(sum(gathers[phase].values()) for phase in PHASES),
        "versions": answer["versions"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    asked = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for check, rehearse, spec, ranks in make_cases(Path(name)):
            figures = {"check": check, "rehearsal": rehearse, **simulate_spec(Path(name) / "spec.yaml", spec, ranks)}
            print(json.dumps(figures), flush=True)
            found[digest_spec(spec, ranks)] = figures
    if asked.write:
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
