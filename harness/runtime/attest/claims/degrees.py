"""AT008: how the ranks are divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.utils import groups

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, differs, holds, where
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
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
        "zero_hpz": dist.get_world_size(inner) if seen.asked.hpz > 1 and inner is not None else 1,
    }


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    degrees = asked.degrees
    wanted = {
        "data": degrees.data,
        "tensor": degrees.tensor,
        "pipeline": degrees.pipeline,
        "sequence": degrees.sequence,
        "zero_hpz": max(1, asked.hpz),
    }
    for name, value in wanted.items():
        wrong = [rank for rank, has in enumerate(found) if has[name] != value]
        if wrong:
            has = found[wrong[0]][name]
            what = "ranks in a secondary partition" if name == "zero_hpz" else f"{name}-parallel ranks"
            return differs(f"there are {has} {what}, should be {value}{where(wrong, len(found))}", has)
    return holds(found[0])


CLAIM = Claim(
    id="AT008",
    name="other-degrees",
    question="are the ranks divided into data, tensor, pipeline and sequence ranks as asked for?",
    moment="built",
    look=_look,
    judge=_judge,
    key="parallel",
    gates=("TP011", "SQ006"),
    fix="set the degrees in `parallel`, and start as many ranks as their product divides",
)
