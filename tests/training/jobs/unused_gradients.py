# SPDX-License-Identifier: Apache-2.0
"""`unused_gradients.py OUT.json`: a part of the model that is used in the first step alone, plain SGD on the CPU at stage 3.
How far its weights move in the second step, as DeepSpeed holds gradients and held once; and of two micro-batches a step
where it is used in both of the first step, by rows that are large, and in the last one of the second, by rows of zeros.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import deepspeed
import torch

from harness.patches.cpu_offload_single_grad import cast_grads_on_step, skip_cpu_grad_copies
from harness.runtime.distributed import destroy_process_group, init_process_group

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "bf16": {"enabled": True},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
}


class TwoParts(torch.nn.Module):
    """The second is skipped when asked to."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x, both):
        x = self.always(x)
        return (self.sometimes(x) if both else x).float().square().mean()


def moved(once):
    """Largest change of the unused part's fp32 masters in the second step."""
    torch.manual_seed(0)
    model = TwoParts()
    with skip_cpu_grad_copies() if once else nullcontext():
        engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=CONFIG)
    cast_grads_on_step(engine, bool)
    x, weights = torch.ones(1, 8, dtype=torch.bfloat16), []
    for both in (True, False):
        engine.backward(engine(x, both))
        engine.step()
        weights.append(deepspeed.utils.safe_get_full_fp32_param(model.sometimes.weight).clone())
    engine.destroy()
    return float((weights[1] - weights[0]).abs().max())


def moved_by_old():
    """The same, held once."""
    torch.manual_seed(0)
    model = TwoParts()
    with skip_cpu_grad_copies():
        config = {**CONFIG, "gradient_accumulation_steps": 2}
        engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    cast_grads_on_step(engine, bool)
    weights = []
    for size, uses in ((100.0, (True, True)), (0.0, (False, True))):
        for both in uses:
            engine.backward(engine(torch.full((1, 8), size, dtype=torch.bfloat16), both) * size)
            engine.step()
        weights.append(deepspeed.utils.safe_get_full_fp32_param(model.sometimes.weight).clone())
    engine.destroy()
    return float((weights[1] - weights[0]).abs().max())


ranks = init_process_group()
found = {"twice": moved(False), "once": moved(True), "added to": moved_by_old()}
if ranks.is_main_process:
    Path(sys.argv[1]).write_text(json.dumps(found))
destroy_process_group()
