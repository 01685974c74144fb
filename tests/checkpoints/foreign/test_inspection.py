# SPDX-License-Identifier: Apache-2.0
"""`harness checkpoint inspect` on made-up folders, whole and broken. Needs no torch; seconds."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.checkpoints.foreign.folder_reader import inspect_folder
from harness.checkpoints.foreign.inspection import lines_of
from harness.cli.app import build_app
from tests.support.torch_files import FakeTensor, Global, write_torch_file

NAMES = {"model.embed.weight": (320, 32), "model.layers.0.weight": (32, 32)}


def model_state(step: int = 20, ranks: int = 2, tensor: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "module": {name: FakeTensor("bf16", shape) for name, shape in NAMES.items()},
        "param_shapes": [{name: list(shape) for name, shape in NAMES.items()}],
        "shared_params": {"lm_head.weight": "model.embed.weight"},
        "global_steps": step,
        "dp_world_size": ranks,
        "mp_world_size": tensor,
        "ds_config": {"optimizer": {"type": "AdamW"}},
        "ds_version": "0.16.9",
        **more,
    }


def optimizer_state(stage: int) -> dict[str, Any]:
    moments = {"step": 20, "exp_avg": FakeTensor("fp32", (5632,)), "exp_avg_sq": FakeTensor("fp32", (5632,))}
    return {
        "optimizer_state_dict": {
            "zero_stage": stage,
            "loss_scaler": Global("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
            "base_optimizer_state": {"state": {0: moments}},
            "single_partition_of_fp32_groups": [FakeTensor("fp32", (5632,))],
        }
    }


def write_save(folder: Path, stage: int, ranks: int = 2, tensor: int = 1, step: int = 20, name: str = "") -> Path:
    """A save of DeepSpeed below `folder`, with its `latest`."""
    tag = folder / (name or f"global_step{step}")
    tag.mkdir(parents=True)
    for t in range(tensor):
        for data in range(ranks if stage == 3 else 1):
            prefix = f"zero_pp_rank_{data}_" if stage == 3 else ""
            file = tag / f"{prefix}mp_rank_{t:02d}_model_states.pt"
            write_torch_file(file, model_state(step, ranks, tensor), 4000)
        for data in range(ranks if stage else 0):
            file = tag / f"bf16_zero_pp_rank_{data}_mp_rank_{t:02d}_optim_states.pt"
            write_torch_file(file, optimizer_state(stage), 8000)
    (folder / "latest").write_text(tag.name)
    return tag


def write_safetensors(file: Path, names: tuple[str, ...] = ("a", "b"), missing: int = 0) -> None:
    header = {n: {"dtype": "F32", "shape": [4], "data_offsets": [16 * i, 16 * i + 16]} for i, n in enumerate(names)}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16 * len(names) - missing))


@pytest.mark.parametrize(("stage", "ranks", "tensor"), [(0, 1, 1), (1, 4, 1), (2, 2, 2), (3, 2, 1), (3, 4, 2)])
def test_a_save_of_deepspeed_is_told(stage: int, ranks: int, tensor: int, tmp_path: Path) -> None:
    write_save(tmp_path, stage, ranks, tensor)
    found = inspect_folder(tmp_path)
    assert found.kind == "a DeepSpeed checkpoint"
    assert found.problems == []
    assert found.is_whole
    facts = {"ZeRO stage": str(stage), "data ranks": str(ranks), "step": "20", "DeepSpeed": "0.16.9"}
    assert facts.items() <= found.facts.items()
    assert found.facts["parameters"] == "2 trained, 11,264 elements"
    assert found.facts["tied"] == "lm_head.weight = model.embed.weight"
    assert found.facts["formats"] == ("weights bf16, masters fp32" if stage else "weights bf16")
    assert any("zero_to_fp32" in command for command, _ in found.uses) == (stage > 0 and tensor == 1)


def test_bf16_without_a_stage_in_its_shards_has_that_of_its_json(tmp_path: Path) -> None:
    """`BF16_Optimizer`: its shards are those of stage 1, and none says so. An import reads them."""
    state = optimizer_state(1)["optimizer_state_dict"]
    del state["zero_stage"]
    for stage, zero in ((1, {"stage": 1}), (0, {})):
        tag = write_save(tmp_path / str(stage), 1)
        config = {"optimizer": {"type": "AdamW"}, "zero_optimization": zero}
        write_torch_file(tag / "mp_rank_00_model_states.pt", model_state(ds_config=config), 4000)
        for file in tag.glob("*optim_states.pt"):
            write_torch_file(file, {"optimizer_state_dict": {**state, "param_slice_mappings": []}}, 8000)
        found = inspect_folder(tag.parent)
        assert found.facts["ZeRO stage"] == str(stage)
        assert found.is_whole, found.problems


@pytest.mark.parametrize("pointer", ["latest", "latest_universal"])
def test_a_universal_save_is_found_by_either_pointer(pointer: str, tmp_path: Path) -> None:
    FOLDERS["universal"][0](tmp_path / "global_step20_universal")
    (tmp_path / pointer).write_text("global_step20_universal")
    found = inspect_folder(tmp_path)
    assert (found.kind, found.is_whole) == ("a universal checkpoint of DeepSpeed", True), found.problems
    (tmp_path / pointer).write_text("global_step30_universal")
    assert inspect_folder(tmp_path).problems == [f"`{pointer}` names `global_step30_universal`, which is not there"]


def test_a_universal_parameter_without_a_state_that_others_have_is_told(tmp_path: Path) -> None:
    FOLDERS["universal"][0](tmp_path)
    for name, files in (("model.embed.weight", ("exp_avg",)), ("other", ("fp32", "exp_avg")), ("last", ("fp32",))):
        (tmp_path / "zero" / name).mkdir(exist_ok=True)
        for file in files:
            (tmp_path / "zero" / name / f"{file}.pt").write_bytes(b"1")
    assert inspect_folder(tmp_path).problems == ["1 parameters lack states that others have: last"]


def test_a_count_of_steps_in_a_tensor_is_read(tmp_path: Path) -> None:
    """torch's own optimizers count in a tensor of one number."""
    write_save(tmp_path, 2)
    state = optimizer_state(2)
    state["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["step"] = FakeTensor("fp32", ())
    with zipfile.ZipFile(write_torch_file(tmp_path / SHARD, state, 8000), "a") as archive:
        archive.comment = b"padding"  # an end of another size
    assert inspect_folder(tmp_path).problems == []  # a storage larger than one number says nothing
    for rank, step in enumerate((20.0, 10.0)):
        file = tmp_path / SHARD.replace("rank_1", f"rank_{rank}")
        with zipfile.ZipFile(write_torch_file(file, state, 8000)) as archive:
            outline = archive.read("archive/data.pkl")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", outline)
            archive.writestr("archive/data/0", struct.pack("<f", step))
    assert inspect_folder(tmp_path).problems == ["its shards are of steps 10, 20: two saves mixed"]


def test_links_are_followed_within_a_folder_and_into_the_blobs_of_a_hub_cache(tmp_path: Path) -> None:
    repository = tmp_path / "models--one"
    tag = write_save(repository / "snapshots" / "abc", 2)
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted(tag.iterdir())):
        file.rename(repository / "blobs" / str(number))
        file.symlink_to(f"../../../blobs/{number}")
    assert inspect_folder(tag.parent).is_whole
    linked = tag / sorted(file.name for file in tag.iterdir())[0]
    linked.rename(tag / "held")
    elsewhere = tmp_path / "elsewhere"
    shutil.copy(tag / "held", elsewhere)
    linked.symlink_to(elsewhere)
    assert inspect_folder(tag.parent).problems == [
        f"`{linked.name}` is a link to another folder, which no import follows: copy the file"
    ]


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def _other_step(folder: Path) -> None:
    write_torch_file(folder / "global_step20/zero_pp_rank_1_mp_rank_00_model_states.pt", model_state(10), 4000)


def _optimizer_of(stage: int, step: int = 20) -> Callable[[Path], Any]:
    state = optimizer_state(stage)
    state["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["step"] = step
    return lambda folder: write_torch_file(folder / SHARD, state, 8000)


def _shards_of_four(folder: Path) -> None:
    for rank in (2, 3):
        name = f"global_step20/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        write_torch_file(folder / name, optimizer_state(3), 8000)


SHARD, MODEL = (
    "global_step20/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "global_step20/zero_pp_rank_1_mp_rank_00_model_states.pt",
)
BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an optimizer's shard is missing": (_remove(SHARD), "missing shards with the optimizer's state: of data rank 1"),
    "a model's shard is missing": (_remove(MODEL), "missing shards with the model's state: of data rank 1"),
    "a shard is empty": (_cut(SHARD, 0), "has 0 bytes, the others"),
    "a shard is cut off": (_cut(SHARD, 8400), "is cut off"),
    "a shard lacks its last byte": (lambda f: _cut(SHARD, (f / SHARD).stat().st_size - 1)(f), "is cut off"),
    "an optimizer's shard of another save": (_optimizer_of(3, 10), "its shards are of steps 10, 20: two saves mixed"),
    "an optimizer's shard of another stage": (_optimizer_of(2), "its shards are of stages 2, 3: two saves mixed"),
    "one shard under two names": (
        lambda f: shutil.copy(f / SHARD, f / SHARD.replace("bf16_", "")),
        "two of its files are the same shard",
    ),
    "a shard that holds a list": (lambda f: write_torch_file(f / MODEL, [1], 4000), "holds no state of DeepSpeed"),
    "an expert is missing": (
        lambda f: write_torch_file(f / "global_step20/layer_0_expert_1_mp_rank_00_model_states.pt", {}),
        "1 files of experts are missing",
    ),
    "two saves": (_other_step, "its shards are of steps 10, 20: two saves mixed"),
    "shards of a larger job": (
        _shards_of_four,
        "shards of data ranks 2 to 3 are of another save: this one had 2 ranks",
    ),
    "latest points nowhere": (lambda f: (f / "latest").write_text("global_step30"), "`latest` names `global_step30`"),
    "no latest": (_remove("latest"), "no file `latest`"),
    "a save that is gone": (
        lambda f: shutil.rmtree(f / "global_step20"),
        "`latest` names `global_step20`, which is not",
    ),
    "no torch file": (lambda f: (f / SHARD).write_bytes(b"x" * 9000), "is cut off, or no file of `torch.save`"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_save_is_never_whole(fault: str, tmp_path: Path) -> None:
    write_save(tmp_path, 3)
    damage, message = BROKEN[fault]
    damage(tmp_path)
    found = inspect_folder(tmp_path)
    assert found.is_whole is False
    assert any(message in problem for problem in found.problems), found.problems
    assert not any("zero_to_fp32" in command for command, _ in found.uses)


def test_an_empty_model_state_has_no_stage(tmp_path: Path) -> None:
    (write_save(tmp_path, 0, ranks=1) / "mp_rank_00_model_states.pt").write_bytes(b"")
    found = inspect_folder(tmp_path)
    assert (found.facts["ZeRO stage"], found.problems[0]) == ("not known", "`mp_rank_00_model_states.pt` has 0 bytes")


def test_nothing_of_a_hostile_shard_runs(tmp_path: Path) -> None:
    tag = write_save(tmp_path, 0, 1)
    marker = tmp_path / "ran"
    evil = model_state() | {"extra": Global("os", "getcwd"), "more": Global("builtins", "exit")}
    write_torch_file(tag / "mp_rank_00_model_states.pt", evil)
    assert inspect_folder(tmp_path).facts["step"] == "20"
    huge = b"\x80\x02N" + b"r\xff\xff\xff\x7f" + b"."  # a memo index of two billion
    with zipfile.ZipFile(tag / "mp_rank_00_model_states.pt", "w") as archive:
        archive.writestr("archive/data.pkl", huge)
    inspect_folder(tmp_path)
    assert not marker.exists()


FOLDERS: dict[str, tuple[Callable[[Path], Any], str, bool | None]] = {
    "Trainer with DeepSpeed": (
        lambda f: (
            write_save(f, 2),
            (f / "trainer_state.json").write_text('{"global_step": 20, "max_steps": 100}'),
            [(f / f"rng_state_{rank}.pth").write_bytes(b"1") for rank in (0, 1)],
        ),
        "a checkpoint of the transformers Trainer",
        True,
    ),
    "Trainer that cannot resume": (
        lambda f: (f / "trainer_state.json").write_text('{"global_step": 20}'),
        "a checkpoint of the transformers Trainer",
        False,
    ),
    "accelerate": (
        lambda f: ((f / "random_states_0.pkl").touch(), write_save(f, 3, name="pytorch_model")),
        "a checkpoint of accelerate",
        True,
    ),
    "adapter": (
        lambda f: (
            (f / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "x/y"}'),
            write_safetensors(f / "adapter_model.safetensors"),
        ),
        "an adapter of peft",
        True,
    ),
    "adapter without weights": (lambda f: (f / "adapter_config.json").write_text("{}"), "an adapter of peft", False),
    "weights": (
        lambda f: ((f / "config.json").write_text("{}"), write_safetensors(f / "model.safetensors")),
        "weights of a Hugging Face model",
        True,
    ),
    "a .bin, cut off": (
        lambda f: os.truncate(write_torch_file(f / "pytorch_model.bin", model_state(), 4000), 900),
        "weights of a Hugging Face model",
        False,
    ),
    "weights, cut off": (
        lambda f: write_safetensors(f / "model.safetensors", missing=1),
        "weights of a Hugging Face model",
        False,
    ),
    "weights, a file missing": (
        lambda f: (
            write_safetensors(f / "model-00001-of-00002.safetensors"),
            (f / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}}'
            ),
        ),
        "weights of a Hugging Face model",
        False,
    ),
    "FSDP": (
        lambda f: ((f / "pytorch_model_fsdp_0").mkdir(), (f / "pytorch_model_fsdp_0" / "__0_0.distcp").touch()),
        "a sharded checkpoint of torch",
        False,
    ),
    "universal": (
        lambda f: (
            (f / "zero" / "model.embed.weight").mkdir(parents=True),
            (f / "zero" / "model.embed.weight" / "fp32.pt").write_bytes(b"1"),
            (f / "mp_rank_00_model_states.pt").touch(),
        ),
        "a universal checkpoint of DeepSpeed",
        True,
    ),
    "Megatron-LM": (
        lambda f: (f / "latest_checkpointed_iteration.txt").write_text("500"),
        "checkpoints of Megatron-LM",
        False,
    ),
    "output_dir": (
        lambda f: ((f / "checkpoint-20").mkdir(), (f / "checkpoint-20" / "trainer_state.json").write_text("{}")),
        "a folder with checkpoints",
        None,
    ),
    "no checkpoint": (lambda f: (f / "notes.txt").touch(), "no checkpoint", False),
    "empty": (lambda _: None, "no checkpoint", False),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_the_folder_of_a_program_is_told(name: str, tmp_path: Path) -> None:
    write, kind, is_whole = FOLDERS[name]
    write(tmp_path)
    found = inspect_folder(tmp_path)
    assert found.kind.startswith(kind)
    assert found.is_whole is is_whole, found.problems
    assert next(lines_of(found)).startswith(f"{tmp_path}: {kind}")


def test_the_command_has_an_exit_code_and_json(tmp_path: Path) -> None:
    write_save(tmp_path, 2)
    words = ["checkpoint", "inspect", str(tmp_path), "--format", "json"]
    result = CliRunner().invoke(build_app(words), words)
    assert (result.exit_code, json.loads(result.output)["whole"]) == (0, True)
    (tmp_path / "latest").unlink()
    result = CliRunner().invoke(build_app(words), words)
    assert (result.exit_code, json.loads(result.output)["whole"]) == (1, False)
