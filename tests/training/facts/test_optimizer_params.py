# SPDX-License-Identifier: Apache-2.0
"""Our tables of optimizers' and schedulers' parameters against the installed classes: a new release shows up here.

What a gate makes of a name that is not in them is tested with the gates.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime import config as ds_config
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

from harness.gates import optimizer_facts as known

FUSED = {"adam": FusedAdam, "lamb": FusedLamb, "lion": FusedLion}
ON_CPU = {"adam": DeepSpeedCPUAdam, "adagrad": DeepSpeedCPUAdagrad, "lion": DeepSpeedCPULion}
# The engine passes these itself: a configuration that names them is popped first, or gives the class two of them.
ENGINE_PASSES = {"adam": {"adam_w_mode", "adamw_mode", "fp32_optimizer_states"}}


def parameters(cls: type) -> set[str]:
    """The names after `self` and the parameters to train."""
    return set(list(inspect.signature(cls.__init__).parameters)[2:])


def required(cls: type) -> set[str]:
    given = list(inspect.signature(cls.__init__).parameters.values())[2:]
    return {p.name for p in given if p.default is inspect.Parameter.empty}


@pytest.mark.parametrize("name", sorted(FUSED))
def test_parameters_of_the_fused_optimizers(name):
    assert set(known.FUSED[name]) == parameters(FUSED[name]) - ENGINE_PASSES.get(name, set())


@pytest.mark.parametrize("name", sorted(ON_CPU))
def test_parameters_of_the_cpu_optimizers(name):
    assert set(known.ON_CPU[name]) == parameters(ON_CPU[name]) - ENGINE_PASSES.get(name, set())


@pytest.mark.parametrize("name", sorted(known.TORCH))
def test_parameters_of_the_torch_optimizers(name):
    assert set(known.TORCH[name].split()) == parameters(getattr(torch.optim, name))


def test_every_name_of_torch_optim_is_judged():
    """DeepSpeed lets each of them pass."""
    classes = {n for n in dir(torch.optim) if not n.startswith("_") and n[0].isupper()}
    assert classes - set(known.TORCH) - set(known.UNUSABLE) == {"Muon"}  # DeepSpeed has its own of that name
    assert all(hasattr(torch.optim, name) for name in known.UNUSABLE)


def test_what_muon_takes():
    halves = set(DeepSpeedEngine._MUON_HALF_KEYS) | set(DeepSpeedEngine._ADAM_HALF_KEYS)
    assert halves | {"muon_lr", "adam_lr", "per_head_muon"} == known.MUON
    source = inspect.getsource(DeepSpeedEngine)
    assert all(f'"{name}"' in source for name in ("muon_lr", "adam_lr"))


def test_names_of_deepspeeds_own_optimizers():
    assert {name.lower() for name in known.OWN} == set(ds_config.DEEPSPEED_OPTIMIZERS)
    assert not {name.lower() for name in known.ONE_BIT} & set(ds_config.DEEPSPEED_OPTIMIZERS)


def test_what_zero_takes_untested():
    listed = {cls.__name__.lower() for cls in ZERO_SUPPORTED_OPTIMIZERS}
    assert {"adam", "adamw", "adagrad", "fusedlion", "fusedadam"} <= listed
    assert not listed & {name.lower() for name in known.TORCH if name not in ("Adam", "AdamW", "Adagrad")}
    assert "fusedlamb" not in listed


@pytest.mark.parametrize("name", sorted(known.SCHEDULERS))
def test_parameters_of_the_schedulers(name):
    cls = getattr(lr_schedules, name)
    assert set(known.SCHEDULERS[name].split()) == parameters(cls)
    assert set(known.REQUIRED.get(name, ())) == required(cls)


def test_names_of_the_schedulers():
    assert set(known.SCHEDULERS) == set(lr_schedules.VALID_LR_SCHEDULES)
    classes = {
        name
        for name, value in vars(torch.optim.lr_scheduler).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.lr_scheduler.LRScheduler) and name[0] != "_"
    }
    assert set(known.TORCH_SCHEDULERS) == classes


def test_the_rate_that_an_optimizer_takes_by_itself():
    for name in known.TORCH:
        rate = inspect.signature(getattr(torch.optim, name).__init__).parameters["lr"].default
        assert known.DEFAULT_RATES.get(name.lower(), 0.001) == rate, name
    for cls in (FusedAdam, FusedLamb, FusedLion, DeepSpeedCPUAdam, DeepSpeedCPULion):
        assert inspect.signature(cls.__init__).parameters["lr"].default == 0.001
