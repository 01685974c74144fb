# SPDX-License-Identifier: Apache-2.0
"""The device is really used: a model loaded from a folder, its weights, buffers and memory are there, on every rank."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.runs import read_lines, train_run
from benchmarks.gpu_checks.training import llama, make_model, make_spec


def measure(scene: Scene) -> Figures:
    """Two steps of the harness's loop at stage 3, and the devices of everything that they leave."""
    import torch

    from harness.runtime.tokenizer import byte_tokenizer

    place, config = scene.folder / "model", llama(scene.pick(1024, 32), 2)
    if scene.distributed.is_main_process:
        make_model(config).save_pretrained(place)
        byte_tokenizer().save_pretrained(place)
    scene.distributed.barrier()
    spec: dict[str, Any] = make_spec(
        scene.folder,
        config,
        data={"max_length": scene.pick(512, 32)},
        train={"max_steps": 2},
        zero={"stage": 3, "offload_optimizer": {"device": "cpu"}},
    )
    spec["model"] = {"name_or_path": str(place)}
    engine = train_run(scene, scene.folder / "run", spec).engine
    kinds = {
        "weights": sorted({p.ds_tensor.device.type for p in engine.module.parameters()}),
        "buffers": sorted({b.device.type for b in engine.module.buffers()}),
        "engine": [torch.device(engine.device).type],
    }
    allocated = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    every = scene.distributed.all_gather_object({"kinds": kinds, "allocated": allocated})
    return {
        "kinds": [rank["kinds"] for rank in every],
        "allocated_bytes": min(rank["allocated"] for rank in every),
        "losses": [line["loss"] for line in read_lines(scene.folder / "run", "step")],
        "name": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Everything is on one kind of device, and on a GPU its allocator has seen it."""
    wanted, reasons = "cpu" if rehearse else "cuda", []
    for rank, kinds in enumerate(figures["kinds"]):
        reasons += [f"{name} of rank {rank} are on {on}" for name, on in kinds.items() if on != [wanted]]
    if not rehearse and figures["allocated_bytes"] < 1 << 20:
        reasons.append(f"the allocator of the GPU gave {figures['allocated_bytes']} bytes")
    if not figures["losses"] or not all(0 < loss < 20 for loss in figures["losses"]):
        reasons.append(f"losses are {figures['losses']}")
    return reasons
