"""Which weights Muon steps. DeepSpeed goes by names: every matrix whose name has neither `embed` nor `lm_head` in it,
GPT-2's `wte` and `wpe` among them. Muon is meant for hidden matrices; here the embeddings are found by what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch


@contextmanager
def muon_spares_embeddings() -> Iterator[None]:
    """While this lasts, `deepspeed.initialize` tags embeddings and the output layer for Muon's Adam."""
    original = deepspeed.set_optimizer_flags

    def tag(config: Any, model: torch.nn.Module) -> None:
        original(config, model)
        for parameter in embeddings(model):
            if hasattr(parameter, "use_muon"):
                parameter.use_muon = False  # type: ignore[attr-defined]

    deepspeed.set_optimizer_flags = tag
    try:
        yield
    finally:
        deepspeed.set_optimizer_flags = original


def embeddings(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The weights of all tables, and of what maps to the vocabulary."""
    tables = [m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return tables + ([head.weight] if head is not None else [])
