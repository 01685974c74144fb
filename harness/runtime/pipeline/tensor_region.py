# SPDX-License-Identifier: Apache-2.0
"""Autograd functions at the borders of tensor-parallel layers: tensors that are whole on every rank of a tensor group
enter layers of which each rank has a part, and leave them again.

Every function is a collective of the group in its forward, its backward or both; all ranks call it in the same order.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from deepspeed import comm as dist


def enter_tensor_region(whole: torch.Tensor, group: Any) -> torch.Tensor:
    """The tensor as it is; its gradient is summed, since each rank computes the gradient through its own part."""
    return cast("torch.Tensor", _SumGradient.apply(whole, group))  # type: ignore[no-untyped-call]


def sum_over_tensor_group(partial: torch.Tensor, group: Any) -> torch.Tensor:
    """The sum of all ranks' partial results, in place; each rank passes the gradient of the sum on."""
    return cast("torch.Tensor", _Sum.apply(partial, group))  # type: ignore[no-untyped-call]


def gather_last_dim(part: torch.Tensor, group: Any) -> torch.Tensor:
    """The parts of all ranks along the last dimension; a rank keeps its part of a gradient that all have."""
    return cast("torch.Tensor", _GatherLastDim.apply(part, group))  # type: ignore[no-untyped-call]


def take_own_part(whole: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's part of the last dimension; the gradient is gathered."""
    return cast("torch.Tensor", _TakeOwnPart.apply(whole, group))  # type: ignore[no-untyped-call]


def sum_gradient_of(parameter: torch.nn.Parameter, group: Any) -> None:
    """Sum each gradient of a parameter that every rank has, and uses on its own part of the activations."""

    def sum_gradient(gradient: torch.Tensor) -> torch.Tensor:
        return _all_reduced(gradient, group)

    if parameter.requires_grad:
        parameter.register_hook(sum_gradient)


def _all_reduced(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)  # autograd may hand the same tensor to others
    dist.all_reduce(total, group=group)
    return total


def _own_part(whole: torch.Tensor, group: Any) -> torch.Tensor:
    parts: tuple[torch.Tensor, ...] = whole.chunk(dist.get_world_size(group=group), dim=-1)
    own: torch.Tensor = parts[dist.get_rank(group=group)].contiguous()
    return own


def _gathered(part: torch.Tensor, group: Any) -> torch.Tensor:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group=group))]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim=-1)


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _all_reduced(gradients[0], ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.mark_dirty(partial)
        dist.all_reduce(partial, group=group)
        return partial

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004 (torch's signature)
        return gradients[0], None


class _GatherLastDim(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _gathered(part, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _own_part(gradients[0], ctx.group), None


class _TakeOwnPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _own_part(whole, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _gathered(gradients[0], ctx.group), None
