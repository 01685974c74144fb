# SPDX-License-Identifier: Apache-2.0
"""DPO, KTO and reward models against TRL 1.16: how far twenty steps of each cell are from TRL's own.

    python benchmarks/preference_cells.py [--folder FOLDER] [--seconds N] [--only RANKS-RUN] [--write]

A cell is a loss, an accumulation, LoRA or not, a stage and one or two ranks; `tests/support/training/trl_figures.json`
has TRL's figures (`benchmarks/trl_figures.py`), in fp32 and in fp64. Cells that `--folder` has are not repeated;
`--seconds` ends after about so many, `--only 2-grid-ipo` takes such cells alone; `--write` keeps the table in
`benchmarks/results/preference-cells-DATE.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.preference_runs import FIGURES, figures_of, grid, largest, train_cells, write_data

RESULTS = Path(__file__).parent / "results"
_CELLS_A_START = 8


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="preference-cells-"))
    file, cells = folder / "cells.jsonl", [(ranks, *one) for ranks in (1, 2) for one in grid(ranks)]
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
        file.touch()
    done = {tuple(row["cell"]): row["figures"] for row in map(json.loads, file.read_text().splitlines())}
    wanted = [cell for cell in cells if f"{cell[0]}-{cell[1]}".startswith(options.only)]
    missing, forked, begin = [cell for cell in wanted if cell not in done], ForkedRanks(), time.monotonic()
    while missing and time.monotonic() - begin < options.seconds:
        ranks = missing[0][0]
        part = [cell for cell in missing if cell[0] == ranks][:_CELLS_A_START]
        train_cells(folder, part, forked)
        with file.open("a") as lines:
            for cell in part:
                done[cell] = figures_of(folder, *cell)
                lines.write(json.dumps({"cell": cell, "figures": done[cell]}) + "\n")
        missing = [cell for cell in wanted if cell not in done]
        print(f"{len(done)} of {len(cells)} cells, {time.monotonic() - begin:.0f} s", flush=True)
    forked.close()
    text = _format(done, len(cells))
    print(text)
    if options.write:
        (RESULTS / f"preference-cells-{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}.md").write_text(text)


def _format(done: dict[tuple[int, str, int], dict[str, list[float]]], number: int) -> str:
    today = datetime.datetime.now(tz=datetime.UTC)
    packages = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers", "peft"))
    groups: dict[tuple[int, str], list[tuple[int, str, int]]] = defaultdict(list)
    for ranks, name, stage in sorted(done):
        groups[ranks, name].append((ranks, name, stage))
    rows = []
    for (ranks, name), group in groups.items():
        own = [largest(done[cell], FIGURES["runs"][name]) for cell in group]
        exact = [largest(done[cell], FIGURES["double"][name]) for cell in group]
        theirs = largest(FIGURES["runs"][name], FIGURES["double"][name])
        stages = " ".join(str(stage) for _, _, stage in group)
        numbers = [max(each[k] for each in each_of) for k in (0, 1) for each_of in (own, exact, [theirs])]
        rows.append(f"| {name} | {ranks} | {stages} | " + " | ".join(f"{value:.1e}" for value in numbers) + " |")
    text = f"""# DPO, KTO and reward models against TRL, {today:%Y-%m-%d}

`python benchmarks/preference_cells.py --write`: the largest relative difference of a loss, and of a gradient norm, over
20 steps in fp32 with torch's AdamW. TRL {FIGURES["trl"]}, {packages}. A row has one run for each stage of ZeRO; stage 0
tells no norm. "Exact" is TRL's own code on the same weights in fp64: what both would compute without rounding.

{len(done)} of {number} cells.

| Run | Ranks | Stages | Loss: ours, TRL | Ours, exact | TRL, exact | Norm: ours, TRL | Ours, exact | TRL, exact |
| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
    return text + "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
