# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts under ZeRO-3: modules that must be gathered as a whole.

ZeRO-3 gathers a module's weights when its forward runs, on all ranks at once. Experts that are modules of their own run
where a token was sent to them, on some ranks only, and the others would wait forever.
"""

from __future__ import annotations

import torch
from deepspeed.utils import set_z3_leaf_modules

MIN_EXPERTS = 2


def mark_moe_leaf_modules(model: torch.nn.Module) -> list[str]:
    """Make ZeRO-3 gather each block of experts as a whole, before `deepspeed.initialize`. Returns the blocks' classes.

    A block is found by its structure: a module with a list of modules of one class, called `experts` or `...experts`.
    Experts that are rows of one weight, as `transformers` 5 keeps them, need no mark. DeepSpeed marks the
    modules of the JSON's `leaf_module` itself.
    """
    classes = {type(module) for module in model.modules() if _has_expert_list(module)}
    if classes:
        set_z3_leaf_modules(model, list(classes))
    return sorted(cls.__name__ for cls in classes)


def _has_expert_list(module: torch.nn.Module) -> bool:
    return any(
        name.endswith("experts")
        and isinstance(child, torch.nn.ModuleList)
        and len(child) >= MIN_EXPERTS
        and len({type(expert) for expert in child}) == 1
        for name, child in module.named_children()
    )
