# SPDX-License-Identifier: Apache-2.0
"""Samples at evaluations are what `transformers` generates from the same weights, and change nothing that follows.

Two forked ranks, six runs of six steps in one job: about 20 s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.tokenizer import byte_tokenizer
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_cases import write_run, write_text
from tests.support.training.runtime_helpers import metric_lines

JOB = Path(__file__).parents[1] / "jobs" / "train_many.py"
CONFIG = {
    "model_type": "gpt2",
    "vocab_size": 258,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 48,
    "resid_pdrop": 0.2,
    "initializer_range": 0.3,
}
"""With dropout, whose masks would be others after a random number too many."""
PROMPTS = ["Once", "A longer prompt, of more tokens", "x" * 60]
CASES = ["0", "3", "packed"]
"""ZeRO's stage, or packed rows whose attention takes the borders of documents."""


@pytest.fixture(scope="module")
def runs(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("samples")
    body: dict[str, Any] = {
        "name": "samples",
        "model": {"config": CONFIG, "tokenizer": "bytes"},
        "data": {"train": str(write_text(folder / "text.txt")), "max_length": 48, "eval_fraction": 0.2},
        "train": {"max_steps": 6, "per_device_train_batch_size": 2},
        "optimizer": {"learning_rate": 0.01},
        "logging": {"logging_steps": 1},
    }
    folders, jobs = {}, []
    packed = {
        "model": {**body["model"], "attn_implementation": "sdpa_varlen"},
        "data": {**body["data"], "packing": True},
    }
    for case, more in (("0", {"zero": {"stage": 0}}), ("3", {"zero": {"stage": 3}}), ("packed", packed)):
        for name, own in (("without", {}), ("with", {"samples": PROMPTS, "sample_tokens": 12})):
            eval_ = {"eval_steps": 2, "eval_on_start": True, **own}
            run = write_run(folder / f"{name}-{case}", {**body, **more, "eval": eval_}, 2)
            folders[f"{name}-{case}"] = run
            jobs.append({"run": str(run), "resume": None})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOB, str(folder / "jobs.json"), ranks=2)
    return folders


@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_to_the_bit(runs, case):
    without, with_ = (
        [(line["step"], line["loss"]) for line in metric_lines(runs[f"{name}-{case}"], "step")]
        for name in ("without", "with")
    )
    assert len(without) == 6
    assert without == with_
    weights = [load_file(runs[f"{name}-{case}"] / "weights.safetensors") for name in ("without", "with")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("case", CASES)
def test_samples_are_what_transformers_generates(runs, case):
    lines = metric_lines(runs[f"with-{case}"], "eval")
    assert [line["step"] for line in lines] == [0, 2, 4, 6]
    assert lines[0]["samples"] != lines[-1]["samples"]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CONFIG))
    state = load_file(runs[f"with-{case}"] / "weights.safetensors")
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    tokenizer = byte_tokenizer()
    texts = []
    for prompt in PROMPTS[:2]:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        out = model.eval().generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        texts.append(tokenizer.decode(out[0][ids.shape[1] :], skip_special_tokens=True))
    no_room = "(no room: the prompt has 60 tokens, `data.max_length` is 48)"
    assert lines[-1]["samples"] == [*texts, no_room]
