# SPDX-License-Identifier: Apache-2.0
"""Values of DeepSpeed's blocks that have no field of their own in a run spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.spec.run_spec import RunSpec


def block_value(config: Mapping[str, Any], block: str, key: str) -> Any:
    """The value in a block of `config`, None where it is not written."""
    section = config.get(block)
    return section.get(key) if isinstance(section, Mapping) else None


def is_switched_on(config: Mapping[str, Any], block: str, key: str) -> bool:
    """Is the value `true`?"""
    return block_value(config, block, key) is True


def has_decay(spec: RunSpec) -> bool:
    """Does any matrix decay? The engine then has one group of parameters with decay and one without."""
    block = spec.deepspeed.get("optimizer")  # instead of the spec's own, not laid over it
    value = block_value(block, "params", "weight_decay") if isinstance(block, dict) else spec.optimizer.weight_decay
    return isinstance(value, (int, float)) and value > 0


def dtype_bytes(name: Any, default: int) -> int:
    """Bytes of an element of a format by its name, `default` for another name."""
    return {"fp32": 4, "float32": 4, "fp16": 2, "bf16": 2, "float16": 2, "bfloat16": 2}.get(str(name).lower(), default)
