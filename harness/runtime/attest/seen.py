"""What a claim may look at on this rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.spread import Spread
from harness.runtime.attest.weights import Noted
from harness.runtime.topology import Topology


@dataclass(frozen=True, slots=True)
class Taken:
    """One of the first steps, counted from 1. `loss` is this rank's part, see `Stepper.train`."""

    step: int
    rate: float
    skipped: int
    """Of the engine's steps so far."""
    scale: float | None
    norm: Any
    loss: torch.Tensor


@dataclass
class Seen:
    """The engine, what the model was before it, and the steps that were taken since."""

    asked: Asked
    topology: Topology
    config: Any
    """Of `transformers`."""
    origin: dict[str, Noted]
    spread: dict[str, Spread]
    """Of modules that the model's own initialisation has made anew, by class."""
    engine: Any = None
    named: dict[str, Any] = field(default_factory=dict)
    """The parameters of its module."""
    start: int = 0
    """Steps that a resumed run had behind it."""
    skipped_before: int = 0
    scheduled_before: int = 0
    """Steps that the schedule had behind it."""
    micro_before: int = 0
    global_before: int = 0
    divisor: float = 1.0
    """What the sum of all ranks' losses is divided by, see `Stepper.train`."""
    steps: list[Taken] = field(default_factory=list)
    total_steps: int = 0
    """Of the whole run."""
    before_step: torch.Tensor | None = None
    """A sample of what the optimizer steps, from before the first step that has a learning rate."""
    moved: dict[str, float] | None = None
    rule: Any = None
    """Of the schedule: the share of the peak rate by step."""
    drawn: dict[str, Any] | None = None
    """What this rank computed in the last step: a digest of its tokens, and the rows that they were."""
    turn: int = 0
    """How often replicas have been compared: each time others."""
