# SPDX-License-Identifier: Apache-2.0
"""The shapes that DeepSpeed's AutoTP gives real models on the meta device: `tensor_shards_meta.py CASES.json OUT`.

A case is {"config", "plan"} as in `tensor_shards.py`. Two processes that never talk: each takes part in a pretended group
of 8 tensor ranks, as its first and its last. Each writes OUT/RANK.json: a list of {name: shape}, or of messages.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import transformers
from deepspeed.module_inject.layers import set_autotp_mode
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.utils import groups
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.runtime.text_part import find_text_part

CASES, OUT = Path(sys.argv[1]), Path(sys.argv[2])
DEGREE = 8


def main() -> None:
    rank = 0 if os.environ["RANK"] == "0" else DEGREE - 1
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=DEGREE)
    deepspeed.init_distributed("fake")
    groups._init_tp_mesh_device(tensor_model_parallel_size=DEGREE)
    set_autotp_mode(training=True)
    results = [shapes_of(**case) for case in json.loads(CASES.read_text())]
    (OUT / f"{rank}.json").write_text(json.dumps(results))


def shapes_of(config: dict[str, Any], plan: dict[str, Any]) -> dict[str, list[int]] | str:
    whole = transformers.AutoConfig.for_model(**config)
    text = find_text_part(whole).config or whole
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(text, dtype=torch.bfloat16)
    engine = SimpleNamespace(
        autotp_size=lambda: DEGREE, compile_autotp=bool, is_deepcompile_enabled=bool, local_rank=0, mpu=groups
    )
    try:
        DeepSpeedEngine._apply_autotp_partitioning(engine, model, TPTrainingConfig(autotp_size=DEGREE, **plan))
    except (AssertionError, ValueError) as error:
        return str(error)
    return {name: list(p.shape) for name, p in model.named_parameters()}


if __name__ == "__main__":
    main()
