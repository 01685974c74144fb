# SPDX-License-Identifier: Apache-2.0
"""DPO, KTO and reward models against TRL 1.16 (`tests/support/training/trl_figures.json`): losses and gradients. By night
20 steps of each method of the figures' grid: at every stage, accumulation 1 and 4, with and without LoRA, on one and two
ranks.

In fp64 both are the same to the rounding of fp64: what differs in fp32 is rounding, too, and no other algorithm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.runtime.objectives.preference_losses import DPO_LOSSES, PairRatios, kto_losses
from tests.support.training import preference_case as case
from tests.support.training.double_mode import project_gradients
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.preference_runs import (
    DAY_STEPS,
    FIGURES,
    double_figures,
    figures_of,
    grid,
    train_cells,
    write_data,
)
from tests.support.training.runtime_helpers import metric_lines

_BOUNDS = {"ipo": 2e-6, "rpo": 2e-6, "reward-centered": 5e-6, "reward-margin": 5e-6}
"""Relative bounds of the losses that have the rounding of fp32 some times more: those of some units, and squares. That of
`ipo` is (difference - 5) squared, and TRL itself is 1.1e-6 from its own in fp64 (`benchmarks/preference_cells.py`).
"""
CASES = {
    1: [("dpo-ipo", 2), ("dpo-rpo", 0), ("dpo-norm", 3), ("kto", 0), ("reward-centered", 1)],
    2: [("dpo-accumulated", 2), ("dpo-lora", 3), ("kto-accumulated", 3), ("reward", 3), ("reward-margin", 1)],
}
"""By day, beside the grid's in fp64: on one rank the losses, on two the shares of ranks and of accumulation."""


@pytest.mark.parametrize("name", FIGURES["drawn"])
def test_a_loss_and_its_gradient_are_those_of_trl(name: str) -> None:
    policy, reference, mask = case.drawn_log_probs()
    tokens, expected, beta = mask[:, 1:].sum(1), FIGURES["drawn"][name], case.SETTINGS["beta"]
    leaf = policy.sum(1).requires_grad_()
    ratios = leaf - reference.sum(1)
    if name in DPO_LOSSES:
        pairs = PairRatios(*ratios.chunk(2), *tokens.chunk(2))
        loss = DPO_LOSSES[name](pairs, beta, expected["smoothing"]).mean()
    else:
        labels = torch.arange(len(policy)) % 3 > 0
        loss = kto_losses(name, ratios, labels, torch.tensor(expected["kl"]), beta, 1.3, 0.6).mean()
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-6)
    assert leaf.grad is not None
    assert leaf.grad.tolist() == pytest.approx(expected["gradient"], rel=1e-6, abs=1e-7)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory, forked: ForkedRanks) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("double")
    write_data(folder)
    return double_figures(folder, case.EXACT_RUNS, case.EXACT_STEPS, forked)


@pytest.mark.parametrize("name", case.EXACT_RUNS)
def test_losses_and_gradients_are_those_of_trl_to_the_rounding_of_fp64(
    exact: dict[str, dict[str, Any]], name: str
) -> None:
    own, expected = exact[name], FIGURES["double"][name]
    steps = expected["gradients"]
    assert len(own["losses"]) == len(own["gradients"]) == len(steps) == case.EXACT_STEPS
    assert own["losses"] == pytest.approx(expected["losses"][: len(steps)], rel=1e-12, abs=0)
    for gradients, step in zip(own["gradients"], steps, strict=True):
        for (norm, product), (expected_norm, expected_product) in zip(project_gradients(gradients), step, strict=True):
            assert norm == pytest.approx(expected_norm, rel=1e-11, abs=0)
            assert abs(product - expected_product) <= 1e-11 * expected_norm


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forked: ForkedRanks) -> Path:
    """The folder of the runs of all tests that are selected."""
    specs = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {(one["ranks"], one["name"], one["stage"]) for one in specs if {"ranks", "name", "stage"} <= one.keys()}
    folder = tmp_path_factory.mktemp("preferences")
    write_data(folder)
    train_cells(folder, wanted, forked)
    return folder


@pytest.mark.parametrize(
    ("ranks", "name", "stage"),
    [
        *((ranks, *one) for ranks, cases in CASES.items() for one in cases),
        *(pytest.param(ranks, *one, marks=pytest.mark.nightly) for ranks in CASES for one in grid(ranks)),
    ],
)
def test_steps_are_those_of_trl(trained: Path, ranks: int, name: str, stage: int) -> None:
    run, expected = trained / f"{name}-{stage}-{ranks}", FIGURES["runs"][name]
    steps = case.STEPS if name.startswith("grid-") else DAY_STEPS
    figures = figures_of(trained, ranks, name, stage)
    assert figures["losses"] == pytest.approx(
        expected["losses"][:steps],
        rel=max([1e-6, *(bound for part, bound in _BOUNDS.items() if part in name)]),
        abs=1e-6,
    )
    if "rpo" not in name and "reward" not in name:  # before the first step the policy is the reference, to the bit
        metrics = metric_lines(run, "step")[0]["metrics"]
        assert {metrics[key] for key in metrics if key.startswith("rewards") and "accuracy" not in key} == {0.0}, (
            metrics
        )
        assert metrics.get("kl", 0.0) == 0.0
    if stage:  # DeepSpeed tells no norm without ZeRO; there the next step's loss has the gradient
        # of TRL without DeepSpeed, which computes a norm in another order (`benchmarks/preference_cells.py` has it with)
        assert figures["norms"] == pytest.approx(expected["norms"][:steps], rel=2e-5)
