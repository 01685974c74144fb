# SPDX-License-Identifier: Apache-2.0
"""Does every way to train agree with one plain PyTorch process?

Tiny models of four families, every ZeRO stage, offload tier and number format, on 2 and 4 gloo ranks under the real
launcher: 20 steps, the largest relative difference of a step's loss. Beside it how far plain processes that cut the
batch in other ways are from each other, which is what rounding alone does; and what each run attested of itself.
Writes nothing without --write. `--ranks 1` is the matrix of stages, tiers and formats on another number of ranks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["HARNESS_NIGHTLY"] = "1"  # the table then has all steps

import torch  # noqa: E402

import tests.support.training.parity_cases as table  # noqa: E402
from tests.support.training import tensor_pipeline_cells  # noqa: E402
from tests.support.training.parity_runs import Result, difference, run  # noqa: E402
from tests.support.training.plain_reference import Rows, Settings, train_plainly  # noqa: E402

GROUPS: dict[str, tuple[table.Case, ...]] = {
    "ZeRO and offload": (*table.ALL, *table.FOUR_RANKS),
    "Optimizers": table.OPTIMIZERS,
    "The batch cut in other ways": table.SPLITS,
    "Parallel degrees": table.PARALLEL,
    "Recomputed layers, MLPs in tiles": (*table.RECOMPUTATION, *table.MORE_RECOMPUTATION),
}


def floor(folder: Path, case: table.Case) -> float:
    """How far the plain process is from itself when its batch is computed in parts of 1 row, or all at once."""
    batches = torch.load(folder / case.name / "drawn.pt")
    settings = Settings(
        {"learning_rate": table.RATE, "weight_decay": table.DECAY, "betas": list(table.BETAS), "eps": table.EPS},
        table.STEPS,
        table.WARMUP,
        table.CLIP,
    )
    whole = [[Rows(*(torch.cat([part[k] for part in parts]) for k in ("input_ids", "labels")))] for parts in batches]
    alone = [[Rows(r.input_ids[i : i + 1], r.labels[i : i + 1]) for i in range(len(r.labels))] for [r] in whole]
    bf16 = case.precision == "bf16"
    losses = [train_plainly(folder / "models" / case.model, b, settings, bf16=bf16).losses for b in (whole, alone)]
    return difference(losses[1], losses[0])


def attested(folder: Path, case: table.Case) -> Counter[str]:
    """How many claims about a run held, differed or had nothing to ask."""
    file = folder / case.name / "engine_checks.json"
    return Counter(c["state"] for c in json.loads(file.read_text())["claims"]) if file.exists() else Counter()


def rows(results: Sequence[Result], claims: dict[str, Counter[str]]) -> list[str]:
    """A table of one group."""
    lines = [
        "| Case | Ranks | Largest difference | Bound | Last loss | MB on NVMe | Claims that hold, differ |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        bound = table.bound(r.case)
        shown = f"{r.difference:.1e}" if r.error is None else f"failed: {r.error.splitlines()[0][:80]}"
        mark = "" if r.error is None and r.difference <= bound else " **over**"
        swapped = f"{r.swapped / 1e6:.0f}" if r.swapped else ""
        name = r.case.name.removesuffix(f"-{r.case.ranks}ranks")
        held = claims[r.case.name]
        lines.append(
            f"| {name} | {r.case.ranks} | {shown}{mark} | {bound:.0e} | {r.last_loss:.4f} | {swapped}"
            f" | {held['holds']}, {held['differs']} |"
        )
    return lines


def report(
    results: dict[str, list[Result]], floors: dict[str, float], claims: dict[str, Counter[str]], command: str
) -> str:
    """The dated answer."""
    everything = [r for group in results.values() for r in group]
    within = sum(r.error is None and r.difference <= table.bound(r.case) for r in everything)
    alarms = sum(c["differs"] > 0 for c in claims.values())
    used = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    head = [
        f"# Parity with one plain PyTorch process, {date.today().isoformat()}",
        "",
        f"{within} of {len(everything)} cases within their bounds; {alarms} of {len(claims)} runs raised an alarm about"
        f" themselves (`launch.engine_checks: stop`). `{command}` on {used}, "
        f"Python {platform.python_version()}, CPU accelerator, gloo, {os.cpu_count()} cores.",
        "",
        f"{table.STEPS} steps of AdamW with warm-up, cosine, weight decay and clipping at {table.CLIP}, a global batch "
        f"of {table.GLOBAL_BATCH} sequences of {table.LENGTH}; the difference is the largest of |loss - plain| / plain "
        "over the steps, with the losses that `metrics.jsonl` has. The plain process is "
        "`tests/support/training/plain_reference.py`.",
        "",
        "What rounding alone does: the plain process against itself, its global batch at once and row by row.",
        "",
        "| Shape and format | Largest difference |",
        "| --- | --- |",
        *(f"| {name} | {found:.1e} |" for name, found in floors.items()),
    ]
    for title, found in results.items():
        head += ["", f"## {title}", "", *rows(found, claims)] if found else []
    return "\n".join(head) + "\n"


def on_ranks(ranks: int) -> tuple[table.Case, ...]:
    """The matrix of stages, tiers and number formats."""
    return tuple(dataclasses.replace(case, ranks=ranks) for case in table.ALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the answer to benchmarks/results/")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this in it")
    parser.add_argument("--tensor-pipelines", action="store_true", help="sixty drawn cells of tensor x pipeline alone")
    parser.add_argument("--folder", type=Path, help="keep the runs there; a later call trains only what it lacks")
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), action="append", help="default: 2, some on 4")
    args = parser.parse_args()
    groups = GROUPS if not args.ranks else {f"On {n}": on_ranks(n) for n in args.ranks}
    if args.tensor_pipelines:
        groups = {"Tensor ranks in pipeline stages": tensor_pipeline_cells.CASES}
    claims: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="parity-") as temporary:
        scratch = args.folder or temporary
        results: dict[str, list[Result]] = {}
        for title, cases in groups.items():
            chosen = [c for c in cases if args.only in c.name]
            folder = Path(scratch) / title.replace(" ", "-")
            results[title] = run(chosen, folder) if chosen else []
            claims |= {c.name: attested(folder, c) for c in chosen}
            print(f"{title}: {len(chosen)} cases", file=sys.stderr, flush=True)
        first = Path(scratch) / next(iter(groups)).replace(" ", "-")
        plain = {c.reference: c for c in reversed(table.ALL) if (first / c.name / "drawn.pt").exists()}
        floors = {"-".join(key): floor(first, case) for key, case in sorted(plain.items())}
        options = "".join(f" --ranks {n}" for n in args.ranks or ())
        options += " --tensor-pipelines" if args.tensor_pipelines else ""
        options += f" --only {args.only}" if args.only else ""
        text = report(results, floors, claims, f"python benchmarks/parity.py{options} --write")
    print(text)
    if args.write:
        kind = ["tensor-pipelines"] if args.tensor_pipelines else []
        name = "-".join(["parity", *(f"{n}-ranks" for n in args.ranks or ()), *kind, date.today().isoformat()])
        (ROOT / "benchmarks" / "results" / f"{name}.md").write_text(text)
    over = [r for found in results.values() for r in found if r.error or r.difference > table.bound(r.case)]
    return 1 if over or any(c["differs"] for c in claims.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
