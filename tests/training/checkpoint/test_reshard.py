# SPDX-License-Identifier: Apache-2.0
"""Going on in another shape: the state is the same to the bit, and the losses are those of the run that went on as it was.

One model, one text and one global batch; every shape sees the same sequences, so that losses differ by rounding alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from harness.checkpoints.foreign.folder_reader import inspect_folder
from harness.errors import UserError
from harness.runtime.checkpoint.consolidate import FullWeights, open_checkpoint
from harness.runtime.export import export_checkpoint
from harness.runtime.tokenizer import byte_tokenizer
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import TINY, metric_lines

JOB = Path(__file__).parents[1] / "jobs" / "reshard_cases.py"
STEPS, SAVED = 6, 3
BOUND = 1e-6
"""Of the loss, against the run that was not stopped; fp32. Bit-equal states then differ by the order of sums."""
CPU = {"offload_optimizer": {"device": "cpu"}}

SHAPES: dict[str, tuple[int, dict[str, Any], dict[str, int]]] = {
    # name: (ranks, zero, parallel)
    "z0": (2, {"stage": 0}, {}),
    "z1": (2, {"stage": 1}, {}),
    "z2": (2, {"stage": 2}, {}),
    "z2-cpu": (2, {"stage": 2, **CPU}, {}),
    "z3-cpu": (2, {"stage": 3, "sub_group_size": 5000, **CPU}, {}),
    "z3": (2, {"stage": 3}, {}),
    "tp": (2, {"stage": 1}, {"tensor_parallel_size": 2}),
    "pp": (2, {"stage": 1}, {"pipeline_parallel_size": 2}),
    "lora": (2, {"stage": 3}, {}),
    "lora-z1": (2, {"stage": 1}, {}),
    "z1-of-4": (4, {"stage": 1}, {}),
    "z3-of-4": (4, {"stage": 3}, {}),
}
SOURCES = ("z0", "z1", "z2", "z3-cpu", "pp", "lora", "tp")
LORA = {"r": 4, "lora_alpha": 16.0, "target_modules": ["q_proj", "down_proj"]}
MOVES = [
    ("z1", "z3"),
    ("z3-cpu", "z2"),
    ("z2", "z2-cpu"),
    ("z0", "z1"),
    ("z1", "z0"),
    ("tp", "z1"),
    ("pp", "z1"),
    ("z3-cpu", "tp"),
    ("z1", "pp"),
    ("lora", "lora-z1"),
    ("z1-of-4", "z1"),
]
BACK = [("z1-of-4>z1", "z1-of-4"), ("z1-of-4>z1", "z3-of-4")]

Runs = dict[str, Path]


@pytest.fixture(scope="module")
def runs(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every source trained to the end, saved on the way; then every move from there; run directories by name."""
    folder = tmp_path_factory.mktemp("reshape")
    model, text = write_model(folder / "model"), write_text(folder / "text.txt")
    made: Runs = {}

    def plan(name: str, shape: str, resume: str | None = None) -> dict[str, Any]:
        made[name] = folder / "runs" / name.replace(">", "-to-")
        at = made[resume] / f"checkpoints/step-{SAVED if resume in SHAPES else SAVED + 1:08d}" if resume else None
        steps = SAVED + 1 if name == "z1-of-4>z1" else STEPS
        chosen = spec(shape, model, text, steps)
        return {"name": name, "folder": str(made[name]), "spec": chosen, "resume": str(at) if at else None}

    def go(ranks: int, *plans: dict[str, Any]) -> None:
        file = folder / f"plan-{len(made)}.json"
        file.write_text(json.dumps({"runs": plans}))
        forked.run(JOB, str(file), ranks=ranks, timeout=600)

    go(4, plan("z1-of-4", "z1-of-4"))
    go(2, *(plan(s, s) for s in SOURCES), *(plan(f"{a}>{b}", b, a) for a, b in MOVES))
    go(4, *(plan(f"{a}>{b}", b, a) for a, b in BACK))
    return made


def write_model(folder: Path) -> Path:
    """A tiny Llama without dropout, its embeddings tied, and the byte tokenizer."""
    torch.manual_seed(0)
    fields = {k: v for k, v in TINY.items() if k not in ("model_type", "attention_dropout")}
    config = AutoConfig.for_model("llama", tie_word_embeddings=True, eos_token_id=256, pad_token_id=257, **fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def write_text(path: Path) -> Path:
    path.write_text("".join(f"{i} times {i + 7} is {i * (i + 7)}, and no more.\n" for i in range(600)))
    return path


def spec(shape: str, model: Path, text: Path, steps: int = STEPS) -> dict[str, Any]:
    """The same training in every shape: the global batch stays, accumulation follows."""
    _, zero, parallel = SHAPES[shape]
    return {
        "name": shape,
        "model": {"name_or_path": str(model), **({"lora": LORA} if shape.startswith("lora") else {})},
        "data": {"train": str(text), "max_length": 32},
        "train": {"max_steps": steps, "global_batch_size": 8, "per_device_train_batch_size": 1, "max_grad_norm": 0.5},
        "optimizer": {"learning_rate": 3e-3, "weight_decay": 0.1, "betas": [0.9, 0.95]},
        "scheduler": {"type": "constant", "warmup_steps": 2},
        "zero": zero,
        "parallel": parallel,
        "checkpoint": {"save_steps": SAVED},
    }


def losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in metric_lines(run, "step")}


def saved(run: Path, step: int = SAVED) -> FullWeights:
    """The checkpoint that a run has saved."""
    folder = run / f"checkpoints/step-{step:08d}"
    return open_checkpoint(folder, json.loads((folder / "manifest.json").read_text()))


def held(run: Path) -> FullWeights:
    """What a run held when it had resumed."""
    body = json.loads((run / "held" / "held.json").read_text())
    return open_checkpoint(run / "held", body)


def each(moves: list[tuple[str, str]]) -> Callable[..., Any]:
    return pytest.mark.parametrize(("source", "target"), moves, ids=[f"{a}-to-{b}" for a, b in moves])


@each([*MOVES, *BACK])
def test_weights_masters_and_moments_are_the_same_to_the_bit(source: str, target: str, runs: Runs) -> None:
    before = saved(runs[source], SAVED if source in SHAPES else SAVED + 1)
    after = held(runs[f"{source}>{target}"])
    assert before.states.keys() == after.states.keys()
    for name, states in before.states.items():
        assert set(states) == {"fp32", "exp_avg", "exp_avg_sq"} == set(after.states[name])
        for state in states:
            assert torch.equal(before.get(name, state), after.get(name, state)), (name, state)
    assert before.step == after.step
    options = {n: g.options["weight_decay"] for g in before.groups for n in g.names}
    assert {n: g.options["weight_decay"] for g in after.groups for n in g.names} == options
    assert {g.options["lr"] for g in after.groups} == {g.options["lr"] for g in before.groups}


@each([*MOVES, *BACK])
def test_losses_go_on_as_those_of_the_run_that_was_not_stopped(source: str, target: str, runs: Runs) -> None:
    straight, resumed = losses(runs[source.partition(">")[0]]), losses(runs[f"{source}>{target}"])
    assert min(resumed) == (SAVED if source in SHAPES else SAVED + 1) + 1
    for step, loss in resumed.items():
        assert abs(loss - straight[step]) <= BOUND * straight[step], (step, loss, straight[step])
    rates = [
        {line["step"]: line["learning_rate"] for line in metric_lines(runs[r], "step")}
        for r in ("z1", f"{source}>{target}")
    ]
    assert all(rates[0][step] == rate for step, rate in rates[1].items())


@pytest.mark.parametrize("shape", SOURCES)
def test_a_save_of_the_real_engine_is_told_by_its_outline(shape: str, runs: Runs) -> None:
    """Without the manifest, as a folder of any program that trains with DeepSpeed."""
    folder = runs[shape] / f"checkpoints/step-{SAVED:08d}"
    (tag,) = (entry for entry in folder.iterdir() if entry.name.startswith("global_step"))
    found = inspect_folder(tag)
    ranks, zero, parallel = SHAPES[shape]
    model_ranks = parallel.get("tensor_parallel_size", 1) * parallel.get("pipeline_parallel_size", 1)
    assert found.problems == []
    assert found.facts["step"] == str(SAVED)
    assert found.facts["ZeRO stage"] == str(zero["stage"])
    assert found.facts["data ranks"] == str(ranks // model_ranks)
    assert ("pipeline" in found.facts) == ("pipeline_parallel_size" in parallel)
    assert found.facts.get("adapters") == ("LoRA alone is trained" if shape.startswith("lora") else None)


def test_the_conversion_goes_with_the_first_checkpoint_in_the_new_shape(runs: Runs) -> None:
    assert not list(runs["z1>z3"].glob("checkpoints/universal*"))
    assert not list(runs["z1>z3"].glob("checkpoints/.tmp*"))


@pytest.mark.parametrize("shape", [s for s in SOURCES if s != "lora"])
def test_exports_of_every_shape_hold_the_same_model(shape: str, runs: Runs, tmp_path: Path) -> None:
    checkpoint = f"checkpoints/step-{STEPS:08d}"
    reference = load_file(export_checkpoint(runs["z1"] / checkpoint, tmp_path / "z1", "float32") / "model.safetensors")
    exported = export_checkpoint(runs[shape] / checkpoint, tmp_path / "out", "float32", verify=True)
    written = load_file(exported / "model.safetensors")
    assert written.keys() == reference.keys()
    for name, tensor in reference.items():
        assert torch.allclose(written[name], tensor, atol=2e-4), (name, (written[name] - tensor).abs().max())
    model, info = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("shape", ["lora", "lora>lora-z1"])
@pytest.mark.parametrize("way", ["merge", "adapter"])
def test_adapters_are_merged_or_alone_and_compute_the_same(shape: str, way: Any, runs: Runs, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    checkpoint = runs[shape] / f"checkpoints/step-{STEPS:08d}"
    folder = export_checkpoint(checkpoint, tmp_path / "out", "float32", lora=way, verify=True)
    names = {path.name for path in folder.iterdir()}
    assert ("adapter_model.safetensors" in names) == ("adapter_config.json" in names) == (way == "adapter")
    assert ("model.safetensors" in names) == ("config.json" in names) == (way == "merge")
    if way == "merge":
        trained = load_file(folder / "model.safetensors")
        before = load_file(runs["z1"].parents[1] / "model" / "model.safetensors")
        changed = {name for name, tensor in trained.items() if not torch.equal(tensor, before[name])}
        assert changed == {name for name in before if "q_proj" in name or "down_proj" in name}


def test_a_checkpoint_without_adapters_has_none_to_export(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no LoRA adapters") as refused:
        export_checkpoint(runs["z1"] / f"checkpoints/step-{STEPS:08d}", tmp_path / "out", lora="adapter")
    assert refused.value.findings[0].gate == "CK127"
    assert not list(tmp_path.iterdir())
