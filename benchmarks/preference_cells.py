# SPDX-License-Identifier: Apache-2.0
"""DPO, KTO and reward models against TRL 1.16: how far twenty steps of each cell are from TRL's own.

    python benchmarks/trl_figures.py GRADIENTS/figures.json --gradients GRADIENTS        in an environment with TRL
    python benchmarks/preference_cells.py --gradients GRADIENTS [--folder FOLDER] [--seconds N] [--only RANKS-RUN]
                                          [--double] [--write]

A cell is a loss, an accumulation, LoRA or not, a stage and one or two ranks. GRADIENTS has TRL's losses, norms and
gradients of each parameter on this machine, in fp32, in fp64 and in fp32 with `eager` attention; those of
`tests/support/training/trl_figures.json` are of another one: so the table says how far TRL is from itself in another
order of arithmetic. First each run is made in fp64 with
the harness's data, reference, loss and stepper on a plain AdamW: what differs from TRL's there is no rounding of fp32.
`--double` makes these alone. What `--folder` has is not repeated; `--seconds` ends after about so many, `--only
2-grid-ipo` takes such cells alone; `--write` keeps the tables in `benchmarks/results/preference-cells-DATE.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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

RESULTS = Path(__file__).parent / "results"
_CELLS_A_START = 8
_BOUND = 1e-6
"""What is counted: relative differences of fp32 below it."""
_COLUMNS = (
    *("Run", "Ranks", "Stages"),
    *("Loss: ours, TRL", "Ours, exact", "TRL, exact"),
    *("Norm: ours, TRL", "Ours, exact", "TRL, exact"),
    *("Gradient: ours, TRL", "Ours, exact", "TRL, exact"),
)
Cell = tuple[int, str, int]
"""(ranks, run, stage)"""


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradients", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", default="")
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="preference-cells-"))
    forked, begin = ForkedRanks(), time.monotonic()
    if not (folder / "cells.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
        (folder / "cells.jsonl").touch()
    exact = _run_in_double(folder, options.gradients, forked)
    cells: list[Cell] = [(ranks, *one) for ranks in (1, 2) for one in grid(ranks)]
    done = _run_cells(folder, [] if options.double else cells, options, forked, begin)
    forked.close()
    text = _format(exact, done, len(cells), options.gradients)
    print(text)
    if options.write:
        (RESULTS / f"preference-cells-{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}.md").write_text(text)


def _run_in_double(folder: Path, gradients: Path, forked: ForkedRanks) -> dict[str, list[float]]:
    """Run -> the largest relative differences of a loss and of a gradient from TRL's, both in fp64."""
    file = folder / "double.json"
    if not file.exists():
        own = double_figures(folder, FIGURES["double"], STEPS, forked)
        found = {}
        for name, figures in own.items():
            loss, _ = largest({"losses": figures["losses"], "norms": []}, _trl_figures(gradients)["double"][name])
            found[name] = [loss, largest_of_gradients(figures["gradients"], _trl_gradients(gradients, name)["double"])]
        file.write_text(json.dumps(found))
    return dict(json.loads(file.read_text()))


@cache
def _trl_figures(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "figures.json").read_text()))


def _trl_gradients(folder: Path, name: str) -> dict[str, list[dict[str, torch.Tensor]]]:
    return dict(torch.load(folder / f"{name}.pt"))


def _run_cells(
    folder: Path, cells: list[Cell], options: argparse.Namespace, forked: ForkedRanks, begin: float
) -> dict[Cell, dict[str, list[float]]]:
    """The figures of each cell that has run: losses, norms and, of `gradients`, the largest differences from TRL's in
    fp32 and in fp64; `first` is that of the first step, from the same weights, in fp32.
    """
    file = folder / "cells.jsonl"
    done = {tuple(row["cell"]): row["figures"] for row in map(json.loads, file.read_text().splitlines())}
    wanted = [cell for cell in cells if f"{cell[0]}-{cell[1]}".startswith(options.only)]
    while missing := [cell for cell in wanted if cell not in done]:
        if time.monotonic() - begin > options.seconds:
            break
        part = [cell for cell in missing if cell[0] == missing[0][0]][:_CELLS_A_START]
        for ranks, name, stage in part:  # of a call that was stopped
            shutil.rmtree(folder / f"{name}-{stage}-{ranks}", ignore_errors=True)
        train_cells(folder, part, forked, gradients=True)
        with file.open("a") as lines:
            for cell in part:
                ranks, name, stage = cell
                kept, theirs = (
                    folder / f"{name}-{stage}-{ranks}" / "gradients.pt",
                    _trl_gradients(options.gradients, name),
                )
                own = torch.load(kept)
                kept.unlink()
                distances = [largest_of_gradients(own, theirs[kind]) for kind in ("runs", "double")]
                first = largest_of_gradients(own[:1], theirs["runs"][:1])
                done[cell] = figures_of(folder, *cell) | {"gradients": distances, "first": [first]}
                lines.write(json.dumps({"cell": cell, "figures": done[cell]}) + "\n")
        print(f"{len(done)} cells, {time.monotonic() - begin:.0f} s", flush=True)
    return done


def _format(
    exact: dict[str, list[float]], done: dict[Cell, dict[str, list[float]]], number: int, gradients: Path
) -> str:
    today = datetime.datetime.now(tz=datetime.UTC)
    packages = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers", "peft"))
    in_double = [f"| {name} | {loss:.1e} | {gradient:.1e} |" for name, (loss, gradient) in exact.items()]
    groups: dict[tuple[int, str], list[Cell]] = defaultdict(list)
    for ranks, name, stage in sorted(done):
        groups[ranks, name].append((ranks, name, stage))
    rows, ratios, trl = [], [], _trl_figures(gradients)
    elsewhere = [largest(trl["runs"][name], FIGURES["runs"][name]) for name in trl["runs"] if name in FIGURES["runs"]]
    for (ranks, name), group in groups.items():
        both = _trl_gradients(gradients, name)
        theirs = [
            *largest(trl["runs"][name], trl["double"][name]),
            largest_of_gradients(both["runs"], both["double"]),
        ]
        own = [(*largest(done[cell], trl["runs"][name]), done[cell]["gradients"][0]) for cell in group]
        to_exact = [(*largest(done[cell], trl["double"][name]), done[cell]["gradients"][1]) for cell in group]
        ratios += [[ours / other for ours, other in zip(each, theirs, strict=True)] for each in to_exact]
        stages = " ".join(str(stage) for _, _, stage in group)
        numbers = [max(each[k] for each in each_of) for k in range(3) for each_of in (own, to_exact, [theirs])]
        rows.append(f"| {name} | {ranks} | {stages} | " + " | ".join(f"{value:.1e}" for value in numbers) + " |")
    text = f"""# DPO, KTO and reward models against TRL, {today:%Y-%m-%d}

`python benchmarks/preference_cells.py --gradients GRADIENTS --write`, 20 steps of each run, with torch's AdamW.
TRL {trl["trl"]}, {packages}.

## In fp64

The largest relative difference between the harness's data, reference, loss and stepper, and TRL's trainer: of a loss,
and of a parameter's gradient (the norm of the difference over its norm). No operation makes fp32 (`double_mode.py`).

| Run | Loss | Gradient |
| --- | ---: | ---: |
{chr(10).join(in_double)}

## In fp32

The same on DeepSpeed; a norm is that of all gradients. A row has one run for each stage of ZeRO and the largest of
their differences; stage 0 tells no norm. "Exact" is TRL's trainer on the same weights in fp64.
TRL's figures of another CPU (`trl_figures.json`) are up to {max(one[0] for one in elsewhere):.1e} (loss) and
{max(one[1] for one in elsewhere):.1e} (norm) from its figures here.

{len(done)} of {number} cells.{_describe_ratios(ratios)}

{_format_counts(done, gradients)}

| {" | ".join(_COLUMNS)} |
| --- | ---: | --- |{9 * " ---: |"}
"""
    return text + "\n".join(rows) + "\n"


def _format_counts(done: dict[Cell, dict[str, list[float]]], folder: Path) -> str:
    """A table: in how many cells, or runs of TRL alone, a figure is within `_BOUND` of TRL's in fp32; the largest."""
    trl, own = _trl_figures(folder), []
    for (ranks, name, stage), figures in done.items():
        loss, norm = largest(figures, trl["runs"][name])
        distances = loss, norm if figures["norms"] else None, figures["gradients"][0], figures["first"][0]
        own.append((f"{name}, {ranks}, {stage}", distances))
    compared = [("Ours, from TRL", own)]
    for title, kind in (("TRL with `eager` attention, from TRL", "eager"), ("TRL in fp64, from TRL", "double")):
        rows = []
        for name in dict.fromkeys(name for _, name, _ in done):
            both = _trl_gradients(folder, name)
            parts = [largest_of_gradients(both[kind][:count], both["runs"][:count]) for count in (None, 1)]
            rows.append((name, (*largest(trl[kind][name], trl["runs"][name]), *parts)))
        compared.append((title, rows))
    columns = ("losses", "norms", "gradients", "gradients of step 1")
    text = f"| Within {_BOUND:.0e}: | {' | '.join(columns)} |\n| --- |{4 * ' --- |'}\n"
    for title, rows in filter(lambda one: one[1], compared):
        cells = []
        for k in range(len(columns)):
            values = [(value, where) for where, each in rows if (value := each[k]) is not None]
            within = sum(value <= _BOUND for value, _ in values)
            cells.append(f"{within} of {len(values)}; {max(values)[0]:.1e} ({max(values)[1]})")
        text += f"| {title} | {' | '.join(cells)} |\n"
    return text.rstrip()


def _describe_ratios(ratios: list[list[float]]) -> str:
    if not ratios:
        return ""
    parts = []
    for k, name in ((0, "losses"), (2, "gradients")):
        column = [each[k] for each in ratios]
        parts.append(f"{geometric_mean(column):.2f} for {name} ({min(column):.1f} to {max(column):.1f})")
    return f" Our distance from exact over TRL's is in the geometric mean {' and '.join(parts)}."


if __name__ == "__main__":
    main()
