# SPDX-License-Identifier: Apache-2.0
"""The shards that AutoTP makes of small models, and a step with them: `tensor_shards.py CASES.json OUT`, on two ranks.

A case is {"config": a transformers configuration, "stage", "plan": the `tensor_parallel` block without its degree}.
Each rank writes OUT/RANK.json, a list of {"error", "message"}, or of {"shapes": {name: shape on this rank}, "partition":
elements that ZeRO leaves this rank, "step"}. "step" at stage 0 is {"error", "message"}, or {"loss", "whole_loss": of one
process without AutoTP, "wrong": names of weights whose gradient is not that one's, "reduced": elements a token that the
tensor ranks all-reduce, forward and backward}.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.comm
import torch
import transformers
from deepspeed.utils import groups
from torch import distributed, nn

CASES, OUT = Path(sys.argv[1]), Path(sys.argv[2])
TOKENS = 12
TOLERANCE = 1e-3
"""Of a gradient, by its norm: fp32 sums in another order differ by 1e-6."""


_reduced: list[int] = []
"""Elements of each all-reduce of activations: not of vectors, nor of single numbers a token."""
_all_reduce = deepspeed.comm.all_reduce


def all_reduce_and_count(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if tensor.dim() > 1 and tensor.numel() > TOKENS and kwargs.get("group") is groups.get_tensor_model_parallel_group():
        _reduced.append(tensor.numel())
    return _all_reduce(tensor, *args, **kwargs)


def main() -> None:
    deepspeed.comm.all_reduce = all_reduce_and_count
    deepspeed.init_distributed("gloo")
    results = [attempt(lambda case=case: build(case)) for case in json.loads(CASES.read_text())]
    (OUT / f"{distributed.get_rank()}.json").write_text(json.dumps(results))


def attempt(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return action()
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}


def build(case: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**case["config"]))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    whole = copy.deepcopy(model)
    engine, optimizer, *_ = deepspeed.initialize(
        model=model,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": case["stage"]},
            "tensor_parallel": {"autotp_size": 2, **case["plan"]},
        },
    )
    parameters = dict(engine.module.named_parameters())
    result: dict[str, Any] = {"shapes": {name: list(getattr(p, "ds_shape", p.shape)) for name, p in parameters.items()}}
    if case["stage"] == 3:
        result["partition"] = sum(p.ds_tensor.numel() for p in parameters.values())
    elif case["stage"]:
        result["partition"] = sum(map(int, optimizer.partition_size))
    else:
        result["step"] = attempt(lambda: step(engine, whole))
    engine.destroy()
    return result


def step(engine: Any, whole: nn.Module) -> dict[str, Any]:
    ids = torch.randint(0, 64, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    _reduced.clear()
    loss = engine(input_ids=ids, labels=ids).loss
    forward = sum(_reduced) // TOKENS
    _reduced.clear()
    engine.backward(loss)
    reduced = [forward, sum(_reduced) // TOKENS]
    whole_loss = whole(input_ids=ids, labels=ids).loss
    whole_loss.backward()
    gradients = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    wrong = [
        name
        for name, p in engine.module.named_parameters()
        if name in gradients and p.grad is not None and not is_part_of(p.grad, gradients[name])
    ]
    return {"loss": float(loss.detach()), "whole_loss": float(whole_loss.detach()), "wrong": wrong, "reduced": reduced}


def is_part_of(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Is it the first rank's part of the whole, or the second's? Equal, where the weight is not divided."""
    for dim, size in enumerate(part.shape):
        if size != whole.shape[dim]:
            whole = whole.narrow(dim, 0 if distributed.get_rank() == 0 else whole.shape[dim] - size, size)
    return bool((part - whole).norm() <= TOLERANCE * whole.norm() + 1e-9)


if __name__ == "__main__":
    main()
