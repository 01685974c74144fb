# SPDX-License-Identifier: Apache-2.0
"""Composites: a run trains the text model alone, and its export has every tensor of the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from harness.errors import UserError
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.export import export_checkpoint
from harness.runtime.export.export_tensors import ExportTensors
from harness.runtime.export.source_parts import add_source_parts
from harness.runtime.models import load_config
from harness.runtime.models.pretrained import load_pretrained
from harness.runtime.models.stored_names import build_source, check_whole_export
from harness.runtime.text_part import find_text_part, rename_prefixes
from harness.runtime.tokenizer import byte_tokenizer
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
TOWER = {**VISION, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8}
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
            **TOWER,
            "intermediate_size": 128,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
    },
    "gemma3": {"text_config": TEXT, "vision_config": TOWER, "mm_tokens_per_image": 4},
    "gemma4": {
        "text_config": {**TEXT, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "global_head_dim": 16}
        | {"layer_types": ["sliding_attention", "full_attention"]},
        "vision_config": {**TOWER, "num_key_value_heads": 2, "head_dim": 16},
        "audio_config": None,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **TEXT},
        "vision_config": {"model_type": "pixtral", **TOWER, "head_dim": 16},
        "tie_word_embeddings": False,
    },
}


def write_composite(folder: Path, family: str) -> Path:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **COMPOSITES[family])
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Own"}')
    return folder


def assert_whole(source: Path, export: Path, *, changed: int) -> None:
    """All tensors, those that were not trained to the bit; no class starts from random weights."""
    there, here = load_file(source / "model.safetensors"), load_file(export / "model.safetensors")
    assert there.keys() == here.keys()
    different = [name for name in there if not torch.equal(there[name], here[name])]
    assert len(different) == changed
    assert not [name for name in different if "visual" in name or "vision" in name]
    classes = [AutoModelForImageTextToText]
    if type(AutoConfig.from_pretrained(export)) in MODEL_FOR_CAUSAL_LM_MAPPING:
        classes.append(AutoModelForCausalLM)
    for loader in classes:
        _, report = loader.from_pretrained(export, output_loading_info=True)
        assert not report["missing_keys"]
        assert not report["mismatched_keys"]
        _, of_source = loader.from_pretrained(source, output_loading_info=True)
        assert report["unexpected_keys"] == of_source["unexpected_keys"], loader  # Llama 4's text class names the tower
    assert not AutoModelForImageTextToText.from_pretrained(export, output_loading_info=True)[1]["unexpected_keys"]
    written = json.loads((export / "config.json").read_text())
    assert written["architectures"] == json.loads((source / "config.json").read_text())["architectures"]
    assert written["model_type"] == json.loads((source / "config.json").read_text())["model_type"]
    assert "Own" in (export / "preprocessor_config.json").read_text()


@pytest.mark.parametrize("family", sorted(COMPOSITES))
def test_trained_tensors_go_under_the_names_of_the_source(family: str, tmp_path: Path) -> None:
    source = write_composite(tmp_path / "source", family)
    spec = ModelSpec(name_or_path=str(source))
    config = load_config(spec, byte_tokenizer())
    model = load_pretrained(spec, config, {}, {})
    assert not [name for name, _ in model.named_parameters() if "visual" in name or "vision" in name]
    trained = {name: parameter.detach() + 1 for name, parameter in model.named_parameters()}
    export = tmp_path / "export"
    export.mkdir()
    config.save_pretrained(export)
    tensors = ExportTensors({n: t.shape for n, t in trained.items()}, trained.__getitem__)
    whole = add_source_parts(export, tensors, {"name_or_path": str(source)}, lambda _: None)
    save_file({name: whole.get(name) for name in whole.shapes}, export / "model.safetensors", {"format": "pt"})
    assert_whole(source, export, changed=len(trained))
    (source / "model.safetensors").unlink()
    config.save_pretrained(export)
    with pytest.raises(UserError) as refused:
        add_source_parts(export, tensors, {"name_or_path": str(source)}, lambda _: None)
    assert refused.value.findings[0].gate == "CK125"


def test_new_weights_are_exported_as_the_text_model_that_they_are(tmp_path: Path) -> None:
    """Also from a checkpoint of an older release, which has the configuration of the composite."""
    whole = AutoConfig.for_model("qwen3_5", **COMPOSITES["qwen3_5"])
    model = AutoModelForCausalLM.from_config(whole)
    whole.save_pretrained(tmp_path)
    tensors = ExportTensors({n: p.shape for n, p in model.named_parameters()}, dict(model.named_parameters()).get)  # type: ignore[arg-type]
    assert add_source_parts(tmp_path, tensors, {"config": {}}, lambda _: None) is tensors
    written = AutoConfig.from_pretrained(tmp_path)
    assert (written.model_type, written.architectures) == ("qwen3_5_text", ["Qwen3_5ForCausalLM"])
    fields = {"model_type": "qwen3_5", **COMPOSITES["qwen3_5"]}
    config = load_config(ModelSpec.model_validate({"config": fields}), byte_tokenizer())
    assert config.model_type == "qwen3_5_text"
    assert not hasattr(config, "text_part_of")


def test_a_source_that_is_not_safetensors_is_refused_before_training(tmp_path: Path) -> None:
    spec = ModelSpec(name_or_path=str(write_composite(tmp_path / "source", "mistral3")))
    config = load_config(spec, byte_tokenizer())
    whole = build_source(spec, config)
    with pytest.raises(UserError) as refused:
        check_whole_export(AutoModelForCausalLM.from_config(config), spec, whole, None)
    assert refused.value.findings[0].gate == "MD165"


def test_a_composite_that_scales_its_logits_otherwise_has_no_text_part() -> None:
    """Cohere-2 multiplies its logits by `logit_scale`, and the composite does not."""
    text = {"model_type": "cohere2", **TEXT}
    config = AutoConfig.for_model(
        "cohere2_vision", text_config=text, vision_config={"model_type": "siglip_vision_model", **TOWER}
    )
    part = find_text_part(config)
    assert part.config is None
    assert part.why_not.startswith("its logits are not those of its text model")


def test_renames_are_few_and_exact() -> None:
    names = {"model.norm.weight": "language_model.model.norm.weight", "lm_head.weight": "language_model.lm_head.weight"}
    assert rename_prefixes(names) == {
        r"^language_model\.lm_head\.": "lm_head.",
        r"^language_model\.model\.": "model.",
    }
    assert rename_prefixes({"model.a.weight": "model.a.weight"}) == {}


def test_runs_of_composites_export_all_of_them(tmp_path: Path, forked: ForkedRanks) -> None:
    """Two steps at ZeRO-3, and one of them at stage 1, where `from_pretrained` loads by names."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    jobs = {}
    kinds = [*((family, 3, None) for family in COMPOSITES), ("mistral3", 1, None), ("gemma3", 2, {"r": 2})]
    for family, stage, lora in kinds:
        name = f"{family}-{stage}"
        source = write_composite(tmp_path / name, family)
        spec: dict[str, Any] = {
            "model": {"name_or_path": str(source), "tokenizer": "bytes", "lora": lora},
            "data": {"train": str(tmp_path / "text.txt"), "max_length": 16, "eval_fraction": 0.0},
            "train": {"max_steps": 2, "per_device_train_batch_size": 1},
            "optimizer": {"learning_rate": 1e-2},
            "zero": {"stage": stage},
        }
        run_spec = RunSpec.model_validate_json(json.dumps(spec))
        config = dict(render_ds_config(resolve_run(run_spec, world_size=1)).config)
        jobs[name] = write_run(tmp_path / "runs" / name, spec, config, world_size=1)
    (tmp_path / "jobs.json").write_text(json.dumps([{"run": str(run), "resume": None} for run in jobs.values()]))
    forked.run(JOBS / "train_many.py", str(tmp_path / "jobs.json"), ranks=1)
    for name, run in jobs.items():
        lines: list[str] = []
        checkpoint = run / "checkpoints" / "step-00000002"
        export = export_checkpoint(checkpoint, tmp_path / f"{name}-export", verify=True, log=lines.append)
        trained = load_file(run / "weights.safetensors")
        adapted = [key for key in trained if ".lora_A." in key]
        assert_whole(tmp_path / name, export, changed=len(adapted) or len(trained))
        if adapted:
            assert_adapters_fit(checkpoint, tmp_path / "adapters")
        total = len(load_file(tmp_path / name / "model.safetensors"))
        assert f"{total} tensors, as many as its source has" in "\n".join(lines)


def assert_adapters_fit(checkpoint: Path, folder: Path) -> None:
    """The class that loads the base model builds all of Gemma 3: adapters alone have the names that modules have there."""
    export_checkpoint(checkpoint, folder, lora="adapter", verify=True)
    model = AutoPeftModelForCausalLM.from_pretrained(folder)
    loaded = {name for name, _ in model.named_parameters() if ".lora_B." in name}
    assert loaded
    assert all("language_model" in name for name in loaded)
    assert all(parameter.any() for name, parameter in model.named_parameters() if name in loaded)


@pytest.mark.nightly  # two minutes
def test_every_composite_has_a_text_part_or_a_reason() -> None:
    """All image-text types of the installed `transformers`, by the configuration that its classes have as default."""
    parts, reasons = {}, {}
    for kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        try:
            config = CONFIG_MAPPING[kind]()
        except (TypeError, ValueError) as error:  # a class without defaults
            reasons[kind] = str(error)
            continue
        part = find_text_part(config)
        if part.config is not None:
            parts[kind] = part.config.model_type
        elif part.why_not:
            reasons[kind] = part.why_not
    print(json.dumps({"parts": parts, "reasons": reasons}, indent=1))
    assert len(parts) >= 36
    assert {"gemma3", "gemma4", "llama4", "mistral3", "qwen3_5"} <= parts.keys()
