# SPDX-License-Identifier: Apache-2.0
"""Loss and metrics of a plug-in on the held-out data, over all ranks.

It changes nothing in the engine but the mode, and restores that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.runtime.dataset.sampler import EvalData
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine, ModelOutput
from harness.runtime.micro_batch import IGNORE_INDEX
from harness.runtime.objective_metrics import ObjectiveMetrics
from harness.runtime.step import Stepper
from harness.runtime.user_errors import user_error


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`loss` is the mean over all units, in nats where these are predicted tokens; `tokens` is how many there were."""

    loss: float
    tokens: int
    plugin_metrics: dict[str, float] = field(default_factory=dict)
    """Means over the units of what the plug-in's `metrics` returns."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Metrics of the objective beside its loss."""


def evaluate(
    engine: Engine,
    stepper: Stepper,
    eval_data: EvalData,
    distributed: Distributed,
    max_batches: int | None,
    heartbeat: Callable[[], None] = lambda: None,
    own_metrics: PluginMetrics | None = None,
    metrics: ObjectiveMetrics | None = None,
) -> Evaluation:
    """The mean loss over the held-out sequences, each computed once; `max_batches`: over the first so many a rank.
    `heartbeat` is called after each batch, so that a long evaluation does not look like a hang. `own_metrics` are
    those of a plug-in, `metrics` those of the objective.
    """
    engine.eval()
    if metrics is not None:
        metrics.reset()
    loss_sum = torch.zeros((), dtype=torch.float64, device=distributed.device)
    tokens: float = 0
    own_metrics = own_metrics or PluginMetrics(None)
    with torch.no_grad(), own_metrics.collect_from(engine.module):
        for batch in eval_data.batches(max_batches):
            batch_loss, batch_tokens = stepper.eval_step(batch)
            loss_sum += batch_loss
            tokens += batch_tokens
            heartbeat()
    engine.train()
    total, count = distributed.all_reduce_sum(loss_sum, tokens)
    own = own_metrics.reduce_means(distributed, count)
    means = {} if metrics is None else metrics.read_means_async(distributed)()
    return Evaluation(total / count, int(count), own, means)


MetricsFunction = Callable[..., Mapping[str, float]]


class PluginMetrics:
    """Sums the plug-in's metrics over the forwards of a model; `function` None: does nothing. Without `hooks` the
    objective calls `add`.
    """

    def __init__(self, function: MetricsFunction | None, *, hooks: bool = True) -> None:
        self._function, self._hooks = function, hooks
        self._sums: dict[str, float] = {}

    def try_out(self, engine: Engine, stepper: Stepper, eval_data: EvalData) -> None:
        """Call the function on a batch, before hours of training: what it does wrong raises. Counts nothing."""
        if self._function is None:
            return
        engine.eval()
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.no_grad(), torch.random.fork_rng(devices), self.collect_from(engine.module):
            for batch in eval_data.batches(1):
                stepper.eval_step(batch)
        engine.train()

    @contextmanager
    def collect_from(self, model: torch.nn.Module) -> Iterator[None]:
        """In this context, count every forward of `model` with `labels`."""
        if self._function is None or not self._hooks:
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
        self.add(values)

    def add(self, values: Mapping[str, float]) -> None:
        """Add the sums of one batch."""
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
