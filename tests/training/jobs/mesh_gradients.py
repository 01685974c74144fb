# SPDX-License-Identifier: Apache-2.0
"""Gradients under the sequence groups of the JSON's two keys: `mesh_gradients.py OUT.json`, on 2 ranks.

Each rank's loss has a gradient of 1 in a column of its own. OUT.json: for each stage the columns of rank 0's update.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
from torch import nn

from harness.runtime.distributed import destroy_process_group, init_process_group

ranks = init_process_group()
found = {}
for stage in (0, 1, 2, 3):
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "sequence_parallel_size": 2,
        "data_parallel_size": 1,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(torch.eye(2)[ranks.rank]).sum())
    engine.step()
    weights = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(weights, enabled=stage == 3):
        found[stage] = (-weights[0].detach()[0]).tolist()
    engine.destroy()
if ranks.is_main_process:
    Path(sys.argv[-1]).write_text(json.dumps(found))
destroy_process_group()
