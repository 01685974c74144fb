# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of answers: the sum over their tokens, without the logits of two sequences at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import cross_entropy, pad
from torch.utils.checkpoint import checkpoint

from harness.patches.chunked_loss import ChunkedHead
from harness.runtime.chunked_cross_entropy import chunked_token_losses
from harness.runtime.engine_protocol import Engine
from harness.runtime.micro_batch import IGNORE_INDEX


def answer_log_probs(
    engine: Engine, head: ChunkedHead | None, input_ids: torch.Tensor, mask: torch.Tensor | None, labels: torch.Tensor
) -> torch.Tensor:
    """(rows,) in fp32, in nats: the sum over the tokens of each row whose label is not `IGNORE_INDEX`.

    All arguments are (rows, length); labels are not shifted; `mask` is 0 at padding. With `head` the logits of a chunk
    of tokens exist at once. Without it the model returns those of all tokens in its own format, and the copies in fp32
    are made for one row after the other, in the backward pass again.
    """
    targets = pad(labels, (0, 1), value=IGNORE_INDEX)[:, 1:].contiguous()
    inputs: dict[str, Any] = {"input_ids": input_ids, "use_cache": False}
    if mask is not None:
        inputs["attention_mask"] = mask
    if head is not None:
        head.set_token_targets(targets, chunked_token_losses)
        return -engine(**inputs).logits[:, :-1].sum(dim=1)  # the order of a sum depends on its length: TRL's
    logits = engine(**inputs).logits
    rows = [checkpoint(_row_loss, logits[i], targets[i], use_reentrant=False) for i in range(len(targets))]
    return -torch.stack(rows)


def _row_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.float(), targets, ignore_index=IGNORE_INDEX, reduction="sum")


def disable_dropout(model: torch.nn.Module) -> None:
    """No dropout, as TRL trains on preferences: the policy is compared with a reference that has none."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


@contextmanager
def reference_mode(engine: Engine) -> Iterator[None]:
    """In this context the engine's model computes without gradients. Before the first step it is the reference, also
    with adapters: they begin at zero.
    """
    training = engine.module.training
    engine.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if training:
            engine.train()
