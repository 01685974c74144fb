# SPDX-License-Identifier: Apache-2.0
"""Each cause is named by the numbers that speak for it, and by no others. Made-up metrics; needs nothing; seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.plan.planner import make_plan
from harness.slowness.plan_prediction import predict_plan
from harness.slowness.run_measurements import RunMeasurements
from harness.slowness.slowness_report import SlowdownReport, SlownessReport, diagnose_measurements
from tests.support.sample_run import on_gpus

HEALTHY = {"data": 0.01, "forward": 0.31, "backward": 0.6, "optimizer": 0.06, "communication": 0.05, "io": 0.0}
ON_DEVICE = {"zero": {"stage": 3, "offload_optimizer": None}, "train": {"per_device_train_batch_size": 4}}
NVME = {"device": "nvme", "nvme_path": "/local_nvme"}


def diagnose_changes(
    changes: dict[str, Any], shares: dict[str, float] | None = None, **measured: float
) -> SlownessReport:
    """The diagnosis of a run with these changes of the spec, and medians; the plan is the real one."""
    plan = make_plan(on_gpus(changes))
    assert plan.time is not None
    seconds = {f"seconds_{name}": 4.0 * share for name, share in (HEALTHY | (shares or {})).items()}
    healthy = {"seconds": 4.0, "mfu": 0.38, "hfu": 0.38, "step_tokens": 1000.0, "step_positions": 1000.0}
    case = RunMeasurements({**healthy, **seconds, **measured}, {"world": 8, "offload_to_host_bytes": 4e9}, plan)
    return diagnose_measurements(case, lambda plan, setting: predict_plan(plan, setting.sets, Path(), None))


def only(diagnosis: SlownessReport, name: str) -> SlowdownReport:
    assert [report.slowdown.name for report in diagnosis.slowdowns] == [name]
    return diagnosis.slowdowns[0]


def best_gain(report: SlowdownReport) -> float:
    prediction = report.settings[0][1]
    assert prediction is not None
    assert prediction.gain is not None
    return prediction.gain


def test_a_healthy_run_has_no_cause() -> None:
    assert diagnose_changes(ON_DEVICE).slowdowns == ()


def test_data() -> None:
    report = only(diagnose_changes(ON_DEVICE, {"data": 0.35, "forward": 0.2, "backward": 0.35}), "data")
    assert report.slowdown.share == pytest.approx(0.35)
    assert "1.4 s of a step of 4.0 s (35%)" in report.slowdown.evidence[0]
    assert report.settings == ()  # the plan knows nothing of data


def test_communication_and_what_a_larger_micro_batch_gives_by_the_plan() -> None:
    slow_links = {
        "cluster": {"link_bandwidth": "4GB/s"},
        "train": {"per_device_train_batch_size": 1},
        "zero": ON_DEVICE["zero"],
    }
    report = only(diagnose_changes(slow_links, {"communication": 0.5}), "communication")
    assert report.slowdown.share == pytest.approx(0.5)
    setting, prediction = report.settings[0]
    assert prediction is not None
    assert prediction.after is not None
    again = make_plan(prediction.after.run)  # the same as planning that spec by itself
    assert again.time is not None
    assert prediction.after.time is not None
    assert again.time.seconds == prediction.after.time.seconds
    assert best_gain(report) > 0.2
    assert prediction.after.run.batch.global_batch == 64
    assert setting.sets


def test_communication_of_one_rank_is_none() -> None:
    diagnosis = diagnose_changes(ON_DEVICE, {"communication": 0.5})
    one = replace(diagnosis.measurements, run_header={"world": 1})
    assert (
        diagnose_measurements(one, lambda plan, setting: predict_plan(plan, setting.sets, Path(), None)).slowdowns == ()
    )


def test_the_cpu_optimizer() -> None:
    report = only(diagnose_changes({}, {"optimizer": 0.4, "forward": 0.2, "backward": 0.35}), "cpu-optimizer")
    settings = {next(iter(setting.sets)): prediction for setting, prediction in report.settings}
    assert "zero.offload_optimizer.ratio" in settings
    assert best_gain(report) > 0.1
    gains = [p.gain for _, p in report.settings if p is not None and p.gain is not None]
    assert gains == sorted(gains, reverse=True)


def test_nothing_that_does_not_fit_is_proposed() -> None:
    small = {"cluster": {"gpu": "RTX4090-24GB", "gpus_per_node": 8}, "train": {"gradient_checkpointing": True}}
    report = only(diagnose_changes(small, {"optimizer": 0.4, "forward": 0.15, "backward": 0.2}), "cpu-optimizer")
    proposed = [setting.sets for setting, _ in report.settings]
    assert not any("zero.offload_optimizer" in sets for sets in proposed)
    assert all(p is None or p.after is None or p.after.fit.fits is not False for _, p in report.settings)


def test_pcie_is_the_plans_word() -> None:
    slow = {"zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}
    report = only(diagnose_changes(slow | {"cluster": {"pcie_bandwidth": "2GB/s"}}), "pcie")
    assert report.slowdown.is_planned
    assert "H100-80GB has" in report.slowdown.evidence[1]
    assert best_gain(report) > 0.2


@pytest.mark.parametrize("offload_param", [None, {"device": "cpu"}])
def test_only_an_offload_that_the_run_has_is_removed(offload_param: dict[str, str] | None) -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": offload_param}
    diagnosis = diagnose_changes({"zero": zero, "cluster": {"pcie_bandwidth": "2GB/s"}}, {"communication": 0.5})
    assert {"communication", "pcie"} <= {report.slowdown.name for report in diagnosis.slowdowns}
    removed = {key for slow in diagnosis.slowdowns for s, _ in slow.settings for key, v in s.sets.items() if v is None}
    assert ("zero.offload_param" in removed) == (offload_param is not None)


@pytest.mark.parametrize("offload_param", [None, NVME])
def test_nvme(offload_param: dict[str, Any] | None) -> None:
    zero = {"stage": 3, "offload_optimizer": NVME, "offload_param": offload_param}
    report = only(
        diagnose_changes(
            {"zero": zero, "train": {"per_device_train_batch_size": 8}}, {"io": 0.5}, nvme_read_bytes=12e9
        ),
        "nvme",
    )
    assert "11.18 GiB a step" in report.slowdown.evidence[1]
    assert any(s.sets.get("zero.offload_optimizer.device") == "cpu" for s, _ in report.settings)
    assert best_gain(report) > 0.1


def test_the_bubble() -> None:
    pipeline = {"parallel": {"pipeline_parallel_size": 4}, "zero": {"stage": 1, "offload_optimizer": None}}
    batch = {"per_device_train_batch_size": 8, "global_batch_size": 64}
    report = only(diagnose_changes(pipeline | {"train": batch}), "bubble")
    assert report.slowdown.share == pytest.approx(3 / 7)
    assert "(p - 1) / (m + p - 1) = 43%" in report.slowdown.evidence[0]
    assert best_gain(report) > 0.1


def test_recomputation() -> None:
    report = only(
        diagnose_changes({"train": {"gradient_checkpointing": True, "per_device_train_batch_size": 2}}, hfu=0.5),
        "recompute",
    )
    assert 0.1 < report.slowdown.share < 0.34
    assert "MFU is 38.0%, HFU, which counts them, 50.0%" in report.slowdown.evidence
    assert report.settings[0][0].sets["train.gradient_checkpointing"] is False
    assert best_gain(report) > 0.05


def test_a_small_micro_batch() -> None:
    changes = ON_DEVICE | {"data": {"max_length": 512}, "train": {"per_device_train_batch_size": 1}}
    report = only(diagnose_changes(changes, mfu=0.08, hfu=0.08), "small-micro-batch")
    assert "a micro-batch has 512 tokens, a step accumulates 8 of them" in report.slowdown.evidence
    assert report.settings[0][0].sets["train.per_device_train_batch_size"] in (2, 4)


def test_padding() -> None:
    report = only(diagnose_changes(ON_DEVICE, step_tokens=600.0), "padding")
    assert report.slowdown.share == pytest.approx(0.4 * 0.91)
    assert [setting.sets for setting, _ in report.settings] == [
        {"data.packing": True, "model.attn_implementation": "auto"}
    ]


def test_several_causes_come_the_costliest_first() -> None:
    diagnosis = diagnose_changes({}, {"optimizer": 0.3, "data": 0.4, "forward": 0.1, "backward": 0.15})
    assert [report.slowdown.name for report in diagnosis.slowdowns] == ["data", "cpu-optimizer"]


HOT_GPU = {
    "type": "gpu",
    "step": 40,
    "rank": 3,
    "host": "worker-1",
    "bus_id": "0000:9b:00.0",
    "state": "problem",
    "problems": ["thermal"],
    "evidence": "is slowed down by heat: 93 C, SM clock 990 of 1980 MHz",
    "sm_clock": 990,
    "sm_clock_max": 1980,
}
NARROW_GPU = HOT_GPU | {"problems": ["pcie_width"], "pcie_width": 4, "pcie_width_max": 16, "evidence": "has 4 lanes"}


def diagnose_gpus(changes: dict[str, Any], *lines: dict[str, Any]) -> SlownessReport:
    case = replace(diagnose_changes(changes).measurements, gpu_lines=lines)
    return diagnose_measurements(case, lambda plan, setting: predict_plan(plan, setting.sets, Path(), None))


def test_a_throttled_gpu_is_named_with_its_host() -> None:
    report = only(diagnose_gpus(ON_DEVICE, HOT_GPU), "gpu")
    assert report.slowdown.share == pytest.approx(0.5)
    assert report.slowdown.evidence == (
        "rank 3 on worker-1, GPU 0000:9b:00.0, is slowed down by heat: 93 C, SM clock 990 of 1980 MHz (step 40): "
        "up to 50%",
    )


def test_lanes_cost_what_the_plan_copies_and_errors_of_memory_cost_nothing() -> None:
    assert (
        diagnose_gpus(ON_DEVICE, NARROW_GPU, HOT_GPU | {"problems": ["ecc"]}, HOT_GPU | {"state": "gone"}).slowdowns
        == ()
    )
    names = [report.slowdown.name for report in diagnose_gpus({}, NARROW_GPU).slowdowns]
    assert "gpu" in names
