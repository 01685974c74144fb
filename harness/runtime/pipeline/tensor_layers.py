# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel layers inside pipeline stages: the modules of `transformers`, with this rank's part of each weight.

A column-parallel linear stays the module that it was, with fewer outputs. A row-parallel one becomes a
`RowParallelLinear` under the same parameter names. Attention takes the number of heads that its linears leave.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from deepspeed import comm as dist
from torch import nn
from torch.nn import functional

from harness.runtime.pipeline.shard_rules import ShardRule, WeightPartition, shard_rules, weight_partition
from harness.runtime.pipeline.tensor_region import (
    enter_tensor_region,
    gather_last_dim,
    sum_gradient_of,
    sum_over_tensor_group,
    take_own_part,
)
from harness.runtime.pipeline.vocabulary_parallel import VocabularyParallelEmbedding

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class RowParallelLinear(nn.Module):
    """A linear of which this rank has some of the inputs; the bias is added to the sum of all ranks."""

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, group: Any, *, is_transposed: bool, splits_input: bool
    ) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self._group, self._is_transposed, self._splits_input = group, is_transposed, splits_input

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """This rank's inputs (..., inputs / ranks), or all of them where it takes its part itself. A collective."""
        if self._splits_input:
            hidden = take_own_part(hidden, self._group)
        partial = hidden @ self.weight if self._is_transposed else functional.linear(hidden, self.weight)
        total = sum_over_tensor_group(partial, self._group)
        return total if self.bias is None else total + self.bias


class TensorShards:
    """Shards the layers of a pipeline over a tensor group, and keeps how each weight was sharded.

    `partitions` has the name of each parameter within its layer, by layer. A layer must have its whole weights first.
    """

    def __init__(self, config: PreTrainedConfig, group: Any) -> None:
        self._config, self._group = config, group
        self.rank, self.size = dist.get_rank(group=group), dist.get_world_size(group=group)
        self._rules = shard_rules(config)

    def shard_decoder(self, decoder: nn.Module) -> dict[str, WeightPartition]:
        """Shard a decoder layer of `transformers` in place. Returns the partitions by parameter name."""
        partitions: dict[str, WeightPartition] = {}
        parents: dict[str, nn.Module] = {}
        for name, rule in self._rules.items():
            parent_name, _, child = name.rpartition(".")
            parent = decoder.get_submodule(parent_name)
            for suffix, partition in self._shard_module(parent, child, rule).items():
                partitions[f"{name}.{suffix}"] = partition
            if rule.style.startswith("column"):
                parents[parent_name] = parent
        for parent in parents.values():
            parent.register_forward_pre_hook(self._enter_region, with_kwargs=True)
            _divide_heads(parent, self.size)
        return partitions

    def shard_head(self, head: nn.Linear) -> WeightPartition:
        """The rows of a head, in place; it returns the logits of this rank's part of the vocabulary."""
        partition = WeightPartition(tuple(head.weight.shape), 0)
        self._replace_parameter(head, "weight", partition)
        head.out_features = len(head.weight)
        head.register_forward_pre_hook(lambda _, inputs: (enter_tensor_region(inputs[0], self._group),))
        return partition

    def shard_embedding(self, embedding: nn.Module) -> tuple[VocabularyParallelEmbedding, WeightPartition]:
        """The embedding with this rank's rows."""
        weight: Any = embedding.weight
        partition = WeightPartition(tuple(weight.shape), 0)
        self._replace_parameter(embedding, "weight", partition)
        shard: Any = embedding.weight
        padding_idx: Any = embedding.padding_idx
        return VocabularyParallelEmbedding(shard, self.rank * len(shard), padding_idx, self._group), partition

    def _shard_module(self, parent: nn.Module, child: str, rule: ShardRule) -> dict[str, WeightPartition]:
        module = parent.get_submodule(child)
        if rule.style == "summed-gradient":
            for parameter in module.parameters():
                sum_gradient_of(parameter, self._group)
            return {}
        is_transposed = not isinstance(module, nn.Linear)  # the Conv1D of GPT-2
        partitions = {
            name: weight_partition(rule, parameter.shape, is_transposed=is_transposed)
            for name, parameter in module.named_parameters()
        }
        for name, partition in partitions.items():
            self._replace_parameter(module, name, partition)
        weight, bias = module.get_parameter("weight"), getattr(module, "bias", None)
        if rule.style.startswith("row"):
            splits_input = rule.style == "row-split"
            row = RowParallelLinear(weight, bias, self._group, is_transposed=is_transposed, splits_input=splits_input)
            setattr(parent, child, row)
        elif is_transposed:
            module.nf = weight.shape[1]  # type: ignore[assignment]
        else:
            module.out_features = weight.shape[0]  # type: ignore[assignment]
        if rule.style == "column-gathered":
            module.register_forward_hook(lambda _, __, part: gather_last_dim(part, self._group))
        return {name: partition for name, partition in partitions.items() if partition.dim is not None}

    def _replace_parameter(self, module: nn.Module, name: str, partition: WeightPartition) -> None:
        whole = module.get_parameter(name)
        shard = partition.take_shard(whole.detach(), self.rank, self.size)
        setattr(module, name, nn.Parameter(shard, requires_grad=whole.requires_grad))

    def _enter_region(
        self, _: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The hidden states of an attention or an MLP, of which all linears take them."""
        if inputs:
            return (enter_tensor_region(inputs[0], self._group), *inputs[1:]), options
        hidden = enter_tensor_region(options["hidden_states"], self._group)
        return inputs, {**options, "hidden_states": hidden}


def _divide_heads(attention: Any, size: int) -> None:
    """Let attention that splits a fused linear by its own numbers split this rank's part of it.

    Others view whatever width their linears have as heads.
    """
    if hasattr(attention, "qkv_proj"):
        config = copy.copy(attention.config)  # of this module alone
        config.num_attention_heads //= size
        attention.config = config
        attention.num_key_value_heads //= size
    elif hasattr(attention, "c_attn"):
        attention.num_heads //= size
        attention.split_size //= size
