# SPDX-License-Identifier: Apache-2.0
"""Run by two ranks: each pair of DeepSpeed configurations, before and after a safe fix, on the same model and data.

Rank 0 writes what each trains, holds and stores as JSON. (`test_safe_fix_runs.py` compares.)
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import deepspeed
import torch
from torch import nn

PAIRS, OUT = map(Path, sys.argv[-2:])
STEPS = 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))


def tensor_bytes() -> int:
    """Bytes of all tensors that are alive in this process, each storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def digest_optimizer(optimizer: object) -> str:
    """Of the weights that this rank steps, with the states of the optimizer."""
    digest = hashlib.sha256()
    for master, states in getattr(optimizer, "optimizer", optimizer).state.items():
        for tensor in (master, *(value for value in states.values() if torch.is_tensor(value))):
            digest.update(tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def run(config: dict) -> dict:
    started = tensor_bytes()
    model = net()
    engine, optimizer, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    dtype = next(engine.module.parameters()).dtype
    generator = torch.Generator().manual_seed(engine.global_rank)
    losses = []
    for _ in range(STEPS * engine.gradient_accumulation_steps()):
        batch = torch.randn(engine.train_micro_batch_size_per_gpu(), 16, generator=generator).to(dtype)
        loss = engine(batch).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder:
        names = [folder]
        torch.distributed.broadcast_object_list(names)
        engine.save_checkpoint(names[0], tag="t")
        torch.distributed.barrier()
        files = sorted(str(path.relative_to(names[0])) for path in Path(names[0]).rglob("*.pt"))
        torch.distributed.barrier()
    held = tensor_bytes() - started
    facts = {
        "losses": losses,
        "weights": digest_optimizer(optimizer),
        "norm": float(engine.get_global_grad_norm() or 0.0),
        "rate": engine.get_lr(),
        "optimizer": f"{type(optimizer).__name__} of {type(getattr(optimizer, 'optimizer', optimizer)).__name__}",
        "bytes": held,
        "files": files,
    }
    engine.destroy()
    return facts


def attempt(config: dict) -> dict:
    try:
        return run(config)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    deepspeed.init_distributed("gloo")
    pairs = json.loads(PAIRS.read_text())
    run(next(iter(pairs.values()))["after"])  # what the first engine leaves behind is no part of a pair
    gc.collect()
    gc.freeze()  # modules need not be searched for tensors
    seen = {name: {side: attempt(config) for side, config in pair.items()} for name, pair in pairs.items()}
    if torch.distributed.get_rank() == 0:
        OUT.write_text(json.dumps(seen))


main()
