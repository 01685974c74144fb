# SPDX-License-Identifier: Apache-2.0
"""Loss and metrics of a plug-in on the held-out data, over all ranks.

It changes nothing in the engine but the mode, and restores that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from harness.runtime.dataset.sampler import EvalData
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine, ModelOutput
from harness.runtime.micro_batch import IGNORE_INDEX
from harness.runtime.step import Stepper
from harness.runtime.user_errors import user_error


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


MetricsFunction = Callable[[torch.Tensor, torch.Tensor], Mapping[str, float]]


class PluginMetrics:
    """Sums the plug-in's metrics over the forwards of a model; `function` None: does nothing."""

    def __init__(self, function: MetricsFunction | None) -> None:
        self._function = function
        self._sums: dict[str, float] = {}

    @contextmanager
    def collect_from(self, model: torch.nn.Module) -> Iterator[None]:
        """In this context, count every forward of `model` with `labels`."""
        if self._function is None:
            yield
            return
        hook = model.register_forward_hook(self._collect_batch, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def _collect_batch(
        self, _model: torch.nn.Module, _inputs: tuple[Any, ...], kwargs: Mapping[str, Any], output: ModelOutput
    ) -> None:
        labels = kwargs.get("labels")
        if self._function is None or labels is None or not bool((labels[:, 1:] != IGNORE_INDEX).any()):
            return
        try:
            values = {str(name): float(v) for name, v in self._function(output.logits[:, :-1], labels[:, 1:]).items()}
        except Exception as error:
            raise user_error(
                "MD158",
                f"`metrics` of the plug-in fails: {type(error).__name__}: {error}",
                key="plugins.file",
                notes=("it takes logits (rows, length, vocabulary) and labels (rows, length)",),
                fix="fix the function; it returns a map of names to numbers",
            ) from error
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def reduce_means(self, distributed: Distributed, tokens: float) -> dict[str, float]:
        """Each sum over all ranks, divided by `tokens`, on every rank. A collective."""
        if self._function is None:
            return {}
        names = sorted(
            {name for rank_names in distributed.all_gather_object(sorted(self._sums)) for name in rank_names}
        )
        if not names:
            return {}
        sums = distributed.all_reduce_sum(*(self._sums.get(name, 0.0) for name in names))
        return {name: value / tokens for name, value in zip(names, sums, strict=True)}
