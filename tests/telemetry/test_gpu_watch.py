# SPDX-License-Identifier: Apache-2.0
"""Ranks read GPUs of a made-up libnvidia-ml by the real pynvml, and rank 0 reports them. Needs a C compiler; seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.hostinfo.gpu_health import GpuHealth
from harness.runtime.telemetry import gpu_watch
from harness.runtime.telemetry.gpu_reports import GpuReports
from harness.runtime.telemetry.gpu_watch import GpuReading, GpuWatch, OwnGpu, pack_reading, packed_use, unpack_reading
from harness.runtime.telemetry.stragglers import RankSample, StragglerDetector
from tests.support.fake_nvml import build_fake_nvml, fake_nvml_variables
from tests.support.metrics_lines import validate_line

HOSTS = ("worker-0", "worker-0")
GPUS = (OwnGpu("GPU-0", "0000:1b:00.0"), OwnGpu("GPU-1", "0000:1c:00.0"))
BUSY = GpuHealth(
    reasons=0, sm_clock=1980, sm_clock_max=1980, temperature=62, utilization=98, pcie_width=16, pcie_width_max=16
)
HOT = replace(BUSY, reasons=0x68, sm_clock=750, temperature=93)


def watch_states(states: list[str]) -> None:
    """Two ranks read their GPUs once in each state. Prints the lines and the warnings."""
    gpu_watch.MIN_SECONDS_BETWEEN_READS = 0.0
    watches, reports = [GpuWatch(gpu) for gpu in GPUS], GpuReports(HOSTS, GPUS)
    lines: list[list[dict[str, Any]]] = []
    warnings: list[str] = []
    for state in states:
        os.environ["FAKE_NVML"] = state
        for watch in watches:
            watch.poll()
            watch.wait(20)
        lines.append(reports.update([pack_reading(watch.reading) for watch in watches], warnings.append))
    words, use = [watch.words for watch in watches], packed_use([pack_reading(watch.reading) for watch in watches])
    print(json.dumps({"use": use, "lines": lines, "warnings": warnings, "words": words}))


def run_watch(folder: Path, states: list[str]) -> dict[str, Any]:
    code = f"from tests.telemetry.test_gpu_watch import watch_states; watch_states({states!r})"
    env = {**os.environ, **fake_nvml_variables(folder, states[0])}
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True, env=env)
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake_nvml(tmp_path_factory.mktemp("driver"))


def test_use_and_power_of_each_rank(driver: Path) -> None:
    assert run_watch(driver, ["busy power-cap"])["use"] == {"gpu_utilization": [98, 98], "gpu_power": [640, 350]}
    assert packed_use([pack_reading(None), pack_reading(GpuReading(BUSY))]) == {"gpu_utilization": [None, 98]}
    assert packed_use([pack_reading(None)]) == {}


def test_a_line_begins_and_ends_each_problem(driver: Path) -> None:
    states = ["busy busy", "busy thermal", "busy busy", "busy thermal", *["busy busy"] * 3, "narrow ecc", "busy busy"]
    seen = run_watch(driver, states)
    assert [[(line["rank"], line["problems"]) for line in lines] for lines in seen["lines"]] == [
        [],
        [(1, ["thermal"])],
        [],  # it comes and goes
        [],
        [],
        [],
        [(1, [])],
        [(0, ["pcie_width"]), (1, ["ecc"])],
        [(1, ["ecc"])],  # the count has changed: the driver was loaded again
    ]
    hot = seen["lines"][1][0]
    assert (hot["host"], hot["bus_id"], hot["uuid"], hot["state"]) == ("worker-0", "0000:1c:00.0", "GPU-1", "problem")
    assert hot["evidence"] == "is slowed down by heat: 93 C, SM clock 750 of 1980 MHz"
    assert seen["warnings"][0] == f"warning: GPU 0000:1c:00.0 of rank 1 on worker-0 {hot['evidence']}"
    for lines in seen["lines"]:
        for line in lines:
            known = {key: value for key, value in line.items() if value is not None}
            assert validate_line({"type": "gpu", "time": 1.0, "step": 1, **known}) == []
    assert seen["words"] == ["", ""]


def test_a_reading_holds_up_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    asked: list[str] = []

    def ask(watch: GpuWatch) -> None:
        asked.append(watch.gpu.uuid)
        answers.wait(60)
        raise OSError("no driver")

    monkeypatch.setattr(GpuWatch, "_open", ask)
    monkeypatch.setattr(gpu_watch, "MIN_SECONDS_BETWEEN_READS", 0.0)
    watch = GpuWatch(GPUS[0])
    watch.poll()
    watch.poll()
    assert watch.words == ""
    answers.set()
    watch.wait(60)
    assert (asked, watch.words) == (["GPU-0"], "OSError: no driver")


def test_an_xid_is_reported(driver: Path) -> None:
    lines = run_watch(driver, ["busy xid", "busy busy"])["lines"]
    assert [(line["xid"], line["evidence"], line["state"]) for line in lines[0]] == [(94, "reported Xid 94", "problem")]
    assert lines[1] == []


def test_links_that_go_down_are_reported(driver: Path) -> None:
    lines = run_watch(driver, ["busy busy", "busy nvlink"])["lines"]
    assert [line["evidence"] for line in lines[1]] == ["has 17 NVLinks up, others of its model 18"]


def test_an_older_driver_is_read_and_none_switches_it_off(tmp_path: Path) -> None:
    old = build_fake_nvml(tmp_path / "old", old_driver=True)
    assert [line["problems"] for line in run_watch(old, ["busy thermal"])["lines"][0]] == [["thermal"]]
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    seen = run_watch(tmp_path, ["thermal thermal"])
    assert seen["lines"] == [[]]
    assert all("NVML Shared Library Not Found" in words for words in seen["words"])


def test_a_reading_survives_the_gather() -> None:
    reading = GpuReading(replace(HOT, power=512.5, ecc_uncorrected=3), 18, 79)
    assert unpack_reading(pack_reading(reading)) == reading
    assert unpack_reading(pack_reading(None)) is None
    assert len(pack_reading(None)) == len(pack_reading(reading)) == gpu_watch.NUM_PACKED


def name_straggler(health: GpuHealth, kind: str = "compute") -> tuple[str, str]:
    """The cause and the evidence of rank 1, half as slow again, whose GPU is in this state."""
    reports = GpuReports(HOSTS, GPUS)
    reports.update([pack_reading(GpuReading(BUSY)), pack_reading(GpuReading(health))], str)
    detector = StragglerDetector(HOSTS, [0, 0], explain_gpu=reports.explain_slow_rank)
    slow = RankSample(0.02, 0.6) if kind == "compute" else RankSample(0.22, 0.4)
    changes = [change for _ in range(4) for change in detector.update(5, [RankSample(0.02, 0.4), slow])]
    return changes[0].straggler.cause, changes[0].straggler.evidence


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (HOT, "is slowed down by heat: 93 C, SM clock 750 of 1980 MHz"),
        (replace(BUSY, pcie_width=4), "has 4 lanes of PCIe, 16 are possible"),
        (replace(BUSY, ecc_uncorrected=1), "has 1 uncorrected ECC error since its driver was loaded"),
        (
            replace(BUSY, reasons=4, sm_clock=1200),
            "runs at 1200 MHz at its power limit, those of its peers at 1980 MHz",
        ),
        (replace(BUSY, sm_clock=1200), "runs at 1200 MHz, those of its peers at 1980 MHz"),
    ],
)
def test_a_slow_rank_with_an_unhealthy_gpu_has_it_as_the_cause(health: GpuHealth, reason: str) -> None:
    expected = f"computes 600 ms against 400 ms a step: GPU 0000:1c:00.0 {reason}"
    assert name_straggler(health) == ("gpu", expected)


def test_a_healthy_gpu_and_a_wait_for_data_are_no_fault_of_the_gpu() -> None:
    assert name_straggler(BUSY)[0] == "compute"
    assert name_straggler(replace(BUSY, reasons=4))[0] == "compute"
    assert name_straggler(HOT, "data")[0] == "data"


def test_many_sick_gpus_are_written_a_part_at_a_time() -> None:
    reports, logged = GpuReports(["a"] * 200, [GPUS[0]] * 200), list[str]()
    rows = [pack_reading(GpuReading(HOT))] * 200
    counts = [len(reports.update(rows, logged.append)) for _ in range(5)]
    assert counts == [64, 64, 64, 8, 0]
    assert len(logged) == 4 + 4 + 4 + 4
