# SPDX-License-Identifier: Apache-2.0
"""Between tensor x pipeline and every other layout of four ranks: the state is the same to the bit, losses go on.

One job of 4 forked ranks, 25 s for two moves; HARNESS_NIGHTLY=1 makes all nine, 80 s.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.checkpoint.consolidate import FullWeights, open_checkpoint
from harness.runtime.export import export_checkpoint
from harness.runtime.tokenizer import byte_tokenizer
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import TINY, metric_lines

JOB = Path(__file__).parents[1] / "jobs" / "reshard_cases.py"
RANKS, STEPS, SAVED = 4, 5, 3
BOUND = 1e-6
"""Of the loss, against the run that was not stopped; fp32. Bit-equal states then differ by the order of sums."""
LAYOUTS: dict[str, tuple[int, int, int]] = {
    # name: (ZeRO stage, tensor degree, pipeline stages); other ranks are data parallel
    "tensor-pipeline": (1, 2, 2),
    "tensor-pipeline-zero0": (0, 2, 2),
    "data": (1, 1, 1),
    "tensor": (1, 4, 1),
    "pipeline": (1, 1, 4),
    "tensor-data": (1, 2, 1),
}
THERE = [("tensor-pipeline", target) for target in LAYOUTS if target != "tensor-pipeline"]
EVERY_MOVE = [*THERE, *((b, a) for a, b in THERE if b != "tensor-data")]
MOVES = (
    EVERY_MOVE if os.environ.get("HARNESS_NIGHTLY") else [("tensor-pipeline", "data"), ("pipeline", "tensor-pipeline")]
)
USED = [name for name in LAYOUTS if any(name in move for move in MOVES)]

Runs = dict[str, Path]


@pytest.fixture(scope="module")
def runs(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every layout trained to the end, saved on the way; then every move from there; run directories by name."""
    folder = tmp_path_factory.mktemp("reshard-tensor-pipelines")
    model, text = _write_model(folder / "model"), folder / "text.txt"
    text.write_text("".join(f"{i} times {i + 7} is {i * (i + 7)}, and no more.\n" for i in range(600)))
    names = [(name, name, None) for name in USED] + [(f"{a}>{b}", b, a) for a, b in MOVES]
    made = {name: folder / "runs" / name.replace(">", "-to-") for name, _, _ in names}
    plans = [
        {
            "name": name,
            "folder": str(made[name]),
            "spec": _spec(layout, model, text),
            "resume": str(made[source] / f"checkpoints/step-{SAVED:08d}") if source else None,
        }
        for name, layout, source in names
    ]
    (folder / "plan.json").write_text(json.dumps({"runs": plans}))
    forked.run(JOB, str(folder / "plan.json"), ranks=RANKS, timeout=600)
    return made


def _write_model(folder: Path) -> Path:
    torch.manual_seed(0)
    fields = {k: v for k, v in TINY.items() if k not in ("model_type", "attention_dropout")}
    fields |= {"num_key_value_heads": 4, "num_hidden_layers": 4}
    config = AutoConfig.for_model("llama", tie_word_embeddings=True, eos_token_id=256, pad_token_id=257, **fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def _spec(layout: str, model: Path, text: Path) -> dict[str, Any]:
    stage, tensor, pipeline = LAYOUTS[layout]
    return {
        "name": layout,
        "model": {"name_or_path": str(model)},
        "data": {"train": str(text), "max_length": 32},
        "train": {
            "max_steps": STEPS,
            "global_batch_size": 8,
            "per_device_train_batch_size": 1,
            "max_grad_norm": 0.5,
        },
        "optimizer": {"learning_rate": 3e-3, "weight_decay": 0.1, "betas": [0.9, 0.95]},
        "scheduler": {"type": "constant", "warmup_steps": 2},
        "zero": {"stage": stage},
        "parallel": {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline},
        "checkpoint": {"save_steps": SAVED},
    }


def _losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in metric_lines(run, "step")}


def _saved(run: Path) -> FullWeights:
    folder = run / f"checkpoints/step-{SAVED:08d}"
    return open_checkpoint(folder, json.loads((folder / "manifest.json").read_text()))


def _held(run: Path) -> FullWeights:
    """What a run held when it had resumed."""
    return open_checkpoint(run / "held", json.loads((run / "held" / "held.json").read_text()))


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_weights_masters_and_moments_are_the_same_to_the_bit(source: str, target: str, runs: Runs) -> None:
    before, after = _saved(runs[source]), _held(runs[f"{source}>{target}"])
    assert before.states.keys() == after.states.keys()
    for name, states in before.states.items():
        assert set(states) == {"fp32", "exp_avg", "exp_avg_sq"} == set(after.states[name])
        for state in states:
            assert torch.equal(before.get(name, state), after.get(name, state)), (name, state)
    assert before.step == after.step


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_losses_go_on_as_those_of_the_run_that_was_not_stopped(source: str, target: str, runs: Runs) -> None:
    straight, resumed = _losses(runs[source]), _losses(runs[f"{source}>{target}"])
    assert min(resumed) == SAVED + 1
    for step, loss in resumed.items():
        assert abs(loss - straight[step]) <= BOUND * straight[step], (step, loss, straight[step])


@pytest.mark.parametrize("layout", [name for name in USED if name.startswith("tensor-pipeline")])
def test_an_export_has_the_weights_of_the_model(layout: str, runs: Runs, tmp_path: Path) -> None:
    folder = runs[layout] / f"checkpoints/step-{SAVED:08d}"
    exported = export_checkpoint(folder, tmp_path / "out", "float32", verify=True)
    written, moved = load_file(exported / "model.safetensors"), _held(runs["tensor-pipeline>data"])
    plain = _saved(runs[layout])
    for name, tensor in written.items():
        assert torch.equal(tensor, plain.get(name))
        if layout == "tensor-pipeline":  # through an engine without tensor groups or stages
            assert torch.equal(tensor, moved.get(name))
    _, info = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
