# SPDX-License-Identifier: Apache-2.0
"""Loading of a sharded model at ZeRO-3: bytes read and memory used, compared with Trainer.

    python benchmarks/loading.py [--layers 12] [--ranks 2] [--rounds 3] [--write]

A folder of bf16 safetensors (Llama of 1,024, about half a gigabyte at 12 layers) is loaded at stage 3 by the harness
(`zero3_weights.py`) and by `from_pretrained` under `HfDeepSpeedConfig`, which is what Trainer does,
alternately, each on ranks of its own, the files dropped from the page cache before. Read: the kernel's count of bytes
that the disk had to give, mapped files included. Own memory (RssAnon) and mapped file memory (RssFile) at their
highest while it loads, beyond what the process had before. `--write` puts the table into
`benchmarks/results/loading-DATE.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
JOB = ROOT / "tests" / "training" / "jobs" / "load_big.py"
HARNESS, TRAINER = "harness", "Trainer's way"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        as_trainer_does(arguments.measure, arguments.measure.parent / "out.json")
        return 0
    found, size = compared(arguments)
    text = page(found, size, arguments)
    print(text)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"loading-{day}.md").write_text(text, encoding="utf-8")
    return 0


def compared(arguments: argparse.Namespace) -> tuple[dict[str, list[list[dict[str, float]]]], int]:
    """Side -> for each round what each rank saw; and the bytes of the model's files."""
    from tests.support.training.forked_ranks import ForkedRanks

    found: dict[str, list[list[dict[str, float]]]] = {HARNESS: [], TRAINER: []}
    ranks = ForkedRanks()
    with tempfile.TemporaryDirectory(prefix="loading-") as scratch:
        model, out = Path(scratch) / "model", Path(scratch) / "out.json"
        write(model, arguments.layers)
        for turn in range(arguments.rounds):
            for side in found if turn % 2 == 0 else reversed(found):
                drop_from_cache(model)
                if side == HARNESS:
                    ranks.run(
                        JOB,
                        str(model),
                        str(out),
                        ranks=arguments.ranks,
                        timeout=600,
                    )
                else:
                    ranks.run(Path(__file__), "--measure", str(model), ranks=arguments.ranks, timeout=600)
                found[side].append(json.loads(out.read_text()))
        size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    ranks.close()
    return found, size


def write(folder: Path, layers: int) -> None:
    """Several files with an index, as a model of the hub has them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": layers, "num_attention_heads": 16}
    config |= {"num_key_value_heads": 16, "vocab_size": 32000, "tie_word_embeddings": False}
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **config), dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="100MB")


def drop_from_cache(folder: Path) -> None:
    """The model's files have to come from the disk again."""
    os.sync()
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def as_trainer_does(folder: Path, out: Path) -> None:
    """On each rank: `from_pretrained` below `HfDeepSpeedConfig`, watched as the harness's own loading is."""
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    from harness.runtime.distributed import destroy_process_group, init_process_group
    from tests.training.jobs.load_big import Watch, counted

    ranks = init_process_group()
    config = {"train_batch_size": ranks.world_size, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    alive = HfDeepSpeedConfig(config)
    ranks.all_reduce_sum(1.0)
    watch, read, began = Watch(), counted("read_bytes"), time.monotonic()
    watch.start()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
    mine: dict[str, Any] = {
        **watch.grown(),
        "read_bytes": counted("read_bytes") - read,
        "seconds": time.monotonic() - began,
    }
    mine["model"] = sum(p.ds_numel for p in model.parameters()) * 2
    everyone = ranks.all_gather_object(mine)
    if ranks.is_main_process:
        out.write_text(json.dumps(everyone))
    del alive
    destroy_process_group()


def page(found: dict[str, list[list[dict[str, float]]]], size: int, arguments: argparse.Namespace) -> str:
    """Markdown."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    lines = [
        "# Loading a sharded model at ZeRO-3",
        "",
        f"`python benchmarks/loading.py --layers {arguments.layers} --rounds {arguments.rounds}`: {versions},"
        f" {arguments.ranks} CPU ranks, {size / 1e6:.0f} MB of bf16 safetensors, not in the page cache. Medians of"
        " the rounds; memory of the rank that held most, at its peak.",
        "",
        "| | Read from the disk, MB | Of the files | Own memory, MB | Mapped files, MB | Seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for side, rounds in found.items():
        read = statistics.median(sum(rank["read_bytes"] for rank in one) for one in rounds)
        own = statistics.median(max(rank["RssAnon"] for rank in one) for one in rounds)
        mapped = statistics.median(max(rank["RssFile"] for rank in one) for one in rounds)
        took = statistics.median(max(rank["seconds"] for rank in one) for one in rounds)
        lines.append(
            f"| {side} | {read / 1e6:.0f} | {read / size:.2f} | {own / 1e6:.0f} | {mapped / 1e6:.0f} | {took:.1f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
