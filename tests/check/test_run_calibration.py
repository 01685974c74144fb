# SPDX-License-Identifier: Apache-2.0
"""Run directories that calibrate, and those that cannot be used: one sentence each. Needs nothing; seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.check.run_calibration import measure_run
from harness.errors import UserError
from harness.plan.planner import make_plan
from harness.plan.time.step_time import PARTS_OF_UPDATE
from tests.support.sample_run import head, on_device, on_gpus, step, tiny, write_run

RUN = on_gpus()
MACHINE = {"cpu": "Model 1", "host_memory_bytes": 2**41, "torch": "2.8.0", "deepspeed": "0.18.0", "harness": "1.2.0"}
GPU = {"device": "NVIDIA H100 80GB HBM3", "device_memory_bytes": 80 * 2**30, "clock": "device", "machine": MACHINE}


SHARES = {"data": 0.01, "forward": 0.2, "backward": 0.43, "optimizer": 0.35, "loop": 0.01}


def steps_of(count: int = 12, **more: Any) -> list[dict[str, Any]]:
    values: dict[str, Any] = {"seconds": 15.0, "shares": SHARES, **more}
    return [step(number, **values) | on_device(number) for number in range(1, count + 1)]


def write(folder: Path, lines: list[dict[str, Any]] | None = None, **more: Any) -> Path:
    return write_run(folder / "run", RUN, [head(RUN, **GPU), *steps_of()] if lines is None else lines, **more)


def refuse(run_dir: Path) -> str:
    with pytest.raises(UserError) as caught:
        measure_run(run_dir)
    (finding,) = caught.value.findings
    assert finding.gate == "MM007"
    assert finding.fix is not None
    return finding.message


def test_a_run_gives_its_passes_its_update_and_its_peaks(tmp_path: Path) -> None:
    fingerprint, measured = measure_run(write(tmp_path))
    assert fingerprint.title == "8 x H100-80GB, one host"
    assert (fingerprint.cpu, fingerprint.host_memory_gib, fingerprint.torch) == ("Model 1", 2048, "2.8.0")
    assert (fingerprint.gpu, fingerprint.harness) == ("NVIDIA H100 80GB HBM3", "1")
    passes, update = measured.observations
    assert (passes.what, update.what) == ("forward and backward pass", "update")
    assert passes.measured == pytest.approx(0.63 * 15, rel=0.03)
    assert update.measured == pytest.approx(0.35 * 15, rel=0.03)
    time = make_plan(RUN, tmp_path, with_alternatives=False).time
    assert time is not None
    of_update = sum(part.exposed for part in time.parts if part.name in PARTS_OF_UPDATE)
    assert sum(update.planned.values()) == pytest.approx(of_update)
    assert sum(passes.planned.values()) == pytest.approx(time.seconds - of_update)
    assert measured.steps == 11
    assert measured.reserved == pytest.approx(38 / 33)


def test_without_the_devices_clock_a_step_is_one_sum(tmp_path: Path) -> None:
    lines = [head(RUN, **{**GPU, "clock": "host"}), *steps_of()]
    (whole,) = measure_run(write(tmp_path, lines))[1].observations
    assert whole.what == "step"
    assert whole.measured == pytest.approx(0.98 * 15, rel=0.03), "without loading data and without the loop"


def without(key: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != key} for line in [head(RUN, **GPU), *steps_of()]]


UNUSABLE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no steps": ([], "no line `run`: no step was taken"),
    "too few steps": ([head(RUN, **GPU), *steps_of(5)], "it has 4 steps after its first line"),
    "other format": ([head(RUN, **{**GPU, "format_version": 1}), *steps_of()], "are of format version 1"),
    "the CPU": ([head(RUN, **{**GPU, "device": "cpu"}), *steps_of()], "it ran on the CPU"),
    "unknown GPU": ([head(RUN, **{**GPU, "device": "Voodoo 2"}), *steps_of()], "its GPU is not known: `Voodoo 2`"),
    "other GPU": (
        [head(RUN, **{**GPU, "device": "NVIDIA A100-SXM4-80GB"}), *steps_of()],
        "it trained on A100-80GB, and its `cluster.gpu` is H100-80GB",
    ),
    "no name of the machine": (without("machine"), "does not record its machine"),
    "empty machine": ([head(RUN, **{**GPU, "machine": {}}), *steps_of()], "does not name `cpu`"),
    "no CPU": ([head(RUN, **{**GPU, "machine": {**MACHINE, "cpu": [1]}}), *steps_of()], "does not name `cpu`"),
    "slow beyond reason": ([head(RUN, **GPU), *steps_of(seconds=4e3)], "no machine differs that much"),
    "endless steps": ([head(RUN, **GPU), *steps_of(seconds=1e90)], "no parts of a step"),
    "negative steps": ([head(RUN, **GPU), *steps_of(seconds=-4.0)], "no parts of a step"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_run_that_cannot_be_used_is_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    lines, reason = UNUSABLE[name]
    assert reason in refuse(write(tmp_path, lines))


def test_a_failed_run_a_torn_one_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    assert "it failed" in refuse(write(tmp_path / "failed", states=("completed", "failed")))
    torn = write(tmp_path / "torn", files={"spec.resolved.json": '{"spec": '})
    assert "`spec.resolved.json` is missing or cannot be read" in refuse(torn)
    assert "`spec.resolved.json` is missing or cannot be read" in refuse(tmp_path)


def test_a_run_on_the_cpu_is_refused(tmp_path: Path) -> None:
    run = tiny()
    lines = [head(run, device="cpu", machine=MACHINE), *(step(number) for number in range(1, 12))]
    assert "it ran on the CPU" in refuse(write_run(tmp_path / "run", run, lines))


def test_values_that_nobody_would_write_give_a_sentence_or_bounded_text(tmp_path: Path) -> None:
    machine = {**MACHINE, "cpu": "x" * 10**6, "host_memory_bytes": 1e99}
    fingerprint, _ = measure_run(write(tmp_path / "long", [head(RUN, **{**GPU, "machine": machine}), *steps_of()]))
    assert len(fingerprint.cpu) == 200
    odd = [{**line, "steps": "many", "memory_gpu_peak_bytes": ["a", None, -1]} for line in steps_of()]
    _, measured = measure_run(write(tmp_path / "odd", [head(RUN, **GPU), *odd]))
    assert measured.allocated is None
    json.loads(measured.model_dump_json())
