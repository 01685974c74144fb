"""AT008: how the ranks are divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.utils import groups

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    check_failed,
    check_passed,
    format_ranks,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(seen: Observations) -> Any:
    engine = seen.engine
    piped = isinstance(engine, PipelineEngine)
    shared = None if piped else vars(engine).get("seq_parallel_group")
    parts = 1 if shared is None else dist.get_world_size(shared)
    inner = getattr(groups, "_ZERO_PARAM_INTRA_PARALLEL_GROUP", None)
    return {
        "data": int(engine.dp_world_size) if parts == 1 else int(engine.seq_dp_world_size) // parts,
        "tensor": 1 if piped or engine.autotp_size() < 2 else int(groups.get_tensor_model_parallel_world_size()),
        "pipeline": int(engine.num_stages) if piped else 1,
        "sequence": parts,
        "zero_hpz": dist.get_world_size(inner) if seen.expected.hpz_partition_size > 1 and inner is not None else 1,
    }


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    degrees = asked.parallel_dims
    wanted = {
        "data": degrees.data,
        "tensor": degrees.tensor,
        "pipeline": degrees.pipeline,
        "sequence": degrees.sequence,
        "zero_hpz": max(1, asked.hpz_partition_size),
    }
    for name, value in wanted.items():
        wrong = [rank for rank, has in enumerate(found) if has[name] != value]
        if wrong:
            has = found[wrong[0]][name]
            what = "ranks in a secondary partition" if name == "zero_hpz" else f"{name}-parallel ranks"
            return check_failed(f"there are {has} {what}, should be {value}{format_ranks(wrong, len(found))}", has)
    return check_passed(found[0])


CHECK = EngineCheck(
    id="AT008",
    name="other-degrees",
    question="are the ranks divided into data, tensor, pipeline and sequence ranks as asked for?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="parallel",
    gates=("TP011", "SQ006"),
    fix="set the degrees in `parallel`, and start as many ranks as their product divides",
)
