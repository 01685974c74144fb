"""The classes that a shard of DeepSpeed may hold besides tensors and plain values. Loading any other raises."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address


def _zero_stage_getattr(kind: Any, name: Any) -> ZeroStageEnum:
    """Stands for `getattr`, by which Python 3.11.2 (Debian 12) pickles a member of an enumeration; 3.11.7 does not."""
    if kind is not ZeroStageEnum or name not in ZeroStageEnum.__members__:
        raise pickle.UnpicklingError(f"getattr of {kind!r} and {name!r}")
    return ZeroStageEnum[name]


_ALLOWED_GLOBALS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    ZeroStageEnum,
    LossScaler,
    DynamicLossScaler,
    fragment_address,
    (_zero_stage_getattr, "builtins.getattr"),
]
"""All that DeepSpeed 0.19.8 pickles besides tensors and plain values."""


def allow_deepspeed_globals() -> AbstractContextManager[None]:
    """In this context `torch.load(..., weights_only=True)` loads what DeepSpeed writes, and nothing more."""
    context: AbstractContextManager[None] = torch.serialization.safe_globals(_ALLOWED_GLOBALS)
    return context
