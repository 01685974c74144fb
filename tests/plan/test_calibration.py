# SPDX-License-Identifier: Apache-2.0
"""Constants from one's own runs: what is fitted, kept and applied, and to which machine. Needs nothing; a second."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.locks import Lock
from harness.plan.memory_peaks import MemoryPeak, scale_peaks
from harness.plan.time import calibration_file
from harness.plan.time.calibration import CalibratedRun, Calibration, Observation, RateFactor, combine_runs, fit_rates
from harness.plan.time.calibration_file import Calibrations, add_runs, calibration_path, load_calibrations
from harness.plan.time.fitted_rates import FITTED
from harness.plan.time.machine_fingerprint import Fingerprint, Machine, PlanTarget, major_version, rates_digest

HERE = Machine("Model 1", 2048, "2.8.0", "0.18.0", ("NVIDIA H100 80GB HBM3",))
PRINT = Fingerprint(
    cpu="Model 1", host_memory_gib=2048, gpu="NVIDIA H100 80GB HBM3", gpu_kind="H100-80GB", gpus_per_host=8,
    several_hosts=False, torch="2.8.0", deepspeed="0.18.0", harness=major_version(), rates=rates_digest(), cluster={},
)  # fmt: skip
TARGET = PlanTarget("H100-80GB", 8, several_hosts=False)
COMPUTE = Observation(what="forward and backward pass", measured=3.0, planned={"compute": 2.0})
UPDATE = Observation(what="update", measured=1.0, planned={"cpu_optimizer": 2.0})


def run_of(*observations: Observation, name: str = "one", started: float = 1.0, **more: Any) -> CalibratedRun:
    return CalibratedRun(name=name, started=started, steps=20, observations=observations or (COMPUTE, UPDATE), **more)


def one_of(fingerprint: Fingerprint = PRINT, **more: Any) -> Calibration:
    return combine_runs(fingerprint, [run_of(**more)], "2026-11-25")


def test_a_rate_that_a_run_tells_is_its_factor_and_the_others_stay() -> None:
    rates = fit_rates([COMPUTE, UPDATE])
    assert rates["compute"].factor == pytest.approx(1.5, rel=0.01)
    assert rates["cpu_optimizer"].factor == pytest.approx(0.5, rel=0.01)
    assert rates["compute"].spread == pytest.approx(1.1), "one run does not say how far runs scatter"
    assert (rates["nvme"].factor, rates["nvme"].spread) == (1.0, pytest.approx(FITTED.spread.nvme))


def test_a_sum_of_two_rates_moves_the_less_known_one_more() -> None:
    rates = fit_rates([Observation(what="update", measured=3.0, planned={"cpu_optimizer": 1.0, "compute": 1.0})])
    assert rates["cpu_optimizer"].factor + rates["compute"].factor == pytest.approx(3.0, rel=0.01)
    assert FITTED.spread.cpu_optimizer > FITTED.spread.compute
    assert rates["cpu_optimizer"].factor > rates["compute"].factor > 1


def test_runs_that_scatter_widen_the_spread() -> None:
    near, far = (
        fit_rates([COMPUTE, COMPUTE.model_copy(update={"measured": measured})], num_runs=2) for measured in (3.1, 6.0)
    )
    assert near["compute"].spread == pytest.approx(1.05)
    assert far["compute"].spread > 1.3
    assert far["compute"].factor == pytest.approx((3.0 * 6.0) ** 0.5 / 2, rel=0.02)


def test_memory_is_scaled_with_what_the_allocator_reserves() -> None:
    planned = (
        MemoryPeak("allocated", 1000, (800, 1300)),
        MemoryPeak("reserved", 1200, (900, 1800)),
        MemoryPeak("nvidia_smi", 1700, (1400, 2300)),
    )
    by = RateFactor(factor=0.9, spread=1.1), RateFactor(factor=1.117, spread=1.1)
    allocated, reserved, smi = scale_peaks(planned, *by)
    assert allocated == MemoryPeak("allocated", 900, (818, 990))
    assert reserved.bytes == 1005, "rounded, not cut"
    assert smi.bytes == 1700 - 1200 + 1005
    assert scale_peaks(planned, None, None) == planned


DIFFERENCES: dict[str, tuple[Machine, PlanTarget, str]] = {
    "another GPU in the plan": (HERE, replace(TARGET, gpu_kind="A100-80GB"), ""),
    "fewer GPUs": (HERE, replace(TARGET, gpus_per_host=4), "it is of 8 GPUs a host, the plan is for 4"),
    "several hosts": (HERE, replace(TARGET, several_hosts=True), "it is of one host, the plan is for several hosts"),
    "a rate of the spec": (
        HERE,
        replace(TARGET, cluster={"pcie_bandwidth": 5e10}),
        "`cluster.pcie_bandwidth` is 5e+10 in the plan and not given in the calibrated run",
    ),
    "no such GPU here": (replace(HERE, gpus=()), TARGET, "this machine has no NVIDIA H100 80GB HBM3"),
    "another CPU": (replace(HERE, cpu="Model 2"), TARGET, "it is of a host with Model 1, this one has Model 2"),
    "less memory": (replace(HERE, host_memory_gib=1024), TARGET, "a host with 2048 GiB, this one has 1024"),
    "another torch": (replace(HERE, torch="2.9.0"), TARGET, "it is of torch 2.8.0, and 2.9.0 is installed"),
    "another DeepSpeed": (replace(HERE, deepspeed="0.19.0"), TARGET, "of DeepSpeed 0.18.0, and 0.19.0 is installed"),
    "no torch": (replace(HERE, torch=None), TARGET, "torch is not installed here"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_calibration_is_never_applied_to_another_machine(name: str) -> None:
    here, target, why = DIFFERENCES[name]
    found, note = Calibrations(Path("x"), (one_of(),), here=here).choose(target)
    assert found is None
    assert why in note


def test_it_is_applied_to_its_own_and_a_kernel_that_reports_a_little_less_memory() -> None:
    for gib in (2048, 2015):
        found, note = Calibrations(Path("x"), (one_of(),), here=replace(HERE, host_memory_gib=gib)).choose(TARGET)
        assert (found, note) == (one_of(), "")


def test_constants_and_releases_that_changed_void_it() -> None:
    for changes, why in (({"rates": "0"}, "constants have changed since"), ({"harness": "99"}, "version 99 of the")):
        old = one_of(PRINT.model_copy(update=changes))
        found, note = Calibrations(Path("x"), (old,), here=HERE).choose(TARGET)
        assert found is None
        assert why in note


def test_a_named_file_is_for_such_a_machine_elsewhere_but_for_no_other_versions() -> None:
    elsewhere = Machine("Laptop", 16, None, None)
    named = Calibrations(Path("x"), (one_of(),), explicit=True, here=elsewhere)
    assert named.choose(TARGET)[0] == one_of()
    assert named.choose(replace(TARGET, gpu_kind="A100-80GB"))[1] == "it is of H100-80GB, the plan is for A100-80GB"
    assert replace(named, here=replace(elsewhere, torch="2.9.0")).choose(TARGET)[0] is None


def test_runs_are_added_once_by_machine(tmp_path: Path) -> None:
    path = tmp_path / "new" / "calibration.json"
    add_runs(path, [(PRINT, run_of()), (PRINT, run_of(name="two"))], "2026-11-25")
    add_runs(path, [(PRINT, run_of(name="two"))], "2026-11-26")
    other = PRINT.model_copy(update={"gpu_kind": "H200"})
    (changed,) = add_runs(path, [(other, run_of())], "2026-11-27")
    assert changed.fingerprint == other
    first, second = load_calibrations(str(path)).calibrations
    assert ([run.name for run in first.runs], first.date) == (["one", "two"], "2026-11-26")
    assert second.fingerprint.gpu_kind == "H200"


def test_the_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calibration.json"
    add_runs(path, [(PRINT, run_of())], "2026-11-25")
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="cannot be written: no space left on device"):
        add_runs(path, [(PRINT, run_of(name="two"))], "2026-11-26")
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["calibration.json"]


def test_of_two_calibrations_at_once_both_runs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "calibration.json", calibration_file._read
    other = threading.Thread(target=add_runs, args=(path, [(PRINT, run_of(name="two"))], "2026-11-25"))

    def read_beside_another(file: Path) -> tuple[Calibration, ...]:
        monkeypatch.setattr(calibration_file, "_read", read)
        try:
            return read(file)
        finally:
            other.start()
            other.join(0.1)

    monkeypatch.setattr(calibration_file, "_read", read_beside_another)
    add_runs(path, [(PRINT, run_of())], "2026-11-25")
    other.join()
    (both,) = load_calibrations(str(path)).calibrations
    assert sorted(run.name for run in both.runs) == ["one", "two"]
    assert [each.name for each in tmp_path.iterdir()] == ["calibration.json"]


def test_a_file_that_another_process_keeps_is_refused_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration_file, "_WAIT_SECONDS", 0.0)
    lock = Lock.acquire(tmp_path / "calibration.json.lock", "a test")
    with pytest.raises(UserError, match=f"is being changed by process {os.getpid()}"):
        add_runs(tmp_path / "calibration.json", [(PRINT, run_of())], "2026-11-25")
    lock.release()


def torn(path: Path) -> None:
    path.write_text(path.read_text()[:100])


def edited(path: Path, **changes: Any) -> None:
    body = json.loads(path.read_text())
    body["calibrations"][0]["rates"]["compute"] |= changes
    path.write_text(json.dumps(body))


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


HOSTILE = {
    "torn": (torn, "it is not JSON"),
    "deep": (lambda path: path.write_text("[" * 10**5 + "]" * 10**5), "nested too deeply"),
    "a list": (lambda path: path.write_text("[]"), "it is no file of calibrations"),
    "later": (lambda path: path.write_text('{"format_version": 2}'), "of format version 2, this release reads 1"),
    "factor 0": (lambda path: edited(path, factor=0), "it is no file of calibrations"),
    "factor 1e9": (lambda path: edited(path, factor=1e9), "it is no file of calibrations"),
    "NaN": (lambda path: edited(path, factor=float("nan")), "it is no file of calibrations"),
    "a pipe": (as_pipe, "invalid argument|not a regular file"),
    "large": (lambda path: path.write_text(" " * (calibration_file._MAX_BYTES + 1)), "larger than"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_cannot_be_used_is_refused_where_it_is_named_and_left_out_with_a_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = calibration_path()
    add_runs(path, [(PRINT, run_of())], "2026-11-25")
    change, why = HOSTILE[name]
    change(path)
    with pytest.raises(UserError, match=why):
        load_calibrations(str(path))
    with pytest.raises(UserError, match=why):
        add_runs(path, [(PRINT, run_of())], "2026-11-25")
    own = load_calibrations()
    assert own.calibrations == ()
    assert own.finding is not None
    assert (own.finding.gate, own.finding.severity) == ("MM016", "warning")


def test_without_a_file_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = load_calibrations()
    assert (own.calibrations, own.finding, own.choose(TARGET)) == ((), None, (None, ""))
    with pytest.raises(UserError, match="does not exist"):
        load_calibrations(str(tmp_path / "none.json"))
