# SPDX-License-Identifier: Apache-2.0
"""The harness trains exactly what a raw DeepSpeed script trains, and a resumed run exactly what a straight one does.

Two ranks train all configurations with the raw script, others with the harness, and others resume. By day those of
`RESUMED` alone: `checkpoint/test_checkpoint_resume.py` resumes others.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import IS_NIGHT
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import JOBS, metric_lines, write_run
from tests.support.training.runtime_settings import CASES, LENGTH, SEED, STEPS, WARMUP, config, spec

RESUMED = CASES if IS_NIGHT else ("zero1", "zero3-cpu-all", "zero2-bf16")


@pytest.fixture(scope="session")
def raw(
    forked: ForkedRanks, straight: dict[str, Path], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[float]]:
    """The same by the raw script, on the tokens that the harness has prepared."""
    folder = tmp_path_factory.mktemp("raw")
    jobs = [
        {
            "config": config(case),
            "model": str(tiny_model),
            "tokens": str(straight[case] / "data" / "train.npy"),
            "out": str(folder / f"{case}.json"),
            "seed": SEED,
            "steps": STEPS,
            "warmup": WARMUP,
            "length": LENGTH,
        }
        for case in CASES
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOBS / "raw_deepspeed.py", str(folder / "jobs.json"))
    return {case: json.loads((folder / f"{case}.json").read_text()) for case in CASES}


@pytest.fixture(scope="session")
def resumed(
    forked: ForkedRanks, straight: dict[str, Path], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Steps 4 to 6 from the checkpoint of step 3, in new processes."""
    folder = tmp_path_factory.mktemp("resumed")
    runs = {case: write_run(folder / case, spec(case, tiny_model), config(case)) for case in RESUMED}
    jobs = [{"run": str(runs[c]), "resume": str(straight[c] / "checkpoints" / "step-00000003")} for c in RESUMED]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOBS / "train_many.py", str(folder / "jobs.json"))
    return runs


def _losses(run: Path) -> list[str]:
    return [line["loss"].hex() for line in metric_lines(run, "step")]


@pytest.mark.parametrize("case", CASES)
def test_losses_equal_those_of_the_raw_script_bit_for_bit(
    case: str, straight: dict[str, Path], raw: dict[str, list[float]]
) -> None:
    assert _losses(straight[case]) == [loss.hex() for loss in raw[case]]


def test_the_losses_move(raw: dict[str, list[float]]) -> None:
    """Else equality would prove nothing: the first step is taken at rate 0, every later one changes the weights."""
    for losses in raw.values():
        assert len(losses) == STEPS
        assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_equals_a_straight_one_bit_for_bit(
    case: str, straight: dict[str, Path], resumed: dict[str, Path]
) -> None:
    assert _losses(resumed[case]) == _losses(straight[case])[3:]
    assert (resumed[case] / "weights.safetensors").read_bytes() == (straight[case] / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_goes_on_counting(case: str, straight: dict[str, Path], resumed: dict[str, Path]) -> None:
    keys = ("step", "learning_rate", "tokens", "samples")
    after = [{k: line[k] for k in keys} for line in metric_lines(resumed[case], "step")]
    assert after == [{k: line[k] for k in keys} for line in metric_lines(straight[case], "step")][3:]
    assert metric_lines(resumed[case], "eval")[-1]["loss"] == metric_lines(straight[case], "eval")[-1]["loss"]
