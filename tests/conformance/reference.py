# SPDX-License-Identifier: Apache-2.0
"""The same training in plain torch, one process, fp32: what the losses and the change of the weights should be.

Knows element-wise optimizers only; says None where it cannot tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from . import models


def train(job: dict[str, Any], answer: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """Losses of each step, and how the real change of the weights lies to the one that was asked for.

    `ratio` is |real| / |asked|, `cosine` their angle; both None where weights cannot be gathered (tensor parallel).
    """
    meant = job.get("meant") or job.get("config") or {}
    model = models.build(job.get("model") or {"kind": "llama"}, job.get("seed", 0))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = _optimizer(model, meant)
    if optimizer is None or job.get("creation") == "shards":
        return None
    first = answer["ranks"][0]
    facts = first["facts"]
    replicas = sorted({r["replica"] for r in answer["ranks"]})
    shape = job.get("asked") or {}
    micro, parts = shape.get("micro") or facts["micro"], shape.get("accumulation") or facts["accumulation"]
    if shape.get("data"):
        replicas = list(range(shape["data"]))
    losses, skipped = [], 0
    rates = job.get("rates") or [r[0] for r in first["lr"]]
    for step in range(len(first["losses"])):
        optimizer.zero_grad()
        losses.append(_backward(model, job, step, int(micro), int(parts), replicas, meant))
        norm = _clip(model, meant)
        now = first["skipped"][step]
        if now > skipped or not norm < float("inf"):
            skipped = now
            continue
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        optimizer.step()
    found = {"losses": losses, "micro": micro, "accumulation": parts, "replicas": replicas}
    return found | _change(before, dict(model.named_parameters()), folder)


def _backward(
    model: Any, job: dict[str, Any], step: int, micro: int, parts: int, replicas: list[int], meant: dict[str, Any]
) -> float:
    total = 0.0
    pipe = (job.get("model") or {}).get("kind") == "pipe"
    vocabulary = int((job.get("model") or {}).get("vocab_size", models.VOCABULARY))
    share = parts if meant.get("gradient_allreduce_op") == "sum" else parts * len(replicas)
    for part in range(parts):
        for replica in replicas:
            ids = models.batch(step, part, replica, micro, vocabulary)
            loss = models.next_token_loss(model(ids), ids) if pipe else model(input_ids=ids, labels=ids).loss
            (loss / share).backward()
            total += float(loss.detach())
    return total / parts / len(replicas)


def _clip(model: Any, meant: dict[str, Any]) -> float:
    limit = meant.get("gradient_clipping", 1.0)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    if isinstance(limit, (int, float)) and limit > 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), float(limit))
    return float(norm)


def _change(before: dict[str, Any], after: dict[str, Any], folder: Path) -> dict[str, Any]:
    real: dict[str, Any] = {}
    for file in folder.glob("rank-*.weights"):
        real |= torch.load(file)
    if set(real) != set(before) or any(real[n].shape != before[n].shape for n in before):
        return {"ratio": None, "cosine": None}
    did = torch.cat([(real[n] - before[n]).flatten() for n in before]).double()
    asked = torch.cat([(after[n].detach() - before[n]).flatten() for n in before]).double()
    ratio = float(did.norm() / asked.norm()) if float(asked.norm()) else None
    both = float(did.norm() * asked.norm())
    return {"ratio": ratio, "cosine": float(did @ asked) / both if both else None}


class Lion(torch.optim.Optimizer):
    """Lion, from its paper (arXiv 2302.06675, algorithm 2)."""

    def __init__(self, parameters: Any, lr: float = 1e-3, betas: Any = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(first * m + (1 - first) * p.grad))
                m.mul_(second).add_(p.grad, alpha=1 - second)


def _optimizer(model: Any, meant: dict[str, Any]) -> torch.optim.Optimizer | None:
    block = meant.get("optimizer")
    if not isinstance(block, dict) or not block.get("type"):
        block = {"type": "AdamW", "params": {"lr": 1e-2}}
    params = dict(block.get("params") or {})
    name = str(block["type"])
    lowered = name.lower()
    fused = not params.pop("torch_adam", False)
    for ignored in ("fused", "foreach", "fp32_optimizer_states", "bias_correction"):
        params.pop(ignored, None)
    decoupled = params.pop("adam_w_mode", True) or lowered == "adamw"
    if lowered in ("adam", "adamw"):
        params.setdefault("weight_decay", 0.0 if fused else 0.01)
        kind: Any = torch.optim.AdamW if decoupled else torch.optim.Adam
    elif lowered == "lion":
        kind = Lion
    elif lowered == "muon" or not hasattr(torch.optim, name):
        return {"adagrad": lambda: torch.optim.Adagrad(model.parameters(), **params)}.get(lowered, lambda: None)()
    else:
        kind = getattr(torch.optim, name)
    try:
        return kind([p for p in model.parameters() if p.requires_grad], **params)
    except (TypeError, ValueError):
        return None
