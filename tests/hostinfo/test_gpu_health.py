# SPDX-License-Identifier: Apache-2.0
"""GPUs of a made-up libnvidia-ml, read by the real pynvml: which problems are found, and that healthy ones have none.

Needs a C compiler; seconds.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.hostinfo import nvml_probe, nvml_reader
from harness.hostinfo.gpu_health import GpuHealth, HostGpus, find_gpu_problems, group_gpu_problems, parse_host_gpus
from harness.hostinfo.host_survey import parse_host_facts
from tests.support.fake_gpu import ONE_H200, made_up_gpu
from tests.support.fake_nvml import build_fake_nvml, fake_nvml_variables

WORKERS = Path(__file__).parents[2] / "harness" / "workers"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake_nvml(tmp_path_factory.mktemp("driver"))


def read(folder: Path, states: str) -> HostGpus:
    """The answer of the program, run as a host runs it."""
    env = {**os.environ, **fake_nvml_variables(folder, states)}
    command = [sys.executable, "-c", Path(nvml_reader.__file__).read_text()]
    done = subprocess.run(command, text=True, capture_output=True, check=True, env=env)
    return parse_host_gpus(json.loads(done.stdout.removeprefix(nvml_reader.MARK)))


PROBLEMS = {
    "idle": [],
    "busy": [],
    "thermal": [("EN082", True, "is slowed down by heat: 93 C, SM clock 750 of 1980 MHz")],
    "brake": [("EN082", True, "is slowed down by the power brake: 31 C, SM clock 345 of 1980 MHz")],
    "power-cap": [("EN085", False, "is limited to 350 W of 700 W")],
    "narrow": [("EN084", False, "has 4 lanes of PCIe, 16 are possible")],
    "slow-bus": [("EN084", False, "has PCIe generation 1 under load, 5 is possible")],
    "nvlink": [("EN083", True, "has 17 NVLinks up, others of its model 18")],
    "ecc": [("EN080", True, "has 2 uncorrected ECC errors since its driver was loaded")],
    "remap": [("EN080", True, "needs a reset to remap rows of its memory that had errors")],
    "remap-failed": [("EN080", True, "could not remap a broken row of its memory")],
    "lost": [("EN081", True, "does not answer: GPU is lost")],
    "fallen": [("EN081", True, "does not answer: GPU is lost")],
}


@pytest.fixture(scope="module")
def gpus(driver: Path) -> dict[str, GpuHealth]:
    """One GPU in each state."""
    return dict(zip(PROBLEMS, read(driver, " ".join(PROBLEMS)).gpus, strict=True))


@pytest.mark.parametrize("state", PROBLEMS)
def test_a_gpu_has_the_problems_of_its_state_and_no_others(gpus: dict[str, GpuHealth], state: str) -> None:
    problems = find_gpu_problems(gpus[state], most_links=18)
    assert [(problem.gate, problem.is_fault, problem.clause) for problem in problems] == PROBLEMS[state]


def test_a_gpu_is_named_by_index_bus_and_uuid(gpus: dict[str, GpuHealth]) -> None:
    group = group_gpu_problems({"a": [gpus["idle"]], "b": [gpus["ecc"]]})[0]
    assert group.message.startswith(f"GPU {gpus['ecc'].index} (0000:{0x1B + gpus['ecc'].index:02x}:00.0) of `b` has 2")
    assert group.notes == (f"its UUID is GPU-{gpus['ecc'].index}",)


def test_many_gpus_are_one_group_for_each_kind(gpus: dict[str, GpuHealth]) -> None:
    sick = {f"worker-{n}": [replace(gpus["narrow"], index=i) for i in range(8)] for n in range(512)}
    sick["worker-0"] = [gpus["ecc"]]
    groups = group_gpu_problems(sick)
    assert [(group.gate, group.is_fault) for group in groups] == [("EN080", True), ("EN084", False)]
    assert groups[1].notes[-1] == f"and {511 * 8 - 8} more GPUs"


def test_links_that_no_gpu_of_the_model_has_up_are_no_problem(gpus: dict[str, GpuHealth]) -> None:
    assert group_gpu_problems({"": [gpus["nvlink"], replace(gpus["nvlink"], index=1)]}) == []


def test_one_bit_of_a_gpu_without_work_is_no_fault() -> None:
    idle = GpuHealth(reasons=0x9, sm_clock=345, sm_clock_max=1980)
    assert [problem.is_fault for problem in find_gpu_problems(idle)] == [False]


def test_an_older_driver_lacks_functions_and_its_throttled_gpu_is_named(tmp_path: Path) -> None:
    answer = read(build_fake_nvml(tmp_path, old_driver=True), "idle thermal remap")
    assert [len(find_gpu_problems(gpu, 0)) for gpu in answer.gpus] == [0, 1, 0]
    assert (answer.gpus[2].rows_pending, answer.gpus[2].links_up, answer.gpus[2].link_errors) == (None, 0, None)


def test_without_a_driver_or_without_the_package_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    assert read(tmp_path, "idle") == HostGpus(words="NVML: NVML Shared Library Not Found")
    (tmp_path / "pynvml.py").write_text("raise ImportError('broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert nvml_probe.probe_gpus() == HostGpus(words="nvidia-ml-py cannot be imported: broken")


def test_a_driver_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert nvml_probe.probe_gpus(0.5) == HostGpus(words="no answer in time")


def test_a_host_tells_its_gpus_beside_torch(tmp_path: Path, driver: Path) -> None:
    env = {**os.environ, **made_up_gpu(tmp_path, ONE_H200), **fake_nvml_variables(driver, "idle ecc")}
    request = {"job": "facts", "nvml": nvml_probe.build_request(20.0)}
    word = base64.urlsafe_b64encode(json.dumps(request).encode()).decode()
    script = (WORKERS / "host_probe.py").read_text()
    done = subprocess.run(
        [sys.executable, "-", word], input=script, text=True, capture_output=True, check=True, env=env
    )
    facts = parse_host_facts("a", 2, json.loads(done.stdout.removeprefix("HARNESS-PROBE ")), 0.5, (0.0, 0.1))
    assert facts.gpus is not None
    assert [gpu.ecc_uncorrected for gpu in facts.gpus.gpus] == [0, 2]
