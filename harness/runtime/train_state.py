# SPDX-License-Identifier: Apache-2.0
"""The state of training: with the engine and the random states, all that a resume needs.

It is frozen; a step makes the next one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class DataPosition:
    """Place in the training data: how many sequences of epoch `epoch` have been used, over all ranks."""

    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TrainState:
    """Counters after `step` optimizer steps, over all ranks; skipped steps (fp16 overflow) count as steps."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    position: DataPosition = DataPosition()
    skipped: int = 0
    """Steps that changed nothing because of a NaN or an infinity; not those of fp16's search for a loss scale."""
    skipped_in_a_row: int = 0
    best_loss: float | None = None
    """The lowest held-out loss, and the step of that evaluation."""
    best_step: int | None = None
    evaluations_without_gain: int = 0
    last_eval_step: int | None = None
    """The step of the last evaluation that counts in these three. A checkpoint is saved before the evaluation of its
    step, which is therefore not in it."""

    def advance(self, *, samples: int, tokens: int, position: DataPosition) -> TrainState:
        """The state after one more step of so many sequences and tokens."""
        return replace(
            self, step=self.step + 1, samples=self.samples + samples, tokens=self.tokens + tokens, position=position
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for the checkpoint's manifest."""
        return asdict(self)

    @staticmethod
    def from_json(body: dict[str, Any]) -> TrainState:
        """The inverse of `to_json`. Raises ValueError when a field is unknown to this version, or when one that every
        version wrote is missing: a resume from half a state would start at another place.
        """
        position = body.get("position")
        known_fields = {f.name for f in fields(TrainState)}
        position_fields = {f.name for f in fields(DataPosition)}
        is_complete = {"step", "samples", "tokens", "position"} <= set(body) <= known_fields
        if not is_complete or not isinstance(position, dict) or set(position) != position_fields:
            raise ValueError(f"it has the fields {sorted(body)} and the position {position}")
        # A version that wrote no `last_eval_step` evaluated before it saved, where these counters mattered.
        return TrainState(**{"last_eval_step": body["step"], **body, "position": DataPosition(**position)})
