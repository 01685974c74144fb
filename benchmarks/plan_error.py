# SPDX-License-Identifier: Apache-2.0
"""Error of the plan against DeepSpeed's real allocations.

On a machine with a GPU: trains a few steps of each case through `harness launch` and compares the plan's GPU peak with
`torch.cuda.max_memory_allocated` of rank 0, which `metrics.jsonl` records. Without one: builds engines on gloo ranks,
counts partitions, gradients, masters, moments and buckets, byte by byte, and records the resident set of the process.
Writes nothing without --write.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
JOB = ROOT / "tests" / "training" / "jobs" / "count_states.py"

from harness.facts.model_catalogue import catalogue_config  # noqa: E402
from harness.hostinfo.machine import accelerators  # noqa: E402
from harness.launching.hosts.local_host import find_free_port  # noqa: E402
from harness.units import format_bytes  # noqa: E402

Figure = tuple[str, int, int]
"""A case, bytes as planned, bytes as measured."""


@dataclass(frozen=True)
class GpuCase:
    """One training on real GPUs. `needs` is host memory or disk that the machine must have, in bytes."""

    model: str
    stage: int
    optimizer_at: str = "none"
    parameters_at: str = "none"
    checkpointing: bool = True
    max_length: int = 2048
    micro_batch: int = 1
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.model.rpartition("/")[2], f"ZeRO-{self.stage}"]
        parts += [f"optimizer {self.optimizer_at}"] if self.optimizer_at != "none" else []
        parts += [f"parameters {self.parameters_at}"] if self.parameters_at != "none" else []
        parts += [
            "checkpointing" if self.checkpointing else "no checkpointing",
            f"{self.micro_batch} x {self.max_length}",
        ]
        return ", ".join([*parts, *self.more])

    def spec(self, ranks: int, gpu: str, nvme: Path) -> dict[str, Any]:
        """A run of three steps from random weights, nothing kept."""
        zero: dict[str, Any] = {"stage": self.stage}
        for name, place in (("offload_optimizer", self.optimizer_at), ("offload_param", self.parameters_at)):
            if place != "none":
                zero[name] = {"device": place, **({"nvme_path": str(nvme)} if place == "nvme" else {})}
        if "nvme" in (self.optimizer_at, self.parameters_at):
            zero["sub_group_size"] = 100_000_000
        if self.parameters_at == "nvme":
            zero["offload_param"] |= {"buffer_count": 28, "buffer_size": 280_000_000 // ranks}
            zero |= {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}  # or 75 buffers would be in use
        spec: dict[str, Any] = {
            "name": "plan-error",
            "model": {
                "config": dict(catalogue_config(self.model) or {}),
                "tokenizer": "bytes",
                "attn_implementation": "sdpa",
            },
            "data": {"train": "builtin:python-docs", "max_length": self.max_length},
            "train": {
                "max_steps": 3,
                "per_device_train_batch_size": self.micro_batch,
                "gradient_accumulation_steps": 2,
                "gradient_checkpointing": self.checkpointing,
            },
            "precision": {"bf16": True},
            "zero": zero,
            "checkpoint": {"save_at_end": False},
            "cluster": {"gpu": gpu},
            "launch": {"num_gpus": ranks},
        }
        return spec | self.more


LEAN = {"deepspeed": {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}}
GPU_CASES = (
    *(GpuCase("openai-community/gpt2", stage, max_length=1024) for stage in range(4)),
    *(GpuCase("Qwen/Qwen2.5-0.5B", stage) for stage in range(4)),
    GpuCase("Qwen/Qwen2.5-0.5B", 2, checkpointing=False),
    GpuCase("Qwen/Qwen2.5-0.5B", 3, checkpointing=False, micro_batch=4),
    *(GpuCase("meta-llama/Llama-3.2-1B", stage) for stage in range(4)),
    GpuCase("meta-llama/Llama-3.2-1B", 2, "cpu"),
    GpuCase("meta-llama/Llama-3.2-1B", 3, "cpu", checkpointing=False),
    GpuCase("meta-llama/Llama-3.2-1B", 3, "cpu", "cpu"),
    GpuCase("meta-llama/Llama-3.2-1B", 3, "nvme"),
    GpuCase("meta-llama/Llama-3.2-1B", 3, "nvme", "nvme"),
    GpuCase("meta-llama/Llama-3.2-3B", 2),
    GpuCase("meta-llama/Llama-3.2-3B", 3, "cpu", max_length=4096),
    GpuCase("Qwen/Qwen3-4B", 3),
    GpuCase("meta-llama/Llama-3.1-8B", 3, more=LEAN),
    GpuCase("google/gemma-2-9b", 3, more=LEAN),
)


def on_gpu(case: GpuCase, ranks: int, gpu: str, folder: Path) -> Figure | str:
    """Train it, or say why that was not possible."""
    file = folder / "case.yaml"
    file.write_text(yaml.safe_dump(case.spec(ranks, gpu, folder / "nvme")), encoding="utf-8")
    command = [sys.executable, "-m", "harness", "launch", str(file), "--set", f"launch.output_dir={folder / 'runs'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)
    runs = sorted((folder / "runs").glob("*/metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    if done.returncode != 0 or not runs:
        return ((done.stderr or done.stdout).strip().splitlines() or ["no output"])[-1][:120]
    lines = [json.loads(line) for line in runs[-1].read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line["type"] == "step" and "memory_gpu_peak_bytes" in line]
    peaks = [line["memory_gpu_peak_bytes"] for line in lines]
    plan = json.loads((runs[-1].parent / "plan.json").read_text(encoding="utf-8"))
    if not peaks:
        return "no GPU memory was recorded"
    return str(case), tensors_of(plan), max(peaks)


def tensors_of(plan: dict[str, Any]) -> int:
    """The plan's GPU peak without what is assumed and torch does not count: context, NCCL, the allocator's slack."""
    rows = [row for row in plan["rows"] if row["tier"] == "gpu" and not row["assumed"]]
    phases = {phase for row in rows for phase in row["phases"]}
    return max(sum(row["bytes_per_rank"] for row in rows if phase in row["phases"]) for phase in phases)


def on_cpu(limit: int | None) -> tuple[list[Figure], list[Figure]]:
    """Bytes of model states and buffers by case, and resident sets by number of ranks."""
    from tests.support.training.plan_grid import CASES

    figures: list[Figure] = []
    resident: list[Figure] = []
    for world in sorted({case.world for case in CASES}):
        cases = [case for case in CASES if case.world == world][:limit]
        by_rank, peak = count(cases, world)
        resident.append((f"{world} ranks, resident set of one", 500_000_000, peak))
        for index, case in enumerate(cases):
            counted = [rank[index] for rank in by_rank]
            if "failed" in counted[0]:
                figures.append((f"{case}: not built", 1, 0))
                continue
            kinds = {kind for kind in counted[0] if kind != "held"}
            rows = [row for row in case.rows() if (f"nvme_{row.kind}" if row.tier == "nvme" else row.kind) in kinds]
            both = case.stage in (1, 2) and case.optimizer_at == "cpu"  # one such buffer here, one there
            planned = sum(row.bytes // (2 if both and row.kind == "largest" else 1) for row in rows)
            figures.append((str(case), planned, sum(max(rank[kind] for rank in counted) for kind in kinds)))
    return figures, resident


def count(cases: list[Any], world: int) -> tuple[list[Any], int]:
    """What the worker counted, by rank; and the largest resident set of a rank."""
    from tests.support.training.plan_grid import MODELS

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = str(find_free_port())
        work = [[MODELS[case.model], case.config(), case.decay] for case in cases]
        (folder / "cases.json").write_text(json.dumps(work), encoding="utf-8")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        common = {**os.environ, "PATH": path, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        common |= {"WORLD_SIZE": str(world), "LOCAL_SIZE": str(world), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            str(JOB),
            str(folder / "cases.json"),
            str(folder),
        ]
        ranks = [
            subprocess.Popen(
                command, env={**common, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=-3, stderr=-3, cwd=folder
            )
            for r in range(world)
        ]
        usages = [os.wait4(rank.pid, 0)[2] for rank in ranks]
        for left in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*{port}*"):  # noqa: S108 - DeepSpeed leaves them
            left.unlink(missing_ok=True)
        by_rank = [json.loads((folder / f"{r}.json").read_text(encoding="utf-8")) for r in range(world)]
    return by_rank, max(usage.ru_maxrss for usage in usages) * 1024


def table(figures: list[Figure]) -> str:
    """Markdown: planned, measured, error in per cent."""
    lines = ["| case | planned | measured | error |", "| --- | --- | --- | --- |"]
    for name, planned, measured in figures:
        error = f"{100 * (planned - measured) / measured:+.1f} %" if measured else "-"
        lines.append(f"| {name} | {format_bytes(planned)} | {format_bytes(measured)} | {error} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, help="no more than so many (on a CPU: of each number of ranks)")
    parser.add_argument("--cpu", action="store_true", help="count on the CPU although there is a GPU")
    parser.add_argument(
        "--gpu-kind", default="H100-80GB", help="a kind that `harness plan` knows, for the plan's capacity"
    )
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/plan-error-DATE.md")
    asked = parser.parse_args()
    devices = () if asked.cpu else accelerators()
    libraries = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    head = f"# Planned and measured memory, {date.today().isoformat()}\n\n{libraries}\n"
    if devices:
        figures: list[Figure] = []
        failed = []
        for case in GPU_CASES[: asked.cases]:
            with tempfile.TemporaryDirectory() as folder:
                found = on_gpu(case, len(devices), asked.gpu_kind, Path(folder))
            print(case, found, file=sys.stderr)
            (figures if isinstance(found, tuple) else failed).append(
                found if isinstance(found, tuple) else f"{case}: {found}"
            )  # type: ignore[arg-type]
        where = f"{len(devices)} x {devices[0].name}, `torch.cuda.max_memory_allocated` of rank 0"
        body = table(figures) + "".join(f"\n\nNot run: {line}" for line in failed)
    else:
        figures, resident = on_cpu(asked.cases)
        where = "CPU, bytes of model states and buffers on the engines, the rank with most"
        exact = sum(planned == measured for _, planned, measured in figures)
        body = f"{table(figures)}\n\n{exact} of {len(figures)} exact to the byte.\n\n{table(resident)}\n\n"
        body += "The resident set is dominated by Python and its libraries, which the plan assumes to be 0.5 GB."
    text = f"{head}\n{where}\n\n{body}\n"
    print(text)
    if asked.write:
        target = ROOT / "benchmarks" / "results" / f"plan-error-{date.today().isoformat()}.md"
        target.write_text(text, encoding="utf-8")
        print(f"wrote {target}", file=sys.stderr)


if __name__ == "__main__":
    main()
