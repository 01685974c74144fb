"""What a claim may look at on this rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.init_stats import WeightStats
from harness.runtime.engine_checks.model_weights import WeightRecord
from harness.runtime.topology import Topology


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One of the first steps, counted from 1. `loss` is this rank's part, see `Stepper.train`."""

    step: int
    learning_rate: float
    skipped_steps: int
    """Of the engine's steps so far."""
    loss_scale: float | None
    grad_norm: Any
    loss: torch.Tensor


@dataclass
class Observations:
    """The engine, what the model was before it, and the steps that were taken since."""

    expected: ExpectedSettings
    parallel_dims: Topology
    model_config: Any
    """Of `transformers`."""
    initial_weights: dict[str, WeightRecord]
    init_stats: dict[str, WeightStats]
    """Of modules that the model's own initialisation has made anew, by class."""
    engine: Any = None
    parameters: dict[str, Any] = field(default_factory=dict)
    """The parameters of its module."""
    start_step: int = 0
    """Steps that a resumed run had behind it."""
    skipped_steps_at_start: int = 0
    scheduler_steps_at_start: int = 0
    """Steps that the schedule had behind it."""
    micro_steps_at_start: int = 0
    global_steps_at_start: int = 0
    loss_divisor: float = 1.0
    """What the sum of all ranks' losses is divided by, see `Stepper.train`."""
    steps: list[StepRecord] = field(default_factory=list)
    total_steps: int = 0
    """Of the whole run."""
    weights_before_step: torch.Tensor | None = None
    """A sample of what the optimizer steps, from before the first step that has a learning rate."""
    weight_change: dict[str, float] | None = None
    lr_multiplier: Any = None
    """Of the schedule: the share of the peak rate by step."""
    last_batch: dict[str, Any] | None = None
    """What this rank computed in the last step: a digest of its tokens, and the rows that they were."""
    replica_comparisons: int = 0
    """How often replicas have been compared: each time others."""
