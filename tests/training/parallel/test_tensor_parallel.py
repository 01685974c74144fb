# SPDX-License-Identifier: Apache-2.0
"""AutoTP: the same losses, norms and evaluation as one process; shards that make the whole; a resume that is exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tests.support.training.parallel_cases as table
from harness.runtime.parallel.tensor_parallel import TPLayout
from tests.support.training import parallel_runs
from tests.support.training.forked_ranks import ForkedRanks

JOBS = Path(__file__).parents[1] / "jobs"
TORCH_ADAM = {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1, "torch_adam": True}}
WRONG_NORM = table.Case(
    "llama", 0, tensor=2, precision="bf16", more=(("deepspeed", json.dumps({"optimizer": TORCH_ADAM})),)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tensor")


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, folder: Path) -> dict[table.Case, parallel_runs.Result]:
    found = parallel_runs.run((*table.CI_TENSOR, WRONG_NORM), folder, forked.run)
    return {result.case: result for result in found}


@pytest.mark.parametrize("case", table.CI_TENSOR, ids=lambda case: case.name)
def test_agrees_with_one_process(case: table.Case, results: dict[table.Case, parallel_runs.Result]) -> None:
    assert results[case].passed, results[case]
    assert results[case].in_chunks == case.in_chunks


def test_tp021_the_norm_of_16_bit_shards_without_zero_leaves_shards_out(
    results: dict[table.Case, parallel_runs.Result],
) -> None:
    assert results[WRONG_NORM].error is None
    assert results[WRONG_NORM].norm > 0.1


@pytest.mark.parametrize(("shape", "stage"), [("llama", 1), ("llama-tied", 0)])
def test_shards_make_the_whole_and_a_resume_is_exact(
    shape: str, stage: int, forked: ForkedRanks, folder: Path, results: object
) -> None:
    case = table.Case(shape, stage, tensor=2)
    models = folder / "models"
    if not (models / shape).exists():
        forked.run(parallel_runs.WRITE_MODELS, str(models), shape, ranks=1)
    run = table.write_run(folder / f"resume-{case.name}", case, models, table.write_text(folder / "text.txt"))
    forked.run(JOBS / "parallel_resume.py", str(run), str(models / shape), ranks=2)
    found = json.loads((run / "resumed.json").read_text())
    assert found["resumed"] == found["straight"]
    assert found["parameters"] == found["whole"]
    assert found["cut"] > 4 * table.SHAPES["llama"]["num_hidden_layers"]


def test_a_cut_joins_uneven_parts_along_either_side() -> None:
    whole = torch.arange(15.0).reshape(5, 3)
    rows = {
        0: {"shard_shape": [3, 3], "pieces": [{"shape": [3, 3], "source": [0, [3, 1]], "dest": [0, [3, 1]]}]},
        1: {"shard_shape": [2, 3], "pieces": [{"shape": [2, 3], "source": [9, [3, 1]], "dest": [0, [3, 1]]}]},
    }
    columns = {
        0: {"shard_shape": [5, 2], "pieces": [{"shape": [5, 2], "source": [0, [3, 1]], "dest": [0, [2, 1]]}]},
        1: {"shard_shape": [5, 1], "pieces": [{"shape": [5, 1], "source": [2, [3, 1]], "dest": [0, [1, 1]]}]},
    }
    assert torch.equal(TPLayout(whole.shape, rows).join_shards([whole[:3], whole[3:]]), whole)
    assert torch.equal(TPLayout(whole.shape, columns).join_shards([whole[:, :2], whole[:, 2:]]), whole)
    assert (TPLayout(whole.shape, rows).dim, TPLayout(whole.shape, columns).dim) == (0, 1)
    with pytest.raises(ValueError, match="part 1"):
        TPLayout(whole.shape, rows).join_shards([whole[:3], whole[2:]])
