# SPDX-License-Identifier: Apache-2.0
"""The states of parameters that a module of the user's own has, by stage; and no code runs without consent."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.hostinfo.module_probe import OwnModule, OwnParameter
from harness.plan.own_states import count_own_states
from harness.plan.settings.plan_settings import settings_of
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec

PARAMETERS = (
    OwnParameter("a.weight", (4000, 1000), True),
    OwnParameter("a.bias", (4000,), True),
    OwnParameter("b.weight", (1000, 4000), True),
    OwnParameter("b.bias", (1000,), True),
)
NUMEL = sum(1000 * 4000 if len(p.shape) == 2 else p.shape[0] for p in PARAMETERS)


@pytest.mark.parametrize(
    ("zero", "gpu", "host"),
    [
        ({"stage": 0}, 2 + 2 + 12, 0),
        ({"stage": 1}, 2 + 2 + 12 / 4, 0),
        ({"stage": 3}, (2 + 2 + 12) / 4, 0),
        # bf16 weights stay; masters, moments and gradients in fp32, and those in bf16, are on the host
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, 2 / 4, (12 + 4 + 2) / 4),
    ],
)
def test_bytes_a_parameter_are_those_of_the_stage(zero: dict[str, object], gpu: float, host: float) -> None:
    spec = {"objective": "custom", "plugins": {"file": "own.py"}, "precision": {"bf16": True}, "zero": zero}
    run = RunSpec.model_validate({**spec, "train": {"max_steps": 4, "per_device_train_batch_size": 2}})
    settings = settings_of(resolve_run(run, world_size=4))
    assert settings is not None
    own = count_own_states(OwnModule(PARAMETERS), settings)
    assert own.num_parameters == own.num_trainable == NUMEL
    assert own.bytes_of("gpu") == pytest.approx(gpu * NUMEL, rel=0.005)
    assert own.bytes_of("host") == pytest.approx(host * NUMEL, rel=0.005)


@pytest.mark.parametrize(
    ("model", "trained"),
    [({}, {1, 2, 3}), ({"freeze": ["b.*"]}, {1}), ({"train_only": ["a.*"]}, {1}), ({"train_only": ["b.*"]}, {2, 3})],
)
def test_what_the_module_froze_stays_frozen_beside_the_spec(model: dict[str, list[str]], trained: set[int]) -> None:
    spec = {"objective": "custom", "plugins": {"file": "own.py"}, "model": model}
    run = RunSpec.model_validate({**spec, "train": {"max_steps": 4, "per_device_train_batch_size": 2}})
    settings = settings_of(resolve_run(run, world_size=4))
    assert settings is not None
    own = count_own_states(OwnModule((PARAMETERS[0]._replace(is_trained=False), *PARAMETERS[1:])), settings)
    assert own.num_parameters == NUMEL
    assert own.num_trainable == sum(math.prod(PARAMETERS[index].shape) for index in trained)


def test_without_consent_no_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text("def build_model(spec):\n    open('ran', 'w').close()\n")
    (tmp_path / "own.yaml").write_text(
        "objective: custom\nplugins: {file: own.py}\nlaunch: {num_gpus: 2}\n"
        "train: {max_steps: 4, per_device_train_batch_size: 2}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["harness", "plan", "own.yaml", "--format", "json"])
    with pytest.raises(SystemExit):
        main()
    found = json.loads(capsys.readouterr().out)
    assert found["own_module"] is None
    assert "running it was not allowed" in json.dumps(found["findings"])
    assert not (tmp_path / "ran").exists()
