"""Where training stands: the one value that, with the engine and the random states, is all that a resume needs.

It is frozen; a step makes the next one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Place in the training data: how many sequences of epoch `epoch` have been drawn, over all ranks."""

    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """Counters after `step` optimizer steps, over all ranks; skipped steps (fp16 overflow) count as steps."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    position: Position = Position()

    def advance(self, *, samples: int, tokens: int, position: Position) -> State:
        """The state after one more step that has drawn so many sequences and tokens."""
        return replace(
            self, step=self.step + 1, samples=self.samples + samples, tokens=self.tokens + tokens, position=position
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for the checkpoint's manifest."""
        return asdict(self)

    @staticmethod
    def from_json(body: dict[str, Any]) -> State:
        """The inverse of `to_json`."""
        return State(body["step"], body["samples"], body["tokens"], Position(**body["position"]))
