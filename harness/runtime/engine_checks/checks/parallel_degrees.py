# SPDX-License-Identifier: Apache-2.0
"""AT008: the degrees of parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.utils import groups

from harness.runtime import engine_protocol
from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    check_failed,
    check_passed,
    format_ranks,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    engine = observations.engine
    is_pipeline = isinstance(engine, PipelineEngine)
    sequence_group = None if is_pipeline else vars(engine).get("seq_parallel_group")
    sequence_size = 1 if sequence_group is None else dist.get_world_size(sequence_group)
    hpz_group = getattr(getattr(engine.optimizer, "parameter_offload", None), "zero_param_parallel_group", None)
    uses_hpz = observations.expected.hpz_partition_size > 1 and hpz_group is not None
    return {
        "data": int(engine.dp_world_size) if sequence_size == 1 else int(engine.seq_dp_world_size) // sequence_size,
        "tensor": _tensor_degree(engine),
        "pipeline": int(cast("engine_protocol.PipelineEngine", engine).num_stages) if is_pipeline else 1,
        "sequence": sequence_size,
        "zero_hpz": dist.get_world_size(hpz_group) if uses_hpz else 1,
    }


def _tensor_degree(engine: engine_protocol.Engine) -> int:
    if isinstance(engine, PipelineEngine):
        return int(engine.grid.get_tensor_model_parallel_world_size())
    return 1 if engine.autotp_size() < 2 else int(groups.get_tensor_model_parallel_world_size())


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    dims = expected.parallel_dims
    degrees = {
        "data": dims.data,
        "tensor": dims.tensor,
        "pipeline": dims.pipeline,
        "sequence": dims.sequence,
        "zero_hpz": max(1, expected.hpz_partition_size),
    }
    for name, value in degrees.items():
        ranks = [rank for rank, values in enumerate(rank_values) if values[name] != value]
        if ranks:
            size = rank_values[ranks[0]][name]
            unit = "ranks in a secondary partition" if name == "zero_hpz" else f"{name}-parallel ranks"
            return check_failed(
                f"there are {size} {unit}, should be {value}{format_ranks(ranks, len(rank_values))}", size
            )
    return check_passed(rank_values[0])


CHECK = EngineCheck(
    id="AT008",
    name="other-degrees",
    question="are the data, tensor, pipeline and sequence degrees as in the spec?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="parallel",
    gates=("TP011", "SQ006"),
    fix="set the degrees in `parallel`, and start as many ranks as their product divides",
)
