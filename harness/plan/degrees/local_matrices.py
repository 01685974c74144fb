# SPDX-License-Identifier: Apache-2.0
"""Matrices of a layer on one GPU: how tensor and expert parallelism divide each, and its products with the tokens.

As Megatron divides them: projections into a block by columns, those out of it by rows (arXiv 1909.08053), vectors,
routers and the low-rank projections of latent attention not at all, experts by their number or like any other matrix.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.facts.model_lookup import ModelFacts
from harness.facts.model_parts import Parameter, Parameters
from harness.plan.degrees.gpu_work import MatrixProduct
from harness.plan.degrees.rank_groups import ParallelDegrees

_BY_ROWS = ("o_proj", "down_proj", "c_proj", "dense", "dense_4h_to_h", "fc2", "out_proj")
_WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "gate", "router", "shared_expert_gate")
_ATTENTION = ("self_attn", "attn", "attention", "self_attention")
_ROUTERS = ("gate", "router", "shared_expert_gate")
_MATRIX = 2


class LocalNumel(NamedTuple):
    """Elements on one GPU: `dense` ones, which the data group shares, and those of `experts`, of the expert group."""

    dense: int
    experts: int

    def __add__(self, other: object) -> LocalNumel:
        if not isinstance(other, LocalNumel):
            return NotImplemented
        return LocalNumel(self.dense + other.dense, self.experts + other.experts)

    @property
    def total(self) -> int:
        """Both."""
        return self.dense + self.experts


def is_expert(parameter: Parameter) -> bool:
    """A weight of the routed experts?"""
    return ".experts." in parameter.name


def count_local(parameters: Parameters, degrees: ParallelDegrees) -> LocalNumel:
    """Elements of these parameters that one GPU holds."""
    dense = experts = 0
    for parameter in parameters:
        if is_expert(parameter) and degrees.expert > 1:
            experts += -(-parameter.numel // degrees.expert)
        elif len(parameter.shape) == 1 or _leaf(parameter) in _WHOLE:
            dense += parameter.numel
        else:
            dense += -(-parameter.numel // degrees.tensor)
    return LocalNumel(dense, experts)


def _leaf(parameter: Parameter) -> str:
    """`down_proj` of `mlp.down_proj.weight` and of `mlp.experts.down_proj`."""
    names = parameter.name.removesuffix(".weight").split(".")
    return names[-1]


def layer_products(
    model: ModelFacts, layer: Parameters, degrees: ParallelDegrees, tokens: float, count: int, backward: float
) -> list[MatrixProduct]:
    """The products of a layer with `tokens` of a micro-batch (those of a context rank), `count` times a step."""
    products = []
    for parameter in layer:
        if parameter.name.endswith("bias"):
            continue
        if is_expert(parameter):
            products.append(_expert_product(model, parameter, degrees, tokens, count, backward))
            continue
        if len(parameter.shape) != _MATRIX:  # vectors, and the short convolutions of linear attention
            continue
        outer, inner = parameter.shape
        if _leaf(parameter) in ("c_attn", "c_fc") or (_leaf(parameter) == "c_proj" and model.family == "gpt2"):
            outer, inner = inner, outer  # transformers' Conv1D keeps its weight transposed
        rows = tokens
        if _leaf(parameter) in _WHOLE:
            rows = tokens / degrees.sequence_share
        elif _leaf(parameter) in _BY_ROWS:
            inner = -(-inner // degrees.tensor)
        else:
            outer = -(-outer // degrees.tensor)
        first = parameter.name.split(".")[0]
        part = "router" if _leaf(parameter) in _ROUTERS else "attention" if first in _ATTENTION else "mlp"
        products.append(MatrixProduct(part, rows, inner, outer, count, 1, backward))  # type: ignore[arg-type]
    return products


def _expert_product(
    model: ModelFacts, parameter: Parameter, degrees: ParallelDegrees, tokens: float, count: int, backward: float
) -> MatrixProduct:
    """A grouped product: balanced experts, each with its share of the routed tokens of its group."""
    experts = parameter.shape[0]
    width = parameter.numel // experts // model.hidden
    routed = tokens * model.experts_per_token
    inner, outer = (width, model.hidden) if _leaf(parameter) == "down_proj" else (model.hidden, width)
    if degrees.expert > 1:
        rows = routed / degrees.tensor * degrees.expert / experts
        return MatrixProduct("experts", rows, inner, outer, count, experts // degrees.expert, backward)
    if _leaf(parameter) == "down_proj":
        inner = -(-inner // degrees.tensor)
    else:
        outer = -(-outer // degrees.tensor)
    return MatrixProduct("experts", routed / experts, inner, outer, count, experts, backward)


def head_products(model: ModelFacts, degrees: ParallelDegrees, tokens: float, count: int) -> list[MatrixProduct]:
    """The head over this GPU's words; it is never recomputed."""
    words = -(-model.vocab // degrees.tensor)
    return [MatrixProduct("head", tokens, model.hidden, words, count)]
