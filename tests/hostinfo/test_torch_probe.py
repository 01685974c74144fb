# SPDX-License-Identifier: Apache-2.0
"""The process that asks torch, with made-up torches: what it tells, what it never does. Needs nothing; seconds."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.hostinfo import torch_probe
from harness.hostinfo.host_survey import parse_host_facts
from harness.hostinfo.torch_devices import TorchDevices
from tests.support.fake_gpu import CPU_BUILD, NO_DRIVER, ONE_H200, made_up_gpu

SCRIPTS = Path(__file__).parents[2] / "harness" / "workers"
HANGS = "import time\nversion.cuda = '13.0'\ncuda.is_available = lambda: time.sleep(60)\n"
CRASHES = "import os\nos.abort()\n"
TOLD = {
    CPU_BUILD: TorchDevices("2.13.0+x", driver="580.65.06", visible="0"),
    ONE_H200: TorchDevices(
        "2.13.0+x", "13.0", None, 1, ((9, 0),), ("sm_80", "sm_90"), "580.65.06", "0", names=("NVIDIA H200",)
    ),
    NO_DRIVER: TorchDevices(
        "2.13.0+x", "13.0", driver="580.65.06", visible="0", words="Found no NVIDIA driver on your system."
    ),
    CRASHES: TorchDevices(driver="580.65.06", visible="0", words="its process ended with code -6"),
    "raise OSError('libcudart.so.13: no such file')": TorchDevices(
        driver="580.65.06", visible="0", words="OSError: libcudart.so.13: no such file"
    ),
}


@pytest.mark.parametrize(("torch", "expected"), TOLD.items(), ids=["cpu", "h200", "no-driver", "crash", "broken"])
def test_what_torch_says_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, expected: TorchDevices
) -> None:
    for name, value in made_up_gpu(tmp_path, torch, "2.13.0+x").items():
        monkeypatch.setenv(name, value)
    assert torch_probe.probe_torch(SCRIPTS) == expected


def test_a_driver_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in made_up_gpu(tmp_path, HANGS).items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    devices = torch_probe.probe_torch(SCRIPTS, 1.0)
    assert time.monotonic() - began < 10
    assert (devices.answered, devices.words) == (False, "no answer within 1 s")


def test_torch_is_asked_with_the_variables_of_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lets ranks find the driver lets the probe find it."""
    source = "import os\nversion.cuda = '13.0'\ncuda.is_available = lambda: 'THERE' in os.environ\n"
    source += "cuda.device_count = lambda: 1\ncuda.get_device_capability = lambda index: (9, 0)\n"
    source += "cuda.get_arch_list = lambda: ['sm_90']\ncuda.init = lambda: None\n"
    for name, value in made_up_gpu(tmp_path / "here", source).items():
        monkeypatch.setenv(name, value)
    assert torch_probe.probe_torch(SCRIPTS).count == 0
    assert torch_probe.probe_torch(SCRIPTS, variables={"THERE": "1"}).count == 1
    facts = parse_host_facts("a", 1, ask_host(tmp_path / "host", source, variables={"THERE": "1"}), 0.5, (0.0, 0.1))
    assert facts.torch is not None
    assert facts.torch.count == 1


def test_nothing_of_the_current_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in made_up_gpu(tmp_path, ONE_H200).items():
        monkeypatch.setenv(name, value)
    planted = tmp_path / "checkout"
    planted.mkdir()
    for module in ("torch", "json", "types"):
        (planted / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(planted)
    assert torch_probe.probe_torch(SCRIPTS).count == 1
    assert not (tmp_path / "ran").exists()


def ask_host(
    folder: Path, torch: str, seconds: float = 30.0, variables: dict[str, str] | None = None
) -> dict[str, Any]:
    """The answer of `host_probe.py`, which comes from stdin, on that machine."""
    env = made_up_gpu(folder, torch)
    request = {
        "job": "facts",
        "torch": torch_probe.build_request(SCRIPTS, env.pop("PYTHONPATH"), variables or {}, seconds),
    }
    word = base64.urlsafe_b64encode(json.dumps(request).encode()).decode()
    script = (SCRIPTS / "host_probe.py").read_text()
    done = subprocess.run(
        [sys.executable, "-", word], input=script, text=True, capture_output=True, check=True, env={**os.environ, **env}
    )
    return dict(json.loads(done.stdout.removeprefix("HARNESS-PROBE ")))


@pytest.mark.parametrize(("torch", "count"), [(ONE_H200, 1), (CPU_BUILD, 0)])
def test_a_host_tells_the_same(tmp_path: Path, torch: str, count: int) -> None:
    facts = parse_host_facts("a", 1, ask_host(tmp_path, torch), 0.5, (0.0, 0.1))
    assert facts.accelerators == ("NVIDIA H200",)
    assert facts.torch is not None
    assert (facts.torch.version, facts.torch.count, facts.torch.driver) == ("2.13.0", count, "580.65.06")


def test_a_host_answers_though_its_torch_does_not(tmp_path: Path) -> None:
    facts = parse_host_facts("a", 1, ask_host(tmp_path, HANGS, 1.0), 0.5, (0.0, 0.1))
    assert facts.torch is not None
    assert (facts.torch.answered, facts.torch.words) == (False, "no answer within 1 s")
