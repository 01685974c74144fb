# SPDX-License-Identifier: Apache-2.0
"""Keeps Muon away from embeddings and the output layer, whatever their names.

Upstream: Muon is meant for hidden matrices. `set_optimizer_flags` chooses by name: it takes every matrix without
`embed` or `lm_head` in its name, GPT-2's `wte` and `wpe` among them.

Patch: After DeepSpeed has tagged the parameters, embeddings (found by module class) and the output embeddings of the
model are moved from Muon to its Adam.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness.patches.patch_registry import Patch, Target

if TYPE_CHECKING:
    import torch


@contextmanager
def exclude_embeddings_from_muon() -> Iterator[None]:
    """In this context, `deepspeed.initialize` tags embeddings and the output layer for Muon's Adam."""
    import deepspeed

    original = deepspeed.set_optimizer_flags

    def set_flags(config: Any, model: torch.nn.Module) -> None:
        original(config, model)
        for parameter in embedding_weights(model):
            if hasattr(parameter, "use_muon"):
                parameter.use_muon = False

    deepspeed.set_optimizer_flags = set_flags
    try:
        yield
    finally:
        deepspeed.set_optimizer_flags = original


def embedding_weights(model: Any) -> list[torch.nn.Parameter]:
    """The weights of all tables, and of what maps to the vocabulary."""
    import torch

    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return [table.weight for table in [*tables, *([head] if head is not None else [])]]


PATCH = Patch(
    name="muon-embeddings",
    kind="correctness",
    targets=(Target("deepspeed:set_optimizer_flags", "6124e672c912b4d8"),),
    remove_when="`set_optimizer_flags` excludes embeddings and output layers by module class",
    when="runs with the optimizer Muon",
    upstream="https://github.com/deepspeedai/DeepSpeed/pull/7641",
    is_needed=lambda run: run.optimizer_type == "muon",
    around_initialize=exclude_embeddings_from_muon,
)
