"""Loss on the held-out part, over all ranks.

It changes nothing in the engine but the mode, which it puts back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.runtime.data import IGNORED, EvalData
from harness.runtime.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`loss` is the mean over all predicted tokens, in nats; `tokens` is how many were predicted."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return float(np.exp(self.loss))


def evaluate(engine: Any, data: EvalData, ranks: Ranks, max_batches: int | None) -> Evaluation:
    """The mean loss over the held-out sequences, each computed once; `max_batches`: over the first so many a rank."""
    engine.eval()
    loss_sum = torch.zeros((), dtype=torch.float64, device=ranks.device)
    tokens = 0
    with torch.no_grad():
        for ids, labels in data.batches(max_batches):
            predicted = int((labels[:, 1:] != IGNORED).sum())
            out = engine(input_ids=ids.to(ranks.device), labels=labels.to(ranks.device), use_cache=False)
            if predicted:  # else the mean over no token is NaN; the forward was for the other ranks' sake
                loss_sum += out.loss.detach().double() * predicted
                tokens += predicted
    engine.train()
    total, count = ranks.sum(loss_sum, tokens)
    return Evaluation(total / count, int(count))
