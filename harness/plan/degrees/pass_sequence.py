# SPDX-License-Identifier: Apache-2.0
"""Passes of each pipeline stage in the order of its schedule: forwards, backwards, and gradients of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from harness.plan.time.pipeline_schedule import Schedule

PassKind = Literal["forward", "backward", "input", "weight"]
"""`backward` is the whole one; `input` and `weight` are its two halves where a schedule splits it."""


class Pass(NamedTuple):
    """One micro-batch through one chunk of layers. `position`: the chunk's place in the model, 0 is first."""

    kind: PassKind
    micro_batch: int
    position: int


Step = tuple[Pass, ...]
"""Passes that start together, after all that they wait for: one, or DualPipe's forward together with a backward."""
StageOrder = list[Step]


def order_passes(schedule: Schedule, stages: int, micro_batches: int, virtual_stages: int = 1) -> list[StageOrder]:
    """The order of every stage. Interleaved needs m to be a multiple of p; DualPipe an even p, and an even m >= 2 p."""
    if schedule == "interleaved":
        return [_interleaved(stages, stage, micro_batches, virtual_stages) for stage in range(stages)]
    order: Callable[[int, int, int], StageOrder] = {
        "naive": _naive,
        "gpipe": _gpipe,
        "1f1b": _one_forward_one_backward,
        "zb-h1": _zero_bubble_h1,
        "dualpipe": _dualpipe,
    }[schedule]
    return [order(stages, stage, micro_batches) for stage in range(stages)]


def _naive(_: int, stage: int, micro_batches: int) -> StageOrder:
    return [(Pass(kind, each, stage),) for each in range(micro_batches) for kind in ("forward", "backward")]


def _gpipe(_: int, stage: int, micro_batches: int) -> StageOrder:
    kinds: tuple[PassKind, ...] = ("forward", "backward")
    return [(Pass(kind, each, stage),) for kind in kinds for each in range(micro_batches)]


def _one_forward_one_backward(stages: int, stage: int, micro_batches: int) -> StageOrder:
    """A warm-up of forwards, then one forward and one backward in turn."""
    warmup = min(stages - stage - 1, micro_batches)
    order: StageOrder = [(Pass("forward", each, stage),) for each in range(warmup)]
    for each in range(micro_batches):
        if each + warmup < micro_batches:
            order.append((Pass("forward", each + warmup, stage),))
        order.append((Pass("backward", each, stage),))
    return order


def _interleaved(stages: int, stage: int, micro_batches: int, chunks: int) -> StageOrder:
    """Megatron's: p micro-batches through the first chunk, the same p through the next one, and so on; backwards run
    through the chunks in reverse (core/pipeline_parallel/schedules.py).
    """
    total = micro_batches * chunks
    warmup = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)

    def locate(index: int, *, reverse: bool) -> tuple[int, int]:
        group, place = divmod(index, stages * chunks)
        chunk, offset = divmod(place, stages)
        return group * stages + offset, (chunks - 1 - chunk if reverse else chunk) * stages + stage

    def forward(index: int) -> Step:
        return (Pass("forward", *locate(index, reverse=False)),)

    order = [forward(index) for index in range(warmup)]
    for index in range(total):
        if index + warmup < total:
            order.append(forward(index + warmup))
        order.append((Pass("backward", *locate(index, reverse=True)),))
    return order


def _zero_bubble_h1(stages: int, stage: int, micro_batches: int) -> StageOrder:
    """1F1B in which stage i does the weights' gradients i micro-batches late (arXiv 2401.10241, section 2.3)."""
    order: StageOrder = []
    for (each,) in _one_forward_one_backward(stages, stage, micro_batches):
        if each.kind == "forward":
            order.append((each,))
            continue
        order.append((each._replace(kind="input"),))
        if each.micro_batch >= stage:
            order.append((Pass("weight", each.micro_batch - stage, stage),))
    late = min(stage, micro_batches)
    order += [(Pass("weight", each, stage),) for each in range(micro_batches - late, micro_batches)]
    return order


class _DirectedPasses:
    """The passes of one DualPipe rank: it holds two chunks, and half of the micro-batches run through each."""

    def __init__(self, stages: int, stage: int, micro_batches: int) -> None:
        self.order: StageOrder = []
        self._position = (stage, stages - 1 - stage)
        self._first = (0, micro_batches // 2)
        self._done = {(kind, way): 0 for kind in ("forward", "backward") for way in (0, 1)}
        self._waiting: list[Pass] = []
        self._is_mirrored = stage >= stages // 2

    def _next(self, kind: Literal["forward", "backward"], way: int) -> Pass:
        way ^= self._is_mirrored
        index = self._done[kind, way]
        self._done[kind, way] = index + 1
        return Pass(kind, self._first[way] + index, self._position[way])

    def forward(self, way: int) -> None:
        self.order.append((self._next("forward", way),))

    def backward(self, way: int, *, split: bool = False) -> None:
        each = self._next("backward", way)
        if split:
            each = each._replace(kind="input")
            self._waiting.append(each._replace(kind="weight"))
        self.order.append((each,))

    def both(self, forward_way: int, backward_way: int) -> None:
        self.order.append((self._next("forward", forward_way), self._next("backward", backward_way)))

    def weight(self) -> None:
        self.order.append((self._waiting.pop(0),))


def _dualpipe(stages: int, stage: int, micro_batches: int) -> StageOrder:
    """The eight phases of arXiv 2412.19437, section 3.2.1, as github.com/deepseek-ai/DualPipe counts them. Way 0 is
    that of the micro-batches which enter at the nearer end.
    """
    half, distance = stages // 2, min(stage, stages - 1 - stage)
    inner = half - distance - 1
    passes = _DirectedPasses(stages, stage, micro_batches)
    for _ in range(2 * inner):
        passes.forward(0)
    for _ in range(distance + 1):
        passes.forward(0)
        passes.forward(1)
    for _ in range(inner):
        passes.backward(1, split=True)
        passes.weight()
        passes.forward(1)
    for index in range(micro_batches // 2 - stages + distance + 1):
        if index == 0 and inner == 0:
            passes.forward(0)
            passes.backward(1)
        else:
            passes.both(0, 1)
        passes.both(1, 0)
    for _ in range(inner):
        passes.backward(1)
        passes.both(1, 0)
    for index in range(distance + 1):
        middle = (distance + 1) // 2
        passes.backward(1, split=index > middle or (index == middle and distance % 2 == 1))
        passes.backward(0, split=index >= middle)
    for _ in range(inner):
        passes.weight()
        passes.backward(0, split=True)
    for _ in range(distance + 1):
        passes.weight()
    return passes.order
