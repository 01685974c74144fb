# SPDX-License-Identifier: Apache-2.0
"""Releases that lose micro-batches or divide twice: the gates say what the trials of `benchmarks/releases.py` saw, of each
case on each release, and know which files leave the number of micro-batches open. Needs nothing; seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.release_cases import WRONG
from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget, parse_version

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

FIGURES = max(BENCHMARKS.glob("results/releases-2*.json"))
TRIED: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text(encoding="utf-8"))
FAULTS = ("ZR040", "HF012", "OF029")


def said(config: dict[str, Any], release: str, consumer: str, world: int | None = 2) -> dict[str, str]:
    """Gate -> severity, of the gates that are about lost or divided gradients."""
    deepspeed = DeepSpeedTarget(release, "asked for")
    checked = check_file("ds.json", deepspeed=deepspeed, consumer=consumer, text=json.dumps(config), world_size=world)
    return {f.gate: f.severity for f in checked.report.findings if f.gate in FAULTS}


def of(name: str, release: str) -> tuple[dict[str, str], bool]:
    """What is said of a trial's file, and whether weights or norm came out wrong."""
    case, found = TRIED[name]["case"], TRIED[name]["results"][release]
    sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": case["parts"]}
    told = said({**case["config"], **sizes}, release, "deepspeed" if case["call"] == "engine" else "hf")
    return told, found["difference"] > WRONG or abs(found.get("norm", 1.0) - 1) > WRONG


EACH = pytest.mark.parametrize("name", TRIED)


def of_another_fault(name: str, release: str) -> bool:
    """Wrong with one micro-batch as well; or only the norm is, by autocast's loss scale."""
    return (
        "contiguous_gradients false" in name
        or name.startswith("stage 0, bf16")
        or ("autocast" in name and release == "0.17.5")
    )


def test_the_trials_reach_over_both_edges() -> None:
    tried = {parse_version(release) for row in TRIED.values() for release in row["results"]}
    assert {(0, 17, 5), (0, 17, 6), (0, 18, 2), (0, 18, 3), (0, 18, 4)} <= tried


@EACH
def test_an_error_is_told_of_weights_that_came_out_wrong_and_of_no_others(name: str) -> None:
    for release, found in TRIED[name]["results"].items():
        told, wrong = of(name, release)
        assert not told or wrong, release
        assert "error" not in told.values() or found["difference"] > WRONG, release
        assert told or not wrong or of_another_fault(name, release), release


BASE = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0}
ZERO_2 = {**BASE, "zero_optimization": {"stage": 2}}


@pytest.mark.parametrize(
    ("sizes", "consumer", "world", "due"),
    [
        ({"gradient_accumulation_steps": 4}, "deepspeed", None, {"ZR040": "error"}),
        ({"gradient_accumulation_steps": "auto"}, "hf", None, {"ZR040": "warning"}),
        ({"gradient_accumulation_steps": "auto"}, "accelerate", 2, {"ZR040": "warning"}),
        ({"train_batch_size": 16}, "deepspeed", 2, {"ZR040": "error"}),
        ({"train_batch_size": 16}, "deepspeed", None, {"ZR040": "warning"}),
        ({"train_batch_size": 4}, "deepspeed", 2, {}),
        ({"gradient_accumulation_steps": 1}, "hf", None, {}),
        ({}, "hf", None, {}),
    ],
)
def test_how_many_micro_batches_a_step(sizes: Any, consumer: str, world: int | None, due: dict[str, str]) -> None:
    assert said({**ZERO_2, **sizes}, "0.18.2", consumer, world) == due


@pytest.mark.parametrize(
    ("more", "consumer", "due"),
    [
        ({}, "hf", {"HF012": "error"}),
        ({"gradient_accumulation_steps": "auto"}, "hf", {"HF012": "warning"}),
        ({"gradient_accumulation_steps": 1}, "hf", {}),
        ({}, "accelerate", {}),
        ({}, "deepspeed", {}),
    ],
)
def test_only_the_trainer_has_its_gradients_divided_twice(more: Any, consumer: str, due: dict[str, str]) -> None:
    assert said({**ZERO_2, "gradient_accumulation_steps": 4, **more}, "0.18.3", consumer) == due


def test_the_first_right_release_depends_on_who_calls() -> None:
    for consumer, right in (("deepspeed", "0.18.3"), ("accelerate", "0.18.3"), ("hf", "0.18.4")):
        text = json.dumps({**ZERO_2, "gradient_accumulation_steps": 4})
        checked = check_file("ds.json", deepspeed=DeepSpeedTarget("0.18.2", "asked for"), consumer=consumer, text=text)
        (finding,) = [f for f in checked.report.findings if f.gate == "ZR040"]
        assert finding.fix is not None
        assert f"upgrade to DeepSpeed {right}," in finding.fix.title
