# SPDX-License-Identifier: Apache-2.0
"""Buffers of what is swapped to NVMe: how many sub-groups are in flight, and what is chosen where nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.facts.deepspeed_version import resolve_target
from harness.gates import check_run
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "vocab_size": 32000,
}
SMALL, HALVES, WHOLE = 10_000_000, 120_000_000, 1_000_000_000
"""Sub-groups of the model above on 2 ranks, 167 million elements each: many, two, one."""


def said(write: Callable[[str, str], str], zero: dict[str, Any], **more: Any) -> dict[str, str]:
    """Gate -> message, of the OF family."""
    body = {
        "model": {"config": LLAMA, "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs"},
        "train": {"max_steps": 1, "per_device_train_batch_size": 1},
        "zero": {"stage": 3, **zero},
        "launch": {"num_gpus": 2},
        **more,
    }
    loaded = load_spec(write("run.yaml", json.dumps(body)), (), resolve_target())
    assert loaded.spec is not None, loaded.findings
    assert loaded.source is not None
    report = check_run(resolve_run(loaded.spec), loaded.source, accelerator="cuda")
    assert not [f for f in report.findings if f.gate == "GT001"]
    return {f.gate: f.message for f in report.findings if f.gate.startswith("OF")}


@pytest.mark.parametrize(
    ("flags", "sub_group", "needed"),
    [
        (("pipeline_read", "pipeline_write"), SMALL, 12),
        (("pipeline_read", "pipeline_write"), HALVES, 8),
        (("pipeline_read", "pipeline_write"), WHOLE, 4),
        (("pipeline_read",), SMALL, 8),
        (("pipeline_write",), SMALL, 8),
        ((), SMALL, 4),
    ],
    ids=str,
)
def test_sub_groups_in_flight(
    write: Callable[[str, str], str], flags: tuple[str, ...], sub_group: int, needed: int
) -> None:
    """As many as run on DeepSpeed, and not one fewer."""

    def found(count: int) -> dict[str, str]:
        swapped = {"device": "nvme", "nvme_path": "/nvme", "buffer_count": count, **dict.fromkeys(flags, True)}
        return said(write, {"sub_group_size": sub_group, "offload_optimizer": swapped})

    assert "OF011" not in found(needed)
    if needed > 4:
        assert f"need {needed} buffers: there are {needed - 1}" in found(needed - 1)["OF011"]


def test_what_is_chosen_is_enough_and_without_choices_the_default_is_told(write: Callable[[str, str], str]) -> None:
    on_nvme = {"device": "nvme", "nvme_path": "/nvme"}
    zero = {"offload_optimizer": on_nvme, "offload_param": {**on_nvme, "max_in_cpu": 0}}
    assert {"OF008", "OF009", "OF010", "OF011"}.isdisjoint(said(write, zero))
    assert "OF009" in said(write, zero, tuned_defaults=False)
    wide = {**LLAMA, "vocab_size": 256_000}
    assert "OF008" not in said(write, zero, model={"config": wide, "tokenizer": "bytes"})
    assert "OF008" in said(write, zero, model={"config": wide, "tokenizer": "bytes"}, tuned_defaults=False)


def test_fast_init_keeps_the_buffers_that_it_reads_through(write: Callable[[str, str], str]) -> None:
    """Whole sub-groups go through them: what is chosen for shards would be too small."""
    on_nvme = {"device": "nvme", "nvme_path": "/nvme"}
    zero = {"offload_param": {**on_nvme, "max_in_cpu": 0}, "offload_optimizer": {**on_nvme, "fast_init": True}}
    assert "OF012" not in said(write, {**zero, "sub_group_size": 90_000_000})
    assert "OF012" in said(write, {**zero, "sub_group_size": 110_000_000})


@pytest.mark.parametrize(
    ("keys", "optimizer", "width"),
    [
        (("pipeline_read",), "AdamW", 8),
        (("pipeline_write",), "AdamW", 8),
        (("pipeline_read", "pipeline_write"), "Adagrad", 4),
        ((), "AdamW", None),
    ],
)
def test_a_json_that_another_program_trains_with_is_told_what_stays_in_memory(
    write: Callable[[str, str], str], keys: tuple[str, ...], optimizer: str, width: int | None
) -> None:
    swapped = {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 12, **dict.fromkeys(keys, True)}
    body = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": optimizer, "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 3, "offload_optimizer": swapped},
    }
    loaded = load_spec(write("ds.json", json.dumps(body)), (), resolve_target())
    assert loaded.spec is not None
    assert loaded.source is not None
    report = check_run(resolve_run(loaded.spec, kind=loaded.kind), loaded.source)
    found = [f.message for f in report.findings if f.gate == "OF032"]
    assert found == ([] if width is None else [m for m in found if f"{width} bytes a parameter" in m])
    assert bool(found) == bool(keys)
    spec = {"offload_optimizer": swapped}
    assert "OF032" not in said(write, spec)  # `harness launch` releases them


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"zero": {"stage": 2}}, "stage 2"),
        ({"zero": {"offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}}, "not in host memory"),
        ({"optimizer": {"type": "adagrad"}}, "`Adagrad`"),
        ({"precision": {"bf16": False}}, "fp32"),
        ({"plugins": {"file": "mine.py"}}, "plug-in"),
        ({"deepspeed": {"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}}}, "ZenFlow"),
        ({"deepspeed": {"zero_optimization": {"offload_optimizer": {"super_offload": True}}}}, "SuperOffload"),
        ({"deepspeed": {"compile": {"deepcompile": True}}}, "DeepCompile"),
        ({"launch": {"patches": {"one-pass-adam": "off"}, "num_gpus": 2}}, "switched off"),
        ({"precision": {"fp16": True}, "deepspeed": {"data_types": {"grad_accum_dtype": "fp32"}}}, "scaled in place"),
        ({"precision": {"fp16": True}, "deepspeed": {"data_types": {"grad_accum_dtype": "float"}}}, "scaled in place"),
        ({"zero": {"offload_optimizer": {"ratio": 0.0}}}, "the device steps all"),
        ({"zero": {"offload_param": {"device": "nvme", "nvme_path": "/nvme"}}}, "16-bit weights are on NVMe"),
        ({"deepspeed": {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}}, "`torch_adam`"),
        ({"deepspeed": {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}}, "in bf16"),
        ({"precision": {"fp16": True}}, None),
        ({"model": {"config": LLAMA | {"num_hidden_layers": 56}}}, "482,277,888 elements, 14 bytes each, do not fit"),
        ({"model": {"config": LLAMA | {"num_hidden_layers": 40}}}, None),  # the last sub-group has 78 M
        ({"model": {"config": LLAMA | {"num_hidden_layers": 56}, "lora": {"r": 8}}}, None),
    ],
)
def test_a_step_beside_the_backward_pass_is_refused_where_it_cannot_be_exact(
    changed: dict[str, Any], reason: str | None, write: Callable[[str, str], str]
) -> None:
    offload = {"device": "cpu", **changed.get("zero", {}).get("offload_optimizer", {}), "overlap_step_gib": 4}
    zero = {"stage": 3, **changed.get("zero", {}), "offload_optimizer": offload}
    more = {"precision": {"bf16": True}, **changed, "zero": zero}
    found = said(write, more.pop("zero"), **more)
    assert ("OF036" in found) == (reason is not None)
    assert reason is None or reason in found["OF036"]
