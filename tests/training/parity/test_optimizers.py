# SPDX-License-Identifier: Apache-2.0
"""Every optimizer of the spec that runs on the CPU, under ZeRO and without, against the same written out; and the same
global batch cut into micro-batches in other ways. Two forked ranks, all cases in one job: about 40 s.
"""

from __future__ import annotations

import pytest
import torch

import tests.support.training.parity_cases as table
from harness.patches.muon_embeddings import embedding_weights
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_runs import Result, run, start_forked

OPTIMIZERS, SPLITS = (
    [case for case in cases if table.IS_NIGHT or case not in table.NIGHT] for cases in (table.OPTIMIZERS, table.SPLITS)
)


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Of each case by its name."""
    return {
        r.case.name: r for r in run((*OPTIMIZERS, *SPLITS), tmp_path_factory.mktemp("optimizers"), start_forked(forked))
    }


@pytest.mark.parametrize("case", OPTIMIZERS, ids=lambda c: c.name)
def test_losses_are_those_of_the_optimizer_written_out(case: table.Case, results: dict[str, Result]) -> None:
    result = results[case.name]
    assert result.error is None
    assert result.difference <= table.bound(case)


@pytest.mark.parametrize("case", SPLITS, ids=lambda c: c.name)
def test_a_batch_cut_in_other_ways_gives_the_losses_of_one_big_one(
    case: table.Case, results: dict[str, Result]
) -> None:
    """micro 4 x 1 and micro 1 x 4, rows of unlike length, over two ranks: each predicted token counts the same."""
    result = results[case.name]
    assert result.error is None
    assert result.difference <= table.BOUNDS["fp32"]


def test_embeddings_are_found_by_what_they_are() -> None:
    """GPT-2 names them `wte` and `wpe`, which DeepSpeed takes for hidden matrices."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=1, vocab_size=16, n_positions=8)
    model = AutoModelForCausalLM.from_config(config)
    found = {id(p) for p in embedding_weights(model)}
    assert {n for n, p in model.named_parameters() if id(p) in found} == {
        "transformer.wte.weight",
        "transformer.wpe.weight",
    }
    assert isinstance(embedding_weights(model)[0], torch.nn.Parameter)
