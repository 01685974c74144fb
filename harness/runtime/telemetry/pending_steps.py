# SPDX-License-Identifier: Apache-2.0
"""Steps that have ended on the host and whose line is not written yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from harness.runtime.distributed import copy_to_host_async
from harness.runtime.run_context import RunContext
from harness.runtime.step_timer import StepTrace
from harness.runtime.train_state import TrainState


@dataclass(slots=True)
class PendingRow:
    """The values of a line. `read_loss` and `read_grad_norm` wait for the device and for other ranks."""

    state: TrainState
    learning_rate: float
    skipped: bool
    read_loss: Callable[[], list[float]]
    read_grad_norm: Callable[[], list[float]] | None
    loss_scale: float | None
    skipped_steps: int


@dataclass(slots=True)
class PendingStep:
    """A step with its rows of data, and with the values of its line where it has one."""

    trace: StepTrace
    row_indices: np.ndarray
    row: PendingRow | None
    loss: float | None = None


def make_pending_row(
    context: RunContext, state: TrainState, losses: torch.Tensor, learning_rate: float, *, skipped: bool
) -> PendingRow:
    """Start the copies to the host and the sum over ranks that the line needs."""
    engine = context.engine
    grad_norm: Any = engine.get_global_grad_norm()
    read_grad_norm: Callable[[], list[float]] | None = None
    if torch.is_tensor(grad_norm):
        read_grad_norm = copy_to_host_async(grad_norm.detach().double().reshape(1))
    elif grad_norm is not None:
        read_grad_norm = partial(list, (float(grad_norm),))
    return PendingRow(
        state,
        learning_rate,
        skipped,
        context.distributed.all_reduce_sum_async(losses),
        read_grad_norm,
        float(engine.optimizer.cur_scale) if engine.fp16_enabled() else None,
        int(engine.skipped_steps),
    )
