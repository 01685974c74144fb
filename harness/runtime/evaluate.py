# SPDX-License-Identifier: Apache-2.0
"""Loss on the held-out data, over all ranks.

It changes nothing in the engine but the mode, and restores that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from harness.runtime.dataset.sampler import EvalData
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.plugin_metrics import MetricsFunction, PluginMetrics
from harness.runtime.step import Stepper


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`loss` is the mean over all predicted tokens, in nats; `tokens` is how many were predicted."""

    loss: float
    tokens: int
    plugin_metrics: dict[str, float] = field(default_factory=dict)
    """Means over the predicted tokens of what the plug-in's `metrics` returns."""

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return float(np.exp(self.loss))


def evaluate(
    engine: Engine,
    stepper: Stepper,
    eval_data: EvalData,
    distributed: Distributed,
    max_batches: int | None,
    heartbeat: Callable[[], None] = lambda: None,
    plugin_metrics: MetricsFunction | None = None,
) -> Evaluation:
    """The mean loss over the held-out sequences, each computed once; `max_batches`: over the first so many a rank.
    `heartbeat` is called after each batch, so that a long evaluation does not look like a hang. `plugin_metrics` is
    the plug-in's function.
    """
    engine.eval()
    loss_sum = torch.zeros((), dtype=torch.float64, device=distributed.device)
    tokens = 0
    own_metrics = PluginMetrics(plugin_metrics)
    with torch.no_grad(), own_metrics.collect_from(engine.module):
        for batch in eval_data.batches(max_batches):
            batch_loss, batch_tokens = stepper.eval_step(batch)
            loss_sum += batch_loss
            tokens += batch_tokens
            heartbeat()
    engine.train()
    total, count = distributed.all_reduce_sum(loss_sum, tokens)
    return Evaluation(total / count, int(count), own_metrics.reduce_means(distributed, count))
