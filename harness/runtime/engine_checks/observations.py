# SPDX-License-Identifier: Apache-2.0
"""The values on this rank that a check may read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import WeightRecord, WeightStats
from harness.runtime.engine_protocol import Engine
from harness.runtime.topology import Topology

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One of the first steps, counted from 1. `loss` is this rank's part, see `Stepper.train_step`."""

    step: int
    learning_rate: float
    skipped_steps: int
    """Steps that the engine has skipped so far."""
    loss_scale: float | None
    grad_norm: torch.Tensor | float | None
    loss: torch.Tensor


@dataclass
class Observations:
    """The engine, the weights before it was built, and the steps since."""

    expected: ExpectedSettings
    parallel_dims: Topology
    model_config: PreTrainedConfig | None
    """The configuration of `transformers`."""
    initial_weights: dict[str, WeightRecord]
    init_stats: dict[str, WeightStats]
    """Reference statistics of the model's own initialisation, by class of module."""
    engine: Engine = field(init=False)
    """Set once it is built."""
    parameters: dict[str, torch.nn.Parameter] = field(default_factory=dict)
    """The parameters of the engine's module."""
    start_step: int = 0
    """The step that the run resumed at."""
    skipped_steps_at_start: int = 0
    scheduler_steps_at_start: int = 0
    """The step of the schedule that the run resumed at."""
    micro_steps_at_start: int = 0
    global_steps_at_start: int = 0
    loss_divisor: float = 1.0
    """Divisor of the sum of all ranks' losses, see `Stepper.train_step`."""
    steps: list[StepRecord] = field(default_factory=list)
    total_steps: int = 0
    """Steps of the whole run."""
    weights_before_step: torch.Tensor | None = None
    """A sample of the master weights, from before the first step that has a learning rate."""
    weight_change: dict[str, float] | None = None
    lr_multiplier: Callable[[int], float] | None = None
    """The schedule's share of the peak rate by step."""
    last_batch: dict[str, Any] | None = None
    """The last batch of this rank: a digest of its tokens, and its rows."""
    replica_comparisons: int = 0
    """Comparisons of replicas so far. Each takes other weights."""
