# SPDX-License-Identifier: Apache-2.0
"""Steps that have ended on the host and whose line is not written yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from harness.runtime.distributed import copy_to_host_async
from harness.runtime.engine_protocol import Engine, LossScaledOptimizer
from harness.runtime.step import MeanLoss
from harness.runtime.step_timer import StepTrace
from harness.runtime.train_state import TrainState


@dataclass(slots=True)
class PendingRow:
    """The values of a line. To read the loss or the gradient norm waits for the device."""

    state: TrainState
    learning_rate: float
    mean_loss: MeanLoss
    read_grad_norm: Callable[[], list[float]] | None
    loss_scale: float | None
    skipped_steps: int


@dataclass(slots=True)
class PendingStep:
    """A step with its rows of data, and with the values of its line where it has one."""

    trace: StepTrace
    row_indices: np.ndarray
    row: PendingRow | None


def make_pending_row(engine: Engine, state: TrainState, mean_loss: MeanLoss, learning_rate: float) -> PendingRow:
    """Start the copies to the host that the line needs."""
    grad_norm: Any = engine.get_global_grad_norm()
    read_grad_norm: Callable[[], list[float]] | None = None
    if torch.is_tensor(grad_norm):
        read_grad_norm = copy_to_host_async(grad_norm.detach().double().reshape(1))
    elif grad_norm is not None:
        read_grad_norm = partial(list, (float(grad_norm),))
    return PendingRow(
        state,
        learning_rate,
        mean_loss,
        read_grad_norm,
        float(cast("LossScaledOptimizer", engine.optimizer).loss_scale) if engine.fp16_enabled() else None,
        int(engine.skipped_steps),
    )
