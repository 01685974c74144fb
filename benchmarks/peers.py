"""Does the harness train as fast as what users would pick instead? The same model folder, shapes and DeepSpeed JSON.

    python benchmarks/peers.py [--short] [--rounds 5] [--steps 40] [--ranks 2] [--only CASE] [--bf16] [--write]

Beside the harness: a bare DeepSpeed script with the same JSON, and with the JSON that leaves everything unset at
DeepSpeed's defaults; Hugging Face's Trainer and accelerate with the same JSON; FSDP2 where it can do the same. Each run
is a start of its own on forked ranks, the runs alternate, forwards and backwards through the list. A step is from the
end of one optimizer step to the end of the next, by a clock that stands in DeepSpeed's engine, whoever calls it; the
first ones are left out. The harness measures, attests and logs as it does by default. `--write` puts the tables into
`benchmarks/results/peers-DATE.md`. Cases: zero-2, zero-3, zero-3-offload.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "with_deepspeed"), str(ROOT / "benchmarks")]

from small_runs import LLAMA, run_directory, train_here  # noqa: E402

LENGTH, ROWS, WARM_UP = 256, 2, 8
CASES: dict[str, dict[str, Any]] = {
    "zero-2": {"stage": 2},
    "zero-3": {"stage": 3},
    "zero-3-offload": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
}
HARNESS, DEFAULTS = "harness", "DeepSpeed script, its defaults"
SIDES = (HARNESS, "DeepSpeed script, same JSON", DEFAULTS, "Trainer, same JSON", "accelerate, same JSON", "FSDP2")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="2 rounds of 16 steps at ZeRO-3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of each run; the first 8 are not counted")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.side)
        return 0
    if arguments.short:
        arguments.rounds, arguments.steps, arguments.only = 2, 16, ["zero-3"]
    parts = [heading(arguments)]
    for case in arguments.only or CASES:
        parts.append(table(case, compared(case, arguments), arguments))
        print(parts[-1], flush=True)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        file = ROOT / "benchmarks" / "results" / f"peers-{day}{'-bf16' * arguments.bf16}.md"
        file.write_text("\n".join(parts), encoding="utf-8")
    return 0


def compared(case: str, arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Side -> a result for each round."""
    from forked_ranks import ForkedRanks

    sides = [side for side in SIDES if side != "FSDP2" or "offload" not in case]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    ranks = ForkedRanks()
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        folder = Path(scratch)
        ranks.run(Path(__file__), "--measure", str(prepare(folder, case, arguments)), "--side", DEFAULTS, ranks=1)
        for turn in range(arguments.rounds):
            for side in sides if turn % 2 == 0 else reversed(sides):
                place = prepare(folder, case, arguments)
                ranks.run(Path(__file__), "--measure", str(place), "--side", side, ranks=arguments.ranks, timeout=600)
                found[side].append(json.loads((place / "result.json").read_text()))
    ranks.close()
    return found


def prepare(folder: Path, case: str, arguments: argparse.Namespace) -> Path:
    """A run directory; the ranks make the model folder where it is not there yet."""
    body = {
        "name": "peers",
        "model": {"name_or_path": str(folder / "model")},
        "data": {"train": "builtin:python-docs", "max_length": LENGTH, "eval_fraction": 0.0},
        "train": {"max_steps": arguments.steps, "per_device_train_batch_size": ROWS, "seed": 1},
        "optimizer": {"learning_rate": 1e-4, "weight_decay": 0.1},
        "scheduler": {"type": "constant"},
        "precision": {"bf16": arguments.bf16},
        "zero": CASES[case],
        "checkpoint": {"save_at_end": False},
    }
    if not (folder / "model").exists():
        from transformers import AutoConfig

        AutoConfig.for_model(**LLAMA).save_pretrained(folder / "model")
    return run_directory(folder, body, arguments.ranks)


def measure(place: Path, side: str) -> None:
    """On each rank: one run of one side; the first rank writes what it saw."""
    import peer_sides
    import torch
    import torch.distributed as dist

    from harness.runtime.main import _quieten
    from harness.runtime.ranks import join, leave
    from harness.runtime.rehearsal_files import write_model

    ranks = join()
    _quieten("error")
    model = place.parent / "model"
    if dist.get_world_size() == 1:  # the warm-up that makes the model
        write_model(model, LLAMA, torch.float32)
        leave()
        return
    clock = peer_sides.Clock()
    clock.watch_deepspeed()
    config = json.loads((place / ("defaults.json" if side == DEFAULTS else "ds_config.json")).read_text())
    steps = json.loads((place / "spec.resolved.json").read_text())["spec"]["train"]["max_steps"]
    generator = torch.Generator().manual_seed(ranks.rank)
    ids = [torch.randint(0, 256, (ROWS, LENGTH), generator=generator) for _ in range(steps)]
    half = bool(config.get("bf16", {}).get("enabled"))
    batches = [{"input_ids": row, "labels": row} for row in ids]
    work = peer_sides.Work(model, batches, config, torch.bfloat16 if half else torch.float32, out=place / "out")
    if side == HARNESS:
        losses = [row["loss"] for row in train_here(place, ranks)]
    elif side == "FSDP2":
        losses = peer_sides.fsdp2(work, clock.ended)
    else:
        kind = {"D": peer_sides.raw, "T": peer_sides.trainer, "a": peer_sides.accelerate}[side[0]]
        losses = kind(work)
    if ranks.is_first:
        took, cpu = ([b - a for a, b in pairwise(ends[WARM_UP - 1 :])] for ends in (clock.ends, clock.cpu))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        body = {
            "seconds": took,
            "cpu": cpu,
            "peak": peak,
            "first": losses[0],
            "last": losses[-1],
            "steps": len(clock.ends),
        }
        (place / "result.json").write_text(json.dumps(body))
    leave()


def heading(arguments: argparse.Namespace) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers", "accelerate"))
    return (
        "# The harness beside what users would pick instead\n\n"
        f"`python benchmarks/peers.py --rounds {arguments.rounds} --steps {arguments.steps}"
        f"{' --bf16' * arguments.bf16}`: {versions}, {arguments.ranks} ranks on the CPU accelerator with gloo, a Llama"
        f" of {LLAMA['num_hidden_layers']} layers, {LLAMA['hidden_size']} wide, {ROWS} rows of {LENGTH} tokens a rank."
        " Median step of each run; ratios to the harness are within a round: above 1 means"
        " slower than the harness. CPU time is rank 0's, which other programs on the machine disturb less.\n"
    )


def table(case: str, found: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> str:
    """Markdown."""
    medians = {side: [statistics.median(one["seconds"]) for one in rounds] for side, rounds in found.items()}
    works = {side: [statistics.median(one["cpu"]) for one in rounds] for side, rounds in found.items()}
    tokens = ROWS * LENGTH * arguments.ranks
    lines = [
        f"## {case}",
        "",
        "| | Tokens/s | Step, ms | Ratio: median (least to most) | Of CPU time | Peak of rank 0, MiB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for side, mine in medians.items():
        spread, work = (_spread(a[side], a[HARNESS]) for a in (medians, works))
        middle = statistics.median(mine)
        peak = statistics.median(one["peak"] for one in found[side]) / 2**20
        lines.append(f"| {side} | {tokens / middle:.0f} | {1000 * middle:.1f} | {spread} | {work} | {peak:.0f} |")
    return "\n".join([*lines, ""])


def _spread(mine: list[float], ours: list[float]) -> str:
    ratios = [a / b for a, b in zip(mine, ours, strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    sys.exit(main())
