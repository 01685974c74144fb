# SPDX-License-Identifier: Apache-2.0
"""The random states of a rank: Python's, numpy's, torch's and the accelerator's, as plain values and tensors."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator


def get_rng_state() -> dict[str, Any]:
    """All random states, in a form that loads without pickled code."""
    legacy_state = cast("tuple[str, np.ndarray, int, int, float]", np.random.get_state())  # no dict by default
    kind, keys, position, has_gauss, gauss = legacy_state
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    accelerator = get_accelerator()
    if accelerator.device_name() != "cpu":
        states["accelerator"] = accelerator.get_rng_state()
    return states


def set_rng_state(states: dict[str, Any]) -> None:
    """Set the states that `get_rng_state` returned."""
    version, internal_state, gauss_next = states["python"]
    random.setstate((version, tuple(internal_state), gauss_next))
    kind, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(states["torch"])
    accelerator = get_accelerator()
    if "accelerator" in states and accelerator.device_name() != "cpu":  # on CPU those of torch are all
        accelerator.set_rng_state(states["accelerator"])
