# SPDX-License-Identifier: Apache-2.0
"""`model.quantization`: LoRA over weights in 4 bits trains nearly as over those of 16 bits, holds the planned bytes of
frozen weights, and on a GPU has a lower peak.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.device import free_memory
from benchmarks.gpu_checks.runs import read_lines, train_run
from benchmarks.gpu_checks.training import llama, make_model, make_spec, resolve

NEAR = 0.02
"""Of a loss: what 4 bits change of it."""


def measure(scene: Scene) -> Figures:
    """Losses, peak bytes and bytes of frozen weights of both; `missing` without bitsandbytes."""
    if find_spec("bitsandbytes") is None or find_spec("peft") is None:
        return {"missing": True}
    import torch

    from harness.plan.planner import make_plan
    from harness.runtime.telemetry.state_bytes import state_bytes
    from harness.runtime.tokenizer import byte_tokenizer

    scene.join()
    base = scene.folder / "base"
    make_model(llama(scene.pick(2048, 64), scene.pick(12, 2))).save_pretrained(base)
    byte_tokenizer().save_pretrained(base)
    found: Figures = {}
    for name, quantization in (("lora", None), ("qlora", {"load_in_4bit": True})):
        model: dict[str, Any] = {"name_or_path": str(base), "lora": {"r": 8, "target_modules": "all-linear"}}
        spec = make_spec(
            scene.folder,
            {},
            data={"max_length": scene.pick(1024, 32)},
            train={"max_steps": scene.pick(6, 3), "gradient_checkpointing": True},
            zero={"stage": 2},
        )
        spec["model"] = model if quantization is None else model | {"quantization": quantization}
        before = free_memory()
        engine = train_run(scene, scene.folder / name, spec, torch_adam=True).engine
        plan = make_plan(resolve(json.loads(json.dumps(spec)), scene.world_size, tuned=True), with_alternatives=False)
        memory = plan.memory
        found[name] = {
            "losses": [line["loss"] for line in read_lines(scene.folder / name, "step")],
            "peak_bytes": torch.cuda.max_memory_allocated() - before if torch.cuda.is_available() else 0,
            "frozen_bytes": state_bytes(engine).get("gpu.frozen", 0),
            "planned_bytes": sum(item.bytes for item in memory.items if item.kind == "frozen") if memory else 0,
        }
        engine.destroy()
        del engine
    return found


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Losses near those of 16 bits, the planned bytes, and less memory on a GPU."""
    if figures.get("missing"):
        return [] if rehearse else ["`bitsandbytes` or `peft` is not installed: pip install '.[qlora]'"]
    lora, qlora, reasons = figures["lora"], figures["qlora"], []
    pairs = list(zip(qlora["losses"], lora["losses"], strict=True))
    if not pairs or any(not abs(a - b) <= NEAR * abs(b) for a, b in pairs):
        reasons.append(f"losses are {qlora['losses']}, and {lora['losses']} over weights of 16 bits")
    for name in ("lora", "qlora"):
        held, planned = figures[name]["frozen_bytes"], figures[name]["planned_bytes"]
        if held != planned:
            reasons.append(f"`{name}` holds {held:,} bytes of frozen weights, and {planned:,} are planned")
    if not rehearse and not 0 < qlora["peak_bytes"] < lora["peak_bytes"]:
        reasons.append(f"the peak is {qlora['peak_bytes']:,} bytes, and {lora['peak_bytes']:,} over 16 bits")
    return reasons
