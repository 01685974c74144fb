# SPDX-License-Identifier: Apache-2.0
"""Optimizers written out, for those that torch has not: what DeepSpeed's are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, groups: Any, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(first * momentum + (1 - first) * p.grad))
                momentum.mul_(second).add_(p.grad, alpha=1 - second)


class Muon(torch.optim.Optimizer):
    """Jordan et al. 2024: Nesterov momentum, five Newton-Schulz steps, scaled by the root of the aspect ratio."""

    def __init__(self, groups: Any, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            beta = group["momentum"]
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(beta).add_(p.grad, alpha=1 - beta)
                update = orthogonal((1 - beta) * p.grad + beta * momentum)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * math.sqrt(max(1.0, p.size(-2) / p.size(-1))) * update)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """U V^T of the matrix, about: singular values end between 0.7 and 1.2."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.mT if matrix.size(-2) > matrix.size(-1) else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrix.size(-2) > matrix.size(-1) else x


class Both:
    """Muon for what it is for and AdamW for the rest, stepped together."""

    def __init__(self, muon: Muon, adam: torch.optim.Optimizer) -> None:
        self._parts = (muon, adam)
        self.param_groups = [*muon.param_groups, *adam.param_groups]

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self._parts:
            part.zero_grad()


def make(
    body: dict[str, Any], named: Iterable[tuple[str, torch.Tensor]], embeddings: set[str]
) -> torch.optim.Optimizer | Both:
    """The optimizer of a run spec's `optimizer` section over named weights; vectors do not decay.

    `embeddings` are the names that Muon leaves to Adam.
    """
    kind, rate, decay = body.get("type", "adamw"), body["learning_rate"], body["weight_decay"]
    weights = dict(named)

    def groups(names: Iterable[str]) -> list[dict[str, Any]]:
        chosen = [(weights[n], weights[n].dim() >= 2) for n in names]
        both = [
            {"params": [w for w, matrix in chosen if matrix], "weight_decay": decay},
            {"params": [w for w, matrix in chosen if not matrix], "weight_decay": 0.0},
        ]
        return [g for g in both if g["params"]]

    betas, eps = tuple(body.get("betas", (0.9, 0.999))), body.get("eps", 1e-8)
    match kind:
        case "adamw":
            return torch.optim.AdamW(groups(weights), lr=rate, betas=betas, eps=eps)
        case "adam":
            return torch.optim.Adam(groups(weights), lr=rate, betas=betas, eps=eps)
        case "sgd":
            return torch.optim.SGD(groups(weights), lr=rate, momentum=body.get("momentum", 0.0))
        case "adagrad":
            return torch.optim.Adagrad(groups(weights), lr=rate, eps=eps)
        case "lion":
            return Lion(groups(weights), lr=rate, betas=betas, weight_decay=decay)
        case "muon":
            hidden = [n for n, w in weights.items() if w.dim() >= 2 and n not in embeddings]
            rest = [n for n in weights if n not in hidden]
            muon = Muon(groups(hidden), lr=rate, momentum=body.get("momentum", 0.95), weight_decay=decay)
            return Both(muon, torch.optim.AdamW(groups(rest), lr=rate, betas=betas, eps=eps))
    raise ValueError(kind)
