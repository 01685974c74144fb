# SPDX-License-Identifier: Apache-2.0
"""The settings that an engine was built with, put back after a checkpoint has replaced them by those that it was saved
with.

A shard of DeepSpeed has the optimizer's settings (rate, decay, betas, epsilon), the clipping norm, the rules of the
loss scale and the base rates of the schedule beside the trained state, and loading it replaces the engine's own. What
of them may differ was compared before (`resume_compatibility`): so the engine's own are the right ones, and where
nothing has changed they are the same numbers. What training itself moves is left as it was loaded: states, counts of
steps, the current loss scale.
"""

from __future__ import annotations

import copy
from typing import Any

from deepspeed.runtime.fp16.loss_scaler import LossScalerBase
from deepspeed.runtime.lr_schedules import LRRangeTest, OneCycle, WarmupCosineLR, WarmupLR, update_lr
from torch.optim.lr_scheduler import LambdaLR

from harness.runtime.engine_protocol import Engine

_TRAINED = ("params", "step")
"""Entries of a parameter group that are no settings."""
_SCALE_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
_DS_SCHEDULES = (WarmupLR, WarmupCosineLR, OneCycle, LRRangeTest)


class OwnSettings:
    """The settings of an engine; make it before a checkpoint is loaded, and call `restore` after."""

    def __init__(self, engine: Engine) -> None:
        optimizer, scheduler = engine.optimizer, engine.lr_scheduler
        self._groups = [
            {key: copy.copy(value) for key, value in group.items() if key not in _TRAINED}
            for group in engine.basic_optimizer.param_groups
        ]
        self._clip_grad = getattr(optimizer, "clip_grad", None)
        self._loss_scaler = getattr(optimizer, "loss_scaler", None)
        self._loss_scale_config = copy.copy(getattr(optimizer, "loss_scale_config", None))
        self._base_rates = list(scheduler.base_lrs) if isinstance(scheduler, LambdaLR) else []

    def restore(self, engine: Engine) -> None:
        """Put the settings back, and set the rate of this engine's schedule at the step that was loaded."""
        optimizer: Any = engine.optimizer
        is_computed = isinstance(engine.lr_scheduler, (LambdaLR, *_DS_SCHEDULES))
        for group, settings in zip(engine.basic_optimizer.param_groups, self._groups, strict=True):
            kept = () if is_computed else ("lr", "initial_lr")  # torch's schedules go on from the rate that they left
            group.update({key: copy.copy(value) for key, value in settings.items() if key not in kept})
        if self._clip_grad is not None:
            optimizer.clip_grad = self._clip_grad
        if isinstance(self._loss_scaler, LossScalerBase):
            _keep_scale_state(optimizer.loss_scaler, self._loss_scaler)
            optimizer.loss_scaler = self._loss_scaler
            optimizer.dynamic_loss_scale = self._loss_scaler.dynamic
        if self._loss_scale_config is not None:
            _keep_scale_state(optimizer.loss_scale_config, self._loss_scale_config)
            optimizer.loss_scale_config = self._loss_scale_config
        self._set_rate(engine)

    def _set_rate(self, engine: Engine) -> None:
        """The rate of the schedule at its step: the checkpoint's is of the schedule that saved it, and the schedule
        would set its own one step too late.
        """
        scheduler: Any = engine.lr_scheduler
        if isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = list(self._base_rates)
            rules = zip(self._base_rates, scheduler.lr_lambdas, strict=True)
            rates = [rate * rule(scheduler.last_epoch) for rate, rule in rules]
            update_lr(scheduler.optimizer.param_groups, rates)
        elif isinstance(scheduler, _DS_SCHEDULES) and scheduler.last_batch_iteration >= 0:
            groups = scheduler.optimizer.param_groups
            update_lr(groups, scheduler.get_lr())
            betas = scheduler.get_mom() if isinstance(scheduler, OneCycle) else None
            for group, pair in zip(groups, betas or (), strict=False):
                group["betas"] = pair


def _keep_scale_state(loaded: Any, own: Any) -> None:
    """Give the engine's own loss scale the state of the loaded one, where both adapt to overflows."""
    dynamic = [bool(getattr(one, "dynamic", getattr(one, "dynamic_loss_scale", False))) for one in (loaded, own)]
    if all(dynamic):
        for name in _SCALE_STATE:
            if hasattr(loaded, name) and hasattr(own, name):
                setattr(own, name, getattr(loaded, name))
