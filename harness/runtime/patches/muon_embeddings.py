"""Keeps Muon away from embeddings. It is meant for hidden matrices, and DeepSpeed chooses by name: every matrix without
`embed` or `lm_head` in its name, GPT-2's `wte` and `wpe` among them. Here embeddings are found by module class.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch


@contextmanager
def exclude_embeddings_from_muon() -> Iterator[None]:
    """In this context, `deepspeed.initialize` tags embeddings and the output layer for Muon's Adam."""
    original = deepspeed.set_optimizer_flags

    def set_flags(config: Any, model: torch.nn.Module) -> None:
        original(config, model)
        for parameter in embedding_weights(model):
            if hasattr(parameter, "use_muon"):
                parameter.use_muon = False  # type: ignore[attr-defined]

    deepspeed.set_optimizer_flags = set_flags
    try:
        yield
    finally:
        deepspeed.set_optimizer_flags = original


def embedding_weights(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The weights of all tables, and of what maps to the vocabulary."""
    tables = [m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return tables + ([head.weight] if head is not None else [])
