"""Does every way to train agree with one plain PyTorch process?

Tiny models of four families, every ZeRO stage, offload tier and number format, on 2 and 4 gloo ranks under the real
launcher: 20 steps, the largest relative difference of a step's loss. Beside it how far plain processes that cut the
batch in other ways are from each other, which is what rounding alone does. Writes nothing without --write.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "with_deepspeed"), str(ROOT)]

import parity_cases as table  # noqa: E402
import torch  # noqa: E402
from parity_running import Result, difference, run  # noqa: E402
from plain_reference import Rows, Settings, train_plainly  # noqa: E402

GROUPS: dict[str, tuple[table.Case, ...]] = {
    "ZeRO and offload": (*table.ALL, *table.FOUR_RANKS),
    "Optimizers": table.OPTIMIZERS,
    "The batch cut in other ways": table.SPLITS,
    "Parallel degrees": table.PARALLEL,
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


def rows(results: Sequence[Result]) -> list[str]:
    """A table of one group."""
    lines = [
        "| Case | Ranks | Largest difference | Bound | Last loss | MB on NVMe |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        bound = table.bound(r.case)
        shown = f"{r.difference:.1e}" if r.error is None else f"failed: {r.error.splitlines()[0][:80]}"
        mark = "" if r.error is None and r.difference <= bound else " **over**"
        swapped = f"{r.swapped / 1e6:.0f}" if r.swapped else ""
        name = r.case.name.removesuffix(f"-{r.case.ranks}ranks")
        lines.append(f"| {name} | {r.case.ranks} | {shown}{mark} | {bound:.0e} | {r.last_loss:.4f} | {swapped} |")
    return lines


def report(results: dict[str, list[Result]], floors: dict[str, float]) -> str:
    """The dated answer."""
    everything = [r for group in results.values() for r in group]
    within = sum(r.error is None and r.difference <= table.bound(r.case) for r in everything)
    used = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    head = [
        f"# Parity with one plain PyTorch process, {date.today().isoformat()}",
        "",
        f"{within} of {len(everything)} cases within their bounds. `python benchmarks/parity.py --write` on {used}, "
        f"Python {platform.python_version()}, CPU accelerator, gloo, {os.cpu_count()} cores.",
        "",
        f"{table.STEPS} steps of AdamW with warm-up, cosine, weight decay and clipping at {table.CLIP}, a global batch "
        f"of {table.GLOBAL_BATCH} sequences of {table.LENGTH}; the difference is the largest of |loss - plain| / plain "
        "over the steps, with the losses that `metrics.jsonl` has. The plain process is "
        "`tests/with_deepspeed/plain_reference.py`.",
        "",
        "What rounding alone does: the plain process against itself, its global batch at once and row by row.",
        "",
        "| Shape and format | Largest difference |",
        "| --- | --- |",
        *(f"| {name} | {found:.1e} |" for name, found in floors.items()),
    ]
    for title, found in results.items():
        head += ["", f"## {title}", "", *rows(found)] if found else []
    return "\n".join(head) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the answer to benchmarks/results/")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this in it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        results: dict[str, list[Result]] = {}
        for title, cases in GROUPS.items():
            chosen = [c for c in cases if args.only in c.name]
            folder = Path(scratch) / title.replace(" ", "-")
            results[title] = run(chosen, folder) if chosen else []
            print(f"{title}: {len(chosen)} cases", file=sys.stderr, flush=True)
        first = Path(scratch) / "ZeRO-and-offload"
        plain = {c.reference: c for c in reversed(table.ALL) if (first / c.name / "drawn.pt").exists()}
        floors = {"-".join(key): floor(first, case) for key, case in sorted(plain.items())}
        text = report(results, floors)
    print(text)
    if args.write:
        (ROOT / "benchmarks" / "results" / f"parity-{date.today().isoformat()}.md").write_text(text)
    over = [r for found in results.values() for r in found if r.error or r.difference > table.bound(r.case)]
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
