# SPDX-License-Identifier: Apache-2.0
"""Does the harness train as fast as what users would pick instead? The same model folder, shapes and DeepSpeed JSON.

    python benchmarks/peers.py [--short] [--runs 5] [--turns 6] [--ranks 2] [--only CASE] [--bf16] [--write]

Beside the harness: a bare DeepSpeed script with the same JSON, and with the JSON that leaves everything unset at
DeepSpeed's defaults; Hugging Face's Trainer and accelerate with the same JSON; FSDP2 where it can do the same. In a run
all of them have been started and take turns of five steps, forwards and backwards through the list, while the others
wait: so a machine that is slower in one minute than in the next is slower for all. A step is from the end of one
optimizer step to the end of the next, by a clock that stands in DeepSpeed's engine, whoever calls it; a turn's first is
not counted. Then all are started anew for the next run. The harness is there twice: what differs between those two is
chance. It measures, attests and logs as it does by default. `--write` puts the tables into
`benchmarks/results/peers-DATE.md`. Cases: zero-2, zero-3, zero-3-offload.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from small_runs import LLAMA, run_directory, train_here  # noqa: E402
from turns import Place, Turns  # noqa: E402

LENGTH, ROWS, WARM_UP, STEPS = 256, 2, 8, 5
CASES: dict[str, dict[str, Any]] = {
    "zero-2": {"stage": 2},
    "zero-3": {"stage": 3},
    "zero-3-offload": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
}
HARNESS, AGAIN, DEFAULTS = "harness", "harness, once more", "DeepSpeed script, its defaults"
SIDES = (
    HARNESS,
    AGAIN,
    "DeepSpeed script, same JSON",
    DEFAULTS,
    "Trainer, same JSON",
    "accelerate, same JSON",
    "FSDP2",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one run of 4 turns at ZeRO-3")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--turns", type=int, default=6, help=f"of each in a run, {STEPS} steps each")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.side, arguments.turns)
        return 0
    if arguments.short:
        arguments.runs, arguments.turns, arguments.only = 1, 4, ["zero-3"]
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
    """Side -> a result for each run."""
    from tests.support.training.forked_ranks import ForkedRanks

    sides = [side for side in SIDES if side != "FSDP2" or "offload" not in case]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    ranks = {side: ForkedRanks() for side in sides}
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch, ThreadPoolExecutor(len(sides)) as threads:
        folder = Path(scratch)
        making = str(prepare(folder, case, arguments))
        ranks[HARNESS].run(Path(__file__), "--measure", making, "--side", DEFAULTS, ranks=1)
        for number in range(arguments.runs):
            places = {side: prepare(folder, case, arguments) for side in sides}
            turns = {side: Turns(places[side] / "turns", arguments.ranks) for side in sides}
            jobs: dict[str, Future[Any]] = {}
            for side in sides[number:] + sides[:number]:  # one after the other: the warm-up is each one's alone
                command = [Path(__file__), "--measure", str(places[side]), "--side", side]
                command += ["--turns", str(arguments.turns)]
                jobs[side] = threads.submit(ranks[side].run, *command, ranks=arguments.ranks, timeout=3600)
                turns[side].wait(jobs[side].running)
            for turn in range(arguments.turns):
                for side in sides if turn % 2 == 0 else reversed(sides):
                    turns[side].give()
                    turns[side].wait(jobs[side].running)
            for side in sides:  # what ends a run is each one's alone, too
                turns[side].give()
                jobs[side].result()
                found[side].append(json.loads((places[side] / "result.json").read_text()))
    for each in ranks.values():
        each.close()
    return found


def prepare(folder: Path, case: str, arguments: argparse.Namespace) -> Path:
    """A run directory; the ranks make the model folder where it is not there yet."""
    body = {
        "name": "peers",
        "model": {"name_or_path": str(folder / "model")},
        "data": {"train": "builtin:python-docs", "max_length": LENGTH, "eval_fraction": 0.0},
        "train": {"max_steps": WARM_UP + STEPS * arguments.turns, "per_device_train_batch_size": ROWS, "seed": 1},
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


def measure(place: Path, side: str, turns: int) -> None:
    """On each rank: one run of one side; the first rank writes what it saw."""
    import torch
    import torch.distributed as dist

    from harness.runtime.distributed import destroy_process_group, init_process_group
    from harness.runtime.synthetic_files import write_model
    from harness.runtime.worker import _set_log_levels
    from tests.support.training import peer_sides

    ranks = init_process_group()
    _set_log_levels("error")
    model = place.parent / "model"
    if dist.get_world_size() == 1:  # the warm-up that makes the model
        write_model(model, LLAMA, torch.float32)
        destroy_process_group()
        return
    clock = Place(place / "turns", ranks.rank, WARM_UP, turns, STEPS)
    peer_sides.watch_deepspeed(clock.ended)
    config = json.loads((place / ("defaults.json" if side == DEFAULTS else "ds_config.json")).read_text())
    generator = torch.Generator().manual_seed(ranks.rank)
    ids = [torch.randint(0, 256, (ROWS, LENGTH), generator=generator) for _ in range(clock.all_steps)]
    half = bool(config.get("bf16", {}).get("enabled"))
    batches = [{"input_ids": row, "labels": row} for row in ids]
    work = peer_sides.Work(model, batches, config, torch.bfloat16 if half else torch.float32, out=place / "out")
    if side in (HARNESS, AGAIN):
        losses = [row["loss"] for row in train_here(place, ranks)]
    elif side == "FSDP2":
        losses = peer_sides.fsdp2(work, clock.ended)
    else:
        kind = {"D": peer_sides.raw, "T": peer_sides.trainer, "a": peer_sides.accelerate}[side[0]]
        losses = kind(work)
    if ranks.is_main_process:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        body = {"wall": clock.wall, "cpu": clock.cpu, "peak": peak, "first": losses[0], "last": losses[-1]}
        (place / "result.json").write_text(json.dumps(body))
    destroy_process_group()


def heading(arguments: argparse.Namespace) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers", "accelerate"))
    return (
        "# The harness beside what users would pick instead\n\n"
        f"`python benchmarks/peers.py --runs {arguments.runs} --turns {arguments.turns}"
        f"{' --bf16' * arguments.bf16}`: {versions}, {arguments.ranks} ranks on the CPU accelerator with gloo, a Llama"
        f" of {LLAMA['num_hidden_layers']} layers, {LLAMA['hidden_size']} wide, {ROWS} rows of {LENGTH} tokens a rank;"
        f" {arguments.runs} runs, in each {arguments.turns} turns of every side, of a turn the median of"
        f" {STEPS - 1} steps. Ratios to the harness are within a round of turns, above 1 means slower than the harness:"
        " their median, in brackets their middle half, then the median of each run by itself. CPU time is rank 0's,"
        " which other programs on the machine disturb less.\n"
    )


def table(case: str, found: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> str:
    """Markdown."""
    tokens = ROWS * LENGTH * arguments.ranks
    lines = [
        f"## {case}",
        "",
        "| | Tokens/s | Step, ms | Ratio: median (middle half) | Each run | Of CPU time | Peak of rank 0, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for side, runs in found.items():
        wall, cpu = (
            [
                [a / b for a, b in zip(_turns(run, key), _turns(ours, key), strict=True)]
                for run, ours in zip(runs, found[HARNESS], strict=True)
            ]
            for key in ("wall", "cpu")
        )
        step = statistics.median(second for run in runs for second in _turns(run, "wall"))
        peak = statistics.median(run["peak"] for run in runs) / 2**20
        each = ", ".join(f"{statistics.median(run):.2f}" for run in wall)
        cells = [side, f"{tokens / step:.0f}", f"{1000 * step:.1f}", _spread(wall), each, _spread(cpu), f"{peak:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _turns(run: dict[str, Any], key: str) -> list[float]:
    """The median step of each turn."""
    return [statistics.median(turn) for turn in run[key]]


def _spread(runs: list[list[float]]) -> str:
    every = [ratio for run in runs for ratio in run]
    low, middle, high = statistics.quantiles(every, n=4) if len(every) > 1 else every * 3
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    sys.exit(main())
