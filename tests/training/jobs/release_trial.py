# SPDX-License-Identifier: Apache-2.0
"""`release_trial.py OUT.json CASES.json`, on each rank: two steps of a small model under the DeepSpeed of this interpreter,
whichever release that is (so nothing of the harness is imported). Rank 0 writes, for each case, how far the weights are
from where plain torch steps over the whole batch put them, relative to the length of those steps, or the error.

A case: `config` is DeepSpeed's JSON but for batch sizes; `parts` the micro-batches a step; `call` is who calls the engine:
`engine` as DeepSpeed's documentation does, `trainer` as transformers through accelerate, `trainer-boundary` as through an
accelerate that sets the boundary of accumulation itself.
"""

from __future__ import annotations

import copy
import gc
import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

WIDTH, ROWS, STEPS = 32, 2, 2
OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}


def net(dtype):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)
    ).to(dtype)


def batches(parts, world):
    """(steps, micro-batches, ranks, rows, width): each micro-batch with a mean of its own, so that none stands for another;
    the second step's rows are larger, so that it is clipped more than the first.
    """
    generator = torch.Generator().manual_seed(1)
    means = torch.randn(STEPS, parts, world, 1, WIDTH, generator=generator)
    rows = means + torch.randn(STEPS, parts, world, ROWS, WIDTH, generator=generator)
    return rows * torch.tensor([1.0, 3.0]).reshape(STEPS, 1, 1, 1, 1)


def loss_of(model, rows, dtype):
    return (model(rows.to(dtype)).float() - 1).square().mean()


def expected(case, dtype, data):
    """Weights after plain torch steps in fp32 over the same rows, and the norm of the last step's gradients."""
    model = net(dtype).float()
    section = case["config"]["optimizer"]
    optimizer = OPTIMIZERS[section["type"]](model.parameters(), lr=section["params"]["lr"])
    limit = case["config"]["gradient_clipping"]
    for step in data:
        optimizer.zero_grad()
        loss_of(model, step.reshape(-1, WIDTH), torch.float32).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit or float("inf"))
        optimizer.step()
    return [p.detach() for p in model.parameters()], float(norm)


def trained(case, dtype, data):
    """Weights after the engine's steps, and the norm that it gives out, if any."""
    parts, call = case["parts"], case["call"]
    config = copy.deepcopy(case["config"])
    config |= {"train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": parts, "steps_per_print": 10**9}
    model = net(dtype)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for step in data[:, :, dist.get_rank()]:
        for number, rows in enumerate(step):
            last = number == parts - 1
            if call == "trainer-boundary":
                engine.set_gradient_accumulation_boundary(is_boundary=last)
            loss = loss_of(engine, rows, dtype)
            if call == "engine":
                engine.backward(loss)
            else:
                engine.backward(loss / parts, scale_wrt_gas=False)
            if last or call != "trainer-boundary":
                engine.step()
    norm = engine.get_global_grad_norm()
    whole = []
    for parameter in engine.module.parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            whole.append(parameter.detach().float().clone())
    engine.destroy()
    return whole, None if norm is None else float(norm)


def judged(case):
    """`difference`: |engine - plain| / |plain - start| over all weights. `norm`: the engine's over the plain one, where the
    engine gives one out.
    """
    dtype = torch.float32
    for name, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        dtype = kind if case["config"].get(name, {}).get("enabled") else dtype
    data = batches(case["parts"], dist.get_world_size())
    start = [p.detach().float() for p in net(dtype).parameters()]
    plain, right = expected(case, dtype, data)
    try:
        found, norm = trained(case, dtype, data)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    pairs = list(zip(found, plain, start, strict=True))
    off = sum(float((a - b).square().sum()) for a, b, _ in pairs)
    length = sum(float((b - c).square().sum()) for _, b, c in pairs)
    return {"difference": (off / length) ** 0.5, **({} if norm is None else {"norm": norm / right})}


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo reduces as well, and is not compiled for minutes
deepspeed.init_distributed()
gc.freeze()  # an engine collects a dozen times while it is built, on rank 0 alone
results = [judged(case) for case in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))]
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps({"version": deepspeed.__version__, "results": results}), encoding="utf-8")
dist.barrier()
dist.destroy_process_group()
