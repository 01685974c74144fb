# SPDX-License-Identifier: Apache-2.0
"""Telemetry: the parts of a step add up to it, by the device's clock, and all ranks are looked at."""

from __future__ import annotations

import statistics

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.runs import note_starts, read_lines, train_run
from benchmarks.gpu_checks.training import llama, make_spec

PARTS = ("seconds_data", "seconds_forward", "seconds_backward", "seconds_optimizer", "seconds_loop")


def measure(scene: Scene) -> Figures:
    """Of the lines of a run of short steps."""
    steps = scene.pick(200, 8)
    spec = make_spec(
        scene.folder,
        llama(scene.pick(1024, 32), 2),
        data={"max_length": scene.pick(512, 32)},
        train={"max_steps": steps},
        zero={"stage": 3, "offload_optimizer": {"device": "cpu"}},
        telemetry={"gather_steps": 2},
        logging={"logging_steps": 1},
    )
    starts: list[float] = []
    train_run(scene, scene.folder / "run", spec, change=lambda context: note_starts(context, starts))
    if scene.rank:
        return {}
    lines = read_lines(scene.folder / "run", "step")
    run = read_lines(scene.folder / "run", "run")[0]
    off = [abs(sum(line.get(part, 0.0) for part in PARTS) / line["seconds"] - 1) for line in lines[2:]]
    shares = [line["communication_share"] for line in lines if "communication_share" in line]
    return {
        "clock": run.get("clock"),
        "expected_lines": steps,
        "lines": len(lines),
        "rank_lines": len(read_lines(scene.folder / "run", "ranks")),
        "parts_off": statistics.median(off),
        "wall_share": sum(line["seconds"] for line in lines[2:-1]) / (starts[-1] - starts[2]),
        "step_seconds": statistics.median(line["seconds"] for line in lines[2:]),
        "mfu": [line["mfu"] for line in lines if line.get("mfu") is not None][-1:],
        "communication_share": statistics.median(shares) if shares else None,
        "device_name": run.get("device"),
    }


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Parts within 5 % of the step, steps most of the time that passes; shares are shares."""
    reasons = []
    clock = "host" if rehearse else "device"
    if figures["clock"] != clock:
        reasons.append(f"the clock is `{figures['clock']}`, should be `{clock}`")
    if figures["lines"] != figures["expected_lines"]:
        reasons.append(f"{figures['lines']} lines for {figures['expected_lines']} steps")
    if not figures["rank_lines"]:
        reasons.append("no look at all ranks")
    if not figures["parts_off"] <= 0.05:
        reasons.append(f"the parts of a step are {figures['parts_off']:.0%} off the step")
    if not (0.5 if rehearse else 0.8) <= figures["wall_share"] <= 1.1:
        reasons.append(f"the steps are {figures['wall_share']:.0%} of the time that passes")
    if not all(0 < mfu < 1 for mfu in figures["mfu"]):
        reasons.append(f"MFU is {figures['mfu']}")
    share = figures["communication_share"]
    if share is None or not 0 <= share <= 1:
        reasons.append(f"the share of communication is {share}")
    return reasons
