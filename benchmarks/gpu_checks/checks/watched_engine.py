# SPDX-License-Identifier: Apache-2.0
"""`harness.watch` on a bare DeepSpeed engine: no alarm, no host synchronisation on steps without a check, and its time.

Two engines of one model take their steps in turn; one of them is watched.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.gpu_checks.check import SEED, Figures, Scene
from benchmarks.gpu_checks.checks.host_syncs import count_syncs
from benchmarks.gpu_checks.device import synchronize
from benchmarks.gpu_checks.training import llama, make_model

CHECKED = (1, 2, 3, 4, 20, 200)
"""Steps at which the watch compares the engine or the gradient, or ranks with each other."""
CYCLE = 200
MOST_PERCENT = 1.0
"""Of 200 steps of 50 ms."""


def measure(scene: Scene) -> Figures:
    """Extra synchronisations by step, extra milliseconds of the checked steps, and what the watch said."""
    import torch

    import harness

    scene.join()
    steps = scene.pick(CYCLE + 1, 6)
    model = llama(scene.pick(1024, 32), scene.pick(8, 1))
    plain, watched = _build(model), _build(model)
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(2):  # kernels and caches warm up
        _take_step(plain, [torch.randint(0, 320, (1, scene.pick(512, 32)), generator=generator)] * 2)
    watch = harness.watch(watched, on_difference="write", output=scene.folder / "engine_checks.json")
    extra, waits = [], {}
    for step in range(1, steps + 1):
        rows = [torch.randint(0, 320, (1, scene.pick(512, 32)), generator=generator) for _ in range(2)]
        seconds, counts = [], []
        for engine in (plain, watched):
            synchronize()
            begin = time.perf_counter()
            with count_syncs() as found:
                _take_step(engine, rows)
            synchronize()
            seconds.append(time.perf_counter() - begin)
            counts.append(found["syncs"])
        extra.append(seconds[1] - seconds[0])
        if counts[0] != counts[1]:
            waits[step] = counts
    ordinary = sorted(extra[step - 1] for step in range(1, steps + 1) if step not in (*CHECKED, CYCLE - 1))
    noise = ordinary[len(ordinary) // 2]
    checked = {step: 1e3 * (extra[step - 1] - noise) for step in (*CHECKED, CYCLE - 1) if step <= steps}
    watch.close()
    return {
        "steps": steps,
        "findings": [f"{finding.gate}: {finding.message}" for finding in watch.findings],
        "witnessed": [result.step for result in watch.witness.results],
        "extra_syncs": waits,
        "ordinary_ms": 1e3 * noise,
        "checked_ms": checked,
        "percent": sum(checked.values()) / (CYCLE * 50) * 100,
    }


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Nothing is said, the witness looked, other steps wait no more often, and on a GPU the checked ones are short."""
    reasons = []
    if figures["findings"]:
        reasons.append(f"the watch says: {'; '.join(figures['findings'])}")
    expected = [step for step in (1, 2, 3, CYCLE) if step <= figures["steps"]]
    if figures["witnessed"] != expected:
        reasons.append(f"the gradient was recomputed at steps {figures['witnessed']}, should be at {expected}")
    waits = sorted(set(map(int, figures["extra_syncs"])) - set(CHECKED))
    if waits:
        reasons.append(f"steps {', '.join(map(str, waits))} wait for the device more often than without the watch")
    if not rehearse and figures["percent"] > MOST_PERCENT:
        reasons.append(f"the watch takes {figures['percent']:.1f} % of {CYCLE} steps of 50 ms")
    return reasons


def _build(config: dict[str, Any]) -> Any:
    import deepspeed

    model = make_model(config)
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]


def _take_step(engine: Any, rows: list[Any]) -> None:
    for row in rows:
        on_device = row.to(engine.device)
        engine.backward(engine(input_ids=on_device, labels=on_device, use_cache=False).loss)
        engine.step()
