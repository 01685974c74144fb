# SPDX-License-Identifier: Apache-2.0
"""Checkpointing by segments, as torch's `checkpoint_sequential`: of K layers in a row only the first keeps its input.

Each layer is a non-reentrant checkpoint of torch, which saves its input as autograd saves a tensor:
`saved_tensors_hooks` put a handle in the place of that tensor. In the backward pass the first handle of a segment runs
the segment's layers once more without gradients, from the input that was kept, and so makes the inputs of all of them.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from contextlib import ExitStack
from copy import copy
from functools import partial
from typing import Any, cast

import deepspeed
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states


class LayerCall:
    """One call of a layer, which can be repeated without gradients: same random numbers, same number formats."""

    def __init__(self, function: Callable[..., Any], hidden: torch.Tensor, others: tuple[Any, ...]) -> None:
        self._function, self._others = function, others
        self._device = hidden.device.type
        self._cpu_state = torch.get_rng_state()
        self._devices, self._device_states = get_device_states(hidden) if self._device != "cpu" else ([], [])
        self._autocast = [
            partial(torch.autocast, each, torch.get_autocast_dtype(each), torch.is_autocast_enabled(each))
            for each in {self._device, "cpu"}
        ]

    def repeat(self, hidden: torch.Tensor) -> torch.Tensor:
        """The layer's output for this input, whose shape it has."""
        with ExitStack() as contexts:
            contexts.enter_context(torch.random.fork_rng(self._devices, device_type=self._device))
            torch.set_rng_state(self._cpu_state)
            if self._devices:
                set_device_states(self._devices, self._device_states, device_type=self._device)
            for autocast in self._autocast:
                contexts.enter_context(autocast())
            # The hooks of ZeRO-3 that gather a layer's own parameters stay outside of the function that is repeated.
            contexts.enter_context(deepspeed.zero.GatheredParameters(_own_parameters(self._function)))
            return _hidden_states(_with_own_maps(self._function)(hidden, *self._others))


class Segment:
    """Layers in a row, the first one's input, and in the backward pass the inputs of the others."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self._first = hidden.detach()
        self.calls: list[LayerCall] = []
        self._inputs: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def take_input(self, index: int) -> torch.Tensor:
        """The input of the layer with this index in the segment, from 1: computed for all at once, given away once."""
        if index not in self._inputs:
            hidden = self._first
            for number, call in enumerate(self.calls[:index], start=1):
                hidden = self._inputs[number] = call.repeat(hidden)
        return self._inputs.pop(index)


class SegmentCheckpoint:
    """The `gradient_checkpointing_func` of a model of `transformers`, called with each layer and its inputs in turn.

    A layer whose input is not what the layer before it returned, such as one that gets a skip connection, begins a
    segment.
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._segment: Segment | None = None
        self._returned: tuple[Any, ...] | None = None

    def __call__(self, function: Callable[..., Any], hidden: torch.Tensor, *others: Any) -> Any:
        """The layer's outputs. `function`: its forward pass, of hidden states of any shape and other inputs."""
        segment = self._segment
        if segment is None or len(segment.calls) == self._num_layers or _place(hidden) != self._returned:
            segment = self._segment = Segment(hidden)
        index = len(segment.calls)
        segment.calls.append(LayerCall(function, hidden, others))
        run = partial(checkpoint, function, hidden, *others, use_reentrant=False)
        if index == 0:
            outputs = run()
        else:
            place = _place(hidden)

            def pack(tensor: torch.Tensor) -> torch.Tensor | Callable[[], torch.Tensor]:
                return partial(self._take_input, segment, index) if _place(tensor) == place else tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
                outputs = run()
        self._returned = _place(_hidden_states(outputs))
        return outputs

    def _take_input(self, segment: Segment, index: int) -> torch.Tensor:
        """The last segment goes with the backward pass that reads it, and not with the next forward pass."""
        if self._segment is segment:
            self._segment = None
        return segment.take_input(index)


def _with_own_maps(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with copies of the maps among its keywords: a layer may write into one that layers behind it read,
    such as the keys and values that Gemma's last layers share.
    """
    keywords = getattr(function, "keywords", None)
    if not keywords:
        return function
    own = {name: copy(value) if isinstance(value, dict | UserDict) else value for name, value in keywords.items()}
    return partial(cast("Any", function).func, *cast("Any", function).args, **own)


def _unpack(saved: torch.Tensor | Callable[[], torch.Tensor]) -> torch.Tensor:
    return saved if torch.is_tensor(saved) else saved()


def _hidden_states(outputs: Any) -> torch.Tensor:
    hidden: torch.Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return hidden


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors with the same content in the same memory. It keeps the memory's identity, not the memory."""
    storage = StorageWeakRef(tensor.untyped_storage())
    return storage, tensor._version, tensor.storage_offset(), tensor.shape, tensor.stride()


def _own_parameters(function: Callable[..., Any]) -> list[nn.Parameter]:
    """Parameters that only the layer's own hooks gather: of a leaf module of ZeRO-3 all that it has."""
    layer = next((each for each in getattr(function, "args", ()) if isinstance(each, nn.Module)), None)
    if layer is None:
        return []
    return list(layer.parameters(recurse=deepspeed.utils.z3_leaf_module(layer)))
