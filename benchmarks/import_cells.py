# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other programs, imported on other ranks: each cell against the writer's own next ten steps.

    python benchmarks/import_cells.py [--write] [--folder FOLDER] [--only TEXT]

`--write` keeps the table in `benchmarks/results/import-cells-DATE.md`; `--only` takes the cells whose name has TEXT.
Other releases of DeepSpeed, and the programs that build on the Trainer, come from overlays that pip fills in the cache
folder (`tests/releases`). Cells that `--folder` has are not repeated. About thirty minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import traceback
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.launching.hosts.local_host import find_free_port
from tests.releases.archives import CACHE
from tests.releases.trials import environment_of_rank, overlay
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.import_cells import JOBS, Cell, CellResult, compare, run_cells, write_material

RESULTS = Path(__file__).parent / "results"
PACKAGES = {
    "trl": "trl==1.16.0",
    "axolotl": "axolotl==0.19.0 trl==1.9.0 addict numba llvmlite colorama fire termcolor zstandard scipy posthog"
    " backoff fastcore evaluate triton axolotl-contribs-lgpl axolotl-contribs-mit",
    "llamafactory": "llamafactory==0.9.5 trl==0.24.0 omegaconf torchaudio",
    "swift": "ms-swift==4.6.0 modelscope modelscope_hub json_repair",
}
"""Of each program: itself, and what the import of its trainer or command lacks in this environment (2026-11-29)."""
PROGRAMS = ("bare", "accelerate", "trainer")
CELLS = (
    *(
        Cell(program, stage, bf16, target=(stage + 1 + number) % 4, own=program != "bare" and (stage + number) % 2 == 1)
        for number, program in enumerate(PROGRAMS)
        for stage in range(4)
        for bf16 in (False, True)
        if not (
            program == "trainer" and stage == 0
        )  # without ZeRO the Trainer is asked below, with the JSON's optimizer
    ),
    Cell("trainer", 0, target=1),
    Cell("trainer", 0, True, target=3),
    *(Cell(program, stage, offload=True, target=3 - stage // 2) for program in ("bare", "trainer") for stage in (2, 3)),
    Cell("bare", 3, lora=True, target=1),
    Cell("bare", 1, True, lora=True, target=3),
    Cell("accelerate", 2, lora=True, target=3),
    Cell("trainer", 2, lora=True, target=0),
    Cell("trainer", 3, True, lora=True, target=2),
    Cell("bare", 3, ranks=(1, 2), target=2),
    Cell("trainer", 2, ranks=(1, 4), target=3),
    Cell("bare", 2, True, ranks=(4, 2), target=3),
    Cell("trainer", 3, ranks=(4, 1), target=1),
    Cell("trainer", 1, ranks=(4, 2), target=2, own=True),
    Cell("bare", 1, True, sums=True, target=2),
    *(Cell("bare", 0, ranks=(1, 1), optimizer="Adagrad", onto_cpu=True, target=stage) for stage in (2, 3)),
    Cell("bare", 2, ranks=(1, 1), offload=True, optimizer="Adagrad", target=0),
    Cell("bare", 1, release="0.16.9", target=2),
    *(Cell("bare", 3, release=release, target=2) for release in ("0.16.9", "0.18.6", "0.18.9")),
    Cell("trainer", 2, lora=True, dropout=0.1, ranks=(2, 2)),
    Cell("trainer", 3, lora=True, dropout=0.1, ranks=(1, 1), target=1),
    Cell("accelerate", 1, lora=True, dropout=0.1, ranks=(2, 2), target=3),
    Cell("trl", 2, target=3),
    Cell("trl", 3, True, target=1),
    Cell("trl", 3, lora=True, target=0),
    Cell("trl", 1, ranks=(2, 4), target=2),
    Cell("llamafactory", 2, target=1),
    Cell("swift", 2, own=True, target=1),  # it reads the groups of its own optimizer
    Cell("axolotl", 2, ranks=(1, 2), target=1),  # it takes each CPU rank for the only one
)

LEFT_OUT = (
    "No cell is in fp16: DeepSpeed does not train in it on CPU ranks. 0.18.9 cannot step at stages 1 and 2 with torch",
    "2.13 ([releases](../../docs/releases.md)). 0.18.6 and 0.19.0 at stage 1 were run and left out: the import's first",
    "step is theirs to the bit; from the third step on, before the save, their losses are others than at stage 3 and",
    "than those of 0.16.9 and 0.19.8, by up to 1e-3.",
)
"""Cells that nobody can run, and two that were run and left out (2026-11-29)."""


def program_overlay(program: str) -> Path:
    """The folder that has this program without what it depends on, filled by pip where it is not there."""
    place = CACHE / "package-releases" / f"import-{program}"
    if not place.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
        subprocess.run([*pip, *PACKAGES[program].split()], check=True)
        for library in place.glob("torchaudio/lib/*.so"):  # built for CUDA; rows of text need none of it
            library.unlink()
    return place


def write_with_overlay(place: Path, cells: list[Cell], folder: Path) -> None:
    """The writers with other packages in front of this environment. Raises RuntimeError with the end of a log."""
    model, _, rows = write_material(folder)
    ranks, port = cells[0].ranks[0], str(find_free_port())
    file = folder / f"writers-{place.name}.json"
    file.write_text(json.dumps([cell.order(folder, model, rows) for cell in cells]))
    processes = []
    for rank in range(ranks):
        environment = environment_of_rank(place, rank, port, ranks)
        with (folder / f"{place.name}-{rank}.log").open("w") as log:
            command = [sys.executable, str(JOBS / "foreign_writers.py"), str(file)]
            environment |= {"DISABLE_VERSION_CHECK": "1"}  # of LLaMA-Factory, for the packages beside it
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=os.sep))
    codes = [process.wait(timeout=900) for process in processes]
    if any(codes):
        raise RuntimeError((folder / f"{place.name}-{codes.index(next(filter(None, codes)))}.log").read_text()[-1500:])


def run(cells: list[Cell], folder: Path) -> tuple[list[CellResult], dict[str, str]]:
    """The results, and by name the reasons of cells that did not come to their end."""
    forked, results, failed = ForkedRanks(), list[CellResult](), dict[str, str]()
    for key in sorted({(cell.ranks, cell.release, cell.program) for cell in cells}):
        group = [cell for cell in cells if (cell.ranks, cell.release, cell.program) == key]
        left = [cell for cell in group if not cell.has_gone_on(folder)]
        waiting = [cell for cell in left if not cell.is_written(folder)]
        try:
            if waiting and (key[1] or key[2] in PACKAGES):
                write_with_overlay(overlay(key[1]) if key[1] else program_overlay(key[2]), waiting, folder)
            done = run_cells(forked, left, folder) if left else []
        except (AssertionError, RuntimeError, subprocess.SubprocessError, OSError, KeyError, ValueError):
            reason = traceback.format_exc()[-1500:]
            failed |= {cell.name: reason for cell in left}
            print(f"{key}: {reason}", flush=True)
            done = []
        done += [compare(cell, folder) for cell in group if cell not in left]
        for result in done:
            print(f"{result.cell.name}: {'passed' if result.passed else 'RED'} {result.difference:.1e}", flush=True)
        results += done
    forked.close()
    return results, failed


def page_of(cells: list[Cell], results: list[CellResult], failed: dict[str, str]) -> str:
    """The dated page, with a row for each cell."""
    passed = sum(result.passed for result in results)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    lines = [
        f"# Imported checkpoints, {today}",
        "",
        "`python benchmarks/import_cells.py --write`: the writer's own next ten steps against those of the import.",
        f"DeepSpeed {version('deepspeed')} where a cell names no other, torch {version('torch')}, transformers "
        f"{version('transformers')}, accelerate {version('accelerate')}, peft {version('peft')}; "
        f"{', '.join(packages.split()[0] for packages in PACKAGES.values())} in front of them.",
        *LEFT_OUT,
        "",
        f"{passed} of {len(cells)} cells: losses within 1e-6 (fp32) or 2e-3 (bf16), learning rates exactly equal.",
        "",
        "| Cell (program, ZeRO, format, ranks, to ZeRO) | Largest difference of a loss | Rates equal | Passed |",
        "| --- | ---: | --- | --- |",
        *(f"| {r.cell.name} | {r.difference:.1e} | {r.rates} | {r.passed} |" for r in results),
        *(f"| {name} | did not run to its end | | False |" for name in failed),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    cells = [cell for cell in CELLS if arguments.only in cell.name]
    with tempfile.TemporaryDirectory(prefix="import-cells-") as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results, failed = run(cells, folder)
    page = page_of(cells, results, failed)
    print(page)
    if arguments.write:
        today = datetime.datetime.now(tz=datetime.UTC).date()
        (RESULTS / f"import-cells-{today}.md").write_text(page, encoding="utf-8")
    return 0 if sum(result.passed for result in results) == len(cells) else 1


if __name__ == "__main__":
    raise SystemExit(main())
