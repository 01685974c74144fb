# SPDX-License-Identifier: Apache-2.0
"""The parameters that ZeRO-3 holds gathered at each moment of a micro-batch: DeepSpeed's trace, replayed on counts.

Follows `partitioned_param_coordinator.py` (`_fetch_sub_module_impl`, `__params_to_release`) of 0.19.8 from the third
micro-batch on, when its trace is complete. A gather of several parameters arrives in one buffer and is copied out of
it; the buffer stays until the last of them was needed (`partition_parameters.py` `AllGatherCoalescedHandle`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

_FIRST_LAYERS = 3
_EXTRA_LAYERS = 2 * _FIRST_LAYERS
"""Layers that are replayed beyond those that a window covers: the first and the last differ, all others are alike."""


class GatherSettings(NamedTuple):
    """Elements: `stage3_max_reuse_distance`, `stage3_prefetch_bucket_size`, `stage3_max_live_parameters`.
    `leaf_layers`: a layer is gathered as one; `recomputes`: layers are computed again in the backward pass.
    """

    max_reuse_distance: int
    prefetch_bucket_size: int
    max_live_parameters: int
    leaf_layers: bool
    recomputes: bool


class ModelModules(NamedTuple):
    """Elements of each parameter that is released after use, by module in the order in which the modules run. A module
    without parameters is there, too: DeepSpeed prefetches at each.
    """

    embedding: tuple[int, ...]
    layer: tuple[tuple[int, ...], ...]
    num_layers: int
    norm: tuple[int, ...]
    head: int
    tied: bool


LayerCounts = tuple[tuple[int, int], ...]
"""(layers whose activations are kept at a moment, the elements that are gathered at it)."""


class GatheredPeaks(NamedTuple):
    """The most elements that are gathered at once: `loss`, `loss_gradient` while head and loss compute. `*_layer`:
    while a layer computes; `*_copy`: while a gather is copied out of its buffer, when nothing computes.
    """

    loss: int
    loss_gradient: int
    forward_layer: LayerCounts
    backward_layer: LayerCounts
    forward_copy: LayerCounts
    backward_copy: LayerCounts


class _Module(NamedTuple):
    kind: str
    """`root` and `decoder`, which have no parameters of their own, `embedding`, `layer`, `norm` or `head`."""
    parameters: tuple[int, ...]
    is_backward: bool
    kept: int
    """Layers whose activations are kept while it runs."""
    is_leaf: bool = False


@lru_cache(maxsize=256)
def replay_gathers(modules: ModelModules, settings: GatherSettings) -> GatheredPeaks:
    """The peaks of a micro-batch."""
    return _Replay(modules, settings).run()


class _Replay:
    def __init__(self, modules: ModelModules, settings: GatherSettings) -> None:
        self._settings = settings
        self._sizes: list[int] = []
        self._order = self._list_modules(modules)
        self._available: set[int] = set()
        self._num_available = 0
        """Elements of the available parameters."""
        self._in_flight: dict[int, int] = {}
        """Parameter -> the number of its gather, until the module that needs it has waited."""
        self._buffers: dict[int, int] = {}
        """Elements of the buffer of a gather of several parameters."""
        self._num_live = self._num_gathers = 0
        self._fetched_for = [-1] * len(self._sizes)
        self._peaks: dict[tuple[str, bool], dict[int, int]] = defaultdict(dict)
        """By kind of module and direction: layers that are kept -> elements."""
        self._queue = deque(
            (parameter, step) for step, module in enumerate(self._order) for parameter in sorted(module.parameters)
        )
        self._uses: list[list[int]] = [[] for _ in self._sizes]
        """The steps that use each parameter."""
        for parameter, step in self._queue:
            self._uses[parameter].append(step)
        sizes = (sum(self._sizes[p] for p in module.parameters) for module in self._order)
        self._passed = [0, *accumulate(sizes)]
        """Elements of the modules before each step."""

    def _list_modules(self, modules: ModelModules) -> list[_Module]:
        settings = self._settings
        layer_size = max(1, sum(map(sum, modules.layer)))
        window = settings.max_reuse_distance + settings.prefetch_bucket_size
        num_layers = min(modules.num_layers, window // layer_size + _EXTRA_LAYERS)

        def add(sizes: tuple[int, ...]) -> tuple[int, ...]:
            self._sizes += sizes
            return tuple(range(len(self._sizes) - len(sizes), len(self._sizes)))

        embedding = add(modules.embedding)
        layers = [[add(sizes) for sizes in modules.layer] for _ in range(num_layers)]
        norm = add(modules.norm)
        largest = max(embedding, key=lambda index: self._sizes[index], default=None)
        head = (largest,) if modules.tied and largest is not None else add((modules.head,))

        def layer_steps(index: int, *, is_backward: bool) -> list[_Module]:
            parts = layers[index]
            if settings.leaf_layers:
                parts = [tuple(parameter for part in parts for parameter in part)]
            ordered = [(), *(parts[::-1] if is_backward else parts)][settings.leaf_layers :]
            kept = index + 1 if index < _FIRST_LAYERS else modules.num_layers - num_layers + index + 1
            return [_Module("layer", part, is_backward, kept, settings.leaf_layers) for part in ordered]

        order = [_Module(kind, (), False, 0) for kind in ("root", "decoder")]
        order.append(_Module("embedding", embedding, False, 0))
        for index in range(num_layers):
            order += layer_steps(index, is_backward=False)
        for kind, parameters in (("norm", norm), ("head", head)):
            order.append(_Module(kind, parameters, False, modules.num_layers))
        for kind, parameters in (("root", ()), ("head", head), ("decoder", ()), ("norm", norm)):
            order.append(_Module(kind, parameters, True, modules.num_layers))
        for index in reversed(range(num_layers)):
            if settings.recomputes:
                order += [step._replace(is_backward=True) for step in layer_steps(index, is_backward=False)]
            order += layer_steps(index, is_backward=True)
        return [*order, _Module("embedding", embedding, True, 0)]

    def run(self) -> GatheredPeaks:
        for step, module in enumerate(self._order):
            self._fetch(step, module)
            self._prefetch()
            self._record(module, "")
            self._release(step + 1, module)
        loss, gradient = (max(self._peaks["head", way].values(), default=0) for way in (False, True))
        counts = [tuple(self._peaks[kind, way].items()) for kind in ("layer", "copy") for way in (False, True)]
        return GatheredPeaks(loss, gradient, *counts)

    def _gather(self, parameters: list[int]) -> None:
        if not parameters:
            return
        self._num_gathers += 1
        size = sum(self._sizes[parameter] for parameter in parameters)
        self._num_live += size
        self._buffers[self._num_gathers] = size if len(parameters) > 1 else 0
        for parameter in parameters:
            self._in_flight[parameter] = self._num_gathers

    def _fetch(self, step: int, module: _Module) -> None:
        """Gather what is missing and wait for it."""
        self._gather([p for p in module.parameters if p not in self._available and p not in self._in_flight])
        arrived = {self._in_flight[p] for p in module.parameters if p in self._in_flight}
        came = {p for p, gather in self._in_flight.items() if gather in arrived} - self._available
        self._available |= came
        self._num_available += sum(self._sizes[p] for p in came)
        if arrived:
            self._record(module, "copy")
        for parameter in module.parameters:
            self._in_flight.pop(parameter, None)
        waiting = set(self._in_flight.values())
        self._buffers = {gather: size for gather, size in self._buffers.items() if gather in waiting}
        missing = {p for p in module.parameters if self._fetched_for[p] < step}
        while self._queue and missing:
            parameter, used_at = self._queue.popleft()
            self._fetched_for[parameter] = used_at
            missing.discard(parameter)

    def _prefetch(self) -> None:
        settings = self._settings
        limit = min(settings.max_live_parameters - self._num_live, settings.prefetch_bucket_size)
        chosen: list[int] = []
        size = 0
        while settings.prefetch_bucket_size and self._queue and size < limit:
            parameter, used_at = self._queue.popleft()
            self._fetched_for[parameter] = max(self._fetched_for[parameter], used_at)
            if parameter not in self._available and parameter not in self._in_flight and parameter not in chosen:
                chosen.append(parameter)
                size += self._sizes[parameter]
        self._gather(chosen)

    def _release(self, step: int, module: _Module) -> None:
        """Release the module's parameters, but those that are used again within the reuse distance."""
        last = bisect_left(self._passed, self._passed[step] + self._settings.max_reuse_distance, lo=step)
        if module.is_leaf and any(later.kind == "root" for later in self._order[step:last]):
            return  # which counts all that is below it
        released = {p for p in module.parameters if self._fetched_for[p] <= step and not self._is_used(p, step, last)}
        size = sum(self._sizes[p] for p in released)
        self._num_available -= sum(self._sizes[p] for p in released & self._available)
        self._available -= released
        self._num_live -= size

    def _is_used(self, parameter: int, step: int, last: int) -> bool:
        """Does a module from `step` on, before `last`, use the parameter?"""
        uses = self._uses[parameter]
        return bisect_left(uses, step) < bisect_left(uses, last)

    def _record(self, module: _Module, name: str) -> None:
        """Count what is live: gathered parameters, and those on their way."""
        alone = [p for p, g in self._in_flight.items() if not self._buffers[g] and p not in self._available]
        live = self._num_available + sum(self._buffers.values()) + sum(self._sizes[p] for p in alone)
        peaks = self._peaks[name or module.kind, module.is_backward]
        peaks[module.kept] = max(peaks.get(module.kept, 0), live)
