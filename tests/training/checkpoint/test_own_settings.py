# SPDX-License-Identifier: Apache-2.0
"""Settings that a load replaced come back, and what training moved stays: on the objects of an engine, without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.lr_schedules import OneCycle, WarmupLR
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from harness.runtime.checkpoint.own_settings import OwnSettings

CYCLE = {"cycle_min_lr": 0.0, "cycle_first_step_size": 10, "decay_step_size": 0}


def make_engine(rate: float, make_schedule: Any, scaler: Any = None) -> Any:
    """An engine with one parameter group, as `OwnSettings` sees it."""
    adam = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=rate, eps=rate / 10)
    wrapper = SimpleNamespace(clip_grad=rate, loss_scaler=scaler, dynamic_loss_scale=getattr(scaler, "dynamic", False))
    return SimpleNamespace(optimizer=wrapper, basic_optimizer=adam, lr_scheduler=make_schedule(adam, rate))


def load(engine: Any, saved: Any) -> None:
    """What DeepSpeed does: the checkpoint's settings and its schedule replace the engine's."""
    engine.basic_optimizer.load_state_dict(saved.basic_optimizer.state_dict())
    engine.lr_scheduler.load_state_dict(saved.lr_scheduler.state_dict())
    engine.optimizer.clip_grad, engine.optimizer.loss_scaler = saved.optimizer.clip_grad, saved.optimizer.loss_scaler
    engine.optimizer.dynamic_loss_scale = saved.optimizer.dynamic_loss_scale


def resume(make_schedule: Any, scalers: tuple[Any, Any] = (None, None), steps: int = 3) -> Any:
    """An engine of rate 0.1 that resumes from one of rate 0.4 after some steps."""
    saved = make_engine(0.4, make_schedule, scalers[0])
    for _ in range(steps):
        saved.basic_optimizer.step()
        saved.lr_scheduler.step()
    engine = make_engine(0.1, make_schedule, scalers[1])
    own = OwnSettings(engine)
    load(engine, saved)
    own.restore(engine)
    return engine


def halving(optimizer: Any, _: float) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 0.5**step)


def test_settings_are_the_own_and_the_rate_is_that_of_the_step() -> None:
    engine = resume(halving)
    group = engine.basic_optimizer.param_groups[0]
    assert (group["eps"], group["initial_lr"], engine.optimizer.clip_grad) == (0.01, 0.1, 0.1)
    assert (engine.lr_scheduler.last_epoch, engine.lr_scheduler.base_lrs) == (3, [0.1])
    assert group["lr"] == pytest.approx(0.1 / 8)
    engine.basic_optimizer.step()
    engine.lr_scheduler.step()
    assert group["lr"] == pytest.approx(0.1 / 16)


def test_schedules_of_deepspeed() -> None:
    warmup = resume(lambda optimizer, rate: WarmupLR(optimizer, 0.0, rate, 10, "linear"))
    assert warmup.lr_scheduler.last_batch_iteration == 2
    assert warmup.basic_optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 2 / 10)
    cycle = resume(lambda optimizer, rate: OneCycle(optimizer, cycle_max_lr=rate, **CYCLE))
    straight = make_engine(0.1, lambda optimizer, rate: OneCycle(optimizer, cycle_max_lr=rate, **CYCLE))
    for _ in range(3):
        straight.lr_scheduler.step()
    for key in ("lr", "betas"):
        assert cycle.basic_optimizer.param_groups[0][key] == straight.basic_optimizer.param_groups[0][key]


def test_a_schedule_of_torch_goes_on_from_the_rate_that_it_left() -> None:
    engine = resume(lambda optimizer, _: ExponentialLR(optimizer, 0.5))
    assert engine.basic_optimizer.param_groups[0]["lr"] == pytest.approx(0.4 / 8)
    assert engine.basic_optimizer.param_groups[0]["eps"] == 0.01


def scaler(scale: float, window: int) -> DynamicLossScaler:
    return DynamicLossScaler(
        scale,
        scale_window=window,
        min_scale=window / 100,
        delayed_shift=2,
        consecutive_hysteresis=False,
        raise_error_at_min_scale=False,
        dtype=torch.half,
    )


def test_the_loss_scale_goes_on_by_the_own_rules() -> None:
    saved, own = scaler(64.0, 1000), scaler(4096.0, 5)
    saved.cur_iter, saved.last_overflow_iter, saved.cur_hysteresis = 7, 4, 1
    loaded = resume(halving, (saved, own)).optimizer
    assert loaded.loss_scaler is own
    assert (own.cur_scale, own.cur_iter, own.last_overflow_iter, own.cur_hysteresis) == (64.0, 7, 4, 1)
    assert (own.scale_window, own.min_scale) == (5, 0.05)


def test_a_fixed_loss_scale_is_the_own() -> None:
    loaded = resume(halving, (scaler(64.0, 1000), LossScaler(8.0))).optimizer
    assert (loaded.loss_scaler.cur_scale, loaded.dynamic_loss_scale) == (8.0, False)
    loaded = resume(halving, (LossScaler(8.0), scaler(64.0, 5))).optimizer
    assert (loaded.loss_scaler.cur_scale, loaded.dynamic_loss_scale) == (64.0, True)
