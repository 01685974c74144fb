"""Models that cannot be spread over a sequence group are refused, before the first step where that can be known."""

import deepspeed
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import Refused
from harness.plan.run import Degrees
from harness.runtime.batch import MicroBatch
from harness.runtime.ranks import join, leave
from harness.runtime.sequence_parallel import SequenceStepper, attend_over_group, sequence_groups
from harness.runtime.topology import Topology

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}


def refused(family: str, attention: str = "sdpa", **more: object) -> str:
    config = AutoConfig.for_model(family, **SIZES, **more)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    try:
        attend_over_group(model, groups.get_sequence_parallel_group())
    except Refused as error:
        (finding,) = error.findings
        assert finding.gate == "SQ101", finding
        return finding.message
    return ""


ranks = join()
groups = sequence_groups(2)
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
stepper = SequenceStepper(engine, ranks, Topology.of(Degrees(2, 1, 1, 2), 2, ranks.rank))
ids = torch.ones((1, 8), dtype=torch.int64)
with pytest.raises(Refused, match="1 of the model's 2 layers attend"):
    stepper.evaluate(MicroBatch(ids, ids))
leave()
