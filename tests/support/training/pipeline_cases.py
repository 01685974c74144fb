# SPDX-License-Identifier: Apache-2.0
"""Pipelines that must train like one plain process; `benchmarks/parity.py` may run them beside its own table.

The tiny models of `parity_cases` have their embeddings tied; `untied` ones and further families are added here.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.training.parity_cases import Case

STAGES = 2


def pipeline(shape: str, stage: int, precision: str, ranks: int = 2, **more: dict[str, Any]) -> Case:
    """A case with two pipeline stages."""
    sections: dict[str, dict[str, Any]] = {"parallel": {"pipeline_parallel_size": STAGES}}
    for name, body in more.items():
        sections[name] = {**sections.get(name, {}), **body}
    return Case(shape, stage, "none", precision, ranks, tuple((k, json.dumps(v)) for k, v in sections.items()))


PP2 = (
    pipeline("llama", 1, "fp32"),
    pipeline("qwen2", 1, "fp32", train={"gradient_accumulation_steps": 4, "per_device_train_batch_size": 1}),
    pipeline("gpt2", 1, "fp32", train={"gradient_checkpointing": True}),
    pipeline("gpt2", 0, "bf16"),
    pipeline("llama", 1, "bf16"),
)
PP2_DP2 = (
    pipeline("llama", 1, "fp32", ranks=4),
    pipeline("qwen2", 1, "bf16", ranks=4),
)
CASES = (*PP2, *PP2_DP2)
