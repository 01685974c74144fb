# SPDX-License-Identifier: Apache-2.0
"""The state that a checkpoint put into an engine, checked before a step computes with it.

DeepSpeed takes what a shard holds: a rate that is a text fails in the first step, and kernels in C++ read as many
elements of an optimizer's state as the weights have, whatever the state has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.fp16.loss_scaler import LossScalerBase

from harness.errors import UserError, user_error
from harness.runtime.checkpoint.nvme_states import uses_nvme
from harness.runtime.engine_protocol import Engine

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_OPTIMIZER = ("clip_grad", "dynamic_loss_scale", "overflow", "loss_scaler", "loss_scale_config")
_STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum")
"""States with an element for each element of a weight."""
_MAX_NUMBER = 2**63
Settings = dict[str, Any]


@contextmanager
def refusing_other_content(engine: Engine, folder: Path) -> Iterator[None]:
    """In this context the engine loads a checkpoint. Raises UserError (CK120) where DeepSpeed fails at the content, and
    where the engine holds other kinds of values after it than before.
    """
    before = _read_settings(engine)
    try:
        yield
        _check_settings(before, _read_settings(engine))
        _check_states(engine)
    except (UserError, MemoryError, torch.OutOfMemoryError, dist.DistError):
        raise
    except Exception as error:  # content of any type provokes almost anything
        if "gloo" in str(error):  # another rank has ended
            raise
        raise _content_error(folder, error) from error


def _content_error(folder: Path, error: Exception) -> UserError:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    reason = (str(error).strip() or "no message").splitlines()[0][:200]
    return user_error(
        "CK120",
        f"`{folder}` cannot be loaded: its shards are not as this engine writes them",
        notes=(f"{type(error).__name__}: {reason}{place}", "no step was taken"),
        fix="name another checkpoint",
    )


def _read_settings(engine: Engine) -> Settings:
    """Values of the engine that a checkpoint replaces, by place."""
    optimizer, scheduler = engine.optimizer, engine.lr_scheduler
    settings: Settings = {name: getattr(engine, name) for name in _COUNTERS}
    settings |= {f"optimizer, {name}": getattr(optimizer, name) for name in _OPTIMIZER if hasattr(optimizer, name)}
    for number, group in enumerate(engine.basic_optimizer.param_groups):
        settings |= {f"group {number}, {key}": value for key, value in group.items() if key != "params"}
    rates = (
        "base_lrs",
        "_last_lr",
    )  # one a parameter group, of which a checkpoint may have more; `own_settings` sets them
    schedule = getattr(scheduler, "__dict__", {}).items()
    settings |= {f"schedule, {key}": value for key, value in schedule if key not in rates}
    return settings


def _check_settings(before: Settings, after: Settings) -> None:
    """Raises TypeError."""
    for place, value in after.items():
        if place in before and not _is_like(before[place], value):
            raise TypeError(f"{place} is {str(value)[:80]!r}, was {str(before[place])[:80]!r}")


def _is_like(old: Any, new: Any) -> bool:
    """Is `new` a value of the same kind?"""
    if isinstance(old, LossScalerBase):  # the settings of the run choose between two classes
        return isinstance(new, LossScalerBase) and all(map(_is_plain, vars(new).values()))
    if isinstance(old, int | float):
        return _is_plain(new) and new is not None and not isinstance(new, torch.dtype)
    if isinstance(old, list | tuple):
        return isinstance(new, list | tuple) and len(old) == len(new) and all(map(_is_like, old, new))
    if isinstance(old, Mapping):
        return isinstance(new, Mapping)
    return _is_plain(new) or isinstance(new, str) if old is None else isinstance(new, type(old))


def _is_plain(value: Any) -> bool:
    """A number that a machine can hold, or none, or a number format."""
    is_number = isinstance(value, int | float) and not math.isnan(value) and abs(value) < _MAX_NUMBER
    return is_number or value is None or isinstance(value, torch.dtype)


def _check_states(engine: Engine) -> None:
    """Raises ValueError for a state that does not fit its weights. On NVMe, `nvme_states` filled each from a view."""
    if uses_nvme(engine.optimizer):
        return
    for owner, state in engine.basic_optimizer.state.items():
        tensors = {key: state[key] for key in _STATES if state.get(key) is not None}
        if state and not any(key in state for key in ("step", *_STATES)):
            raise ValueError(f"the optimizer has no state of a weight, but {', '.join(map(str, state))[:80]}")
        for key, tensor in tensors.items():
            if not torch.is_tensor(tensor) or not tensor.is_floating_point() or not tensor.is_contiguous():
                raise ValueError(f"the optimizer's `{key}` is no plain tensor of numbers")
            if tensor.numel() < owner.numel():
                raise ValueError(f"the optimizer's `{key}` has {tensor.numel()} elements for {owner.numel()} weights")
        if len({tensor.dtype for tensor in tensors.values()}) > 1:
            raise ValueError("the optimizer's states of one weight have several number formats")
        step = state.get("step", 0)
        if not (torch.is_tensor(step) and step.numel() == 1) and not (type(step) in (int, float) and step >= 0):
            raise ValueError(f"the optimizer's count of steps is {str(step)[:80]!r}")
