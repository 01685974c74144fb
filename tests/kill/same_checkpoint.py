# SPDX-License-Identifier: Apache-2.0
"""Compare two checkpoints, to the last bit. Run on one rank: same_checkpoint.py ONE OTHER."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch


def main(one: Path, other: Path) -> int:
    """0 when they do; else the first places that differ are printed."""
    names = [sorted(str(p.relative_to(f)) for p in f.rglob("*.pt")) for f in (one, other)]
    if names[0] != names[1] or not names[0]:
        print(f"other files: {names}")
        return 1
    different = []
    for name in names[0]:
        loaded = [torch.load(f / name, weights_only=False, map_location="cpu") for f in (one, other)]
        different += [f"{name}: {place}" for place in differences(*loaded)]
    print("\n".join(different[:10]))
    return 1 if different else 0


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Places of two nested values that are not the same bits."""
    if type(one) is not type(other):
        return [f"{place}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, dict):
        return parts(one, other, place)
    if isinstance(one, (list, tuple)):
        return parts(dict(enumerate(one)), dict(enumerate(other)), place)
    if hasattr(one, "__dict__") and not isinstance(one, (torch.Tensor, Enum, type)):
        return parts(vars(one), vars(other), place)
    return [] if bits(one) == bits(other) else [place]


def parts(one: dict[Any, Any], other: dict[Any, Any], place: str) -> list[str]:
    """The same of two maps."""
    if one.keys() != other.keys():
        return [f"{place}: other keys"]
    return [d for key in one for d in differences(one[key], other[key], f"{place}.{key}")]


def bits(value: Any) -> Any:
    """What two values must have in common to be the same."""
    if isinstance(value, torch.Tensor):
        return (
            str(value.dtype),
            tuple(value.shape),
            value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
    return (value.dtype, value.tobytes()) if isinstance(value, np.ndarray) else value


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
