# SPDX-License-Identifier: Apache-2.0
"""At stage 3 weights are created and loaded in shards, and still look as the model's own initialisation makes them.

One job of 2 forked ranks for all models. The danger (facts I01, T36): under `deepspeed.zero.Init` a model's own
initialisation is lost, embeddings then have a spread of 1.0 instead of 0.02.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import TINY
from tests.support.training.runtime_settings import config

LLAMA = {k: v for k, v in TINY.items() if k != "attention_dropout"} | {
    "hidden_size": 128,
    "intermediate_size": 192,
    "vocab_size": 512,
}
GPT2 = {"model_type": "gpt2", "n_embd": 128, "n_layer": 3, "n_head": 4, "vocab_size": 512, "n_positions": 64}
MODELS = {
    "llama-tied": LLAMA | {"tie_word_embeddings": True},
    "llama-untied": LLAMA | {"tie_word_embeddings": False},
    "gpt2": GPT2,
}
NEW = [f"{model}@{case}" for model in MODELS for case in ("zero0", "zero3", "zero3-cpu-bf16")]


@pytest.fixture(scope="module")
def created(forked: ForkedRanks, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("created")
    jobs = []
    for name in NEW:
        model, case = name.split("@")
        jobs.append(
            {"spec": {"config": MODELS[model], "tokenizer": "bytes"}, "config": config(case), "out": str(folder / name)}
        )
    for case in ("zero0", "zero2-bf16", "zero3", "zero3-cpu-bf16"):
        spec = {"name_or_path": str(tiny_model)}
        jobs.append({"spec": spec, "config": config(case), "out": str(folder / f"pretrained@{case}")})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(Path(__file__).parents[1] / "jobs" / "create_models.py", str(folder / "jobs.json"))
    out = {Path(job["out"]).name: json.loads(Path(job["out"]).read_text()) for job in jobs}
    for job in jobs:
        out[Path(job["out"]).name][0]["tensors"] = torch.load(Path(job["out"]).with_suffix(".pt"), weights_only=True)
    return out


@pytest.mark.parametrize("case", ["zero3", "zero3-cpu-bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_new_weights_have_the_spread_of_the_models_own_initialisation(
    created: dict[str, Any], model: str, case: str
) -> None:
    sharded, whole = created[f"{model}@{case}"][0], created[f"{model}@zero0"][0]
    assert sharded["shapes"] == whole["shapes"]
    for name, shape in whole["shapes"].items():
        error = 6 / math.sqrt(2 * math.prod(shape))  # six standard errors of a standard deviation
        assert sharded["std"][name] == pytest.approx(whole["std"][name], rel=2 * error, abs=1e-4), name
        assert sharded["mean"][name] == pytest.approx(whole["mean"][name], abs=0.02), name


@pytest.mark.parametrize("name", NEW)
def test_embeddings_have_a_spread_of_two_hundredths(created: dict[str, Any], name: str) -> None:
    model = created[name][0]
    embedding = next(n for n in model["std"] if "embed_tokens" in n or "wte" in n)
    assert model["std"][embedding] == pytest.approx(0.02, rel=0.03)
    assert model["tied"] == (not name.startswith("llama-untied"))


@pytest.mark.parametrize("name", [n for n in NEW if "zero3" in n] + ["pretrained@zero3", "pretrained@zero3-cpu-bf16"])
def test_no_rank_ever_holds_the_whole_model(created: dict[str, Any], name: str) -> None:
    ranks = created[name]
    total, parameters = ranks[0]["total"], len(ranks[0]["shapes"])
    for rank in ranks:
        assert rank["whole"] < total / 10  # outside the shards: at most what stays gathered
        assert rank["held"] <= total / 2 + parameters  # a shard is padded by less than one element a rank
        # One module's parameters; pretrained weights are never gathered, they come one tensor at a time.
        assert rank["gathered_at_once"] < total / 2
        assert (rank["gathered_at_once"] > 0) == (name in NEW)
    assert sum(rank["held"] for rank in ranks) >= total


@pytest.mark.parametrize("case", ["zero0", "zero3"])
def test_pretrained_weights_arrive_exactly(created: dict[str, Any], tiny_model: Path, case: str) -> None:
    stored = load_file(tiny_model / "model.safetensors")
    tensors = created[f"pretrained@{case}"][0]["tensors"]
    assert set(tensors) == set(stored)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, stored[name]), name


@pytest.mark.parametrize("case", ["zero2-bf16", "zero3-cpu-bf16"])
def test_in_bf16_the_master_weights_start_from_rounded_ones(
    created: dict[str, Any], tiny_model: Path, case: str
) -> None:
    """What `harness.runtime.models` says in its docstring; a 16-bit checkpoint loses nothing by it."""
    stored = load_file(tiny_model / "model.safetensors")
    for name, tensor in created[f"pretrained@{case}"][0]["tensors"].items():
        assert torch.equal(tensor, stored[name].to(torch.bfloat16).float()), name
