# SPDX-License-Identifier: Apache-2.0
"""The copy that questions are put to, and the names of what it has."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.runtime.model_behavior import draw_ids

NOISE = 1e-3
"""Of a gradient or of logits, by their norm: sums in another order in fp32 differ by 1e-6."""
_MAX_NAMES = 8


@dataclass(frozen=True)
class SmallCopy:
    """A tiny model, whether it keeps packed documents apart, and a folder for what a question writes."""

    model: Any
    apart: bool
    folder: Path

    def duplicate(self) -> Any:
        """The same model again, to be changed."""
        return copy.deepcopy(self.model)

    @cached_property
    def own_gradients(self) -> tuple[float, dict[str, torch.Tensor]]:
        """Loss and gradients in evaluation mode, which several questions compare with."""
        return loss_and_gradients(self.duplicate())

    @cached_property
    def saved(self) -> Path:
        """A folder with its files, as `transformers` saves them, and the configuration that it was built from."""
        self.model.save_pretrained(self.folder / "saved")
        self.model.built_from.architectures = [type(self.model).__name__]
        self.model.built_from.save_pretrained(self.folder / "saved")
        return self.folder / "saved"

    @property
    def text_config(self) -> Any:
        """The configuration of its language model."""
        return self.model.config.get_text_config(decoder=True)


def find_layers(model: Any) -> list[tuple[str, Any]]:
    """The decoder layers with their names: of the list of modules that has as many as the configuration says; without
    one, of all lists whose modules can be recomputed.
    """
    count = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", 0)
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, torch.nn.ModuleList)]
    text = [pair for pair in lists if not re.search(r"vision|visual|audio|image|tower", pair[0])]
    chosen = sorted((pair for pair in text if len(pair[1]) == count), key=lambda pair: pair[0].count("."))[:1]
    chosen = chosen or [pair for pair in text if all(isinstance(m, GradientCheckpointingLayer) for m in pair[1])]
    return [(f"{path}.{i}", layer) for path, layers in chosen for i, layer in enumerate(layers)]


def layer_matrices(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and weight of everything in the layers that multiplies activations: no norms, biases, kernels of
    convolutions or routers, whose one side is as small as the number of experts. What layers share comes once.
    """
    config = model.config.get_text_config(decoder=True)
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts = next((n for n in (getattr(config, name, None) for name in names) if isinstance(n, int) and n), 0)
    own = {name for name, _ in model.named_parameters()}
    for path, layer in find_layers(model):
        for name, parameter in layer.named_parameters():
            is_matrix = parameter.dim() > 1 and min(parameter.shape[-2:]) > 4
            is_router = parameter.dim() == 2 and experts in parameter.shape and re.search("gate|router", name)
            if is_matrix and not is_router and not name.endswith("bias") and f"{path}.{name}" in own:
                yield f"{path}.{name}", parameter


def join_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names with `*` for numbers, each once, a few of them."""
    joined = sorted({re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names})
    more = len(joined) - _MAX_NAMES
    return (*joined[:_MAX_NAMES], f"and {more} more") if more > 0 else tuple(joined)


def loss_and_gradients(model: Any, **inputs: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Of the next token, over all rows; random numbers of dropout are drawn anew from the same seed."""
    model.zero_grad()
    ids = draw_ids()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss = model(input_ids=ids, labels=ids, use_cache=False, **inputs).loss
    loss.backward()
    return float(loss.detach()), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def find_differences(
    expected: tuple[float, Mapping[str, torch.Tensor]], found: tuple[float, Mapping[str, torch.Tensor]]
) -> list[str]:
    """`loss`, and the names of gradients that are missing or others."""
    names = ["loss"] * (abs(found[0] - expected[0]) > NOISE * abs(expected[0]))
    largest = max((float(g.norm()) for g in expected[1].values()), default=0.0)
    for name, gradient in expected[1].items():
        other = found[1].get(name)
        floor = NOISE * float(gradient.norm()) + 1e-5 * largest  # a gradient of 0 but for rounding
        if other is None or float((other - gradient).norm()) > floor:
            names.append(name)
    return names
