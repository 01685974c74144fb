# SPDX-License-Identifier: Apache-2.0
"""Memory and gathers at the width of a 70B model on two ranks, against `harness plan` of that very spec and against its
simulation (`simulated_figures.json`).

Three layers that are gathered as one (the harness's choice), or module by module; and two with weights on NVMe. On a
CPU, what a step allocates on top of what is there before it is compared with the plan's rows that only a step has.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import Figures, Scene, Start, start_once
from benchmarks.gpu_checks.plan_command import plan_spec
from benchmarks.gpu_checks.runs import read_lines, train_run
from benchmarks.gpu_checks.simulated_figures import PHASES, find_simulated
from benchmarks.gpu_checks.training import count_on_nvme, llama, make_spec

STEPS = 3
ALWAYS_THERE = ("parameters", "bucket")
"""Kinds of the plan's rows that exist between steps, too."""
LEAST_SHARE = 0.4
"""A smaller part of the plan means that something was not measured."""
SLACK = 1.10
SIMULATED_RANGE, TOY_SIMULATED_RANGE = (0.85, 1.2), (0.95, 1.05)
"""Measured over simulated bytes: a simulation has no workspaces of kernels, and nothing that streams hold back.
DeepSpeed gathers parameters in the order of a set, which moves the peak of a forward by a tenth from run to run.
"""


def make_case(folder: Path, check: str, *, rehearse: bool) -> dict[str, Any]:
    """The spec of one of the checks."""
    on_nvme = check == "memory-nvme"
    layers = 2 if on_nvme else 3
    if not rehearse:
        model = llama(8192, layers, intermediate_size=28672, num_key_value_heads=8, vocab_size=32_000)
    elif on_nvme:  # DeepSpeed keeps shards below 1 MiB in memory
        model = llama(512, layers, intermediate_size=2048, num_attention_heads=4, vocab_size=2048)
    else:
        model = llama(64, layers, intermediate_size=224, num_attention_heads=8, num_key_value_heads=1, vocab_size=1000)
    weights = {"offload_param": {"device": "nvme", "nvme_path": str(folder / "nvme"), "max_in_cpu": 0}}
    return make_spec(
        folder,
        model,
        data={"max_length": 64 if rehearse else 1024},
        train={"max_steps": 2 if rehearse else STEPS, "gradient_checkpointing": True},
        zero={
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "reduce_bucket_size": (2_000_000 if on_nvme else 100_000) if rehearse else 50_000_000,
            "stage3_param_persistence_threshold": 0,
            **(weights if on_nvme else {}),
        },
        cluster={"gpu": "H100-80GB"},
    ) | {"tuned_defaults": check != "memory-plain"}


def drive(start: Start) -> Figures:
    """Plan the spec by the command that a user has, then train it."""
    folder, task = Path(start.task.folder), start.task
    spec = make_case(folder, task.check, rehearse=task.rehearse)
    plan = plan_spec(folder / "spec.yaml", spec, task.ranks)
    simulated = find_simulated(spec, task.ranks)
    return {**read_plan(plan, rehearse=task.rehearse), "simulated": simulated, **start_once(start)}


def read_plan(plan: dict[str, Any], *, rehearse: bool) -> Figures:
    """Planned bytes by phase, of rows that torch counts; and the ranges of the allocator's peaks."""
    rows = [row for row in plan["rows"] if row["tier"] == "gpu" and not row["assumed"]]
    always = [row for row in rows if rehearse and row["kind"] in ALWAYS_THERE]
    rows = [row for row in rows if row not in always]
    planned = {phase: sum(row["bytes_per_rank"] for row in rows if phase in row["phases"]) for phase in PHASES}
    return {
        "planned": planned,
        "always_there": sum(row["bytes_per_rank"] for row in always),
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
    if "offload_param" in spec["zero"] and not count_on_nvme(context.engine):
        raise RuntimeError("no weight is on NVMe")
    reserved = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    peaks = scene.distributed.all_gather_object((recorder.peaks, reserved))
    config = json.loads((run / "ds_config.json").read_text(encoding="utf-8"))["zero_optimization"]
    every = found["waited"] + found["ahead"]
    return {
        "measured": {phase: max(rank[phase] for rank, _ in peaks) for phase in PHASES},
        "reserved": max(number for _, number in peaks),
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF", ""),
        "waited_share": found["waited"] / max(1, every),
        "gathered_elements": every,
        "gathered_in_two_steps": sum(recorder.gathered[:2]),
        "layers_as_one": bool(config.get("leaf_module", {}).get("classes")),
        "parameters": read_lines(run, "run")[0]["parameters"] if context.distributed.is_main_process else 0,
        "step_seconds": read_lines(run, "step")[-1]["seconds"],
    }


class PhasePeaks:
    """Allocated bytes at most in each phase of the steps after the first, whose gathers do not count either."""

    def __init__(self, gathered: dict[str, int]) -> None:
        from benchmarks.counting import peak

        self._counts = gathered
        self.gathered: list[int] = []
        """Elements by step, the first with them."""
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

        self.gathered.append(self._counts["waited"] + self._counts["ahead"] - sum(self.gathered[1:]))
        if not self._steps:
            self._counts.update(waited=0, ahead=0)  # the first step does not know what comes next
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
    """No phase holds more than planned, and none so little that it was not measured; as simulated, where the plan is
    known to be lower than the engine on a simulated device.
    """
    reasons = []
    for phase, planned in figures["planned"].items():
        measured, most = figures["measured"][phase], max(planned, _simulated_bytes(figures, phase))
        if not LEAST_SHARE * planned <= measured <= SLACK * most:
            reasons.append(f"{phase} allocates {measured:,} bytes at most, {planned:,} are planned")
    most = max(figures["planned_allocated_most"], *(SLACK * _simulated_bytes(figures, phase) for phase in PHASES))
    if not rehearse and max(figures["measured"].values()) > most:
        reasons.append(f"more than {most:,.0f} bytes, the end of the plan's range")
    if not rehearse and not 0 < figures["reserved"] <= figures["planned_reserved_most"]:
        reasons.append(
            f"{figures['reserved']:,} bytes are reserved, at most {figures['planned_reserved_most']:,} planned"
        )
    if not figures["gathered_elements"]:
        reasons.append("nothing was gathered")
    if figures["layers_as_one"] and figures["waited_share"] > 0.5:
        reasons.append(f"{figures['waited_share']:.0%} of the elements are gathered when they are needed already")
    return reasons + compare_simulated(figures, rehearse)


def compare_simulated(figures: Figures, rehearse: bool) -> list[str]:
    """As many elements gathered as simulated, and about as many bytes. Without a simulation of today's JSON a rehearsal
    fails.
    """
    simulated, reasons = figures["simulated"], []
    if simulated is None:
        return ["no simulation: `python -m benchmarks.gpu_checks.simulated_figures --write`"] if rehearse else []
    gathered, expected = figures["gathered_in_two_steps"], simulated["gathered_elements"]
    if not abs(gathered - expected) <= 0.01 * expected:
        reasons.append(f"two steps gather {gathered:,} elements, simulated are {expected:,}")
    low, high = TOY_SIMULATED_RANGE if rehearse else SIMULATED_RANGE
    for phase in PHASES:
        measured, expected = figures["measured"][phase], _simulated_bytes(figures, phase)
        if not low * expected <= measured <= high * expected:
            reasons.append(f"{phase} allocates {measured:,} bytes at most, simulated are {expected:,}")
    return reasons


def _simulated_bytes(figures: Figures, phase: str) -> int:
    """Of a rehearsal, without what is always there; 0 without a simulation."""
    simulated = figures["simulated"]
    return 0 if simulated is None else int(simulated[phase] - figures["always_there"])
