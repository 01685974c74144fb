# SPDX-License-Identifier: Apache-2.0
"""Does DeepSpeed's AutoTP divide the model by its own plan (`tp_plan`), and compute the same? Two ranks against one."""

from __future__ import annotations

from typing import Any

import deepspeed
import deepspeed.module_inject.auto_ep_layer
import deepspeed.module_inject.tp_plan_converter
import torch

from harness.hostinfo.model_answers import Answer
from harness.runtime.model_questions.rank_pair import ask_ranks
from harness.runtime.model_questions.small_copy import NOISE, SmallCopy, join_names, layer_matrices, loss_and_gradients

_JSON = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 0}, "tensor_parallel": {"autotp_size": 2}}


def ask(small: SmallCopy) -> Answer:
    """Loss and gradients of both ranks, in fp64 where they differ in fp32, whose rounding a norm may enlarge; the names
    are those of matrices that every rank keeps whole.
    """
    loss, gradients = small.own_gradients
    shapes = {name: list(weight.shape) for name, weight in layer_matrices(small.model)}

    def compare(rank: int) -> dict[str, Any]:
        engine, *_ = deepspeed.initialize(model=small.model, config=_JSON)
        local = {name: list(p.shape) for name, p in engine.module.named_parameters()}
        whole = [name for name, shape in shapes.items() if local.get(name, shape) == shape]
        own_loss, own = loss_and_gradients(engine.module)
        wrong = [name for name, g in gradients.items() if name not in own or not _is_part(own[name], g, rank)]
        return {"whole": whole, "loss": own_loss, "wrong": wrong}

    answers = ask_ranks(compare, 2, small.folder / "tensor")
    whole = join_names(answers[0]["whole"])
    if len(answers[0]["whole"]) == len(shapes):
        return Answer(False, "every rank keeps every layer whole", whole)
    if any(abs(answer["loss"] - loss) > NOISE * abs(loss) for answer in answers):
        return Answer(False, f"the loss is {answers[0]['loss']:.4f}, of one rank {loss:.4f}", whole)
    wrong = join_names({name for answer in answers for name in answer["wrong"]})
    if wrong:
        if next(small.model.parameters()).dtype is torch.float32:
            exact = ask(SmallCopy(small.duplicate().double(), small.apart, small.folder / "fp64"))
            if exact.holds:
                return exact
        return Answer(False, "the ranks have other gradients than one rank has", wrong)
    some = "all matrices of its layers are divided" if not whole else "divided but for what every rank keeps whole"
    return Answer(True, some, whole)


def _is_part(part: torch.Tensor, whole: torch.Tensor, rank: int) -> bool:
    """Is it this rank's part of a gradient? Equal, where the weight is not divided. Fused weights, whose parts are
    dealt out piece by piece, are compared by their norms over both ranks elsewhere: by the loss.
    """
    if part.dim() != whole.dim():
        return False
    is_divided = part.shape != whole.shape
    for dim, size in enumerate(part.shape):
        if size != whole.shape[dim]:
            whole = whole.narrow(dim, 0 if rank == 0 else whole.shape[dim] - size, size)
    return is_divided or bool((part - whole).norm() <= NOISE * whole.norm() + 1e-6)
