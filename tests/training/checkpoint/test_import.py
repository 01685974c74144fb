# SPDX-License-Identifier: Apache-2.0
"""Runs that another program began: imported, trained on, converted back. A sample of the cells of `benchmarks/import_cells.py`."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.checkpoints.foreign.folder_reader import inspect_folder
from harness.checkpoints.manifest import read_manifest
from harness.checkpoints.verify import verify_checkpoint
from harness.errors import UserError
from harness.runtime.checkpoint.foreign.foreign_save import name_groups
from harness.runtime.checkpoint.foreign.import_writer import read_random_states
from tests.support.markdown_blocks import ROOT, command_lines, read_blocks
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.import_cells import (
    SAVED,
    STEPS,
    Cell,
    CellResult,
    run_cells,
    run_orders,
)
from tests.support.training.runtime_helpers import metric_lines

TRAINER = Cell("trainer", 2, target=3)
LORA = Cell("trainer", 3, lora=True, dropout=0.1, ranks=(2, 2), target=1)
"""With dropout, the steps are the writer's where its random states are, there and back."""
SAMPLE = (
    Cell("bare", 0, bf16=True),
    LORA,
    Cell("accelerate", 2, target=1),
    TRAINER,
    *(Cell("bare", 0, ranks=(1, 1), optimizer="Adagrad", onto_cpu=True, target=stage) for stage in (2, 3)),
    Cell("bare", 2, ranks=(1, 1), offload=True, optimizer="Adagrad", target=0),
)
"""Adagrad's state has one name in torch and another in host memory."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("import")


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, folder: Path) -> dict[Cell, CellResult]:
    return {result.cell: result for result in run_cells(forked, SAMPLE, folder)}


@pytest.mark.parametrize("cell", SAMPLE, ids=lambda cell: cell.name)
def test_ten_steps_are_those_of_the_writer(results: dict[Cell, CellResult], cell: Cell) -> None:
    assert results[cell].steps == STEPS - SAVED
    assert results[cell].rates
    assert results[cell].passed, results[cell].difference


@pytest.mark.usefixtures("results")
def test_an_import_is_a_checkpoint_with_the_hash_of_each_tensor(folder: Path) -> None:
    checkpoint = folder / TRAINER.name / "run" / "checkpoints" / f"step-{SAVED:08d}"
    assert verify_checkpoint(checkpoint, deep=True) == []
    digests = json.loads((checkpoint / "tensors.json").read_text())
    assert {tuple(sorted(keys)) for keys in digests.values()} == {("exp_avg", "exp_avg_sq", "fp32")}
    manifest = read_manifest(checkpoint)
    assert manifest["imported"]["from"] == str(TRAINER.saved(folder).resolve())
    assert manifest["geometry"] == {"global_batch": 8, "order_seed": 11}
    assert manifest["state"]["position"] == {"epoch": 0, "offset": 8 * SAVED}


@pytest.fixture(scope="module")
def requests(forked: ForkedRanks, results: dict[Cell, CellResult], folder: Path) -> dict[str, Any]:
    """Answers to requests that are made of the sample: lines, or ids of findings."""
    assert results
    trainer = TRAINER.import_order(folder)
    checkpoint = folder / TRAINER.name / "run" / "checkpoints" / f"step-{SAVED:08d}"
    damaged = {name: folder / f"damaged-{name}" for name in ("short", "code", "names", "moved", "stage3", "stale")}
    for name, place in damaged.items():
        source = (LORA if name == "stage3" else TRAINER).saved(folder)
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("on", "run"))
        _damage(place / f"global_step{SAVED}", name)
    cases: dict[str, dict[str, Any]] = {
        "other-optimizer": {**trainer, "run": str(folder / "lion"), "settings": {"optimizer": {"type": "lion"}}},
        "dropped": {**trainer, "run": str(folder / "dropped"), "settings": {}, "drop_optimizer_states": True},
        "cache": {**trainer, "run": str(folder / "cache-run"), **_links_of_a_hub_cache(folder)},
        **{
            f"convert-{cell.name}": {
                "action": "convert", "checkpoint": str(folder / cell.name / "run" / "checkpoints" / checkpoint.name),
                "out": str(folder / f"back-{cell.name}" / f"checkpoint-{SAVED}"), "to": "trainer",
            }
            for cell in (TRAINER, LORA)
        },
        "convert-deepspeed": {
            "action": "convert", "checkpoint": str(checkpoint), "out": str(folder / "ds"), "to": "deepspeed",
        },
    }  # fmt: skip
    for name, place in damaged.items():
        tag = str(place / f"global_step{SAVED}")
        cases[name] = {**trainer, "tag": tag, "folder": str(place), "run": str(folder / f"run-{name}")}
        cases[f"partial-{name}"] = {"action": "partial", "tag": tag, "out": str(folder / f"part-{name}")}
        (folder / f"part-{name}").mkdir()
    orders = [{**case, "refused": str(folder / f"{name}.json")} for name, case in cases.items()]
    run_orders(forked, "import_saves", orders, folder, 1)
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in cases}


def _links_of_a_hub_cache(folder: Path) -> dict[str, str]:
    """The Trainer's checkpoint with links to `blobs` in the place of its files; its tag and folder."""
    snapshot, blobs = folder / "cache" / "snapshots" / "abc", folder / "cache" / "blobs"
    shutil.copytree(TRAINER.saved(folder), snapshot)
    blobs.mkdir()
    for number, file in enumerate(sorted(path for path in snapshot.rglob("*") if path.is_file())):
        file.rename(blobs / str(number))
        file.symlink_to(blobs / str(number))
    return {"folder": str(snapshot), "tag": str(snapshot / f"global_step{SAVED}")}


def _damage(tag: Path, name: str) -> None:
    optimizer = sorted(tag.glob("*optim_states.pt"))[-1]
    if name in ("short", "stage3"):
        optimizer.unlink()
    elif name == "stale":  # of the save before it
        body = torch.load(optimizer, weights_only=False)  # written by this test's own writer
        for state in body["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
            state["step"] = torch.tensor(2.0) if torch.is_tensor(state["step"]) else 2
        torch.save(body, optimizer)
    elif name == "code":
        torch.save({"optimizer_state_dict": print}, optimizer)
    elif name == "moved":
        torch.save({"optimizer_state_dict": {"zero_stage": 2}}, optimizer)
    else:
        file = tag / "mp_rank_00_model_states.pt"
        body = torch.load(file, weights_only=False)  # written by this test's own writer
        body["param_shapes"] = [{"../../out": torch.Size([2])}]
        torch.save(body, file)


def test_states_of_another_optimizer_are_refused_or_dropped(requests: dict[str, Any], folder: Path) -> None:
    assert requests["other-optimizer"] == ["CK136"]
    assert not (folder / "lion" / "checkpoints" / f"step-{SAVED:08d}").exists()
    zero = folder / "dropped" / "checkpoints" / f"step-{SAVED:08d}" / "universal" / "zero"
    assert {file.name for file in zero.glob("*/*.pt")} == {"fp32.pt"}


@pytest.mark.parametrize(
    ("optimizer", "stage"),
    [
        ("muon", 1),
        ("sgd", 3),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (("adagrad", 0), ("adamw", 2))),
    ],
)
def test_any_optimizer_begins_anew_with_dropped_states(
    requests: dict[str, Any], forked: ForkedRanks, folder: Path, optimizer: str, stage: int
) -> None:
    assert requests["dropped"] != ["CK136"]
    plan = TRAINER.plan(folder, folder / "model", folder / "text.txt")
    plan["spec"]["train"]["max_steps"] = SAVED + 2
    plan["spec"]["zero"] = {"stage": stage}
    plan["spec"].pop("deepspeed", None)
    plan["spec"]["optimizer"] = {"type": optimizer, "learning_rate": 1e-3}
    resume = str(folder / "dropped" / "checkpoints" / f"step-{SAVED:08d}")
    plan |= {"folder": str(folder / f"anew-{optimizer}"), "resume": resume}
    run_orders(forked, "reshard_cases", {"runs": [plan]}, folder, 1)
    assert len(metric_lines(folder / f"anew-{optimizer}", "step")) == 2


def test_files_of_a_hub_cache_are_imported_through_their_links(requests: dict[str, Any], folder: Path) -> None:
    assert "each tensor has the hash of its source" in requests["cache"][0]
    ours, links = (folder / run / "checkpoints" / f"step-{SAVED:08d}" for run in (f"{TRAINER.name}/run", "cache-run"))
    assert (links / "tensors.json").read_text() == (ours / "tensors.json").read_text()
    assert (links / "huggingface" / "config.json").read_bytes() == (ours / "huggingface/config.json").read_bytes()


def test_a_trained_weight_that_the_model_lacks_is_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from harness.runtime.checkpoint.reshard import from_universal

    held = torch.nn.Parameter(torch.zeros(2))
    monkeypatch.setattr(from_universal, "param_groups", lambda _: [[held]])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "fp32.pt").touch()
    for trained, has_all, refused in (({"a"}, True, False), ({"a", "b"}, True, True), ({"a", "b"}, False, False)):
        check = partial(from_universal._check_names, None, {held: "a"}, tmp_path, trained, has_all=has_all)
        with pytest.raises(UserError, match="`b`, which the model") if refused else nullcontext():
            check()


class Hostile:
    """A pickle that leaves a mark where it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("program", ["trainer", "accelerate"])
def test_random_states_of_each_rank_are_read_without_running_anything(tmp_path: Path, program: str) -> None:
    kept = []
    for rank in range(2):
        random.seed(rank)
        np.random.seed(rank)
        drawn = np.random.standard_normal()  # leaves a cached one
        devices = [torch.full((16,), device, dtype=torch.uint8) for device in range(2)]
        values = [random.getstate(), np.random.get_state(), torch.Generator().manual_seed(rank).get_state(), devices]
        if program == "trainer":
            torch.save(
                dict(zip(("python", "numpy", "cpu", "cuda"), values, strict=True)), tmp_path / f"rng_state_{rank}.pth"
            )
        else:
            names = ("random_state", "numpy_random_seed", "torch_manual_seed", "torch_cuda_manual_seed")
            torch.save({"step": 3, **dict(zip(names, values, strict=True))}, tmp_path / f"random_states_{rank}.pkl")
        kept.append((values, drawn))
    states, told = read_random_states(tmp_path, 2)
    assert "of 2 ranks are imported" in told
    for rank, ((python, numpy, host, devices), _) in enumerate(kept):
        assert states[rank]["python"] == python
        kind, keys, *rest = states[rank]["numpy"]
        assert (kind, tuple(rest)) == (numpy[0], numpy[2:])
        assert keys == numpy[1].tolist()
        assert torch.equal(states[rank]["torch"], host)
        assert torch.equal(states[rank]["accelerator"], devices[rank])
    assert read_random_states(tmp_path, 4) == ([], "random states are not imported: there are 2 files, of 4 ranks")


@pytest.mark.parametrize("part", ["python", "numpy", "cpu"])
def test_random_states_that_nobody_can_set_are_left_out_and_nothing_of_them_runs(tmp_path: Path, part: str) -> None:
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    for wrong in (Hostile(tmp_path / "ran"), None, torch.zeros(1 << 17, dtype=torch.uint8), ("MT19937", 1, 2, 3, 4)):
        torch.save({**states, part: wrong}, tmp_path / "rng_state.pth")
        found, told = read_random_states(tmp_path, 1)
        assert found == []
        assert told.startswith("random states are not imported")
    assert not (tmp_path / "ran").exists()


WEIGHTS = {
    name: torch.randn(4, 4 if "weight" in name else 1).squeeze(-1).bfloat16()
    for name in ("a.weight", "a.bias", "b.weight", "b.bias")
}


@pytest.mark.parametrize(
    ("order", "is_known"),
    [
        ([["a.weight", "a.bias", "b.weight", "b.bias"]], True),
        ([["a.weight", "b.weight"], ["a.bias", "b.bias"]], True),
        ([["b.weight", "a.bias", "a.weight", "b.bias"]], False),
        ([["b.weight", "a.weight"], ["a.bias", "b.bias"]], False),
    ],
)
def test_the_order_of_a_flat_group_is_that_of_its_weights(order: list[list[str]], *, is_known: bool) -> None:
    flat = [torch.cat([WEIGHTS[name].float().flatten() for name in group]) for group in order]
    optimizer = {"fp32_groups_flat": flat, "optimizer_state_dict": {"state": {}}}
    if is_known:
        assert name_groups(optimizer, WEIGHTS) == order
    else:
        with pytest.raises(UserError, match="those of the 16-bit weights"):
            name_groups(optimizer, WEIGHTS)


@pytest.mark.parametrize(
    ("name", "gate"),
    [("short", "CK105"), ("code", "CK111"), ("names", "CK120"), ("moved", "CK120"), ("stage3", "CK105")],
)
def test_a_damaged_save_is_refused_and_nothing_is_left(
    requests: dict[str, Any], folder: Path, name: str, gate: str
) -> None:
    assert requests[name] == [gate]
    assert not list((folder / f"run-{name}").glob("checkpoints/*"))


def test_what_is_left_of_a_save_is_written_by_name_and_never_as_a_whole(requests: dict[str, Any], folder: Path) -> None:
    from safetensors.torch import load_file

    assert "this is no checkpoint" in requests["partial-short"][0]
    body = json.loads((folder / "part-short" / "partial.json").read_text())
    assert body["whole"] is False
    assert {"masters"} < {*body["tensors"].values()} == {"masters", "weights in float32"}
    whole = torch.load(TRAINER.saved(folder) / f"global_step{SAVED}" / "mp_rank_00_model_states.pt", weights_only=False)
    for name in body["tensors"]:
        assert torch.equal(load_file(folder / "part-short" / f"{name}.safetensors")[name], whole["module"][name])
    stale = json.loads((folder / "part-stale" / "partial.json").read_text())
    assert stale["shards_of_another_save"] == body["unreadable_shards"] + ["zero_pp_rank_1_mp_rank_00_optim_states.pt"]
    assert stale["tensors"] == body["tensors"]
    assert requests["partial-stage3"] == ["CK105"]
    assert not (folder / "part-stage3" / "partial.json").exists()


@pytest.mark.parametrize("cell", [TRAINER, LORA], ids=lambda cell: cell.name)
def test_the_trainer_goes_on_from_a_converted_checkpoint(
    requests: dict[str, Any], forked: ForkedRanks, folder: Path, cell: Cell
) -> None:
    """With the losses of its own run that nobody stopped, at another stage."""
    assert "resume_from_checkpoint" in requests[f"convert-{cell.name}"][0]
    order = replace(cell, stage=5 - cell.stage).order(folder, folder / "model", folder / "rows.json")
    order["config"]["checkpoint"] = {"load_universal": True}
    back_folder = folder / f"back-{cell.name}"
    assert inspect_folder(back_folder / f"checkpoint-{SAVED}").problems == []
    order |= {"resume": str(back_folder / f"checkpoint-{SAVED}"), "out": str(back_folder)}
    run_orders(forked, "foreign_writers", [order], folder, 2)
    straight = json.loads((folder / cell.name / "writer/writer.json").read_text())["steps"]
    back = json.loads((back_folder / "writer.json").read_text())["steps"]
    assert set(back) == {str(step) for step in range(SAVED + 1, STEPS + 1)}
    for step, line in back.items():
        assert line["loss"] == pytest.approx(straight[step]["loss"], rel=1e-6)
        assert line["learning_rate"] == straight[step]["learning_rate"]


def test_an_import_has_no_shards_of_deepspeed_to_give_back(requests: dict[str, Any]) -> None:
    assert requests["convert-deepspeed"] == ["CK131"]


PAGE = [block for block in read_blocks(ROOT / "docs" / "takeover.md") if block.mark == "check-only"]
WRITTEN = (
    ("checkpoint-500", "taken/spec.yaml"),
    ("checkpoint-500", "taken/spec.yaml"),
    ("checkpoints", "taken/checkpoints/latest"),
    ("checkpoint-500", "taken/spec.yaml"),
    ("checkpoint-500", "rescued/partial.json"),
    ("checkpoint-500", "checkpoint-back/trainer_state.json universal/latest_universal exported/model.safetensors"),
)
"""Of each block of the page: the folder that it begins with, and files that are there after it."""


@pytest.mark.usefixtures("requests")
@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.nightly) for number in range(1, 6))])
def test_the_commands_of_the_page_do_what_it_says(folder: Path, tmp_path: Path, number: int) -> None:
    assert len(PAGE) == len(WRITTEN)
    begins, written = WRITTEN[number]
    source = {1: LORA.saved(folder), 2: SAMPLE[2].saved(folder), 4: folder / "damaged-short"}.get(number)
    ignored = shutil.ignore_patterns("on", "run", "writer.json")
    shutil.copytree(source or TRAINER.saved(folder), tmp_path / begins, ignore=ignored)
    (tmp_path / "ds_configs").symlink_to(ROOT / "ds_configs")
    commands = [*(command_lines(PAGE[0]) if number == 5 else ()), *command_lines(PAGE[number])]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)], cwd=tmp_path, text=True, check=False, stdout=-1, stderr=subprocess.STDOUT,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert [file for file in written.split() if not (tmp_path / file).exists()] == [], done.stdout
