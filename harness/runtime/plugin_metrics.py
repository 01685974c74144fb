# SPDX-License-Identifier: Apache-2.0
"""The plug-in's `metrics` during an evaluation: summed over batches and ranks, divided by the predicted tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import ModelOutput
from harness.runtime.micro_batch import IGNORE_INDEX
from harness.runtime.user_errors import user_error

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
