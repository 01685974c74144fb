# SPDX-License-Identifier: Apache-2.0
"""`source_weights.py OUT.json FOLDER`, on each rank: engines over weights of files, some of them not loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import deepspeed
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from harness.engine_watch.source_weights import CHECK
from harness.runtime.engine_checks.engine_check import NotApplicable

CASES = {
    "loaded": (3, ""),
    "loaded at stage 1": (1, ""),
    "one left out": (3, "2.weight"),
    "one left out at stage 1": (1, "2.weight"),
    "a bias left out": (3, "0.bias"),
    "other names": (3, "names"),
}


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(33, 40), torch.nn.ReLU(), torch.nn.Linear(40, 7))


def run_case(stage: int, fault: str, folder: Path) -> str:
    torch.manual_seed(1 if fault == "all" else 0)
    model = make_model()
    weights = load_file(folder / "model.safetensors")
    state = model.state_dict()
    model.load_state_dict({name: state[name] if name == fault else value for name, value in weights.items()})
    model.config = SimpleNamespace(_name_or_path="" if fault == "names" else str(folder))
    zero = {"stage": stage} | ({"stage3_param_persistence_threshold": 0} if stage == 3 else {})
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)
    observations = SimpleNamespace(engine=engine, parameters=dict(engine.module.named_parameters()))
    try:
        values = CHECK.observe(observations)
    except NotApplicable as reason:
        return f"skipped: {reason}"
    gathered: list[dict[str, object]] = [{}] * dist.get_world_size()
    dist.all_gather_object(gathered, values)
    result = CHECK.evaluate(None, gathered)
    return f"{result.state}: {result.text or result.has}"


def main(out: str, name: str) -> None:
    deepspeed.init_distributed()
    folder = Path(name)
    if dist.get_rank() == 0:
        torch.manual_seed(7)
        save_file(make_model().state_dict(), folder / "model.safetensors")
    dist.barrier()
    results = {case: run_case(*given, folder) for case, given in CASES.items()}
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
