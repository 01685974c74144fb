# SPDX-License-Identifier: Apache-2.0
"""The spec and the place in the data that a checkpoint of the Trainer tells. Needs no torch; seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.checkpoints.foreign.adopted_spec import _read_adapter, adopt_checkpoint, read_writer_facts
from harness.checkpoints.foreign.torch_outline import Named
from harness.errors import UserError
from harness.facts.deepspeed_version import parse_target
from tests.checkpoints.foreign.test_inspection import model_state
from tests.support.torch_files import write_torch_file

CONFIG = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_print": float("inf"),
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}


def write_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    tag = folder / "global_step20"
    tag.mkdir()
    write_torch_file(tag / "mp_rank_00_model_states.pt", model_state(20, 2, ds_config=CONFIG))
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return tag


def test_the_deepspeed_json_of_the_save_becomes_a_spec(tmp_path: Path) -> None:
    tag = write_checkpoint(tmp_path, {})
    facts = read_writer_facts(tmp_path, tag)
    assert (facts.ranks, facts.global_batch, facts.position) == (2, 8, None)
    adopted = adopt_checkpoint(tmp_path, facts, tmp_path / "adopted", parse_target(None))
    spec = yaml.safe_load(adopted.text)
    assert spec["train"]["global_batch_size"] == 8
    assert spec["zero"] == {"stage": 2}
    assert "data" not in adopted.settings or "train" not in adopted.settings["data"]
    assert adopted.settings["precision"] == {"bf16": True}


@pytest.mark.parametrize(
    ("step", "epoch", "position"), [(20, 0.5, (0, 160)), (20, 2.0, (2, 0)), (25, 2.5, (2, 40)), (7, 7.0, (7, 0))]
)
def test_the_place_in_the_data_follows_from_step_and_epoch(
    step: int, epoch: float, position: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"seed": 5, "per_device_train_batch_size": 2}
    monkeypatch.setattr(
        "harness.checkpoints.foreign.adopted_spec._training_arguments", lambda _: ("transformers", arguments)
    )
    tag = write_checkpoint(tmp_path, {"global_step": step, "epoch": epoch, "max_steps": 40})
    facts = read_writer_facts(tmp_path, tag)
    assert (facts.position, facts.order_seed, facts.max_steps) == (position, 5, 40)


@pytest.mark.parametrize(("package", "seed"), [("transformers", 5), ("trl", 5), ("swift", None), ("__main__", None)])
def test_the_order_is_the_trainers_where_the_program_was_seen_to_draw_so(
    package: str, seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"seed": 5, "per_device_train_batch_size": 2}
    monkeypatch.setattr("harness.checkpoints.foreign.adopted_spec._training_arguments", lambda _: (package, arguments))
    tag = write_checkpoint(tmp_path, {"global_step": 20, "epoch": 0.5, "max_steps": 40})
    facts = read_writer_facts(tmp_path, tag)
    assert (facts.position, facts.order_seed) == ((0, 160), seed)
    assert seed or package in facts.data_note
    arguments["sample_packing"] = True
    assert read_writer_facts(tmp_path, tag).order_seed is None


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"PK\x05\x06" + bytes(18)])
def test_training_arguments_that_cannot_be_read_say_nothing(content: bytes, tmp_path: Path) -> None:
    tag = write_checkpoint(tmp_path, {"global_step": "x", "epoch": [1]})
    (tmp_path / "training_args.bin").write_bytes(content)
    facts = read_writer_facts(tmp_path, tag)
    assert facts.arguments == {}
    assert facts.position is None
    assert "not known" in facts.data_note


def test_adapters_and_their_base_come_from_the_settings_of_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"seed": 5, "per_device_train_batch_size": 2, "learning_rate": 1e-4}
    monkeypatch.setattr(
        "harness.checkpoints.foreign.adopted_spec._training_arguments", lambda _: ("transformers", arguments)
    )
    tag = write_checkpoint(tmp_path, {"global_step": 20, "epoch": 0.5, "max_steps": 40})
    body = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps({**body, "base_model_name_or_path": "some/base"}))
    facts = read_writer_facts(tmp_path, tag)
    adopted = adopt_checkpoint(tmp_path, facts, tmp_path / "adopted", parse_target(None))
    model = yaml.safe_load(adopted.text)["model"]
    assert model["name_or_path"] == "some/base"
    assert model["lora"] == {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}


def test_all_that_scales_an_adapter_is_taken_over_or_refused(tmp_path: Path) -> None:
    body = {"peft_type": "LORA", "r": 16, "lora_alpha": 16, "use_rslora": True, "alpha_pattern": {"q_proj": 8}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(body | {"bias": "none", "modules_to_save": None}))
    lora, _ = _read_adapter(tmp_path)
    assert lora == {"r": 16, "lora_alpha": 16, "use_rslora": True, "alpha_pattern": {"q_proj": 8}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(body | {"use_dora": True}))
    with pytest.raises(UserError) as refused:
        _read_adapter(tmp_path)
    assert refused.value.findings[0].gate == "CK131"


@pytest.mark.parametrize(
    ("name", "arguments", "member"),
    [
        ("transformers.SchedulerType", ("linear",), "linear"),
        ("builtins.getattr", (object(), "LINEAR"), "linear"),  # as Python 3.11.0 to 3.11.3 write a member
        ("transformers.SchedulerType", (), None),
    ],
)
def test_a_member_of_an_enumeration_is_read_from_any_python(name: str, arguments: tuple[Any, ...], member: Any) -> None:
    assert type("Made", (Named,), {"name": name})(*arguments).member == member
