# SPDX-License-Identifier: Apache-2.0
"""Effect of the tuned defaults for NVMe offload: locked host memory and time of a step.

    python benchmarks/nvme_offload.py [--layers 4] [--ranks 2] [--rounds 3] [--aio FILE] [--folder DIR] [--write]

A Llama of 2,048 with optimizer and parameters on NVMe in bf16: with DeepSpeed's defaults as they are, with its defaults
and parameter buffers that just suffice, with what the harness chooses, and with `--aio` also with the piece of a spec
that `harness doctor --tune-nvme` printed. Runs alternate; the first two steps of each are left out. Locked bytes are
the kernel's VmLck; the time is the optimizer's part of a step (`seconds_optimizer`), and of it the wait for the disk
(`seconds_io`). `--write` puts the table into `benchmarks/results/nvme-offload-DATE.md`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from small_runs import run_directory, train_here  # noqa: E402

WARM_UP = 2
DEFAULTS, ENOUGH, CHOSEN, TUNED = "DeepSpeed's defaults", "defaults, enough buffers", "chosen", "chosen, tuned I/O"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--aio", type=Path, help="what `harness doctor --tune-nvme FOLDER` printed")
    parser.add_argument("--folder", type=Path, help="on the disk that is meant; default: a temporary folder")
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
        (ROOT / "benchmarks" / "results" / f"nvme-offload-{day}.md").write_text(text, encoding="utf-8")
    return 0


def compared(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Side -> a result for each round; the defaults run once, since they fail."""
    from tests.support.training.forked_ranks import ForkedRanks

    sides = [ENOUGH, CHOSEN, *([TUNED] if arguments.aio else [])]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in (DEFAULTS, *sides)}
    ranks = ForkedRanks()
    with tempfile.TemporaryDirectory(prefix="nvme-offload-", dir=arguments.folder) as scratch:
        order = [DEFAULTS]
        for turn in range(arguments.rounds):
            order += sides if turn % 2 == 0 else sides[::-1]
        for side in order:
            place = run_directory(Path(scratch), spec(Path(scratch), side, arguments), arguments.ranks)
            did = ranks.run(
                Path(__file__), "--measure", str(place), ranks=arguments.ranks, timeout=900, check=side != DEFAULTS
            )
            if any(did["codes"]):
                last = [line for line in did["output"][did["first"]].splitlines() if "Error" in line][-1:]
                found[side].append({"failed": "".join(last) or f"exit codes {did['codes']}"})
            else:
                found[side].append(json.loads((place / "result.json").read_text()))
            print(side, found[side][-1], file=sys.stderr, flush=True)
    ranks.close()
    return found


def spec(scratch: Path, side: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same run but for what is left to DeepSpeed, or chosen."""
    config = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5504, "vocab_size": 32000}
    config |= {"num_hidden_layers": arguments.layers, "num_attention_heads": 16, "max_position_embeddings": 64}
    on_nvme = {"device": "nvme", "nvme_path": str(scratch / f"nvme-{len(list(scratch.glob('run-*')))}")}
    parameters: dict[str, Any] = {**on_nvme, "max_in_cpu": 0}
    if side == ENOUGH:
        tensors, largest = 7 * arguments.layers + 2, 32000 * 2048 // arguments.ranks
        parameters |= {"buffer_count": tensors, "buffer_size": largest + largest % 2}
    body: dict[str, Any] = {
        "name": "nvme-offload",
        "model": {"config": config, "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs", "max_length": 4, "eval_fraction": 0.0},
        "train": {"max_steps": arguments.steps, "per_device_train_batch_size": 1, "seed": 1},
        "optimizer": {"learning_rate": 1e-5},
        "precision": {"bf16": True},
        "zero": {"stage": 3, "offload_optimizer": on_nvme, "offload_param": parameters},
        "tuned_defaults": side in (CHOSEN, TUNED),
        "launch": {"patches": "auto" if side in (CHOSEN, TUNED) else {"nvme-offload-no-grad-swap": "off"}},
        "checkpoint": {"save_at_end": False},
    }
    if side == TUNED:
        body["deepspeed"] = yaml.safe_load(arguments.aio.read_text())["deepspeed"]
    return body


def measure(place: Path) -> None:
    """On each rank: one run; the first rank writes what it saw."""
    from harness.runtime.distributed import destroy_process_group, init_process_group
    from harness.runtime.worker import _set_log_levels

    ranks = init_process_group()
    _set_log_levels("error")
    steps = train_here(place, ranks)
    if ranks.is_main_process:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        mean = {key: statistics.median(s[key] for s in steps[WARM_UP:]) for key in ("seconds_optimizer", "seconds_io")}
        held = {key: int(status[key].split()[0]) * 1024 for key in ("VmLck", "VmHWM")}
        (place / "result.json").write_text(json.dumps({**mean, **held, "loss": steps[-1]["loss"]}))
    destroy_process_group()


def page(found: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> str:
    """Markdown."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    lines = [
        "# Optimizer and parameters on NVMe",
        "",
        f"`python benchmarks/nvme_offload.py --layers {arguments.layers} --rounds {arguments.rounds}"
        f"{' --aio FILE' * bool(arguments.aio)}`: {versions}, a Llama of 2,048 with {arguments.layers} layers, ZeRO-3"
        f" in bf16 on {arguments.ranks} CPU ranks. Ratios are of the optimizer's part of a step, within a round.",
        "",
        "| | Optimizer, s a step | of it waiting for the disk | Ratio: median (least to most) | Locked, MB a rank |"
        " Peak of rank 0, MB | Last loss |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for side, rounds in found.items():
        if "failed" in rounds[0]:
            lines.append(f"| {side} | fails: `{rounds[0]['failed']}` | | | | | |")
            continue
        mine, first = ([one["seconds_optimizer"] for one in found[name]] for name in (side, ENOUGH))
        ratios = [a / b for a, b in zip(mine, first, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        io = statistics.median(one["seconds_io"] for one in rounds)
        locked, peak = (statistics.median(one[key] for one in rounds) / 1e6 for key in ("VmLck", "VmHWM"))
        lines.append(
            f"| {side} | {statistics.median(mine):.2f} | {io:.2f} | {spread} | {locked:.0f} | {peak:.0f} |"
            f" {rounds[0]['loss']:.6f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
