# SPDX-License-Identifier: Apache-2.0
"""No corruption: with streams held back, the harness's engine has the master weights of plain DeepSpeed, to the bit.

The reduce stream is held back before each copy of gradients to the host, and the current stream before the weights of a
step are copied back. A copy that somebody does not wait for is then late by far, and the weights differ.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.device import DELAY_SECONDS, delay_stream, make_deterministic, synchronize
from benchmarks.gpu_checks.training import (
    build_harness_engine,
    build_plain_engine,
    count_on_nvme,
    digest_masters,
    llama,
    make_model,
    make_spec,
    resolve,
    train_on_rows,
)

STEPS, TOY_STEPS = 6, 3
LARGEST = 1 << 20
"""Elements of the largest matrix of each model whose states go to NVMe."""


def measure(scene: Scene) -> Figures:
    """Each case: do the digests agree, and how often was a stream held back?"""
    place = "nvme" if "nvme" in scene.task.check else "cpu"
    make_deterministic()
    cases, delays, seconds = {}, [], []
    for name, options in _cases(scene, place).items():
        plain, _, _ = _train(scene, f"{name}-plain", options, patched=False)
        ours, count, took = _train(scene, f"{name}-ours", options, patched=True)
        every = scene.distributed.all_gather_object((plain, ours, count))
        cases[name] = all(a == b for a, b, _ in every)
        delays.append(min(number for _, _, number in every))
        seconds.append(took)
    return {
        "cases": cases,
        "steps": scene.pick(STEPS, TOY_STEPS),
        "fewest_delays": min(delays),
        "delay_ms": 1e3 * DELAY_SECONDS,
        "delayed_seconds": sum(seconds),
        "delays": sum(delays),
        "sha256": ours,
    }


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Equal in each case, and the delays were real."""
    reasons = [f"weights differ from plain DeepSpeed's: {name}" for name, same in figures["cases"].items() if not same]
    if not figures["cases"]:
        reasons.append("no case was trained")
    if figures["fewest_delays"] < figures["steps"]:
        reasons.append(f"a case held streams back {figures['fewest_delays']} times in {figures['steps']} steps")
    least = figures["delays"] * figures["delay_ms"] / 1e3 / 4  # clocks of GPUs differ
    if not rehearse and figures["delayed_seconds"] < least:
        reasons.append(f"delayed steps took {figures['delayed_seconds']:.2f} s, less than their delays")
    return reasons


def _cases(scene: Scene, place: str) -> dict[str, dict[str, Any]]:
    """bf16, accumulation, overlap of communication, pinned memory; a rehearsal has one case alone. With the optimizer
    on NVMe bf16 weights are there, too, and memory is pinned in any case.
    """
    every = list(product((True, False), (1, 3), (True, False), (True, False)))
    if place == "nvme":
        every = [case for case in every if case[2] and case[3]]
    # One rank takes half of them, two take the other half; any two settings meet in each.
    half = [case for case in every if (case[0] + (case[1] == 3) + case[2] + case[3] + scene.world_size) % 2]
    chosen = scene.pick(half, [case for case in half if case[0]][:1])
    found = {}
    for bf16, accumulation, overlap, pinned in chosen:
        name = f"{'bf16' if bf16 else 'fp32'}, accumulation {accumulation}, overlap {overlap}, pinned {pinned}"
        on_nvme = place == "nvme" and bf16
        found[name + ", weights on NVMe" * on_nvme] = {
            "bf16": bf16,
            "accumulation": scene.pick(accumulation, min(accumulation, 2)),
            "overlap": overlap,
            "pinned": pinned,
            "place": place,
            "on_nvme": on_nvme,
        }
    return found


def _train(scene: Scene, name: str, options: dict[str, Any], *, patched: bool) -> tuple[str, int, float]:
    """Digest after the last step, delays, seconds. The harness's side is held back, DeepSpeed's is not."""
    nvme = {"device": "nvme", "nvme_path": str(scene.folder / name.replace(" ", "").replace(",", "-"))}
    place = {**nvme, "buffer_count": 8}
    if options["place"] == "cpu":
        place = {"device": "cpu", "pin_memory": options["pinned"]}
    buffers = {"buffer_count": 24, "buffer_size": LARGEST, "max_in_cpu": 0}
    weights = {"offload_param": nvme | buffers} if options["on_nvme"] else {}
    # DeepSpeed swaps nothing below 1 MiB to NVMe.
    hidden, vocabulary = scene.pick((1024, 320), (256, 4096) if options["place"] == "nvme" else (32, 64))
    config = llama(hidden, scene.pick(2, 1), intermediate_size=hidden, vocab_size=vocabulary)
    spec = make_spec(
        scene.folder,
        config,
        train={"max_steps": scene.pick(STEPS, TOY_STEPS), "gradient_accumulation_steps": options["accumulation"]},
        precision={"bf16": options["bf16"]},
        optimizer={"learning_rate": 1e-3},
        zero={
            "stage": 3,
            "overlap_comm": options["overlap"],
            "offload_optimizer": place,
            "reduce_bucket_size": 2 * LARGEST,
            "sub_group_size": scene.pick(4 * LARGEST, LARGEST),
            **weights,
        },
    )
    run = resolve(spec, scene.world_size)
    build = build_harness_engine if patched else build_plain_engine
    engine = build(scene, run, make_model(config))
    if options["on_nvme"] and not count_on_nvme(engine):
        raise RuntimeError("no weight is on NVMe")
    counted = _hold_back(engine) if patched else [0]
    start = time.perf_counter()
    train_on_rows(engine, scene.pick(STEPS, TOY_STEPS), scene.pick(128, 16), config["vocab_size"], scene.rank)
    synchronize()
    seconds = time.perf_counter() - start
    digest = digest_masters(engine)
    engine.destroy()
    return digest, counted[0], seconds


def _hold_back(engine: Any) -> list[int]:
    """Delay the streams on which gradients go to the host and new weights come back; counts how often."""
    zero, count = engine.optimizer, [0]
    for name in ("partition_grads", "_reassign_or_swap_out_partitioned_parameters"):
        method = getattr(zero, name)

        def delayed(*arguments: Any, method: Any = method, **named: Any) -> Any:
            count[0] += 1
            delay_stream()
            return method(*arguments, **named)

        setattr(zero, name, delayed)
    return count
