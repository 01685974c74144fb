# SPDX-License-Identifier: Apache-2.0
"""The dimension along which each weight of a pipeline's layers is sharded over a tensor group, by the configuration.

The partition plan of `transformers` says it, for families whose plan shards all; a table for those whose linears are
fused, of which each rank takes its part of every fused piece. Nothing here needs a process group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from harness.facts import model_table
from harness.facts.pipeline_support import DIVIDED_IN_STAGES
from harness.runtime.pipeline.layer_layouts import layout_of
from harness.runtime.user_errors import user_error

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Style = Literal["column", "column-gathered", "row", "row-split", "summed-gradient"]
_STYLES: dict[str, Style] = {
    "colwise": "column",
    "colwise_gather_output": "column-gathered",
    "rowwise": "row",
    "rowwise_split_input": "row-split",
    "replicated_with_grad_allreduce": "summed-gradient",
}


@dataclass(frozen=True, slots=True)
class ShardRule:
    """The way in which a module of a decoder layer is sharded.

    `column`: its outputs; `row`: its inputs, and the outputs are summed; `-gathered`, `-split`: between whole
    activations; `summed-gradient`: every rank has the weight, and sees a part of the activations.
    """

    style: Style
    pieces: tuple[int, ...] = ()
    """Output widths of what is fused in one weight; empty for one."""


def shard_rules(config: PreTrainedConfig) -> dict[str, ShardRule]:
    """Module names within a decoder layer (`self_attn.q_proj`) and their rules. Raises UserError (PP106) for a model
    whose tensor plan has a style that is not divided here.
    """
    fused = _FUSED.get(config.model_type)
    if fused is not None:
        return fused(config)
    prefix = f"{layout_of(config).layers}.*."
    plan: dict[str, str] = type(config).base_model_tp_plan or {}
    unknown = sorted({style for name, style in plan.items() if prefix in name} - set(_STYLES))
    # A plan may leave parameters without their gradients, which AutoTP has shown for types of the same plan.
    is_compared = config.model_type in DIVIDED_IN_STAGES or (
        model_table.holds(config.model_type, "tensor") and _is_measured(config.model_type, plan)
    )
    if unknown or not plan or not is_compared:
        raise user_error(
            "PP106",
            f"the layers of `{config.model_type}` models are not divided over the tensor ranks of a pipeline stage",
            key="parallel.tensor_parallel_size",
            notes=(
                f"their tensor plan has `{unknown[0]}`"
                if unknown
                else "their tensor plan is not known to give the model's gradients"
                if plan
                else "they have no tensor plan",
            ),
            fix="set `parallel.tensor_parallel_size: 1`",
        )
    return {name.removeprefix(prefix): ShardRule(_STYLES[style]) for name, style in plan.items() if prefix in name}


def _is_measured(kind: str, plan: dict[str, str]) -> bool:
    """Is this plan the one that the table's answer is about, with the installed release or another?"""
    measured = model_table.tensor_plan(kind)
    layers = {name: style for name, style in plan.items() if ".*." in name}
    return model_table.is_of_installed_release() or all(measured.get(n) == style for n, style in layers.items())


def _phi3_rules(config: PreTrainedConfig) -> dict[str, ShardRule]:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    return {
        "self_attn.qkv_proj": ShardRule("column", (queries, keys, keys)),
        "self_attn.o_proj": ShardRule("row"),
        "mlp.gate_up_proj": ShardRule("column", (config.intermediate_size, config.intermediate_size)),
        "mlp.down_proj": ShardRule("row"),
    }


def _gpt2_rules(config: PreTrainedConfig) -> dict[str, ShardRule]:
    return {
        "attn.c_attn": ShardRule("column", (config.hidden_size,) * 3),
        "attn.c_proj": ShardRule("row"),
        "mlp.c_fc": ShardRule("column"),
        "mlp.c_proj": ShardRule("row"),
    }


_FUSED = {"phi3": _phi3_rules, "gpt2": _gpt2_rules}
_TRANSPOSED = frozenset({"gpt2"})
"""Families whose linears have weights of (inputs, outputs)."""


@dataclass(frozen=True, slots=True)
class WeightPartition:
    """A weight over the ranks of a tensor group: along `dim`, each of `pieces` in equal parts. `dim` None: whole."""

    shape: tuple[int, ...]
    dim: int | None = None
    pieces: tuple[int, ...] = ()

    def take_shard(self, whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
        """A copy of this rank's part. Raises ValueError for a piece that does not divide."""
        if self.dim is None:
            return whole
        pieces = whole.split(self.piece_sizes(size), dim=self.dim)
        shards = [piece.chunk(size, dim=self.dim)[rank] for piece in pieces]
        return torch.cat(shards, dim=self.dim).contiguous()

    def piece_sizes(self, size: int) -> list[int]:
        """Sizes of what is fused along `dim`. Raises ValueError for one that `size` ranks do not divide."""
        if self.dim is None:
            return []
        sizes = list(self.pieces or (self.shape[self.dim],))
        if any(piece % size for piece in sizes):
            raise ValueError(f"{size} ranks do not divide {sizes} of a weight of shape {self.shape}")
        return sizes

    def join_shards(self, shards: Sequence[torch.Tensor]) -> torch.Tensor:
        """The whole weight, from the shards of all ranks in order."""
        if self.dim is None:
            return shards[0]
        sizes = [piece // len(shards) for piece in self.piece_sizes(len(shards))]
        pieces = zip(*(shard.split(sizes, dim=self.dim) for shard in shards), strict=True)
        return torch.cat([part for piece in pieces for part in piece], dim=self.dim)


def weight_partition(rule: ShardRule, shape: Sequence[int], *, is_transposed: bool) -> WeightPartition:
    """The partition of the `weight` or `bias` of a linear. `is_transposed`: (inputs, outputs), as GPT-2 has them."""
    shape = tuple(shape)
    is_column, is_matrix = rule.style.startswith("column"), len(shape) == 2
    if rule.style == "summed-gradient" or not (is_column or is_matrix):  # the bias of a row is added to the sum
        return WeightPartition(shape)
    if not is_matrix:
        return WeightPartition(shape, 0, rule.pieces)
    return WeightPartition(shape, int(is_column == is_transposed), rule.pieces)


def find_indivisible(config: PreTrainedConfig, size: int) -> tuple[int, str] | None:
    """The first width of the model that `size` tensor ranks do not divide, and its unit; None if they divide all."""
    heads, inner = config.num_attention_heads, getattr(config, "n_inner", None)
    widths = {
        "attention heads": heads,
        "key-value heads": getattr(config, "num_key_value_heads", None) or heads,
        "columns of the MLP": inner or getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        "tokens of the vocabulary": config.vocab_size,
    }
    return next(((width, unit) for unit, width in widths.items() if width % size), None)


def find_partition(
    config: PreTrainedConfig, name: str, shard_shape: Sequence[int], size: int
) -> WeightPartition | None:
    """The partition of a weight by its name in `transformers`, of which a rank's shard has this shape; None: whole."""
    layout = layout_of(config)
    module_name, _, _ = name.rpartition(".")
    if module_name in (layout.head, f"{layout.base}.{layout.embedding}"):
        partition = WeightPartition(tuple(shard_shape), 0)
    else:
        inner_name = module_name.removeprefix(f"{layout.base}.{layout.layers}.").partition(".")[2]
        rule = shard_rules(config).get(inner_name)
        if rule is None:
            return None
        partition = weight_partition(rule, shard_shape, is_transposed=config.model_type in _TRANSPOSED)
    if partition.dim is None:
        return None
    whole = [extent * size if dim == partition.dim else extent for dim, extent in enumerate(shard_shape)]
    return replace(partition, shape=tuple(whole))
