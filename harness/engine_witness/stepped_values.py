# SPDX-License-Identifier: Apache-2.0
"""The sampled elements that the base optimizer steps: gradients, weights and states, before and after its `step`.

Around `step` they are copied on their device, without waiting for it. `finish` copies all of them to the host at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.engine_witness.engine_layout import EngineLayout
from harness.engine_witness.number_formats import roundoff_of, sum_of_squares
from harness.engine_witness.optimizer_formula import StepInputs, inputs_of
from harness.engine_witness.sampled_rows import SampledParameter

MAX_UPDATES = 32
"""Tensors of which the update is compared in one step. Without ZeRO each parameter is a tensor of its own."""
_STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer")


@dataclass(eq=False)
class SteppedTensor:
    """Sampled elements of one tensor that the optimizer steps on this rank."""

    tensor: torch.Tensor
    group: int
    positions: torch.Tensor
    """int64, in the flattened tensor."""
    elements: torch.Tensor
    """int64, among all sampled elements; in the same order."""
    last_position: int
    is_read: bool = True
    """Is its update compared? Else only its gradient is."""
    num_steps: int = 0
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    """`weights`, `gradient` and states; from `finish` on fp64 on the CPU."""
    after: dict[str, torch.Tensor] = field(default_factory=dict)
    moment_roundoff: float = 0.0
    settings: _StepSettings | None = None
    inputs: StepInputs | None = None
    """Of the optimizer's formula, from `finish` on; None where it is not known."""
    _on_device: torch.Tensor | None = None

    def read(self, source: torch.Tensor) -> torch.Tensor:
        """A copy of the sampled elements of a tensor of the same size, on its device."""
        source = source.detach()
        if source.is_sparse:
            source = source.to_dense()
        if self._on_device is None or self._on_device.device != source.device:
            self._on_device = self.positions.to(source.device, non_blocking=True)
        return torch.take(source, self._on_device)


@dataclass(frozen=True)
class _StepSettings:
    """Inputs of a step's formula besides numbers of tensors."""

    optimizer: Any
    group: Mapping[str, Any]
    step: int


class StepRecorder:
    """Reads what a step changes. `before` and `after` are called around each `step` of a base optimizer."""

    def __init__(self, layout: EngineLayout, samples: Sequence[SampledParameter], number: int = 0) -> None:
        """`number` is that of the sampled step: of many tensors, some are looked at in turn."""
        self.tensors: dict[int, SteppedTensor] = {}
        self.squared_norm, self.master_roundoff = 0.0, 0.0
        self._squares: list[torch.Tensor] = []
        self._normed: set[int] = set()
        self.sums_norm = False
        self._groups: dict[int, list[Any]] = {}
        self.num_steps = 0
        self.unknown_formula = ""
        collected: dict[int, tuple[Any, int, list[int], list[int]]] = {}
        for sample in samples:
            place = layout.places[id(sample.parameter)]
            low, high = bisect_left(sample.positions, place.begin), bisect_left(sample.positions, place.end)
            if low < high:
                entry = collected.setdefault(id(place.flat), (place.flat, place.group, [], []))
                entry[2].extend(position - place.begin + place.offset for position in sample.positions[low:high])
                entry[3].extend(range(sample.start + low, sample.start + high))
        for key, (tensor, group, positions, elements) in collected.items():
            self.tensors[key] = SteppedTensor(
                tensor, group, torch.tensor(positions), torch.tensor(elements), max(positions)
            )
        stride = -(-len(self.tensors) // MAX_UPDATES)
        for index, stepped in enumerate(self.tensors.values()):
            stepped.is_read = not stride or index % stride == number % stride
        self._flats = {id(place.flat) for place in layout.places.values()}

    def start_step(self, bases: Sequence[Any]) -> None:
        """The engine's optimizer begins a step: stages 1 and 2 shorten the list of groups in it."""
        self._groups = {id(base): list(base.param_groups) for base in bases}

    def before(self, optimizer: Any) -> None:
        """A base optimizer begins a step."""
        self.num_steps += 1
        for group, tensor in self._tensors_of(optimizer):
            if self.sums_norm and id(tensor) in self._flats and id(tensor) not in self._normed:
                self._normed.add(id(tensor))
                self._squares.append(sum_of_squares(tensor.grad.detach()))
            stepped = self.tensors.get(id(tensor))
            if stepped is None:
                continue
            stepped.num_steps += 1
            if stepped.num_steps == 1:
                self._read_before(optimizer, group, tensor, stepped)

    def after(self, optimizer: Any) -> None:
        """The base optimizer has stepped."""
        for _, tensor in self._tensors_of(optimizer):
            stepped = self.tensors.get(id(tensor))
            if stepped is None or not stepped.is_read:
                continue
            state = optimizer.state.get(tensor, {})
            stepped.after = _read(stepped, tensor, state)
            moments = [m for name in _STATES if torch.is_tensor(m := state.get(name))]  # made in the first step
            stepped.moment_roundoff = max((roundoff_of(m.dtype) for m in moments), default=0.0)

    def finish(self) -> None:
        """The engine's optimizer has stepped: read the weights again, unless they were swapped out. Copy all samples to
        the host, which waits for the device.
        """
        for stepped in self.tensors.values():
            if stepped.after and stepped.tensor.numel() > stepped.last_position:
                stepped.after["weights"] = stepped.read(stepped.tensor)
        squares = [{"square": square.reshape(1)} for square in self._squares]
        _copy_to_host([*squares, *(values for t in self.tensors.values() for values in (t.before, t.after))])
        self.squared_norm = sum(float(values["square"]) for values in squares)
        for stepped in self.tensors.values():
            self._make_inputs(stepped)

    def _make_inputs(self, stepped: SteppedTensor) -> None:
        if stepped.settings is None:
            return
        settings = stepped.settings
        stepped.inputs = inputs_of(settings.optimizer, settings.group, settings.step, stepped.before)
        if stepped.inputs is None:
            self.unknown_formula = type(settings.optimizer).__name__
        else:
            stepped.inputs = stepped.inputs.with_roundoff(roundoff_of(stepped.tensor.dtype), stepped.moment_roundoff)

    def own_gradients(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of all sampled elements: (the gradients with which this rank steps, does it step this element?)."""
        gradients, is_here = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.bool)
        for stepped in self.tensors.values():
            if stepped.num_steps:
                gradients[stepped.elements] = stepped.before["gradient"]
                is_here[stepped.elements] = True
        return gradients, is_here

    def _tensors_of(self, optimizer: Any) -> Iterator[tuple[Any, Any]]:
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    yield group, tensor

    def _read_before(self, optimizer: Any, group: Any, tensor: Any, stepped: SteppedTensor) -> None:
        state = optimizer.state.get(tensor, {})
        self.master_roundoff = max(self.master_roundoff, roundoff_of(tensor.grad.dtype))
        stepped.before = {"gradient": stepped.read(tensor.grad)}
        if not stepped.is_read:
            stepped.before["weights"] = stepped.read(tensor)
            return
        stepped.before |= _read(stepped, tensor, state)
        own = self._groups.get(id(optimizer), [])
        expected_group = own[stepped.group] if stepped.group < len(own) else group
        stepped.settings = _StepSettings(optimizer, dict(expected_group), _next_step(optimizer, group, state))


def _next_step(optimizer: Any, group: Any, state: Any) -> int:
    """FusedAdam counts in the state of the last parameter of a group alone."""
    if type(optimizer).__name__ == "FusedAdam":
        last = [tensor for tensor in group["params"] if tensor.grad is not None][-1]
        state = optimizer.state.get(last, {})
        return int(state.get("step", group.get("step", 0))) + 1
    step = state.get("step", 0)
    return int(step) + 1


def _read(stepped: SteppedTensor, tensor: torch.Tensor, state: Any) -> dict[str, torch.Tensor]:
    values = {"weights": stepped.read(tensor)}
    for name in _STATES:
        moment = state.get(name)
        if torch.is_tensor(moment) and moment.numel() == tensor.numel():
            values[name] = stepped.read(moment)
    return values


def _copy_to_host(copies: Iterable[dict[str, torch.Tensor]]) -> None:
    """Replace each tensor by itself in fp64 on the CPU, with one copy for each device and number format."""
    groups: dict[Any, list[tuple[dict[str, torch.Tensor], str]]] = {}
    for values in copies:
        for name, tensor in values.items():
            groups.setdefault((tensor.device, tensor.dtype), []).append((values, name))
    for entries in groups.values():
        tensors = [values[name] for values, name in entries]
        host = torch.cat(tensors).cpu().double().split([len(tensor) for tensor in tensors])
        for (values, name), tensor in zip(entries, host, strict=True):
            values[name] = tensor
