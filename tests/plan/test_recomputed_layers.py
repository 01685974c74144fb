# SPDX-License-Identifier: Apache-2.0
"""`train.gradient_checkpointing: auto`, and the words and shares of layers that recompute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.facts.devices import find_device
from harness.facts.model_lookup import find_model
from harness.plan.memory.memory_estimate import estimate_memory
from harness.plan.search.spec_changes import minimal_changes
from harness.plan.settings.checkpointed_layers import (
    checkpointing_value,
    describe_checkpointing,
    list_checkpointing,
    most_inputs,
    recompute_shares,
    with_checkpointing,
)
from harness.plan.settings.plan_settings import settings_of
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.run_spec import RunSpec

GPU = "H100-80GB"


def run_of(value: Any, length: int = 16384, **sections: Any) -> ResolvedRun:
    spec = {
        "model": {"name_or_path": "llama-3.1-8b"},
        "data": {"train": "x", "max_length": length},
        "train": {"per_device_train_batch_size": 1, "gradient_checkpointing": value},
        "precision": {"bf16": True},
        "zero": {"stage": 3},
        "cluster": {"num_nodes": 1, "gpus_per_node": 8, "gpu": GPU},
    }
    for name, section in sections.items():
        spec[name] = {**spec.get(name, {}), **section}
    return with_tuned_defaults(resolve_run(RunSpec.model_validate(spec, strict=False)))


def chosen(run: ResolvedRun) -> Any:
    return next(each for each in run.tuned_defaults or () if each.key == "train.gradient_checkpointing")


@pytest.mark.parametrize(
    ("length", "value"),
    [(4096, False), (16384, {"keep": "attention"}), (8192, {"recompute_every": 8, "keep": "attention"})],
)
def test_auto_is_the_fewest_operations_that_fit(length: int, value: Any) -> None:
    run = run_of("auto", length)
    assert chosen(run).value == value
    settings, device = settings_of(run), find_device(GPU)
    model = find_model("llama-3.1-8b", None, None).facts
    assert settings is not None
    assert model is not None
    assert device is not None
    assert estimate_memory(model, settings, device).gpu_peak <= 0.95 * device.memory
    if value:
        plain = with_checkpointing(settings, checkpointing=False)
        assert estimate_memory(model, plain, device).gpu_peak > 0.95 * device.memory


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"cluster": {"gpu": None}}, "GPU"),
        ({"model": {"name_or_path": "no-such-model"}}, "model"),
        ({"data": {"max_length": 1 << 20}}, "with fewer the run does not fit"),
    ],
)
def test_auto_is_every_layer_where_nothing_better_is_known(sections: dict[str, Any], reason: str) -> None:
    run = run_of("auto", **sections)
    assert chosen(run).value is True
    assert reason in chosen(run).reason
    assert run.checkpointing is not None
    assert run.checkpointing.recompute_every == 1


def test_auto_keeps_no_attention_where_a_gate_refuses_it() -> None:
    run = run_of("auto", 8192, train={"offload_activations": True})
    assert list(chosen(run).value) == ["recompute_every"]


def test_nothing_is_chosen_unasked() -> None:
    for value in (False, True, {"recompute_every": 2}):
        run = run_of(value)
        assert "train.gradient_checkpointing" not in [each.key for each in run.tuned_defaults or ()]


def test_a_resolved_run_keeps_the_choice() -> None:
    run = run_of("auto")
    again = ResolvedRun.from_json(run.to_json())
    assert again.checkpointing == run.checkpointing
    assert again.checkpointing is not None
    assert again.checkpointing.keep == "attention"


@pytest.mark.parametrize(
    ("value", "shares", "text"),
    [
        (False, (0.0, 0.0), "no gradient checkpointing"),
        (True, (1.0, 1.0), "gradient checkpointing"),
        ({"recompute_every": 2}, (0.5, 0.5), "gradient checkpointing of every 2nd layer"),
        ({"recompute_every": 3}, (11 / 32, 11 / 32), "gradient checkpointing of every 3rd layer"),
        ({"keep": "attention"}, (1.0, 0.0), "gradient checkpointing, attention kept"),
        (
            {"recompute_every": 11, "keep": "attention"},
            (3 / 32, 0.0),
            "gradient checkpointing of every 11th layer, attention kept",
        ),
    ],
)
def test_shares_words_and_values(value: Any, shares: tuple[float, float], text: str) -> None:
    settings = settings_of(run_of(value))
    assert settings is not None
    assert recompute_shares(settings, 32)[:2] == pytest.approx(shares)
    assert describe_checkpointing(settings) == text
    assert checkpointing_value(settings) == value


def test_the_search_also_tries_every_layer_and_none() -> None:
    settings = settings_of(run_of({"recompute_every": 2}))
    assert settings is not None
    assert [checkpointing_value(each) for each in list_checkpointing(settings)] == [False, True, {"recompute_every": 2}]
    model = find_model("llama-3.1-8b", None, None).facts
    assert model is not None
    full = with_checkpointing(settings, checkpointing=True)
    assert minimal_changes(full, settings, model, {}) == {("train", "gradient_checkpointing"): True}
    assert minimal_changes(replace(full, checkpoint_every=4), full, model, {}) == {
        ("train", "gradient_checkpointing"): {"recompute_every": 4}
    }


def test_segments_keep_fewer_inputs_and_compute_more() -> None:
    run = run_of({"layers_per_segment": 6})
    settings = settings_of(run)
    assert checkpointing_value(settings) == {"layers_per_segment": 6}
    assert recompute_shares(settings, 32).layers == 2 - 6 / 32  # six segments, the last of two layers
    assert describe_checkpointing(settings) == "gradient checkpointing in segments of 6 layers"
    assert [most_inputs(32, layers) for layers in (1, 6, 8, 32)] == [(32, 0), (6, 4), (4, 7), (1, 31)]
