# SPDX-License-Identifier: Apache-2.0
"""Useful tokens per second of packing against padding, on conversations of very different lengths.

    python benchmarks/packing.py [--rounds 5] [--steps 24] [--ranks 2] [--write]

Chats whose lengths are spread as those of public chat collections are (log-normal, a median of 160 tokens and a mean
of 270, here in bytes, cut at 1,024) are trained on by a small Llama at ZeRO-2 in four ways that compute rows of
at most 1,024 positions: padded in random order (what most loops do), padded with rows of like length together
(the harness's default), packed, and packed with attention that takes borders of documents in place of a mask
(`model.attn_implementation: sdpa_varlen`). A useful token is one that is not padding. Runs alternate. `--write` puts
the table into `benchmarks/results/packing-DATE.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from small_runs import LLAMA, run_directory, train_here  # noqa: E402

LENGTH, ROWS, WARM_UP = 1024, 4, 4
MEDIAN, SIGMA = 160, 1.02
WAYS: dict[str, dict[str, bool]] = {
    "padded, random order": {"packing": False, "group_by_length": False},
    "padded, like lengths together": {"packing": False, "group_by_length": True},
    "packed": {"packing": True},
    "packed, without masks": {"packing": True},
}
WITHOUT_MASKS = "packed, without masks"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24, help=f"of each run; the first {WARM_UP} are not counted")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return 0
    text = page(compared(arguments), arguments)
    print(text)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"packing-{day}.md").write_text(text, encoding="utf-8")
    return 0


def compared(arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Way -> tokens, positions and seconds of each round."""
    from tests.support.training.forked_ranks import ForkedRanks

    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    ranks = ForkedRanks()
    with tempfile.TemporaryDirectory(prefix="packing-") as scratch:
        folder = Path(scratch)
        # Enough for every way: packed rows hold about four chats each.
        write_chats(folder / "chats.jsonl", 8 * ROWS * arguments.ranks * arguments.steps)
        for turn in range(arguments.rounds):
            for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                place = run_directory(folder, spec(folder, way, arguments.steps), arguments.ranks)
                ranks.run(Path(__file__), "--measure", str(place), ranks=arguments.ranks, timeout=900)
                steps = json.loads((place / "steps.json").read_text())[WARM_UP:]
                keys = ("step_tokens", "step_positions", "seconds")
                found[way].append({key: sum(step[key] for step in steps) for key in keys})
    ranks.close()
    return found


def write_chats(file: Path, count: int) -> None:
    """A question and an answer each; with the byte tokenizer a byte is a token."""
    draw = random.Random(1)  # noqa: S311
    with file.open("w", encoding="utf-8") as out:
        for _ in range(count):
            size = min(LENGTH - 64, max(16, round(MEDIAN * math.exp(draw.gauss(0.0, SIGMA)))))
            asked = max(8, size // 4)
            turns = [("user", asked), ("assistant", size - asked)]
            said = ["".join(draw.choices("etaoin shrdlu", k=max(4, n))) for _, n in turns]
            messages = [{"role": role, "content": text} for (role, _), text in zip(turns, said, strict=True)]
            out.write(json.dumps({"messages": messages}) + "\n")


def spec(folder: Path, way: str, steps: int) -> dict[str, Any]:
    """The same run but for how rows are made."""
    data = {"train": str(folder / "chats.jsonl"), "max_length": LENGTH, "eval_fraction": 0.0, "chat_template": "chatml"}
    return {
        "name": "packing",
        "model": {
            "config": {**LLAMA, "max_position_embeddings": LENGTH},
            "tokenizer": "bytes",
            "attn_implementation": "sdpa_varlen" if way == WITHOUT_MASKS else None,
        },
        "data": {**data, **WAYS[way], "cache_dir": str(folder / "cache")},
        "train": {"max_steps": steps, "per_device_train_batch_size": ROWS, "seed": 1},
        "optimizer": {"learning_rate": 1e-4},
        "precision": {"bf16": False},
        "zero": {"stage": 2},
        "checkpoint": {"save_at_end": False},
    }


def measure(place: Path) -> None:
    """On each rank: one run; the first rank writes its step lines."""
    from harness.runtime.distributed import destroy_process_group, init_process_group
    from harness.runtime.worker import _set_log_levels

    ranks = init_process_group()
    _set_log_levels("error")
    steps = train_here(place, ranks)
    if ranks.is_main_process:
        (place / "steps.json").write_text(json.dumps(steps))
    destroy_process_group()


def page(found: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> str:
    """Markdown."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    first = next(iter(WAYS))
    speeds = {way: [one["step_tokens"] / one["seconds"] for one in rounds] for way, rounds in found.items()}
    lines = [
        "# Packing against padding",
        "",
        f"`python benchmarks/packing.py --rounds {arguments.rounds} --steps {arguments.steps}`: {versions}, ZeRO-2 in"
        f" fp32 on {arguments.ranks} CPU ranks, {ROWS} rows a rank, rows of at most {LENGTH:,} positions; chats of"
        f" log-normal length, median {MEDIAN} bytes. Ratios are within a round.",
        "",
        "| | Useful tokens/s | Useful share of computed positions | Ratio: median (min to max) |",
        "| --- | --- | --- | --- |",
    ]
    for way, rounds in found.items():
        ratios = [mine / theirs for mine, theirs in zip(speeds[way], speeds[first], strict=True)]
        useful = statistics.median(one["step_tokens"] / one["step_positions"] for one in rounds)
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"| {way} | {statistics.median(speeds[way]):.0f} | {useful:.0%} | {spread} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
