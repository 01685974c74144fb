# SPDX-License-Identifier: Apache-2.0
"""Pretrained weights arrive exactly, at every stage; at stage 3 they cost a node one copy of the model, not one a rank."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.model_helpers import FAMILIES, JOBS, make_big_model, make_model, run_cases, zero

WAYS = [(0, False), (2, True), (3, False), (3, True)]
BROKEN = ("missing", "shape", "damaged", "no-weights")


def _break(folder: Path, how: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    if how == "missing":
        del tensors["model.norm.weight"]
    elif how == "shape":
        tensors["model.norm.weight"] = torch.zeros(16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if how == "damaged":
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(5000)
    if how == "no-weights":
        (folder / "model.safetensors").unlink()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    made = {family: make_model(family, root / family) for family in FAMILIES}
    for how in BROKEN:
        made[how] = Path(shutil.copytree(made["llama"], root / how))
        _break(made[how], how)
    # As Hub repositories of older models have them: without the prefix of the whole model.
    made["gpt2-base"] = Path(shutil.copytree(made["gpt2"], root / "gpt2-base"))
    tensors = load_file(made["gpt2"] / "model.safetensors")
    bare = {n.removeprefix("transformer."): t for n, t in tensors.items()}
    save_file(bare, made["gpt2-base"] / "model.safetensors", metadata={"format": "pt"})
    return made


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path], forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("loaded")
    cases = []
    for name, folder in folders.items():
        for stage, bf16 in WAYS:
            spec = {"model": {"name_or_path": str(folder)}, "precision": {"bf16": bf16}, "zero": zero(stage)}
            case = f"{name}@{stage}{'-bf16' if bf16 else ''}"
            # 16 bit at stage 0 to 2 would train: DeepSpeed keeps fp32 masters, weights are compared before any step
            file = None if name in BROKEN else str(out / f"{case}.safetensors")
            cases.append({"name": case, "spec": spec, "steps": 0, "file": file})
    return {"out": out, **run_cases(forked, out, cases)}


@pytest.mark.parametrize(("stage", "bf16"), WAYS)
@pytest.mark.parametrize("family", [*FAMILIES, "gpt2-base"])
def test_weights_are_those_that_transformers_loads(
    loaded: dict[str, Any], folders: dict[str, Path], family: str, stage: int, bf16: bool
) -> None:
    dtype = torch.bfloat16 if bf16 else torch.float32
    expected = AutoModelForCausalLM.from_pretrained(folders[family], dtype=dtype)
    case = f"{family}@{stage}{'-bf16' if bf16 else ''}"
    found = load_file(loaded["out"] / f"{case}.safetensors")
    named = dict(expected.named_parameters())
    assert set(found) == set(named)
    for name, tensor in named.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize(("how", "gate"), zip(BROKEN, ("MD150", "MD151", "MD102", "MD102"), strict=True))
def test_what_cannot_be_loaded_is_refused(loaded: dict[str, Any], how: str, gate: str, stage: int) -> None:
    found = loaded[f"{how}@{stage}"]["refused"]
    assert [finding[0] for finding in found] == [gate]
    if how == "missing":
        assert "`model.norm.weight`" in found[0][1]
    if how == "shape":
        assert found[0][2] == "`model.norm.weight` is [16], should be [32]"


def test_buffers_are_on_the_device_after_a_sharded_load(folders: dict[str, Path], forked: ForkedRanks) -> None:
    """Nobody else moves them: the engine leaves alone what `deepspeed.zero.Init` has made."""
    forked.run(JOBS / "buffers_elsewhere.py", *(str(folders[name]) for name in ("llama", "llama-tied")), ranks=2)


def test_loading_at_stage_3_costs_a_node_one_copy(forked: ForkedRanks, tmp_path: Path) -> None:
    folder = make_big_model(tmp_path)
    forked.run(JOBS / "load_big.py", str(folder), str(tmp_path / "out.json"), ranks=4)
    ranks = json.loads((tmp_path / "out.json").read_text())
    size = ranks[0]["model"]
    assert size > 1_000_000_000
    assert [rank["wrong"] for rank in ranks] == [0, 0, 0, 0]
    # The embedding, 65 MB, is whole on every rank for a moment: 1.26 copies with it, and what Python needs.
    assert sum(rank["RssAnon"] for rank in ranks) < 1.4 * size
    for rank in ranks:
        assert rank["RssAnon"] < 0.35 * size
        assert rank["RssFile"] < 0.12 * size  # never more than one tensor is mapped
        assert rank["rchar"] < 0.02 * size  # what is not mapped: only the files' headers
    # Nobody but rank 0 touches the weights' pages at all.
    assert max(rank["RssFile"] for rank in ranks[1:]) < 0.03 * size
    shutil.rmtree(folder, ignore_errors=True)
