# SPDX-License-Identifier: Apache-2.0
"""Planned GPU hours of runs whose cost was published, and planned speed of Megatron's published runs by degrees.

No constant of the planner is fitted to the two costs. Simplified: the batch and the length are those of most of the
run (Llama 3 405B began with 4 M tokens of 4,096, and ended with long contexts; DeepSeek-V3's batch grew from 3,072
sequences over 469 B tokens); failures, restarts and checkpoints are left out, and DeepSeek-V3's layer for multi-token
prediction (one of 62, and a second pass of the head). The chunks of Llama's stages are not printed; its first chunk
holds the embedding alone once a layer is taken from it, so that a chunk is one layer, eight a stage.

`--rows FILE` reads published rows (JSON lines) and plans those of Megatron-Bridge with their degrees. Writes nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.facts.devices import Device, find_device  # noqa: E402
from harness.facts.model_lookup import ModelFacts, facts_from_config, find_model  # noqa: E402
from harness.plan.degrees.degrees_plan import DegreesPlan, plan_degrees_of  # noqa: E402
from harness.plan.degrees.degrees_request import DegreesRequest, validate_degrees  # noqa: E402
from harness.plan.degrees.rank_groups import ParallelDegrees  # noqa: E402


@dataclass(frozen=True)
class KnownCost:
    """A run with its published GPU hours."""

    name: str
    request: DegreesRequest
    tokens: float
    gpu_hours: float
    cite: str


KNOWN_COSTS = (
    KnownCost(
        "Llama 3.1 405B",
        DegreesRequest(
            "llama-3.1-405b",
            "H100-80GB",
            ParallelDegrees(16384, tensor=8, pipeline=16, virtual_stages=8, schedule="interleaved"),
            tokens_per_step=2048 * 8192,
            seq_length=8192,
        ),
        15.6e12,
        30.84e6,
        "arXiv 2407.21783, table 4 and section 3.3.2; hours: Meta's model card of Llama 3.1",
    ),
    KnownCost(
        "DeepSeek-V3",
        DegreesRequest(
            "deepseek-v3",
            "H800-80GB",
            ParallelDegrees(2048, pipeline=16, expert=64, schedule="dualpipe"),
            tokens_per_step=15360 * 4096,
            seq_length=4096,
            precision="fp8",
            checkpointing="selective",
            states="bf16",
        ),
        14.8e12,
        2.664e6,
        "arXiv 2412.19437, table 1 and sections 3.2 and 4.2",
    ),
)

VIRTUAL_STAGES: Mapping[tuple[str, str, int, int], int] = {
    ("Llama-3-70B", "H100", 8, 64): 5,
    ("Llama-3.1-405B", "H100", 8, 1024): 8,
    ("Llama-3.1-405B", "B200", 8, 128): 8,
    ("Qwen3-30B-A3B", "H100", 2, 16): 24,
    ("Qwen3-235B-A22B", "H100", 8, 256): 4,
    ("Qwen3-235B-A22B", "B200", 8, 64): 2,
    ("Qwen3-235B-A22B", "GB200", 8, 256): 3,
    ("Qwen3-235B-A22B", "GB300", 4, 256): 12,
    ("DeepSeek-V3", "GB200", 4, 256): 4,
    ("DeepSeek-V3", "GB300", 2, 256): 4,
}
"""Chunks a stage (column VP) by model, GPU, stages and GPUs: Megatron-Bridge docs/performance-summary-archive.md, which
the rows leave out; 1 where it has none."""
_NVL72 = 64
"""GPUs of one NVLink domain of a GB200 or a GB300 that these runs use, of its 72."""


def device_of(name: str) -> Device | None:
    """The kind; an H800 is an H100 with 400 GB/s of NVLink, 200 in one direction (its data sheet)."""
    base = find_device("H100-80GB")
    if name == "H800-80GB" and find_device(name) is None and base is not None:
        return replace(base, name=name, link=200e9)
    return find_device(name)


def plan_known_cost(known: KnownCost) -> DegreesPlan:
    """The plan of a run whose cost is known."""
    device, lookup = device_of(known.request.gpu), find_model(known.request.model)
    if device is None or lookup.facts is None:
        raise LookupError(known.name)
    return plan_degrees_of(lookup.facts, known.request, device, config=lookup.config)


class RowResult(NamedTuple):
    """A published row with its planned tokens per second and GPU, or why it has none."""

    row: Mapping[str, Any]
    tokens_per_second: float | None
    why_not: str = ""


def plan_row(row: Mapping[str, Any]) -> RowResult:
    """A row of Megatron-Bridge with its degrees."""
    device, facts = device_of(row["gpu"]), facts_from_config(row["config"]).facts
    if device is None or facts is None:
        return RowResult(row, None, f"{row['gpu']} is not known" if device is None else "the model is not known")
    request = _request_of(row, facts)
    errors = [
        finding.message for finding in validate_degrees(request, facts) if not finding.message.startswith("GPU kind")
    ]
    if errors:
        return RowResult(row, None, errors[0])
    plan = plan_degrees_of(facts, request, device, config=row["config"])
    return RowResult(row, plan.work.tokens / plan.time.seconds / plan.work.world_size)


def _request_of(row: Mapping[str, Any], facts: ModelFacts) -> DegreesRequest:
    key = (row["model"], row["gpu"].split("-")[0], row["pp"], row["gpus"])
    chunks = VIRTUAL_STAGES.get(key, 1)
    degrees = ParallelDegrees(
        row["gpus"],
        tensor=row["tp"],
        pipeline=row["pp"],
        context=row["cp"],
        expert=row["ep"],
        virtual_stages=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
        gpus_per_host=_NVL72 if row["gpu"].startswith("GB") else row["gpus_per_node"],
    )
    precision = "fp8" if "fp8" in row["precision"] else row["precision"]
    return DegreesRequest(
        facts.family,
        row["gpu"],
        degrees,
        micro_batch=row["micro_batch"],
        tokens_per_step=row["global_batch_sequences"] * row["seq_len"],
        seq_length=row["seq_len"],
        precision=precision,
        checkpointing="selective",
    )


def _print_costs() -> None:
    print(f"{'run':<16} {'planned':>9} {'(range)':>19} {'published':>10} {'ratio':>6}  step, tokens/s/GPU, MFU")
    for known in KNOWN_COSTS:
        plan = plan_known_cost(known)
        hours, low, high = plan.gpu_hours(known.tokens)
        spread = f"({low / 1e6:.2f} to {high / 1e6:.2f})"
        speed = plan.work.tokens / plan.time.seconds / plan.work.world_size
        print(
            f"{known.name:<16} {hours / 1e6:>7.2f} M {spread:>19} {known.gpu_hours / 1e6:>8.2f} M"
            f" {hours / known.gpu_hours:>6.2f}  {plan.time.seconds:.2f} s, {speed:,.0f}, {plan.mfu:.0%}"
        )


def _print_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    print(f"\n{'model':<16} {'GPU':<12} {'GPUs':>5}  {'tp pp cp ep':<12} {'measured':>9} {'planned':>9} {'ratio':>6}")
    ratios = []
    for result in map(plan_row, rows):
        row = result.row
        degrees = f"{row['tp']:<2} {row['pp']:<2} {row['cp']:<2} {row['ep']:<3}"
        head = f"{row['model']:<16} {row['gpu']:<12} {row['gpus']:>5}  {degrees:<12}"
        measured = row["measured"]["tokens_per_s_per_gpu"]
        if result.tokens_per_second is None:
            print(f"{head} {measured:>9,.0f}  {result.why_not}")
            continue
        ratio = result.tokens_per_second / measured
        ratios.append(ratio)
        print(f"{head} {measured:>9,.0f} {result.tokens_per_second:>9,.0f} {ratio:>6.2f}  {row['precision']}")
    errors = sorted(exp(abs(log(ratio))) for ratio in ratios)
    if errors:
        print(
            f"{len(errors)} rows: planned over measured {statistics.median(ratios):.2f} in the median,"
            f" error factor {statistics.median(errors):.2f}, at 90 % {errors[int(0.9 * (len(errors) - 1))]:.2f}"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="published rows, JSON lines")
    file = parser.parse_args().rows
    _print_costs()
    if file is not None:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        _print_rows(row for row in rows if row["source"] == "megatron-bridge")


if __name__ == "__main__":
    main()
