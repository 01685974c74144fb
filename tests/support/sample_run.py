# SPDX-License-Identifier: Apache-2.0
"""Run directories that never ran: a spec, its plan, and lines of metrics.jsonl (format 2) as a test wants them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from harness.plan.plan_json import plan_json
from harness.plan.planner import make_plan
from harness.render import render_ds_config
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.run_spec import RunSpec
from harness.verdicts import Verdict, write_verdict

TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 259}
LARGE = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
BEGAN = 1_790_000_000.0
Row = dict[str, Any]


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return {key: value for key, value in result.items() if value is not None}


def on_gpus(changes: dict[str, Any] | None = None, name: str = "large") -> ResolvedRun:
    """8 B parameters on 8 H100 of one host, ZeRO-3 with the optimizer on the CPU."""
    raw = {
        "model": {"config": LARGE},
        "data": {"train": "builtin:python-docs", "max_length": 4096},
        "train": {"per_device_train_batch_size": 1, "global_batch_size": 64, "max_steps": 1000},
        "precision": {"bf16": True},
        "zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "cluster": {"gpu": "H100-80GB", "gpus_per_node": 8, "host_memory": "2TB"},
    }
    return resolve_run(RunSpec.model_validate(merged(raw, changes or {})), name=name)


def tiny(changes: dict[str, Any] | None = None, name: str = "tiny") -> ResolvedRun:
    """Two ranks of a CPU."""
    raw = {
        "model": {"config": TINY},
        "train": {"per_device_train_batch_size": 2, "max_steps": 30},
        "zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "launch": {"num_gpus": 2},
    }
    return resolve_run(RunSpec.model_validate(merged(raw, changes or {})), name=name)


def head(run: ResolvedRun, **more: Any) -> Row:
    world = run.parallel_dims.world_size or 1
    start = {"type": "run", "time": BEGAN, "format_version": 2, "name": run.name, "world": world, "start_step": 0}
    start |= {"steps": run.spec.train.max_steps, "parameters": 8_030_261_248, "unigram_entropy": 7.2}
    return {**start, "hosts": [f"node{rank // 8}" for rank in range(world)], **more}


def step(number: int, seconds: float = 4.0, shares: dict[str, float] | None = None, **more: Any) -> Row:
    """A step whose parts are `shares` of it."""
    noise = random.Random(number)  # noqa: S311
    parts = {"data": 0.01, "forward": 0.3, "backward": 0.55, "optimizer": 0.1, "loop": 0.01} | (shares or {})
    took = seconds * noise.uniform(0.97, 1.03)
    row = {
        "type": "step", "time": BEGAN + 60 + number * seconds, "step": number, "steps": 1, "seconds": round(took, 6),
        "loss": 2 + 6 * math.exp(-number / 150) + noise.gauss(0, 0.06), "grad_norm": 1.2 + noise.expovariate(3),
        "learning_rate": 1e-5 * min(1.0, number / 100), "tokens": number * 262_144, "samples": number * 64,
        "tokens_per_second": 262_144 / took, "skipped": 0, "memory_host_bytes": 60 * 2**30 + number * 2**16,
    }  # fmt: skip
    return row | {f"seconds_{name}": round(took * share, 6) for name, share in parts.items()} | more


def on_device(number: int) -> Row:
    """What only a GPU's step has."""
    noise = random.Random(-number)  # noqa: S311
    memory = {
        "memory_gpu_bytes": 20 * 2**30,
        "memory_gpu_reserved_bytes": 38 * 2**30,
        "memory_gpu_peak_bytes": 33 * 2**30,
    }
    mfu = 0.38 + noise.gauss(0, 0.008)
    return {**memory, "mfu": mfu, "hfu": mfu * 1.3, "mfu_6n": mfu * 0.93}


def ranks(number: int, world: int, slow: dict[int, float] | None = None) -> Row:
    noise = random.Random(number)  # noqa: S311
    busy = [3.0 * (1 + noise.uniform(-0.02, 0.02) + (slow or {}).get(rank, 0.0)) for rank in range(world)]
    share = {"data": 0.01, "compute": 0.9, "io": 0.0, "host": 0.09}
    parts = {name: [round(b * s, 4) for b in busy] for name, s in share.items()}
    row = {"type": "ranks", "time": BEGAN + 60 + number * 4, "step": number, "steps": 10, "seconds": [4.0] * world}
    return {**row, "busy": [round(b, 4) for b in busy], **parts, "memory_host_bytes": [60 * 2**30] * world}


def save(number: int, **more: Any) -> Row:
    path = f"checkpoints/step-{number:08d}"
    row = {"type": "save", "time": BEGAN + 61 + number * 4, "step": number, "path": path, "bytes": 96 * 10**9}
    return {**row, "background": False, "seconds": 21.5, "stall_seconds": 21.5, **more}


def evaluation(number: int) -> Row:
    loss = 2.1 + 6 * math.exp(-number / 150)
    row = {"type": "eval", "time": BEGAN + 62 + number * 4, "step": number, "loss": loss}
    return {**row, "perplexity": math.exp(loss), "tokens": 100_000, "unigram_entropy": 7.2, "seconds": 9.5}


@cache
def planned(run: str) -> str:
    """The text of plan.json for the text of spec.resolved.json."""
    read = ResolvedRun.from_json(json.loads(run))
    return json.dumps(plan_json(make_plan(read, gpu="cpu" if read.spec.cluster.gpu is None else None)))


def write_run(
    folder: Path,
    run: ResolvedRun,
    lines: Sequence[Row] | None,
    states: Sequence[str] = ("completed",),
    tail: str = "",
    attempts: Sequence[Row] = (),
    files: dict[str, str] | None = None,
) -> Path:
    """A run directory as a launch leaves it; `states` are those of the ranks, `files` replace what would be written."""
    (folder / "status").mkdir(parents=True)
    texts = {
        "spec.yaml": f"name: {run.name}\n",
        "spec.resolved.json": json.dumps(run.to_json()),
        "ds_config.json": render_ds_config(run).json_text,
        "plan.json": planned(json.dumps(run.to_json())),
        "findings.json": json.dumps({"findings": [], "ignored": []}),
    }
    if lines is not None:
        texts["metrics.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines) + tail
    if attempts:
        texts["restarts.json"] = json.dumps({"format_version": 1, "attempts": list(attempts)})
    for name, text in {**texts, **(files or {})}.items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    last = max((line.get("time", 0.0) for line in lines or ()), default=BEGAN)
    for rank, state in enumerate(states):
        body = {"rank": rank, "host": "node0", "pid": 1, "state": state, "step": 3, "time": last}
        body |= {"error": "RuntimeError: <boom> & more"} if state == "failed" else {}
        (folder / "status" / f"rank-{rank:05d}.json").write_text(json.dumps(body), encoding="utf-8")
    return folder


RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:30912: Connection reset by peer"
SURVIVOR = f"""\
Traceback (most recent call last):
  File "harness/runtime/comm_timer.py", line 90, in timed
    work.wait()
{RESET}
"""
KILLED = Verdict("failed", 137, "killed by SIGKILL", 1, "node1", 24, signal="SIGKILL", cause="LG003", time=BEGAN + 200)


def lost_a_rank(folder: Path, verdict: Verdict | None = KILLED) -> Path:
    """A run of two ranks whose second one ended without a word, of which the first only saw a broken connection."""
    write_run(folder, tiny(), [head(tiny()), *(step(n) for n in range(1, 25))], ("failed", "running"))
    for rank, host, more in ((0, "node0", {"error": RESET}), (1, "node1", {})):
        file = folder / "status" / f"rank-{rank:05d}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "host": host, **more}))
    (folder / "logs").mkdir()
    (folder / "logs" / "launcher.log").write_text(SURVIVOR)
    if verdict is not None:
        write_verdict(folder, verdict)
    return folder


def eventful(folder: Path, steps: int = 300, name: str = "large", changes: dict[str, Any] | None = None) -> Path:
    """A run on 8 GPUs that died once, has a slow rank, saves, evaluates, findings and something ignored."""
    run = on_gpus(changes, name)
    half, saved = steps // 2, steps // 3
    slow = {"shares": {"optimizer": 0.33, "forward": 0.2, "backward": 0.42, "communication": 0.24}}

    def trained(first: int, last: int) -> list[Row]:
        rows: list[Row] = []
        for number in range(first, last + 1):
            rows.append(step(number, 4.0, slow["shares"], **on_device(number)))
            rows += [ranks(number, 8, {5: 0.3} if number > half else {})] if number % 10 == 0 else []
            rows += [save(number), evaluation(number)] if number % (steps // 6) == 0 else []
        return rows

    straggler = {
        "type": "straggler",
        "step": half + 20,
        "state": "named",
        "ranks": [5],
        "host": "node0",
        "cause": "compute",
    }
    straggler |= {"whole_host": False, "slower": 0.3, "seconds": 0.9, "evidence": "its forward and backward take 3.5 s"}
    restart = {"type": "restart", "time": BEGAN + 60 + half * 4, "step": saved, "attempt": 2, "lost_step": half}
    start = head(run, clock="device", offload_to_host_bytes=4e9, offload_to_device_bytes=4e9)
    lines = [start, *trained(1, half), {**restart, "cause": "rank 3 on node0 was killed by SIGKILL", "rank": 3}]
    lines += [{**start, "start_step": saved, "time": BEGAN + 120 + half * 4}, *trained(saved + 1, steps), straggler]
    lines += [{"type": "end", "step": steps, "state": "completed", "time": BEGAN + 62 + steps * 4}]
    attempt = {
        "state": "failed",
        "cause": "rank 3 on node0 was killed by SIGKILL",
        "began": BEGAN,
        "code": 137,
        "number": 1,
    }
    attempt |= {"ended": BEGAN + 60 + half * 4, "start_step": 0, "saved_step": saved, "step": half}
    again = {
        "state": "completed",
        "cause": "",
        "began": BEGAN + 65 + half * 4,
        "ended": BEGAN + 62 + steps * 4,
        "number": 2,
    }
    again |= {"start_step": saved, "saved_step": steps, "step": steps, "code": 0}
    finding = {
        "gate": "MM001",
        "severity": "warning",
        "message": "`train.seed` is the default",
        "fix": {"title": "set it"},
    }
    ignored = {"gate": "OF001", "severity": "error", "message": "offload at stage 1"}
    files = {
        "findings.json": json.dumps({"findings": [finding], "ignored": [ignored]}),
        "sample.txt": "The <import> statement",
    }
    return write_run(folder, run, lines, ("completed",) * 8, attempts=(attempt, again), files=files)
