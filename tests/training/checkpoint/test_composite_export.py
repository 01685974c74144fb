# SPDX-License-Identifier: Apache-2.0
"""Composites of which a run trains the text part: their export has every tensor of the source, and both classes load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from harness.errors import UserError
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.export import export_checkpoint
from harness.runtime.export.export_tensors import ExportTensors
from harness.runtime.export.source_parts import add_source_parts
from harness.runtime.models.safetensors_reader import open_safetensors
from harness.runtime.models.stored_names import check_whole_export, is_text_part
from harness.spec.run_spec import ModelSpec, RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import write_run

JOBS = Path(__file__).parents[1] / "jobs"
TEXT = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "head_dim": 16}
TEXT |= {"num_key_value_heads": 1, "num_hidden_layers": 2, "pad_token_id": 0}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
KINDS = {"layer_types": ["linear_attention", "full_attention"], "rope_parameters": ROPE}
VISION = {"hidden_size": 32, "intermediate_size": 64, "patch_size": 4}
COMPOSITES: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "text_config": {**TEXT, **LINEAR, **KINDS},
        "vision_config": {**VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16},
        "image_token_id": 310,
        "tie_word_embeddings": False,
    },
    "llama4": {
        "text_config": {**TEXT, "intermediate_size_mlp": 64, "num_local_experts": 2},
        "vision_config": {
            **VISION,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 8,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
    },
    "gemma3": {
        "text_config": {**TEXT, "layer_types": ["sliding_attention", "full_attention"]},
        "vision_config": {**VISION, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16},
        "mm_tokens_per_image": 4,
        "image_token_index": 310,
    },
}


def write_composite(folder: Path, family: str) -> Path:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **COMPOSITES[family])
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Own"}')
    return folder


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The stored tensors by the names in the whole model, which may be others than those in the file (Gemma 3)."""
    stored = load_file(folder / "model.safetensors")
    if not any(name.startswith("language_model.") for name in stored):
        return stored
    return {
        ("" if "lm_head" in name else "model.") + name.replace("model.model.", "model."): stored[name]
        for name in stored
    }


def assert_whole(source: Path, export: Path, *, changed: int) -> None:
    """All tensors, those that were not trained to the bit; no class starts from random weights."""
    there, here = read_tensors(source), read_tensors(export)
    assert there.keys() == here.keys()
    different = [name for name in there if not torch.equal(there[name], here[name])]
    assert len(different) == changed
    assert not [name for name in different if "visual" in name or "vision" in name]
    for loader in (AutoModelForImageTextToText, AutoModelForCausalLM):
        _, report = loader.from_pretrained(export, output_loading_info=True)
        assert not report["missing_keys"]
    _, report = AutoModelForImageTextToText.from_pretrained(export, output_loading_info=True)
    assert not report["unexpected_keys"]
    written = json.loads((export / "config.json").read_text())
    assert written["architectures"] == json.loads((source / "config.json").read_text())["architectures"]
    assert "Own" in (export / "preprocessor_config.json").read_text()


@pytest.mark.parametrize("family", ["llama4", "qwen3_5"])
def test_trained_tensors_go_under_the_names_of_the_source(family: str, tmp_path: Path) -> None:
    source = write_composite(tmp_path / "source", family)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    assert is_text_part(AutoConfig.from_pretrained(source))
    check_whole_export(model, ModelSpec(name_or_path=str(source)), AutoConfig.from_pretrained(source), _files(source))
    trained = {name: parameter.detach() + 1 for name, parameter in model.named_parameters()}
    export = tmp_path / "export"
    export.mkdir()
    AutoConfig.from_pretrained(source).save_pretrained(export)
    tensors = ExportTensors({n: t.shape for n, t in trained.items()}, trained.__getitem__)
    whole = add_source_parts(export, tensors, {"name_or_path": str(source)}, lambda _: None)
    save_file({name: whole.get(name) for name in whole.shapes}, export / "model.safetensors", {"format": "pt"})
    assert_whole(source, export, changed=len(trained))
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError) as refused:
        add_source_parts(export, tensors, {"name_or_path": str(source)}, lambda _: None)
    assert refused.value.findings[0].gate == "CK125"


def _files(source: Path) -> Any:
    return open_safetensors(ModelSpec(name_or_path=str(source)))


def test_new_weights_are_exported_as_the_text_model_that_they_are(tmp_path: Path) -> None:
    config = AutoConfig.for_model("qwen3_5", **COMPOSITES["qwen3_5"])
    model = AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    tensors = ExportTensors({n: p.shape for n, p in model.named_parameters()}, dict(model.named_parameters()).get)  # type: ignore[arg-type]
    assert add_source_parts(tmp_path, tensors, {"config": {}}, lambda _: None) is tensors
    written = AutoConfig.from_pretrained(tmp_path)
    assert (written.model_type, written.architectures) == ("qwen3_5_text", ["Qwen3_5ForCausalLM"])


def test_a_source_that_is_not_safetensors_is_refused_before_training(tmp_path: Path) -> None:
    source = write_composite(tmp_path / "source", "qwen3_5")
    model, config = AutoModelForCausalLM.from_pretrained(source), AutoConfig.from_pretrained(source)
    with pytest.raises(UserError) as refused:
        check_whole_export(model, ModelSpec(name_or_path=str(source)), config, None)
    assert refused.value.findings[0].gate == "MD165"


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
def test_a_run_of_a_composite_exports_all_of_it(tmp_path: Path, forked: ForkedRanks, family: str) -> None:
    source = write_composite(tmp_path / "source", family)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    spec: dict[str, Any] = {
        "model": {"name_or_path": str(source), "tokenizer": "bytes"},
        "data": {"train": str(tmp_path / "text.txt"), "max_length": 16, "eval_fraction": 0.0},
        "train": {"max_steps": 1, "per_device_train_batch_size": 1},
        "optimizer": {"learning_rate": 1e-2},
        "zero": {"stage": 3},
    }
    config = dict(render_ds_config(resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=1)).config)
    run = write_run(tmp_path / "run", spec, config, world_size=1)
    (tmp_path / "jobs.json").write_text(json.dumps([{"run": str(run), "resume": None}]))
    forked.run(JOBS / "train_many.py", str(tmp_path / "jobs.json"), ranks=1)
    export = export_checkpoint(run / "checkpoints" / "step-00000001", tmp_path / "export", verify=True)
    trained = load_file(run / "weights.safetensors")
    reached = [name for name in trained if "vision" not in name and "modal" not in name]  # by a text
    assert_whole(source, export, changed=len(reached))
