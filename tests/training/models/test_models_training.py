# SPDX-License-Identifier: Apache-2.0
"""Freezing by pattern, activation checkpointing of all three kinds, and `torch.compile`: same numbers at every stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.model_helpers import make_model, run_cases, zero

FREEZE = {"freeze": ["*embed_tokens*", "model.layers.0.*"]}
ONLY = {"train_only": ["model.layers.1.mlp.*"]}
KINDS: dict[str, dict[str, Any]] = {
    "kept": {},
    "recomputed": {"gradient_checkpointing": True},
    "reentrant": {"gradient_checkpointing": True, "gradient_checkpointing_use_reentrant": True},
    "deepspeed": {"gradient_checkpointing": True, "offload_activations": True},
}
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"freeze": ["model.layers.0.self_atn.*"]}, "MD152"),
    "all": ({"freeze": ["*"]}, "MD153"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("training")
    make_model("llama", root / "llama")
    make_model("llama-tied", root / "llama-tied")
    return root


@pytest.fixture(scope="module")
def trained(folder: Path, forked: ForkedRanks) -> dict[str, Any]:
    cases = []

    def add(name: str, stage: int, model: dict[str, Any], train: dict[str, Any], **extra: Any) -> None:
        path = str(folder / extra.pop("family", "llama"))
        spec = {"model": {"name_or_path": path, **model}, "train": train, "zero": zero(stage)}
        cases.append({"name": name, "spec": spec, "file": str(folder / name), "steps": 3, **extra})

    for stage in range(4):
        add(f"freeze@{stage}", stage, FREEZE, {})
        add(f"only@{stage}", stage, ONLY, {})
    for stage in (0, 3):
        for kind, train in KINDS.items():
            add(f"{kind}@{stage}", stage, {}, train)
            add(f"{kind}-frozen@{stage}", stage, FREEZE, train, file=None)
    for stage in (0, 2):
        add(f"compiled@{stage}", stage, {}, {"torch_compile": True, "torch_compile_backend": "aot_eager"}, file=None)
    add("tied", 2, {"freeze": ["lm_head.weight"]}, {}, family="llama-tied", file=None)
    for name, (model, _) in MISTAKES.items():
        add(name, 0, model, {}, file=None)
    return run_cases(forked, folder, cases)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize(("what", "parts"), [("freeze", ("norm", "lm_head", "layers.1")), ("only", ("layers.1.mlp",))])
def test_frozen_parameters_stay_and_have_no_states(
    trained: dict[str, Any], folder: Path, what: str, parts: tuple[str, ...], stage: int
) -> None:
    case = trained[f"{what}@{stage}"]
    assert case["losses"] == pytest.approx(trained[f"{what}@0"]["losses"], rel=1e-5)
    stored, after = load_file(folder / "llama" / "model.safetensors"), load_file(folder / f"{what}@{stage}")
    for name, tensor in after.items():
        expected = any(part in name for part in parts) and not name.startswith("model.layers.0")
        assert (name in case["trained"]) == expected, name
        assert torch.equal(tensor, stored[name]) != expected, name
    count, copies = sum(case["trained"].values()), 2 if stage == 0 else 1
    assert 2 * count * copies <= sum(case["states"]) < 2 * count * copies + 1000


def test_a_tied_weight_goes_by_any_of_its_names(trained: dict[str, Any]) -> None:
    assert "model.embed_tokens.weight" not in trained["tied"]["trained"]
    assert len(trained["tied"]["trained"]) == 19


@pytest.mark.parametrize("name", MISTAKES)
def test_a_pattern_that_cannot_be_meant_is_refused(trained: dict[str, Any], name: str) -> None:
    finding = trained[name]["refused"][0]
    assert finding[0] == MISTAKES[name][1]
    if name == "misspelt":
        assert "model.layers.0.self_attn." in finding[2]


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("kind", ["recomputed", "reentrant", "deepspeed"])
def test_recomputing_changes_no_weight(trained: dict[str, Any], folder: Path, kind: str, stage: int) -> None:
    kept, case = load_file(folder / f"kept@{stage}"), load_file(folder / f"{kind}@{stage}")
    for name, tensor in kept.items():
        assert torch.allclose(case[name], tensor, rtol=0, atol=1e-6), name
    # Behind a frozen embedding a reentrant layer gets no gradient of its own accord.
    assert trained[f"{kind}-frozen@{stage}"]["losses"] == pytest.approx(
        trained[f"kept-frozen@{stage}"]["losses"], rel=1e-6
    )
    # DeepSpeed's function ran, once a layer and step, and only where it was asked for.
    assert trained[f"{kind}@{stage}"]["calls"] == (2 * 3 if kind == "deepspeed" else 0)


@pytest.mark.parametrize("stage", [0, 2])
def test_a_compiled_model_trains_alike(trained: dict[str, Any], stage: int) -> None:
    assert trained[f"compiled@{stage}"]["losses"] == pytest.approx(trained["kept@0"]["losses"], rel=1e-5)
