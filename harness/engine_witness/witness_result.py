# SPDX-License-Identifier: Apache-2.0
"""The values that the gradient witness hands on: differences, and the result of a sampled step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

DifferenceKind = Literal["gradient", "update", "weights"]
"""`gradient`: the optimizer was stepped with another gradient than the backward passes computed.
`update`: the optimizer's formula gives other weights for this gradient. `weights`: the model does not compute with the
weights that the optimizer wrote."""

CAUSES: dict[str, str] = {
    "last-micro-batch": "it is the gradient of the last micro-batch alone: accumulation overwrites the others",
    "first-micro-batch": "it is the gradient of the first micro-batch alone: the later ones are lost",
    "micro-batch-lost": "the gradient of one micro-batch is missing",
    "divided-again-by-accumulation": "it was divided twice by the accumulation steps",
    "not-divided-by-accumulation": "it was not divided by the accumulation steps",
    "divided-again-by-ranks": "it was divided twice by the data-parallel ranks",
    "not-divided-by-ranks": "it is the sum over the data-parallel ranks, not their mean",
    "rank-left-out": "the contribution of one rank is missing",
    "not-reduced": "it is one rank's own gradient: it was not reduced over the ranks",
    "clip-norm": "clipping used another norm than that of the gradient",
    "not-clipped": "the gradient was not clipped",
    "other-clip-grad": "the optimizer's `clip_grad` is not the `gradient_clipping` of the engine",
    "loss-scale": "the loss scale was not divided out, or twice",
    "stale": "it is the gradient of an earlier step",
    "zero": "it is zero",
    "other-place": "it is the gradient of another place in the partition",
    "scaled": "its direction is right, its length is not",
    "stepped-again": "the optimizer was stepped twice with one gradient",
    "not-stepped": "the optimizer did not change the weights",
    "weight-decay": "the weight decay is not that of the parameter's group",
    "bias-correction": "the bias correction of Adam is that of another step",
    "learning-rate": "the learning rate is not that of the parameter's group",
    "not-copied": "the weights of the model are those before the step",
    "unknown": "",
}
"""Id of a likely cause -> the cause in words, to follow the sentence that names the difference."""


@dataclass(frozen=True)
class Difference:
    """One parameter whose numbers differ, the same on every rank. `rank` is a rank that saw it."""

    step: int
    """The engine's step, from 1: `engine.global_steps` after it."""
    kind: DifferenceKind
    parameter: str
    """Its name in the model."""
    rank: int
    expected: float
    found: float
    """Of the sampled element that differs most."""
    relative: float
    """Norm of the difference over the norm of the expected values, of all sampled elements of this parameter."""
    cause: str = "unknown"
    """The likely cause as far as the numbers tell, a key of `CAUSES`."""
    detail: str = ""
    """What the cause needs besides: the rank that is left out, the factor."""
    num_parameters: int = 1
    """Parameters of this step with the same kind and cause."""

    @property
    def text(self) -> str:
        """One sentence without a full stop."""
        what = {
            "gradient": "the optimizer was stepped with another gradient than the backward passes computed",
            "update": "the step of the optimizer is not that of its formula",
            "weights": "the model has other weights than the optimizer wrote",
        }[self.kind]
        more = f" and {self.num_parameters - 1} more parameters" if self.num_parameters > 1 else ""
        numbers = f"{self.found:.6g}, expected {self.expected:.6g}; {self.relative:.2g} of the norm"
        reason = ": " + CAUSES[self.cause] if CAUSES[self.cause] else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"step {self.step}: {what}, in `{self.parameter}`{more} ({numbers}){reason}{detail}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a report."""
        return asdict(self) | {"text": self.text}


@dataclass(frozen=True)
class WitnessResult:
    """A sampled step, compared on every rank. The same on every rank, but for `seconds`."""

    step: int
    differences: tuple[Difference, ...] = ()
    """One for each kind and cause, the largest first; empty when all numbers agree."""
    parameters: int = 0
    """Parameters whose gradient was compared."""
    elements: int = 0
    """Elements of them, over all ranks."""
    updates: int = 0
    """Elements whose update was compared with the formula of the optimizer."""
    not_compared: tuple[str, ...] = ()
    """Reasons why something was not compared at this step."""
    seconds: float = 0.0
    """Time that the comparison took at the end of the step, with its all-reduce."""
