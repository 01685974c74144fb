# SPDX-License-Identifier: Apache-2.0
"""The judge: plain torch, transformers and DeepSpeed, nothing of the harness. `raw_deepspeed.py JOBS.json` writes losses."""

import json
import os
import sys
from pathlib import Path

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, get_scheduler, set_seed
from transformers.integrations import HfDeepSpeedConfig

deepspeed.init_distributed()
rank, world = dist.get_rank(), dist.get_world_size()
for job in json.loads(Path(sys.argv[-1]).read_text()):
    config, steps, length = job["config"], job["steps"], job["length"]
    micro, parts = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    shards = HfDeepSpeedConfig(config)  # at stage 3, transformers loads in shards while this is alive
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32).train()
    matrices = [p for p in model.parameters() if len(getattr(p, "ds_shape", p.shape)) > 1]
    vectors = [p for p in model.parameters() if len(getattr(p, "ds_shape", p.shape)) == 1]
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        config=config,
        lr_scheduler=lambda optimizer, job=job: get_scheduler("cosine", optimizer, job["warmup"], job["steps"]),
    )
    set_seed(job["seed"] + rank)  # dropout
    tokens = np.load(job["tokens"]).astype(np.int64)
    blocks = tokens[: len(tokens) // length * length].reshape(-1, length)
    order = np.random.default_rng([job["seed"], 0]).permutation(len(blocks))[: steps * parts * world * micro]
    losses = []
    for step in order.reshape(steps, parts, world, micro)[:, :, rank]:
        total = torch.zeros((), dtype=torch.float64)
        for rows in step:
            ids = torch.from_numpy(blocks[rows])
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            total += loss.detach()
            engine.backward(loss)
            engine.step()
        dist.all_reduce(total)
        losses.append(total.item() / parts / world)
    engine.destroy()
    if rank == 0:
        Path(job["out"]).write_text(json.dumps(losses))
dist.destroy_process_group()
os._exit(0)  # gloo's threads can abort an interpreter that takes itself apart
