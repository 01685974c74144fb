# SPDX-License-Identifier: Apache-2.0
"""Contributions of this rank's micro-batches to the sampled gradients, from hooks on the parameters.

Autograd calls the hooks of a parameter with the gradient of one backward, before it is added to `.grad`, and so before
DeepSpeed's hooks, which run behind that addition (`register_post_accumulate_grad_hook`, read in 0.16.9 to 0.19.8). A
parameter that is used twice in one graph has one call with the sum, and one call for each graph under reentrant
checkpointing. A hook that the training script registers runs in its turn: ours are made the last ones when a backward
begins, and see what such a hook returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.engine_witness.backward_scale import BackwardScale
from harness.engine_witness.number_formats import roundoff_of
from harness.engine_witness.sampled_rows import SampledParameter


@dataclass
class Contributions:
    """Values that the hooks of this rank saw in one step, of all sampled elements: fp64 on the CPU."""

    total: torch.Tensor
    magnitude: torch.Tensor
    """Sum of the magnitudes of the same contributions."""
    first: torch.Tensor
    """Of the first backward alone."""
    last: torch.Tensor
    """Of the last backward alone."""
    weights: torch.Tensor
    """The weights with which the rank computed."""
    has_weights: torch.Tensor
    """bool"""


@dataclass(frozen=True)
class _Call:
    number: int
    """Of the sample."""
    backward: int
    values: torch.Tensor
    correction: torch.Tensor | float


class GradientRecorder:
    """Keeps what the hooks see, until it is collected at the end of the step."""

    def __init__(self, device: torch.device, scale: BackwardScale) -> None:
        self._device, self._scale = device, scale
        scale.on_pass = self.start_pass
        self.samples: Sequence[SampledParameter] = ()
        self.num_passes = 0
        self.fault = ""
        self._handles: list[Any] = []
        self._elements: list[torch.Tensor] = []
        self._calls: list[_Call] = []
        self._weights: dict[int, torch.Tensor] = {}

    @property
    def size(self) -> int:
        """Of all samples."""
        return self.samples[-1].end if self.samples else 0

    @property
    def num_calls(self) -> int:
        """Of hooks, since `arm`."""
        return len(self._calls)

    @property
    def gradient_roundoff(self) -> float:
        """Unit roundoff of the widest number format among the gradients."""
        return max((roundoff_of(call.values.dtype) for call in self._calls), default=0.0)

    def arm(self, samples: Sequence[SampledParameter]) -> None:
        """Register a hook on each sampled parameter, and forget what was recorded."""
        self.samples, self.num_passes = samples, 0
        self._calls, self._weights, self._elements = [], {}, [sample.elements for sample in samples]
        self._register()

    def _register(self) -> None:
        """Behind all hooks that the parameters have by now."""
        self.disarm()
        for number, sample in enumerate(self.samples):
            if sample.parameter.requires_grad:
                self._handles.append(sample.parameter.register_hook(self._make_hook(number)))

    def disarm(self) -> None:
        """Remove the hooks. What was recorded stays."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def fail(self, error: Exception) -> None:
        """Remember an error of the witness until all ranks agree about it at the end of the step."""
        self.fault = self.fault or f"{type(error).__name__}: {error}"[:300]

    def start_pass(self) -> None:
        """A backward begins."""
        self.num_passes += 1
        if self._handles:
            self._register()

    def collect(self) -> Contributions:
        """Values that were recorded since `arm`. Waits for the device."""
        zero = torch.zeros(self.size, dtype=torch.float64)
        total, magnitude, first, last, weights = (zero.clone() for _ in range(5))
        collected = Contributions(total, magnitude, first, last, weights, torch.zeros(self.size, dtype=torch.bool))
        backwards = sorted({call.backward for call in self._calls})
        for backward in backwards:
            part = zero.clone()
            by_correction: dict[Any, list[_Call]] = {}
            for call in self._calls:
                if call.backward == backward:
                    key = id(call.correction) if torch.is_tensor(call.correction) else call.correction
                    by_correction.setdefault(key, []).append(call)
            for calls in by_correction.values():
                elements = torch.cat([self._slice_of(call.number) for call in calls])
                values = torch.cat([call.values.to(self._device) for call in calls]).cpu().double()
                values *= float(calls[0].correction)
                part.index_add_(0, elements, values)
                collected.magnitude.index_add_(0, elements, values.abs())
            collected.total += part
            if backward <= 1:
                collected.first += part
            if backward == max(backwards[-1], self.num_passes):
                collected.last += part
        if self._weights:
            elements = torch.cat([self._slice_of(number) for number in self._weights])
            seen = torch.cat([values.to(self._device) for values in self._weights.values()])
            collected.weights[elements] = seen.cpu().double()
            collected.has_weights[elements] = True
        return collected

    def _slice_of(self, number: int) -> torch.Tensor:
        return torch.arange(self.samples[number].start, self.samples[number].end)

    def _make_hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def record(gradient: torch.Tensor) -> None:
            if self.fault:
                return
            try:
                self._record(number, gradient.detach())
            except Exception as error:  # an error of ours may not end the training of others
                self.fail(error)

        return record

    def _record(self, number: int, gradient: torch.Tensor) -> None:
        sample = self.samples[number]
        elements = self._elements[number]
        if elements.device != gradient.device:
            elements = self._elements[number] = elements.to(gradient.device, non_blocking=True)
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        values = torch.take(gradient, elements)
        self._calls.append(_Call(number, self.num_passes, values, self._scale.correction()))
        weights = sample.parameter.detach()
        if number not in self._weights and weights.shape == sample.shape:
            self._weights[number] = torch.take(weights, elements)
