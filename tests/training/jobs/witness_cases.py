# SPDX-License-Identifier: Apache-2.0
"""The gradient witness on bare DeepSpeed engines, one after the other: `witness_cases.py CASES.json OUT.json`.

A case is {"name", "config", and optional keys of `DEFAULTS`}. OUT.json has {name: {"differences", "results", "unable",
"limits", "fault"}} of rank 0. A fault of `tests/support/training/engine_faults.py` may be in a case.
"""

import json
import os
import sys
import traceback
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from harness.engine_witness.gradient_witness import GradientWitness
from tests.support.training import engine_faults

DEFAULTS: dict[str, Any] = {
    "model": "plain",
    "steps": 3,
    "every": 200,
    "scale_wrt_gas": None,
    "fault": "",
    "script": "",
    "client": "",
    "torch_backward": False,
    "evaluate_between": False,
    "checkpointing": None,
    "groups": False,
    "reload": False,
    "seed": 0,
    "divides": True,
}
WIDTH, ROWS = 24, 2


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 2 * width),
            torch.nn.Linear(2 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(torch.nn.Module):
    """Embedding, blocks and a head. Kinds: plain, tied (head is the embedding), twice (one block used twice), unused
    (a layer without gradient), frozen (LoRA-like: some layers alone are trained), outputs (loss and logits, as in
    transformers), sharded (built under `zero.Init`), wide.
    """

    def __init__(self, kind: str, checkpointing: Any) -> None:
        super().__init__()
        self.kind, self.checkpointing = kind, checkpointing
        wide = 512 if kind == "wide" else WIDTH  # DeepSpeed swaps nothing below 1 MiB to NVMe
        self.embed = torch.nn.Embedding(32, wide)
        self.blocks = torch.nn.ModuleList([Block(wide) for _ in range(2)])
        self.head = torch.nn.Linear(wide, 32, bias=False)
        self.spare = torch.nn.Linear(WIDTH, WIDTH) if kind == "unused" else None
        if kind == "tied":
            self.head.weight = self.embed.weight
        if kind == "frozen":
            for name, parameter in self.named_parameters():
                parameter.requires_grad_("down" in name or "norm" in name)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:
        x = self.embed(ids)
        for _ in range(2 if self.kind == "twice" else 1):
            for block in self.blocks:
                if self.checkpointing is None:
                    x = block(x)
                else:
                    x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.checkpointing)
        logits = self.head(x)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten())
        return (loss, logits) if self.kind == "outputs" else loss


def main() -> None:
    get_accelerator().is_fp16_supported = lambda: True  # most CPUs say no, and torch computes it all the same
    deepspeed.init_distributed("gloo")
    outcome: dict[str, Any] = {}
    for given in json.loads(Path(sys.argv[1]).read_text()):
        case = DEFAULTS | given
        try:
            outcome[case["name"]] = run_case(case)
            if dist.get_rank() == 0:
                Path(sys.argv[2]).write_text(json.dumps(outcome))
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    dist.barrier()
    dist.destroy_process_group()


def build_engine(case: dict[str, Any]) -> Any:
    config = json.loads(json.dumps(case["config"]))
    torch.manual_seed(case["seed"])
    with deepspeed.zero.Init(config_dict_or_path=config) if case["model"] == "sharded" else nullcontext():
        model = Model(case["model"], case["checkpointing"])
    trained = [p for p in model.parameters() if p.requires_grad]
    parameters: Any = trained
    if case["groups"]:
        parameters = [
            {"params": [p for p in trained if p.dim() > 1]},
            {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
        ]
    more: dict[str, Any] = {}
    if case["client"]:
        more["optimizer"] = eval(case["client"], {"torch": torch, "deepspeed": deepspeed, "parameters": parameters})  # noqa: S307
    else:
        more["model_parameters"] = parameters
    return deepspeed.initialize(model=model, config=config, **more)[0]


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    with engine_faults.inject_fault(case["fault"]):
        engine = build_engine(case)
        stopped: list[int] = []
        witness = GradientWitness(engine, every=case["every"], on_result=lambda r: stopped.append(len(r.differences)))
        witness.attach()
        change_gradients(engine, case["script"])
        gas = engine.gradient_accumulation_steps()
        generator = torch.Generator().manual_seed(dist.get_rank() + 1000 * case["seed"])
        for step in range(case["steps"]):
            for _ in range(gas):
                train_micro_batch(engine, case, gas, generator)
                engine.step()
            if case["reload"] and step == 0:
                engine.save_checkpoint(case["reload"], tag="a")
                engine.load_checkpoint(case["reload"], tag="a")
        witness.detach()
        wrapped = "backward" in vars(engine) or getattr(vars(engine.optimizer).get("step"), "__name__", "") == "call"
        answer = {
            "differences": [d.to_json() for d in witness.differences],
            "results": [asdict(result) for result in witness.results],
            "unable": witness.unable,
            "limits": witness.limits,
            "fault": witness.fault,
            "stopped": stopped,
            "wrapped": wrapped,
        }
        engine.destroy()
    return answer


def change_gradients(engine: Any, way: str) -> None:
    """As a script may, once its engine is watched: here a part of the rows is trained alone."""

    def mask(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (torch.arange(len(gradient)) < 20).view(-1, *[1] * (gradient.dim() - 1))

    def register(*_: Any) -> None:
        for parameter in engine.module.parameters():
            parameter.register_hook(mask)

    if way == "clip_grad":
        engine.optimizer.clip_grad = 0
    elif way == "hook":
        register()
    elif way == "hook in the forward":
        handle = engine.module.register_forward_hook(lambda *_: (register(), handle.remove())[1])
    elif way:
        raise ValueError(way)


def train_micro_batch(engine: Any, case: dict[str, Any], gas: int, generator: torch.Generator) -> None:
    ids = torch.randint(32, (ROWS, 6), generator=generator)
    if case["evaluate_between"]:
        engine.eval()
        with torch.no_grad():
            engine(ids, ids)
        engine.train()
    output = engine(ids, ids.roll(1, 1))
    loss = output[0] if isinstance(output, tuple) else output
    if case["torch_backward"]:
        loss.backward()
    elif case["scale_wrt_gas"] is False:
        engine.backward(loss / gas if case["divides"] else loss, scale_wrt_gas=False)
    else:
        engine.backward(loss)


if __name__ == "__main__":
    main()
