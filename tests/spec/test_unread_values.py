# SPDX-License-Identifier: Apache-2.0
"""Wrong values in blocks for NVMe, where nothing is on NVMe: warnings, and the rest of the file is checked."""

from __future__ import annotations

import json

import pytest

from harness.facts.deepspeed_version import resolve_target
from harness.spec.spec_loader import load_spec

AIO = {"aio": {"block_size": "1048576"}}


def offload(device: str, **keys: object) -> dict[str, object]:
    return {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": device, **keys}}}


@pytest.mark.parametrize(
    ("config", "gate", "severity"),
    [
        (AIO, "SP006", "warning"),
        ({**AIO, **offload("cpu")}, "SP006", "warning"),
        ({**AIO, **offload("nvme", nvme_path="/nvme")}, "SP006", "error"),
        ({**AIO, "checkpoint": {"writer": {"type": "fast"}}}, "SP006", "error"),
        (offload("cpu", buffer_count=0), "SP007", "warning"),
        (offload("none", buffer_count=0), "SP007", "warning"),
        (offload("nvme", nvme_path="/nvme", buffer_count=0), "SP007", "error"),
        (offload("cpu", buffer_count=-1), "SP007", "error"),
        (offload("cpu", buffer_count="many"), "SP006", "error"),
        (offload("cpu", pin_memory="sometimes"), "SP006", "error"),
    ],
)
def test_a_value_that_nothing_reads_is_a_warning(config, gate, severity, write):
    """DeepSpeed 0.19.8 runs with the first (run with 2 ranks) and refuses `buffer_count: -1` and texts."""
    file = write("ds.json", json.dumps({"train_micro_batch_size_per_gpu": 1, **config}))
    loaded = load_spec(file, (), resolve_target("0.19.8"), consumer="deepspeed")
    assert [(f.gate, f.severity) for f in loaded.findings] == [(gate, severity)]
    assert severity == "error" or loaded.spec is not None


OLD_NAME = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": True}}


@pytest.mark.parametrize(
    ("config", "consumer", "severity"),
    [
        (OLD_NAME, "hf", "error"),
        (OLD_NAME, "accelerate", "error"),
        (OLD_NAME, "deepspeed", "warning"),
        ({**OLD_NAME, "zero_force_ds_cpu_optimizer": False}, "hf", "warning"),
        ({**OLD_NAME, "optimizer": {"type": "AdamW"}}, "hf", "warning"),
    ],
)
def test_an_offload_by_its_old_name_is_an_error_where_accelerate_makes_the_optimizer(config, consumer, severity, write):
    """Run with transformers 5.23 on 0.19.8: ZeRORuntimeException, and none with the two keys."""
    loaded = load_spec(write("a.json", json.dumps(config)), consumer=consumer)
    assert [finding.severity for finding in loaded.findings if finding.gate == "SP014"] == [severity]


def test_steps_per_print_is_checked_where_accelerate_does_not_overwrite_it(write):
    file = write("a.json", json.dumps({"train_batch_size": 8, "steps_per_print": "inf"}))
    for consumer, severity in (("hf", "warning"), ("accelerate", "warning"), ("deepspeed", "error")):
        findings = load_spec(file, consumer=consumer).findings
        assert [finding.severity for finding in findings if finding.gate == "SP006"] == [severity]
