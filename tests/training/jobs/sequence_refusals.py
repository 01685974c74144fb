# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be spread over a sequence group are refused, before the first step where that can be known."""

import deepspeed
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import UserError
from harness.run.resolved_run import ParallelDims
from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.micro_batch import MicroBatch
from harness.runtime.parallel.sequence_parallel import init_sequence_groups, install_ulysses_attention
from harness.runtime.parallel.sequence_stepper import SequenceParallelStepper
from harness.runtime.topology import Topology

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}


def refused(family: str, attention: str = "sdpa", **more: object) -> str:
    config = AutoConfig.for_model(family, **SIZES, **more)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    try:
        install_ulysses_attention(model, groups.get_sequence_parallel_group())
    except UserError as error:
        (finding,) = error.findings
        assert finding.gate == "SQ101", finding
        return finding.message
    return ""


ranks = init_process_group()
groups = init_sequence_groups(ParallelDims(2, 1, 1, 2))
assert "eager" in refused("llama", "eager", intermediate_size=64)
assert "output_router_logits" in refused(
    "mixtral", intermediate_size=64, num_local_experts=2, output_router_logits=True
)
assert refused("llama", intermediate_size=64) == ""

# A layer that attends by other means: the model has one layer, and says it has two.
model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES, intermediate_size=64))
model.config.num_hidden_layers = 2
engine, *_ = deepspeed.initialize(
    model=model, mpu=groups, config={"train_micro_batch_size_per_gpu": 1, "optimizer": OPTIMIZER}
)
topology = Topology.from_dims(ParallelDims(2, 1, 1, 2), 2, ranks.rank)
attention = install_ulysses_attention(engine.module, engine.get_sequence_parallel_group())
stepper = SequenceParallelStepper(engine, ranks, topology, attention)
ids = torch.ones((1, 8), dtype=torch.int64)
with pytest.raises(UserError, match="1 of the model's 2 layers attend"):
    stepper.eval_step(MicroBatch(ids, ids))
destroy_process_group()
