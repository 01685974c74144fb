# SPDX-License-Identifier: Apache-2.0
"""Real engines compared with the Protocols of `harness/runtime/engine_protocol.py`, after one step.

`engine_members.py KIND OUT.json`, on 2 ranks: rank 0 writes {Protocol: [a line for each difference]}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[3]))

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import PipelineModule

from harness.runtime import engine_protocol
from harness.runtime.distributed import destroy_process_group, init_process_group
from tests.support.training.protocol_members import find_differences

SCHEDULER = {"type": "WarmupLR", "params": {"warmup_num_steps": 2}}


class EngineWithMore(engine_protocol.Engine, Protocol):
    """A Protocol that no release has: the comparison must see it."""

    weight: torch.nn.Parameter
    "The model has it, the engine has not."

    def bake_bread(self) -> None: ...

    def get_lr(self, *, of_yesterday: bool) -> list[float]: ...  # type: ignore[override]


def config(kind: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2 if kind != "pipeline" else 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "scheduler": SCHEDULER,
    }
    blocks: dict[str, dict[str, Any]] = {
        "stage-0": {},
        "stage-2": {"fp16": {"enabled": True}, "zero_optimization": {"stage": 2}},
        "stage-3": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}},
        "pipeline": {
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 1},
            "data_types": {"grad_accum_dtype": "fp32"},
        },
    }
    return body | blocks[kind]


def make_engine(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "pipeline":
        layers = [torch.nn.Linear(8, 8) for _ in range(4)]
        model = PipelineModule(layers, num_stages=2, loss_fn=lambda out, label: (out - label).float().square().mean())
    else:
        model = torch.nn.Linear(8, 8)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(kind))[0]


def take_step(engine: Any, kind: str) -> None:
    dtype = {"stage-0": torch.float32, "stage-2": torch.float16}.get(kind, torch.bfloat16)
    inputs = torch.ones(4 if kind == "pipeline" else 2, 8, dtype=dtype)
    if kind == "pipeline":
        engine.train_batch(iter([(inputs, inputs)]))
        return
    engine.backward(engine(inputs).float().square().mean())
    engine.step()


PROTOCOLS: dict[str, tuple[type, tuple[type, ...]]] = {
    "stage-0": (engine_protocol.Engine, ()),
    "stage-2": (engine_protocol.Engine, (engine_protocol.ZeroStage12Optimizer, engine_protocol.LossScaledOptimizer)),
    "stage-3": (engine_protocol.Engine, (engine_protocol.ZeroStage3Optimizer,)),
    "pipeline": (engine_protocol.PipelineEngine, (engine_protocol.BF16Optimizer,)),
}


def main() -> None:
    kind, out = sys.argv[-2], Path(sys.argv[-1])
    ranks = init_process_group()
    get_accelerator().is_fp16_supported = lambda: True  # most CPUs say no, and compute it all the same
    engine = make_engine(kind)
    take_step(engine, kind)
    of_engine, of_optimizer = PROTOCOLS[kind]
    differences = {
        of_engine.__name__: find_differences(of_engine, engine),
        "EngineOptimizer": find_differences(engine_protocol.EngineOptimizer, engine.optimizer),
        "EngineScheduler": find_differences(engine_protocol.EngineScheduler, engine.lr_scheduler),
        **{protocol.__name__: find_differences(protocol, engine.optimizer) for protocol in of_optimizer},
        "EngineWithMore": find_differences(EngineWithMore, engine),
    }
    if ranks.is_main_process:
        out.write_text(json.dumps(differences))
    engine.destroy()
    destroy_process_group()


if __name__ == "__main__":
    main()
