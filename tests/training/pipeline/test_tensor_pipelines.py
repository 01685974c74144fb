# SPDX-License-Identifier: Apache-2.0
"""The harness's loop on tensor x pipeline: the losses of data parallelism, an exact resume, the bytes of the plan.

Jobs of 4 forked ranks: two tensor ranks in each of two stages, four data-parallel ranks on the same global batch, and
the former resumed; about 90 s together on a quiet machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.plan.planner import make_plan
from harness.render import render_ds_config
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import TINY, metric_lines, write_run

JOB = Path(__file__).parents[1] / "jobs" / "train_many.py"
RANKS, STEPS, SAVED, LENGTH = 4, 6, 3, 32
CASES: dict[str, tuple[int, bool, bool]] = {
    # name: (ZeRO stage, bf16, dropout and recomputed activations)
    "zero0": (0, False, False),
    "zero1": (1, False, False),
    "zero1-bf16": (1, True, False),
    "zero1-dropout": (1, False, True),
    "zero1-frozen": (1, False, False),
}
FROZEN = ["model.embed_tokens.*", "model.layers.0.*"]
"""Of `zero1-frozen`: the last stage trains a norm alone, which is one parameter group where the first stage has two."""
if not os.environ.get("HARNESS_NIGHTLY"):
    CASES = {name: CASES[name] for name in ("zero1-bf16", "zero1-dropout", "zero1-frozen")}
COMPARED = [name for name, (_, _, dropout) in CASES.items() if not dropout]
BOUNDS = {False: 1e-6, True: 2e-4}
"""Largest relative difference of a loss: seen are 1e-7 in fp32 and 5e-5 in bf16."""
NORM_BOUNDS = {False: 1e-5, True: 1e-2}
TENSOR_PIPELINE = (2, 2)
LAYOUTS = {"data": (1, 1), "tensor": (4, 1), "pipeline": (1, 4), "tensor-pipeline": TENSOR_PIPELINE}
"""Tensor degree and stages; the other ranks are data parallel."""


def _spec(name: str, models: Path, tensor: int, stages: int) -> dict[str, Any]:
    """Sixteen rows a step."""
    stage, bf16, dropout = CASES[name]
    return {
        "name": name,
        "model": {
            "name_or_path": str(models / ("dropout" if dropout else "plain")),
            "freeze": FROZEN if name.endswith("frozen") else [],
        },
        "data": {"train": "builtin:python-docs", "max_length": LENGTH},
        "train": {
            "max_steps": STEPS,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2 * tensor * stages,
            "max_grad_norm": 0.5,
            "gradient_checkpointing": dropout,
            "seed": 7,
        },
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1},
        "scheduler": {"type": "cosine", "warmup_steps": 2},
        "precision": {"bf16": bf16},
        "zero": {"stage": stage},
        "parallel": {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages},
        "eval": {"eval_steps": 4, "max_batches": tensor * stages},
        "checkpoint": {"save_steps": SAVED},
    }


def _write(folder: Path, name: str, models: Path, layout: tuple[int, int]) -> Path:
    body = _spec(name, models, *layout)
    run = resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=RANKS)
    return write_run(folder, body, dict(render_ds_config(run).config), RANKS)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny Llamas of four key-value heads, in whose files the head is tied to the embedding."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from harness.runtime.tokenizer import byte_tokenizer

    folder = tmp_path_factory.mktemp("models")
    for kind, dropout in (("plain", 0.0), ("dropout", 0.1)):
        fields = {**TINY, "attention_dropout": dropout, "num_key_value_heads": 4}
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            fields.pop("model_type"), tie_word_embeddings=True, eos_token_id=256, pad_token_id=257, **fields
        )
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / kind)
        byte_tokenizer().save_pretrained(folder / kind)
    return folder


@pytest.fixture(scope="module")
def trained(models: Path, forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tensor-pipeline/CASE` and `data/CASE` from the first step on, then `resumed/CASE` in new processes."""
    folder = tmp_path_factory.mktemp("tensor-pipelines")
    pipelines = [_write(folder / "tensor-pipeline" / name, name, models, TENSOR_PIPELINE) for name in CASES]
    plain = [_write(folder / "data" / name, name, models, LAYOUTS["data"]) for name in COMPARED]
    for runs in (pipelines, plain):  # apart: after a pipeline, DeepSpeed takes no other engine in the same process
        _train(forked, folder, [{"run": str(run), "resume": None} for run in runs])
    _train(
        forked,
        folder,
        [
            {
                "run": str(_write(folder / "resumed" / name, name, models, TENSOR_PIPELINE)),
                "resume": str(_checkpoint(folder / "tensor-pipeline" / name)),
            }
            for name in CASES
        ],
    )
    return folder


def _checkpoint(run: Path) -> Path:
    return run / "checkpoints" / f"step-{SAVED:08d}"


def _train(forked: ForkedRanks, folder: Path, jobs: list[dict[str, Any]]) -> None:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOB, str(folder / "jobs.json"), ranks=RANKS)


def _values(run: Path, kind: str, key: str) -> list[float]:
    return [line[key] for line in metric_lines(run, kind)]


def _gap(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("case", COMPARED)
@pytest.mark.parametrize("kind", ["step", "eval"])
def test_losses_are_those_of_data_parallelism(trained: Path, case: str, kind: str) -> None:
    ours, theirs = (_values(trained / way / case, kind, "loss") for way in ("tensor-pipeline", "data"))
    assert len(ours) == (STEPS if kind == "step" else 2)
    assert _gap(ours, theirs) < BOUNDS[CASES[case][1]]


@pytest.mark.parametrize("case", COMPARED)
def test_norms_are_those_of_data_parallelism(trained: Path, case: str) -> None:
    ours, theirs = (_values(trained / way / case, "step", "grad_norm") for way in ("tensor-pipeline", "data"))
    assert _gap(ours, theirs) < NORM_BOUNDS[CASES[case][1]]


@pytest.mark.parametrize("case", COMPARED)
def test_what_is_counted_is_what_data_parallelism_counts(trained: Path, case: str) -> None:
    for kind, keys in (("run", ("parameters", "global_batch")), ("step", ("tokens", "samples", "learning_rate"))):
        for key in keys:
            ours, theirs = (_values(trained / way / case, kind, key) for way in ("tensor-pipeline", "data"))
            assert ours == theirs


@pytest.mark.parametrize("case", CASES)
def test_a_resume_is_exact(trained: Path, case: str) -> None:
    straight, resumed = trained / "tensor-pipeline" / case, trained / "resumed" / case
    losses = [x.hex() for x in _values(straight, "step", "loss")[SAVED:]]
    assert [x.hex() for x in _values(resumed, "step", "loss")] == losses


@pytest.mark.parametrize("case", CASES)
def test_no_engine_check_raises_an_alarm(trained: Path, case: str) -> None:
    body = json.loads((trained / "tensor-pipeline" / case / "engine_checks.json").read_text())
    assert {claim["id"]: claim.get("text") for claim in body["claims"] if claim["state"] == "differs"} == {}


@pytest.mark.parametrize("case", [name for name in CASES if not name.endswith("frozen")])
def test_the_rows_of_the_plan_are_the_bytes_of_the_rank_with_most(trained: Path, case: str) -> None:
    run_dir = trained / "tensor-pipeline" / case
    run = ResolvedRun.from_json(json.loads((run_dir / "spec.resolved.json").read_text()))
    states = next(line["states"] for line in metric_lines(run_dir, "memory") if "states" in line)
    memory = make_plan(run, run_dir, "cpu", with_alternatives=False).memory
    assert memory is not None
    rows = dict.fromkeys(states, 0)
    for item in memory.items:
        if "step" in item.phases and f"{item.tier}.{item.kind}" in rows:
            rows[f"{item.tier}.{item.kind}"] += item.bytes
    assert rows == states
    assert states.keys() >= {"gpu.parameters", "gpu.states"}
