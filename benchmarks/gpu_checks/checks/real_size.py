# SPDX-License-Identifier: Apache-2.0
"""A real size: a model of 3 billion parameters, fp32 states, CPU Adam, one rank; the harness against bare DeepSpeed.

Each side has its own JSON: the harness renders one, the other is what a user writes by hand. Measured figures are
compared with those of `harness plan` for that very spec.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import Figures, RanksFailed, Scene, Start
from benchmarks.gpu_checks.device import synchronize
from benchmarks.gpu_checks.plan_command import plan_spec
from benchmarks.gpu_checks.runs import note_starts, read_lines, train_run
from benchmarks.gpu_checks.training import llama, make_spec, write_text

STEPS, TOY_STEPS, WARM_UP = 6, 4, 2
SLOWEST_RATIO, TOY_RATIO = 1.10, 3.0
Clock = Callable[[], float]
PARTS = ("seconds_data", "seconds_forward", "seconds_backward", "seconds_optimizer", "seconds_loop")


def make_case(folder: Path, *, rehearse: bool) -> dict[str, Any]:
    """The spec: the shape of Llama 3.2 3B, random weights."""
    shape = {"intermediate_size": 8192, "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 128_256}
    model = llama(64, 2) if rehearse else llama(3072, 28, **shape, tie_word_embeddings=True)
    return make_spec(
        folder,
        model,
        data={"train": str(write_text(folder, 400 if rehearse else 20_000)), "max_length": 32 if rehearse else 4096},
        train={
            "max_steps": TOY_STEPS if rehearse else STEPS,
            "gradient_accumulation_steps": 2 if rehearse else 4,
            "gradient_checkpointing": True,
        },
        optimizer={"learning_rate": 1e-4},
        zero={"stage": 3, "offload_optimizer": {"device": "cpu"}},
        cluster={"gpu": "H100-80GB"},
        logging={"logging_steps": 1},
        launch={"engine_checks": "off"},  # they cost time in the first 20 steps alone
    )


def drive(start: Start) -> Figures:
    """Plan, then train by each side in a process of its own."""
    folder = Path(start.task.folder)
    plan = plan_spec(folder / "spec.yaml", make_case(folder, rehearse=start.task.rehearse), 1)
    found: Figures = {
        "planned": {
            "step_seconds": plan["step_seconds"],
            "step_seconds_range": plan["step_seconds_range"],
            "gpu_allocated_bytes": plan["gpu_allocated_bytes"],
            "gpu_allocated_bytes_range": plan["gpu_allocated_bytes_range"],
            "host_peak_bytes": max(p["host_bytes"] for p in plan["phases"] if p["phase"] not in ("resume", "export")),
            "parts": plan["step_parts_seconds"],
        }
    }
    for side in ("harness", "bare"):
        ending = start(side)
        if any(ending.codes):
            raise RanksFailed(f"{side}: exit codes {list(ending.codes)}\n{ending.output[-2500:]}")
        found[side] = ending.figures
    found["ratio"] = found["harness"]["step_seconds"] / found["bare"]["step_seconds"]
    return found


def measure(scene: Scene) -> Figures:
    """Seconds of a step after the first ones, by one clock for both sides, and memory."""
    import torch

    spec = json.loads((scene.folder / "spec.yaml").read_text(encoding="utf-8"))
    clock = scene.pick(time.perf_counter, time.process_time)  # other programs disturb a rehearsal
    side = _train_harness if scene.task.mode == "harness" else _train_bare
    starts, more = side(scene, spec, clock)
    steps = [b - a for a, b in pairwise(starts)][WARM_UP - 1 :]
    tokens = spec["data"]["max_length"] * spec["train"]["gradient_accumulation_steps"]
    return {
        "step_seconds": statistics.median(steps),
        "tokens_per_second": tokens / statistics.median(steps),
        "gpu_allocated_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
        "gpu_reserved_bytes": torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0,
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **more,
    }


def _train_harness(scene: Scene, spec: dict[str, Any], clock: Clock) -> tuple[list[float], Figures]:
    starts: list[float] = []

    def read_clock() -> float:
        synchronize()
        return clock()

    train_run(scene, scene.folder / "run", spec, change=lambda context: note_starts(context, starts, read_clock))
    every = read_lines(scene.folder / "run", "step")
    lines = every[WARM_UP:]
    parts = {part: statistics.median(line.get(part, 0.0) for line in lines) for part in PARTS}
    mfu = [line["mfu"] for line in lines if line.get("mfu") is not None]
    return starts, {"parts": parts, "mfu": mfu[-1] if mfu else None, "losses": [line["loss"] for line in every]}


def _train_bare(scene: Scene, spec: dict[str, Any], clock: Clock) -> tuple[list[float], Figures]:
    """What a user writes: transformers' model, `initialize`, three lines a micro-batch."""
    import deepspeed
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    scene.join()
    train, config = spec["train"], make_bare_config(spec)
    alive = HfDeepSpeedConfig(config)  # while it is there, transformers creates shards
    shape = AutoConfig.for_model(**spec["model"]["config"])
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    del alive
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.train()
    text = torch.tensor(list(Path(spec["data"]["train"]).read_bytes()))  # a byte is a token, as on the other side
    rows = iter(text.split(spec["data"]["max_length"]))
    starts, losses = [], []
    for _ in range(train["max_steps"]):
        synchronize()
        starts.append(clock())
        for _ in range(train["gradient_accumulation_steps"]):
            row = next(rows)[None].to(engine.device)
            loss = engine(input_ids=row, labels=row, use_cache=False).loss
            losses.append(loss.detach())
            engine.backward(loss)
            engine.step()
    synchronize()
    starts.append(clock())
    by_step = torch.stack(losses).view(train["max_steps"], -1).mean(1)
    return starts, {"losses": by_step.tolist()}


def make_bare_config(spec: dict[str, Any]) -> dict[str, Any]:
    """The JSON of the other side, everything else left at DeepSpeed's defaults."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": spec["train"]["gradient_accumulation_steps"],
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    }


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """As fast as bare DeepSpeed; time and memory within the plan's ranges."""
    ours, planned, reasons = figures["harness"], figures["planned"], []
    if not 0 < figures["ratio"] <= (TOY_RATIO if rehearse else SLOWEST_RATIO):
        reasons.append(f"a step takes {figures['ratio']:.2f} times as long as bare DeepSpeed's")
    losses = {side: figures[side]["losses"] for side in ("harness", "bare")}
    if not all(0 < loss < 20 for found in losses.values() for loss in found) or not all(losses.values()):
        reasons.append(f"losses are {losses}")
    if rehearse:
        return reasons
    low, high = planned["step_seconds_range"]
    if not low <= ours["step_seconds"] <= high:
        reasons.append(f"a step takes {ours['step_seconds']:.2f} s, {low:.2f} to {high:.2f} s are planned")
    if not 0 < ours["gpu_allocated_bytes"] <= planned["gpu_allocated_bytes_range"][1]:
        reasons.append(f"{ours['gpu_allocated_bytes']:,} bytes on the GPU, more than the plan's range")
    if ours["host_peak_bytes"] > 1.15 * planned["host_peak_bytes"]:
        reasons.append(f"{ours['host_peak_bytes']:,} bytes on the host, {planned['host_peak_bytes']:,} are planned")
    return reasons
