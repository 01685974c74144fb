# SPDX-License-Identifier: Apache-2.0
"""DPO, KTO and reward models against TRL 1.16 on DeepSpeed: how far twenty steps of each cell are from TRL's own.

    python benchmarks/preference_cells.py --trl /envs/trl/bin/python [--gradients GRADIENTS] [--folder FOLDER]
                                          [--seconds N] [--only PATTERN] [--write]

A cell is a loss, an accumulation, LoRA or not, a stage and one or two ranks. `--trl` is the interpreter of an
environment with TRL and the packages here: its trainer gets the same engine, optimizer, batches and number of ranks, on
gloo, and each loss, norm and gradient of a parameter is compared. With GRADIENTS of `trl_figures.py --gradients` each
run is first made in fp64 with the harness's data, reference, loss and stepper on a plain AdamW: what differs from TRL's
there is no rounding of fp32. What `--folder` has is not repeated; `--seconds` ends after about so many, `--only
2-grid-ipo`, a pattern of RANKS-RUN-STAGE, takes such cells alone; `--write` keeps the tables in
`benchmarks/results/preference-cells-DATE.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.hostinfo.torch_extensions import VARIABLE
from harness.launching.hosts.local_host import find_free_port
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.preference_case import STEPS
from tests.support.training.preference_runs import (
    FIGURES,
    double_figures,
    figures_of,
    grid,
    largest,
    largest_of_gradients,
    train_cells,
    write_data,
)
from tests.support.training.runtime_helpers import JOBS, ROOT, rank_environment

RESULTS = Path(__file__).parent / "results"
_CELLS_A_START = 8
_BOUND = 1e-6
"""What is counted: relative differences of fp32 below it."""
_FIGURES = ("losses", "norms", "gradients")
Cell = tuple[int, str, int]
"""(ranks, run, stage)"""


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, required=True)
    parser.add_argument("--gradients", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="preference-cells-"))
    forked = ForkedRanks()
    if not (folder / "cells.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
        (folder / "cells.jsonl").touch()
    exact = _run_in_double(folder, options.gradients, forked)
    cells: list[Cell] = [(ranks, *one) for ranks in (1, 2) for one in grid(ranks)]
    done = _run_cells(folder, cells, options, forked)
    forked.close()
    text = _format(exact, done, len(cells))
    print(text)
    if options.write:
        (RESULTS / f"preference-cells-{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}.md").write_text(text)


def _run_in_double(folder: Path, gradients: Path | None, forked: ForkedRanks) -> dict[str, list[float]]:
    """Run -> the largest relative differences of a loss and of a gradient from TRL's, both in fp64."""
    file = folder / "double.json"
    if gradients and not file.exists():
        own, trl = (
            double_figures(folder, FIGURES["double"], STEPS, forked),
            json.loads((gradients / "figures.json").read_text()),
        )
        found = {}
        for name, figures in own.items():
            loss, _ = largest({"losses": figures["losses"], "norms": []}, trl["double"][name])
            theirs = torch.load(gradients / f"{name}.pt")["double"]
            found[name] = [loss, largest_of_gradients(figures["gradients"], theirs)]
        file.write_text(json.dumps(found))
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _run_cells(
    folder: Path, cells: list[Cell], options: argparse.Namespace, forked: ForkedRanks
) -> dict[Cell, dict[str, Any]]:
    """The largest relative difference from TRL's of each of `_FIGURES` in each cell that has run; `gradients` and then
    `first`: the first step, from 1 on, whose gradients are not the same to the bit, 0 for none.
    """
    file, begin = folder / "cells.jsonl", time.monotonic()
    done = {tuple(row["cell"]): row["figures"] for row in map(json.loads, file.read_text().splitlines())}
    wanted = [cell for cell in cells if re.match(options.only, "-".join(map(str, cell)))]
    while missing := [cell for cell in wanted if cell not in done]:
        if time.monotonic() - begin > options.seconds:
            break
        part = [cell for cell in missing if cell[0] == missing[0][0]][:_CELLS_A_START]
        for ranks, name, stage in part:  # of a call that was stopped
            shutil.rmtree(folder / f"{name}-{stage}-{ranks}", ignore_errors=True)
        _train_trl(folder, part, options.trl)
        train_cells(folder, part, forked, gradients=True)
        with file.open("a") as lines:
            for cell in part:
                done[cell] = _compare(folder, cell)
                lines.write(json.dumps({"cell": cell, "figures": done[cell]}) + "\n")
        print(f"{len(done)} cells, {time.monotonic() - begin:.0f} s", flush=True)
    return done


def _train_trl(folder: Path, cells: list[Cell], python: Path) -> None:
    """TRL's trainer on these cells of so many ranks; raises where a rank fails."""
    ranks, file = cells[0][0], folder / "trl.json"
    missing = [(name, stage) for _, name, stage in cells if not (folder / f"{name}-{stage}-{ranks}.pt").exists()]
    if not missing:
        return
    file.write_text(json.dumps(missing))
    program = [JOBS / "run_program.py", "none", ROOT / "benchmarks" / "trl_figures.py", file.resolve(), "--cells"]
    common = rank_environment() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    common |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "DS_ACCELERATOR": "cpu"}
    common[VARIABLE] += "-trl"  # else each start compiles over the ops of the other environment
    started = []
    for rank in range(ranks):
        with (folder / f"trl-{rank}.log").open("w") as log:
            environment = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(
                subprocess.Popen([python, *program], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    while any(process.poll() is None for process in started):
        if any(process.poll() for process in started):
            for process in started:
                process.kill()
        time.sleep(0.2)
    if any(process.wait() for process in started):
        raise SystemExit(f"TRL failed: {folder}/trl-*.log\n" + (folder / "trl-0.log").read_text()[-2000:])


def _compare(folder: Path, cell: Cell) -> dict[str, Any]:
    ranks, name, stage = cell
    kept = folder / f"{name}-{stage}-{ranks}" / "gradients.pt"
    own, trl = torch.load(kept), torch.load(folder / f"{name}-{stage}-{ranks}.pt")
    kept.unlink()
    ours = figures_of(folder, *cell)
    loss, norm = largest(ours, trl)
    steps = [largest_of_gradients([one], [other]) for one, other in zip(own, trl["gradients"], strict=True)]
    first = next((step for step, distance in enumerate(steps, 1) if distance), 0)
    return {
        "losses": loss,
        "norms": norm if ours["norms"] else None,
        "gradients": max(steps),
        "first": first,
        "trl": trl["trl"],
    }


def _format(exact: dict[str, list[float]], done: dict[Cell, dict[str, Any]], number: int) -> str:
    today = datetime.datetime.now(tz=datetime.UTC)
    packages = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers", "peft"))
    trl = ", ".join(sorted({figures["trl"] for figures in done.values()}))
    groups: dict[tuple[int, str], list[Cell]] = defaultdict(list)
    for ranks, name, stage in sorted(done):
        groups[ranks, name].append((ranks, name, stage))
    rows = []
    for (ranks, name), group in groups.items():
        each = [done[cell] for cell in group]
        worst = [max(one[figure] or 0 for one in each) for figure in _FIGURES]
        first = min((one["first"] for one in each if one["first"]), default="none")
        stages = " ".join(str(stage) for _, _, stage in group)
        rows.append(f"| {name} | {ranks} | {stages} | {' | '.join(f'{one:.1e}' for one in worst)} | {first} |")
    text = f"""# DPO, KTO and reward models against TRL, {today:%Y-%m-%d}

`python benchmarks/preference_cells.py --trl PYTHON --gradients GRADIENTS --write`, 20 steps of each run.
TRL {trl}, {packages}.
{_format_double(exact)}
## In fp32

The harness and TRL's trainer on DeepSpeed, with the same engine, torch's fused AdamW, batches and ranks: the largest
relative difference of a loss, of a norm of all gradients, and of a parameter's gradient (the norm of the difference
over its norm) in 20 steps. A row has one run for each stage of ZeRO and the largest of their differences; stage 0
tells no norm. The last column is the first step with a gradient that is not the same to the bit. For `rpo` TRL sums an
answer's tokens alone, the harness its padded row: fp32 may round the loss otherwise, its gradient is the same.

{len(done)} of {number} cells.

{_format_counts(done)}

| Run | Ranks | Stages | Loss | Norm | Gradient | First step |
| --- | ---: | --- | ---: | ---: | ---: | ---: |
"""
    return text + "\n".join(rows) + "\n"


def _format_double(exact: dict[str, list[float]]) -> str:
    if not exact:
        return ""
    rows = [f"| {name} | {loss:.1e} | {gradient:.1e} |" for name, (loss, gradient) in exact.items()]
    return f"""
## In fp64

The largest relative difference between the harness's data, reference, loss and stepper, and TRL's trainer: of a loss,
and of a parameter's gradient. No operation makes fp32 (`double_mode.py`).

| Run | Loss | Gradient |
| --- | ---: | ---: |
{chr(10).join(rows)}
"""


def _format_counts(done: dict[Cell, dict[str, Any]]) -> str:
    """A table: in how many cells a figure is TRL's to the bit, and within `_BOUND` of it; the largest difference."""
    text = f"| Cells | the same to the bit | within {_BOUND:.0e} | largest |\n| --- | ---: | ---: | --- |\n"
    for figure in _FIGURES if done else ():
        values = [(one[figure], cell) for cell, one in done.items() if one[figure] is not None]
        equal, within = (sum(value <= bound for value, _ in values) for bound in (0, _BOUND))
        value, (ranks, name, stage) = max(values)
        text += f"| {figure} | {equal} of {len(values)} | {within} of {len(values)} | {value:.1e} ({name}, "
        text += f"{ranks} {'ranks' if ranks > 1 else 'rank'}, stage {stage}) |\n"
    return text.rstrip()


if __name__ == "__main__":
    main()
