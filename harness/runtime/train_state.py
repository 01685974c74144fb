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
    """All tokens so far, without padding."""
    position: DataPosition = DataPosition()
    predicted_tokens: int | None = 0
    """Those of `tokens` that the loss counts. None after a resume from a version that did not count them."""
    skipped: int = 0
    """Steps that changed nothing because of a NaN or an infinity; not those of fp16's search for a loss scale."""
    skipped_in_a_row: int = 0
    best_loss: float | None = None
    """The lowest held-out loss, and the step of that evaluation."""
    best_step: int | None = None
    patience_loss: float | None = None
    """The loss that early stopping compares with: the last one that was better by more than the threshold."""
    evaluations_without_gain: int = 0
    last_eval_step: int | None = None
    """The step of the last evaluation that counts in these four. A checkpoint is saved before the evaluation of its
    step, and its manifest gets these values once that has ended."""

    def advance(self, *, samples: int, tokens: int, predicted_tokens: int, position: DataPosition) -> TrainState:
        """The state after one more step of so many sequences, tokens, and tokens that the loss counts."""
        return replace(
            self,
            step=self.step + 1,
            samples=self.samples + samples,
            tokens=self.tokens + tokens,
            predicted_tokens=None if self.predicted_tokens is None else self.predicted_tokens + predicted_tokens,
            position=position,
        )

    def evaluation_fields(self) -> dict[str, Any]:
        """The values that an evaluation after the save changes, as in `to_json`."""
        names = ("best_loss", "best_step", "patience_loss", "evaluations_without_gain", "last_eval_step")
        return {name: getattr(self, name) for name in names}

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
        counts = {key: body[key] for key in ("step", "samples", "tokens")} | position
        wrong = [k for k, v in counts.items() if type(v) is not int or not 0 <= v < 2**63]
        if wrong:
            raise ValueError(f"its `{wrong[0]}` is no count")
        # A version that wrote no `last_eval_step` evaluated before it saved, where these counters mattered.
        older = {"last_eval_step": body["step"], "patience_loss": body.get("best_loss"), "predicted_tokens": None}
        return TrainState(**{**older, **body, "position": DataPosition(**position)})
