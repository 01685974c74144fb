# SPDX-License-Identifier: Apache-2.0
"""Training without DeepSpeed and without the harness: torch, transformers and thirty lines. What parity is measured
against.

One process, the whole global batch, an optimizer of torch's or one written out, the norm over all gradients clipped, the
loss the mean over all predicted tokens. In bf16 the weights are bf16 and the optimizer works on fp32 copies of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from tests.support.training.plain_optimizers import make

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Settings:
    """The optimization. `optimizer` is that section of a run spec."""

    optimizer: dict[str, Any]
    steps: int
    warmup: int
    clip: float


@dataclass(frozen=True, slots=True)
class Rows:
    """A part of a global batch: int64 (rows, length); labels are not shifted."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """What each step had: the mean loss before the update and the gradient norm before clipping."""

    losses: list[float]
    norms: list[float]


def cosine(settings: Settings, step: int) -> float:
    """Rate of optimizer step `step`, counted from 0."""
    peak = settings.optimizer["learning_rate"]
    if step < settings.warmup:
        return float(peak * step / settings.warmup)
    share = (step - settings.warmup) / (settings.steps - settings.warmup)
    return float(peak * 0.5 * (1 + math.cos(math.pi * share)))


def train_plainly(
    model_folder: Path,
    batches: Sequence[Sequence[Rows]],
    settings: Settings,
    *,
    bf16: bool = False,
    rate: Callable[[Settings, int], float] = cosine,
) -> Trace:
    """Train on `batches`: for each step the parts of its global batch, computed one after the other."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).train()
    if bf16:
        model.to(torch.bfloat16)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    weights = [p for _, p in named]
    masters = [p.detach().float().clone().requires_grad_() for p in weights] if bf16 else weights
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    tables.add(id(model.get_output_embeddings().weight))
    optimizer = make(
        settings.optimizer,
        ((name, master) for (name, _), master in zip(named, masters, strict=True)),
        {name for name, p in named if id(p) in tables},
    )
    losses, norms = [], []
    for step, parts in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate(settings, step)
        losses.append(_gradients(model, weights, masters, parts))
        norms.append(float(torch.nn.utils.clip_grad_norm_(masters, settings.clip or math.inf)))
        optimizer.step()
        optimizer.zero_grad()
        if bf16:
            with torch.no_grad():
                for weight, master in zip(weights, masters, strict=True):
                    weight.copy_(master)
    return Trace(losses, norms)


def _gradients(
    model: torch.nn.Module, weights: list[torch.Tensor], masters: list[torch.Tensor], parts: Sequence[Rows]
) -> float:
    """Leave the gradient of the mean token loss in `masters`; returns that mean."""
    predicted = sum(int((part.labels[:, 1:] != IGNORED).sum()) for part in parts)
    total = 0.0
    for part in parts:
        named = {
            "input_ids": part.input_ids,
            "position_ids": part.position_ids,
            "attention_mask": part.attention_mask,
        }
        logits = model(**{k: v for k, v in named.items() if v is not None}, use_cache=False).logits.float()
        loss = cross_entropy(
            logits[:, :-1].flatten(0, 1), part.labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        total += float(loss.detach().double())
        (loss / predicted).backward()
        if masters is not weights:
            for weight, master in zip(weights, masters, strict=True):
                if weight.grad is not None:
                    master.grad = weight.grad.float() if master.grad is None else master.grad + weight.grad.float()
                    weight.grad = None
    return total / predicted
