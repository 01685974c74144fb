"""One rank: trains a small model with DeepSpeed's defaults and with what the harness chooses, and counts.

`choices_many.py OUT.json`: for each case losses, bytes on the wire and Python calls of a step, by rank.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from harness.plan.choices.choosing import with_choices
from harness.plan.run import resolve
from harness.render import render
from harness.runtime.chunked_loss import ChunkedHead, chunk_head
from harness.spec.model import RunSpec

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
moved = {"bytes": 0.0}
UNITS = {  # of the payload times (N - 1) / N that a rank sends on average; where the payload is among the arguments
    "all_reduce": (2, 0, "tensor"),
    "reduce": (1, 0, "tensor"),
    "broadcast": (1, 0, "tensor"),
    "all_gather_into_tensor": (1, 0, "output_tensor"),
    "reduce_scatter_tensor": (1, 1, "input"),
}


def counted(name):
    """The collective, with its bytes added up."""
    call, (units, place, word) = getattr(dist, name), UNITS[name]

    def counting(*args, **named):
        payload = args[place] if len(args) > place else named[word]
        moved["bytes"] += units * payload.numel() * payload.element_size() * (world - 1) / world
        moved[name] = moved.get(name, 0) + 1
        return call(*args, **named)

    return counting


for name in UNITS:  # before DeepSpeed keeps some of them
    setattr(dist, name, counted(name))
deepspeed.init_distributed()
rank, world = dist.get_rank(), dist.get_world_size()


def calls_of(step):
    """Python functions that are called in a step."""
    count = 0

    def see(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(see)
    step()
    sys.setprofile(None)
    return count


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
        "choices": chosen,
    }
    run = with_choices(resolve(RunSpec.model_validate(raw), world_size=world))
    settings = json.loads(render(run).text)
    if chosen and stage in (1, 2):  # tried and not chosen, since it was slower on four ranks
        settings["zero_optimization"]["use_multi_rank_bucket_allreduce"] = False
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    head = chunk_head(engine, chunk) if chunk else None
    assert head is None or isinstance(head, ChunkedHead), head
    generator = torch.Generator().manual_seed(rank)
    losses = []

    def step():
        ids = torch.randint(0, 512, (ROWS, LENGTH), generator=generator)
        if head is not None:
            head.arm(ids, 60.0)
        loss = engine(input_ids=ids, labels=ids, use_cache=False, num_items_in_batch=60.0).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())

    for _ in range(STEPS):
        step()
    moved.clear()
    moved["bytes"] = 0.0
    step()
    sent = dict(moved)
    weight = model.get_output_embeddings().weight
    return {
        "losses": losses,
        "bytes": sent.pop("bytes"),
        "collectives": sent,
        "calls": calls_of(step),
        "norm": float(engine.get_global_grad_norm()),
        "whole_head_left": weight.numel() > 0 and stage == 3,
        "chosen": sorted(choice.key for choice in run.choices),
    }


cases = json.loads(sys.argv[2])
results = [{"case": case, "default": trained(case, False), "chosen": trained(case, True)} for case in cases]
if rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(results))
