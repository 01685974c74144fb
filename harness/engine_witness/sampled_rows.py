# SPDX-License-Identifier: Apache-2.0
"""Sampled rows: the parameters that the gradient witness looks at, and the elements of each.

Every rank draws the same, from the names and sizes alone.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

MAX_PARAMETERS = 96
"""Of a model with more, the first and last ones are always looked at, the others in turn."""
ALWAYS = 8
ELEMENTS = 48
"""Of one parameter; of a smaller one all. Of a model with fewer parameters more, as many together."""
RUN = 8
"""Elements next to each other. The first and the last run of a parameter are always in the sample."""


@dataclass(frozen=True)
class SampledParameter:
    """Some elements of one parameter."""

    name: str
    parameter: torch.nn.Parameter
    shape: torch.Size
    """Of the whole parameter: at stage 3 it is empty between its uses."""
    positions: tuple[int, ...]
    """Sorted, in the flattened parameter."""
    elements: torch.Tensor
    """The same as int64."""
    start: int
    """Position of the first one among all sampled elements."""

    @property
    def end(self) -> int:
        """Position behind the last one among all sampled elements."""
        return self.start + len(self.elements)


def shape_of(parameter: torch.nn.Parameter) -> torch.Size:
    """The whole parameter's shape, also at stage 3."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def sample_rows(parameters: Mapping[str, torch.nn.Parameter], number: int, period: int) -> list[SampledParameter]:
    """The sample of the `number`-th sampled step. Elements of a parameter stay the same within a `period`."""
    names = [name for name, parameter in parameters.items() if shape_of(parameter).numel()]
    samples, start, chosen = [], 0, _choose_names(names, number)
    count = max(ELEMENTS, ELEMENTS * MAX_PARAMETERS // max(1, len(chosen)) // RUN * RUN)
    for name in chosen:
        shape = shape_of(parameters[name])
        elements = _choose_elements(shape.numel(), count, zlib.crc32(f"{name} {period}".encode()))
        samples.append(SampledParameter(name, parameters[name], shape, elements, torch.tensor(elements), start))
        start += len(elements)
    return samples


def _choose_names(names: Sequence[str], number: int) -> list[str]:
    if len(names) <= MAX_PARAMETERS:
        return list(names)
    half = ALWAYS // 2
    rest, count = names[half:-half], MAX_PARAMETERS - ALWAYS
    strides = -(-len(rest) // count)
    return [*names[:half], *rest[number % strides :: strides][:count], *names[-half:]]


def segments_of(samples: Sequence[SampledParameter]) -> torch.Tensor:
    """Of all sampled elements: the number of their sample, int64."""
    lengths = torch.tensor([len(sample.positions) for sample in samples], dtype=torch.int64)
    return torch.repeat_interleave(torch.arange(len(samples)), lengths)


def _choose_elements(numel: int, count: int, seed: int) -> tuple[int, ...]:
    if numel <= count:
        return tuple(range(numel))
    draw = random.Random(seed)  # noqa: S311  (a sample, no secret)
    begins = {0, numel - RUN, *(draw.randrange(numel - RUN) for _ in range(count // RUN - 2))}
    return tuple(sorted({element for begin in begins for element in range(begin, begin + RUN)}))
