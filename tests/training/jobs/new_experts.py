# SPDX-License-Identifier: Apache-2.0
"""`new_experts.py FAMILY ...`: new mixtures of experts created in shards have weights spread as those created whole."""

import sys

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM, set_seed

from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.models.zero3_weights import zero3_init

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
ZERO = {"stage": 3, "stage3_param_persistence_threshold": 0}


def new(family: str) -> torch.nn.Module:
    set_seed(3)
    sizes = SIZES | {"vocab_size": 320, "num_key_value_heads": 2, "max_position_embeddings": 64} | EXPERTS
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes), dtype=torch.float32)


ranks = init_process_group()
for family in sys.argv[1:]:
    whole = dict(new(family).named_parameters())
    with zero3_init({"train_micro_batch_size_per_gpu": 1, "zero_optimization": ZERO}):
        sharded = new(family)
    fused = 0
    for name, parameter in sharded.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            ours, plain = parameter.detach(), whole[name].detach()
            assert ours.shape == plain.shape, name
            assert abs(ours.std() - plain.std()) <= 0.25 * plain.std(), (name, ours.std(), plain.std())
            assert abs(ours.mean() - plain.mean()) <= 0.01, name
            fused += ours.dim() > 2
    assert fused, f"{family} has no experts in one weight"
destroy_process_group()
