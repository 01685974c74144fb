# SPDX-License-Identifier: Apache-2.0
"""The gradient witness on two ranks: silent on healthy engines, and the likely cause of faults put into DeepSpeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import JOBS

CPU = {"device": "cpu", "pin_memory": False}
SGD = {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}}
ADAM = {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1, "torch_adam": True}}
COMPILED = {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}
"""FusedAdam, and DeepSpeedCPUAdam with offload."""


def config(stage: int, precision: str = "fp32", clip: float = 0.0, **more: Any) -> dict[str, Any]:
    """Accumulates two micro-batches."""
    sections: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": clip,
        "optimizer": more.pop("optimizer", ADAM),
        "zero_optimization": {"stage": stage, **more.pop("zero", {})},
    }
    if precision != "fp32":
        sections[precision] = {"enabled": True} | ({"initial_scale_power": 8} if precision == "fp16" else {})
    return sections | more


HEALTHY: dict[str, dict[str, Any]] = {
    "stage 0": {"config": config(0, optimizer=SGD), "model": "tied", "evaluate_between": True},
    "stage 0, bf16": {"config": config(0, "bf16", 0.1, optimizer=COMPILED), "model": "unused"},
    "stage 1, as the Trainer": {"config": config(1, clip=0.1), "model": "outputs", "scale_wrt_gas": False},
    "stage 1, BF16_Optimizer": {"config": config(1, "bf16", data_types={"grad_accum_dtype": "fp32"}), "groups": True},
    "stage 2, a block twice": {"config": config(2, "fp16", 0.1, optimizer=COMPILED), "model": "twice"},
    "stage 2, backward of torch": {"config": config(2, zero={"round_robin_gradients": True}), "torch_backward": True},
    "stage 2, offload": {
        "config": config(2, "bf16", 0.1, optimizer=COMPILED, zero={"offload_optimizer": CPU}),
        "model": "frozen",
    },
    "stage 3, checkpointing": {"config": config(3, optimizer=SGD), "model": "tied", "checkpointing": True},
    "stage 3, offload": {
        "config": config(3, clip=0.1, optimizer=COMPILED, zero={"offload_optimizer": CPU, "sub_group_size": 1000}),
        "model": "sharded",
        "every": 4,
        "steps": 4,
    },
    "stage 3, autocast": {"config": config(3, torch_autocast={"enabled": True, "dtype": "bfloat16"}), "groups": True},
    "formula not known": {"config": config(1, optimizer={"type": "RMSprop", "params": {"lr": 1e-3}})},
}
FAULTY: dict[str, tuple[dict[str, Any], str, str]] = {
    "accumulation-overwritten": (config(3, clip=0.1), "gradient", "last-micro-batch"),
    "all-lengthened": (config(2, "bf16"), "gradient", "scaled"),
    "all-reduce-skipped": (config(0, clip=0.1), "gradient", "not-reduced"),
    "clipped-to-another-norm": (config(2, "bf16", 0.1), "gradient", "clip-norm"),
    "loss-not-divided": (config(2), "gradient", "not-divided-by-accumulation"),
    "one-lengthened": (config(2, "bf16", 0.1), "gradient", "scaled"),
    "old-weights": (config(1), "weights", "unknown"),
    "partition-reversed": (config(3), "gradient", "unknown"),
    "rank-left-out": (config(2), "gradient", "rank-left-out"),
    "steps-counted-twice": (config(1), "update", "bias-correction"),
    "step-skipped": (config(2), "update", "not-stepped"),
    "stepped-twice": (config(3), "update", "stepped-again"),
    "weight-decay-swapped": (config(2), "update", "weight-decay"),
}
"""Fault -> its configuration, the kind of difference and the likely cause."""


SCRIPTS = ("clip_grad", "hook", "hook in the forward")
"""What a script does with the engine once it is watched."""


@pytest.fixture(scope="module")
def outcomes(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All cases, in the same two ranks."""
    folder = tmp_path_factory.mktemp("witness")
    cases = [{"name": name, **case} for name, case in HEALTHY.items()]
    cases += [
        {"name": name, "config": case[0], "fault": name, "groups": True, "steps": 2} for name, case in FAULTY.items()
    ]
    cases.append({"name": "hidden by clipping", "config": config(1, clip=0.01), "fault": "loss-not-divided"})
    exact = config(2, clip=0.1)
    cases.append({"name": "one-lengthened, fp32", "config": exact, "fault": "one-lengthened", "steps": 1})
    cases += [{"name": name, "config": exact, "script": name, "steps": 1} for name in SCRIPTS]
    (folder / "cases.json").write_text(json.dumps(cases))
    forked.run(JOBS / "witness_cases.py", str(folder / "cases.json"), str(folder / "out.json"))
    return dict(json.loads(Path(folder / "out.json").read_text()))


@pytest.mark.parametrize("name", HEALTHY)
def test_no_alarm(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome = outcomes[name]
    assert (outcome["differences"], outcome["fault"], outcome["unable"]) == ([], "", "")
    steps = HEALTHY[name].get("steps", 3)
    assert [result["step"] for result in outcome["results"]] == list(range(1, steps + 1))
    for result in outcome["results"]:
        assert result["parameters"] >= 8
        assert result["elements"] >= 200
        assert bool(result["updates"]) == (name != "formula not known")
        assert bool(result["not_compared"]) == (name == "formula not known")


def test_detach_leaves_the_engine_as_it_was(outcomes: dict[str, dict[str, Any]]) -> None:
    assert not [name for name, outcome in outcomes.items() if outcome["wrapped"]]


@pytest.mark.parametrize("name", FAULTY)
def test_alarm(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    _, kind, cause = FAULTY[name]
    differences = outcomes[name]["differences"]
    assert [(d["kind"], d["cause"]) for d in differences][:1] == [(kind, cause)]
    first = differences[0]
    assert first["step"] == (2 if name in ("old-weights", "steps-counted-twice") else 1)
    assert first["relative"] > 1e-3
    assert first["expected"] != first["found"]


def test_the_message_names_the_parameter_the_numbers_and_the_rank(outcomes: dict[str, dict[str, Any]]) -> None:
    first = outcomes["rank-left-out"]["differences"][0]
    assert first["text"].startswith("step 1: the optimizer was stepped with another gradient than the backward passes")
    assert "and 13 more parameters" in first["text"]
    assert first["text"].endswith(": the contribution of one rank is missing (rank 1)")


@pytest.mark.parametrize(("name", "factor"), [("one-lengthened", 1.03), ("one-lengthened, fp32", 1.03)])
def test_under_clipping_one_long_gradient_is_named_alone(
    name: str, factor: float, outcomes: dict[str, dict[str, Any]]
) -> None:
    first = outcomes[name]["differences"][0]
    assert (first["parameter"], first["num_parameters"], first["cause"]) == ("head.weight", 1, "scaled")
    assert float(first["detail"].removeprefix("factor ")) == pytest.approx(factor, abs=0.005)


def test_a_gradient_of_one_percent_more_is_seen_in_bf16(outcomes: dict[str, dict[str, Any]]) -> None:
    """No single element shows it: bf16 rounds by up to 0.4 % each time."""
    first = outcomes["all-lengthened"]["differences"][0]
    assert first["num_parameters"] > 1
    assert float(first["detail"].removeprefix("factor ")) == pytest.approx(1.01, abs=0.005)


def test_a_clip_grad_of_the_script_is_named(outcomes: dict[str, dict[str, Any]]) -> None:
    first = outcomes["clip_grad"]["differences"][0]
    assert (first["cause"], first["detail"]) == ("other-clip-grad", "0, not 0.1")


@pytest.mark.parametrize("name", ["hook", "hook in the forward"])
def test_a_gradient_hook_of_the_script_is_the_scripts_own_affair(
    name: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    assert (outcomes[name]["differences"], outcomes[name]["fault"]) == ([], "")
    assert outcomes[name]["results"]


def test_a_wrong_factor_of_the_loss_is_seen_under_clipping(outcomes: dict[str, dict[str, Any]]) -> None:
    """Clipped to the same norm, the gradients are the same."""
    first = outcomes["hidden by clipping"]["differences"][0]
    assert (first["parameter"], first["expected"], first["found"]) == ("loss", 0.5, 1.0)
    assert first["cause"] == "not-divided-by-accumulation"
