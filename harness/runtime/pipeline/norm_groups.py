# SPDX-License-Identifier: Apache-2.0
"""The gradient norm of a pipeline whose stages have different numbers of parameter groups.

DeepSpeed's ZeRO optimizer sums the norm over the stages once for each parameter group of its own stage. With weight
decay a stage has a group of matrices and one of vectors, but a stage of an embedding alone has no vector, and one whose
matrices are frozen no matrix: its ranks then wait in fewer all-reduces than the others, for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.runtime.utils import combine_grad_norm_groups
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from harness.runtime.engine_protocol import Engine


def join_every_norm(engine: Engine, any_rank: Callable[[bool], bool]) -> None:
    """Let each rank take part in as many sums of the norm as the stage with most groups. A collective of all ranks."""
    optimizer: Any = engine.optimizer
    if not isinstance(optimizer, DeepSpeedZeroOptimizer):  # others sum once
        return
    own_groups, most_groups = len(optimizer.bit16_groups), 0
    while any_rank(own_groups > most_groups):
        most_groups += 1
    missing = most_groups - own_groups
    if not missing:
        return
    own_norm = optimizer.scaled_global_norm

    def norm_of_all_stages(norm_type: int = 2) -> torch.Tensor:
        norms = [own_norm(norm_type)]
        for _ in range(missing):
            squares = torch.zeros((), dtype=torch.float32, device=engine.device)
            optimizer._model_parallel_all_reduce(tensor=squares, op=dist.ReduceOp.SUM)
            norms.append(squares.sqrt())
        norm: torch.Tensor = combine_grad_norm_groups(norms, norm_type=norm_type)
        return norm

    optimizer.scaled_global_norm = norm_of_all_stages
