# SPDX-License-Identifier: Apache-2.0
"""`release_behaviors.py SCRATCH OUT.jsonl`, on each rank: what changed between releases besides what is trained, measured under
the DeepSpeed of this interpreter. Rank 0 writes a line: the minutes until a collective times out; processor time of a ZeRO-2
step of a model with many parameters, over that of its plain forward and backward pass; and how a checkpoint that
`checkpoint.writer` saved is loaded.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

LAYERS, WIDTH, STEPS = 150, 16, 7


def engine_of(stage, **more):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(torch.bfloat16)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "steps_per_print": 10**9,
        "bf16": {"enabled": True},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": stage, "overlap_comm": False},
        **more,
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def seconds_of(backward, model):
    """The median of the processor time of a forward and backward pass."""
    found = []
    for _ in range(STEPS):
        start = time.process_time()
        backward(model(torch.ones(1, WIDTH, dtype=torch.bfloat16)).float().square().mean())
        found.append(time.process_time() - start)
    return statistics.median(found[2:])


def slowness():
    engine = engine_of(2)

    def backward(loss):
        engine.backward(loss)
        engine.step()

    plain = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(torch.bfloat16)
    answer = {"zero_2_s": seconds_of(backward, engine), "plain_s": seconds_of(lambda loss: loss.backward(), plain)}
    engine.destroy()
    return answer


def writer_answer(scratch):
    folder = str(scratch / "checkpoint")
    step = "build"
    os.environ |= {"CROSS_RANK": "0", "CROSS_SIZE": "1", "LOCAL_SIZE": str(dist.get_world_size())}
    try:
        engine = engine_of(3, checkpoint={"writer": {"type": "python", "io_buffer_size": 1048576}})
        step = "save"
        engine.save_checkpoint(folder, tag="one")
        step = "load"
        engine.load_checkpoint(folder, tag="one")
    except Exception as error:
        return f"{step}: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return "loads"


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed()
torch.set_num_threads(1)
row = {"timeout_min": deepspeed.constants.default_pg_timeout.total_seconds() / 60, **slowness()}
row["writer"] = writer_answer(Path(sys.argv[1]))
if dist.get_rank() == 0:
    Path(sys.argv[2]).write_text(json.dumps({"done": deepspeed.__version__, **row}) + "\n", encoding="utf-8")
