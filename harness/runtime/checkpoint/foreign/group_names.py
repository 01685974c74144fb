# SPDX-License-Identifier: Apache-2.0
"""The names of the parameters that an optimizer at ZeRO stage 0 has numbered: its shards have no names.

An optimizer numbers parameters group by group. Orders that programs use are tried, and one counts only if each number
has the shape of its parameter's state, and each fp32 master, where there are any, the values of its 16-bit weight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from harness.runtime.user_errors import user_error

_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)|(?:^|\.)ln_\w+\.")
"""`transformers/trainer.py:get_decay_parameter_names`, and the layer norms that it knows by their class."""


def name_groups(optimizer: Mapping[str, Any], module: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """The names by group. `module`: all weights in the model's order, tied ones under their first name.

    Raises UserError (CK131) where no known order fits, or several do.
    """
    wanted = _numbered_shapes(optimizer)
    found: list[list[list[str]]] = []
    for order in _orders(list(module), module):
        groups = [group for group in order if group] if len(order) != len(wanted) else order
        if groups not in found and _fits(groups, wanted, module):
            found.append(groups)
    alike = [groups for groups in found if _holds_masters(groups, optimizer, module)]
    if len(alike) == 1:
        return alike[0]
    reason = "no order of groups that a program uses" if not alike else f"{len(alike)} orders of its groups fit"
    if found and not alike:
        reason = "by no order of groups that a program uses its fp32 masters are those of the 16-bit weights beside it"
    raise user_error(
        "CK131",
        f"the optimizer numbers its parameters, and their names are not known: {reason}",
        notes=("at ZeRO stage 0 a save of DeepSpeed has no names beside the states",),
        fix="import with `--drop-optimizer-states`, or save once at ZeRO stage 1 in the program that wrote it",
    )


def _holds_masters(groups: list[list[str]], optimizer: Mapping[str, Any], module: Mapping[str, torch.Tensor]) -> bool:
    """Is each weight its fp32 master, rounded? True where the optimizer has no masters of its own."""
    flat = optimizer.get("fp32_groups_flat")
    if flat is None and "fp32_groups" not in optimizer:
        return True
    for number, names in enumerate(groups):
        weights = [module[name] for name in names]
        sizes = [weight.numel() for weight in weights]
        masters = flat[number][: sum(sizes)].split(sizes) if flat is not None else optimizer["fp32_groups"][number]
        for weight, master in zip(weights, masters, strict=True):
            rounded = master.reshape(weight.shape).to(weight.dtype)
            if not torch.allclose(rounded, weight, rtol=0, atol=0, equal_nan=True):
                return False
    return True


def _numbered_shapes(optimizer: Mapping[str, Any]) -> list[list[torch.Size | int | None]]:
    """By group, of each parameter: its shape, or None where it has no state; of a flat group its elements."""
    base = optimizer.get("optimizer_state_dict", optimizer)
    if "fp32_groups_flat" in optimizer:
        return [[int(flat.numel())] for flat in optimizer["fp32_groups_flat"]]
    if "fp32_groups" in optimizer:
        return [[tensor.shape for tensor in group] for group in optimizer["fp32_groups"]]
    return [[_shape_of(base["state"].get(number)) for number in group["params"]] for group in base["param_groups"]]


def _shape_of(state: Mapping[str, Any] | None) -> torch.Size | None:
    tensors = [value for value in (state or {}).values() if torch.is_tensor(value) and value.dim()]
    return tensors[0].shape if tensors else None


def _orders(names: list[str], module: Mapping[str, torch.Tensor]) -> Iterator[list[list[str]]]:
    adapters = [name for name in names if "lora_" in name or "modules_to_save" in name]
    for trained in (names, adapters):
        if not trained:
            continue
        yield [trained]
        kept = [name for name in trained if not _NO_DECAY.search(name.lower())]
        yield [kept, [name for name in trained if name not in kept]]
        matrices = [name for name in trained if module[name].dim() > 1]
        yield [matrices, [name for name in trained if name not in matrices]]
        yield [[name for name in trained if name not in matrices], matrices]


def _fits(
    groups: list[list[str]], wanted: list[list[torch.Size | int | None]], module: Mapping[str, torch.Tensor]
) -> bool:
    if len(groups) != len(wanted):
        return False
    for names, shapes in zip(groups, wanted, strict=True):
        if len(shapes) == 1 and isinstance(shapes[0], int):
            if sum(math.prod(module[name].shape) for name in names) != shapes[0]:
                return False
        elif len(names) != len(shapes) or any(
            shape is not None and shape != module[name].shape for name, shape in zip(names, shapes, strict=True)
        ):
            return False
    return True
