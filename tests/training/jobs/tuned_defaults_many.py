# SPDX-License-Identifier: Apache-2.0
"""One rank: trains a small model with DeepSpeed's defaults and with what the harness chooses, and counts.

`tuned_defaults_many.py OUT.json`: for each case losses, bytes on the wire and Python calls of a step, by rank.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.counting import calls_of, watch_the_wire, wire
from harness.patches.chunked_loss import ChunkedHead, install_chunked_loss
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.chunked_cross_entropy import chunked_cross_entropy
from harness.spec.run_spec import RunSpec

LLAMA = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
STEPS, ROWS, LENGTH = 3, 2, 33

watch_the_wire()
deepspeed.init_distributed()
rank, world = dist.get_rank(), dist.get_world_size()


def trained(case, chosen):
    """Losses, bytes and calls of one engine."""
    stage, tied, chunk, checkpointing = (
        case["stage"],
        case["tied"],
        case["chunk"] if chosen else 0,
        case["checkpointing"],
    )
    config = {**LLAMA, "tie_word_embeddings": tied}
    raw = {
        "model": {"config": config},
        "data": {"max_length": LENGTH},
        "train": {"per_device_train_batch_size": ROWS, "gradient_checkpointing": checkpointing},
        "optimizer": {"learning_rate": 1e-3},
        "zero": {"stage": stage, **({"stage3_param_persistence_threshold": 1000} if stage == 3 else {})},
        "tuned_defaults": chosen,
    }
    run = with_tuned_defaults(resolve_run(RunSpec.model_validate(raw), world_size=world))
    settings = json.loads(render_ds_config(run).json_text)
    if chosen and stage in (1, 2):  # tried and not chosen, since it was slower on four ranks
        settings["zero_optimization"]["use_multi_rank_bucket_allreduce"] = False
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    head = install_chunked_loss(engine, chunk, chunked_cross_entropy) if chunk else None
    assert head is None or isinstance(head, ChunkedHead), head
    generator = torch.Generator().manual_seed(rank)
    losses = []

    def step():
        ids = torch.randint(0, 512, (ROWS, LENGTH), generator=generator)
        if head is not None:
            head.set_labels(ids, 60.0)
        loss = engine(input_ids=ids, labels=ids, use_cache=False, num_items_in_batch=60.0).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())

    for _ in range(STEPS):
        step()
    with wire() as moved:
        step()
    sent = dict(moved)
    weight = model.get_output_embeddings().weight
    return {
        "losses": losses,
        "bytes": sent["bytes"],
        "collectives": sent,
        "calls": calls_of(step),
        "norm": float(engine.get_global_grad_norm()),
        "whole_head_left": weight.numel() > 0 and stage == 3,
        "chosen": sorted(choice.key for choice in run.tuned_defaults),
    }


cases = json.loads(sys.argv[2])
results = [{"case": case, "default": trained(case, False), "chosen": trained(case, True)} for case in cases]
if rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(results))
