# SPDX-License-Identifier: Apache-2.0
"""Allows the four classes of DeepSpeed's shards to be unpickled, and no others.

Upstream: A shard has objects of DeepSpeed in addition to tensors and plain values, and DeepSpeed loads it with
`weights_only=False`: a shard may run any code.

Patch: While a shard is loaded with `weights_only=True`, these classes are safe globals of torch. Any other raises.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from harness.patches.patch_registry import Patch, Target


def _zero_stage_getattr(kind: Any, name: Any) -> Any:
    """Stands for `getattr`, by which Python 3.11.2 (Debian 12) pickles a member of an enumeration; 3.11.7 does not."""
    from deepspeed.runtime.zero.config import ZeroStageEnum

    if kind is not ZeroStageEnum or name not in ZeroStageEnum.__members__:
        raise pickle.UnpicklingError(f"getattr of {kind!r} and {name!r}")
    return ZeroStageEnum[name]


def allow_deepspeed_globals() -> AbstractContextManager[None]:
    """In this context `torch.load(..., weights_only=True)` loads what DeepSpeed writes, and nothing more."""
    import torch
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    pickled_classes: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
        ZeroStageEnum,
        LossScaler,
        DynamicLossScaler,
        fragment_address,
        (_zero_stage_getattr, "builtins.getattr"),
    ]  # all that DeepSpeed 0.19.8 pickles besides tensors and plain values
    context: AbstractContextManager[None] = torch.serialization.safe_globals(pickled_classes)
    return context


PATCH = Patch(
    name="torch-safe-globals",
    kind="use",
    targets=(
        Target("deepspeed.runtime.fp16.loss_scaler:LossScaler", "cbbc9a15c72a08c8"),
        Target("deepspeed.runtime.fp16.loss_scaler:DynamicLossScaler", "c1dc88413bdc7e3c"),
        Target("deepspeed.runtime.zero.config:ZeroStageEnum", "89fbb4282f9ffd9b"),
        Target("deepspeed.utils.tensor_fragment:fragment_address", "2858f3a46a51f06f"),
    ),
    remove_when="DeepSpeed registers the classes of its shards with `torch.serialization`",
    when="runs that resume from a checkpoint, and exports",
    is_needed=lambda run: run.is_resumed,
    upstream="https://github.com/deepspeedai/DeepSpeed/issues/8500",
)
