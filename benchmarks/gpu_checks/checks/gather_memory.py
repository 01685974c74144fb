# SPDX-License-Identifier: Apache-2.0
"""Memory at the width of a 70B model, three layers on two ranks, against `harness plan` of that very spec.

With layers that are gathered as one (the harness's choice) and without. On a CPU, what a step allocates on top of what
is there before it is compared with the plan's rows that only a step has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import Figures, Scene, Start, start_once
from benchmarks.gpu_checks.plan_command import plan_spec
from benchmarks.gpu_checks.runs import read_lines, train_run
from benchmarks.gpu_checks.training import llama, make_spec

STEPS = 3
PHASES = ("forward", "backward")
ALWAYS_THERE = ("parameters", "bucket")
"""Kinds of the plan's rows that exist between steps, too."""
LEAST_SHARE = 0.4
"""A smaller part of the plan means that something was not measured."""
SLACK = 1.10


def make_case(folder: Path, *, leaf: bool, rehearse: bool) -> dict[str, Any]:
    """The spec."""
    if rehearse:
        model = llama(64, 3, intermediate_size=224, num_attention_heads=8, num_key_value_heads=1, vocab_size=1000)
    else:
        model = llama(8192, 3, intermediate_size=28672, num_key_value_heads=8, vocab_size=32_000)
    return make_spec(
        folder,
        model,
        data={"max_length": 64 if rehearse else 1024},
        train={"max_steps": 2 if rehearse else STEPS, "gradient_checkpointing": True},
        zero={
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "reduce_bucket_size": 100_000 if rehearse else 50_000_000,
            "stage3_param_persistence_threshold": 0,
        },
        cluster={"gpu": "H100-80GB"},
    ) | {"tuned_defaults": leaf}


def drive(start: Start) -> Figures:
    """Plan the spec by the command that a user has, then train it."""
    folder, task = Path(start.task.folder), start.task
    spec = make_case(folder, leaf=not task.check.endswith("plain"), rehearse=task.rehearse)
    plan = plan_spec(folder / "spec.yaml", spec, task.ranks)
    return {**read_plan(plan, rehearse=task.rehearse), **start_once(start)}


def read_plan(plan: dict[str, Any], *, rehearse: bool) -> Figures:
    """Planned bytes by phase, of rows that torch counts; and the ranges of the allocator's peaks."""
    rows = [row for row in plan["rows"] if row["tier"] == "gpu" and not row["assumed"]]
    if rehearse:
        rows = [row for row in rows if row["kind"] not in ALWAYS_THERE]
    planned = {phase: sum(row["bytes_per_rank"] for row in rows if phase in row["phases"]) for phase in PHASES}
    return {
        "planned": planned,
        "planned_allocated_most": plan["gpu_allocated_bytes_range"][1],
        "planned_reserved_most": plan["gpu_reserved_bytes_range"][1],
    }


def measure(scene: Scene) -> Figures:
    """Peaks of the last steps by phase, and what is gathered in them."""
    import torch

    from benchmarks.counting import gathers

    spec = json.loads((scene.folder / "spec.yaml").read_text(encoding="utf-8"))
    run = scene.folder / "run"
    with gathers() as found:
        recorder = PhasePeaks(found)
        context = train_run(scene, run, spec, change=recorder.watch)
    recorder.close()
    reserved = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    peaks = scene.distributed.all_gather_object((recorder.peaks, reserved))
    config = json.loads((run / "ds_config.json").read_text(encoding="utf-8"))["zero_optimization"]
    every = found["waited"] + found["ahead"]
    return {
        "measured": {phase: max(rank[phase] for rank, _ in peaks) for phase in PHASES},
        "reserved": max(number for _, number in peaks),
        "waited_share": found["waited"] / max(1, every),
        "gathered_elements": every,
        "layers_as_one": bool(config.get("leaf_module", {}).get("classes")),
        "parameters": read_lines(run, "run")[0]["parameters"] if context.distributed.is_main_process else 0,
        "step_seconds": read_lines(run, "step")[-1]["seconds"],
    }


class PhasePeaks:
    """Allocated bytes at most in each phase of the steps after the first, whose gathers do not count either."""

    def __init__(self, gathered: dict[str, int]) -> None:
        from benchmarks.counting import peak

        self._gathered = gathered
        self.peaks = dict.fromkeys(PHASES, 0)
        self._counter, self._held, self._steps = peak(), {"now": 0, "peak": 0}, 0

    def watch(self, context: Any) -> None:
        """Stand before the engine's `backward` and `step`."""
        engine = context.engine
        backward, step = engine.backward, engine.step

        def at_backward(*arguments: Any, **named: Any) -> Any:
            self._read("forward")
            result = backward(*arguments, **named)
            self._read("backward")
            return result

        def at_step(*arguments: Any, **named: Any) -> Any:
            result = step(*arguments, **named)
            self._begin_step()
            return result

        engine.backward, engine.step = at_backward, at_step

    def _read(self, phase: str) -> None:
        import torch

        if self._steps:
            on_gpu = torch.cuda.is_available()
            value = torch.cuda.max_memory_allocated() if on_gpu else self._held["peak"]
            self.peaks[phase] = max(self.peaks[phase], value)
        self._reset()

    def _begin_step(self) -> None:
        import torch

        if not self._steps:
            self._gathered.update(waited=0, ahead=0)  # the first step does not know what comes next
            if not torch.cuda.is_available():
                self._held = self._counter.__enter__()  # what is there before is not counted
        self._steps += 1
        self._reset()

    def _reset(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        else:
            self._held["peak"] = self._held["now"]

    def close(self) -> None:
        """Stop counting."""
        import torch

        if self._steps and not torch.cuda.is_available():
            self._counter.__exit__(None, None, None)


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """No phase holds more than planned, and none so little that it was not measured."""
    reasons = []
    for phase, planned in figures["planned"].items():
        measured = figures["measured"][phase]
        if not LEAST_SHARE * planned <= measured <= SLACK * planned:
            reasons.append(f"{phase} allocates {measured:,} bytes at most, {planned:,} are planned")
    if not rehearse and max(figures["measured"].values()) > figures["planned_allocated_most"]:
        reasons.append(f"more than {figures['planned_allocated_most']:,} bytes, the end of the plan's range")
    if not rehearse and not 0 < figures["reserved"] <= figures["planned_reserved_most"]:
        reasons.append(
            f"{figures['reserved']:,} bytes are reserved, at most {figures['planned_reserved_most']:,} planned"
        )
    if not figures["gathered_elements"]:
        reasons.append("nothing was gathered")
    if figures["layers_as_one"] and figures["waited_share"] > 0.5:
        reasons.append(f"{figures['waited_share']:.0%} of the elements are gathered when they are needed already")
    return reasons
