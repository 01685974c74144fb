# SPDX-License-Identifier: Apache-2.0
"""QLoRA: the numbers of one plain process with `transformers`, `peft` and bitsandbytes at ZeRO 0 to 2, exact resume,
planned bytes. On the CPU, where bitsandbytes computes since 0.46.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from harness.errors import UserError
from harness.facts.model_lookup import find_model
from harness.plan.weights.quantized_weights import count_quantized
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.export import export_checkpoint
from harness.runtime.models.quantized_base import quantization_arguments, quantized_layers, scale_tensors
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec
from harness.spec.sections.model_spec import QuantizationSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.model_helpers import JOBS, adapter_losses, make_model, run_cases, zero
from tests.support.training.runtime_helpers import write_run

peft = pytest.importorskip("peft")
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

LORA = {"r": 4, "lora_alpha": 16.0, "target_modules": "all-linear"}
PLAIN_SCALES = {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False}
WAYS: dict[str, tuple[int, tuple[str, ...], bool]] = {
    "0": (0, (), False),
    "1": (1, (), False),
    "2": (2, (), False),
    "2-cpu": (2, ("optimizer",), False),
    "2-bf16": (2, (), True),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("qlora")
    for family in ("llama", "qwen2", "mixtral"):
        byte_tokenizer().save_pretrained(make_model(family, root / family))
    return root


def _spec(folder: Path, way: str, family: str = "llama", **quantization: Any) -> dict[str, Any]:
    stage, offloaded, bf16 = WAYS[way]
    model = {"name_or_path": str(folder / family), "lora": LORA, "quantization": quantization}
    return {"model": model, "precision": {"bf16": bf16}, "zero": zero(stage, *offloaded)}


@pytest.fixture(scope="module")
def trained(folder: Path, forked: ForkedRanks) -> dict[str, Any]:
    cases = [{"name": way, "spec": _spec(folder, way)} for way in WAYS]
    recomputed = _spec(folder, "2") | {"train": {"gradient_checkpointing": True, "mlp_tile_size": 20}}
    cases += [{"name": "recomputed", "spec": recomputed}, {"name": "fp4", "spec": _spec(folder, "1", **PLAIN_SCALES)}]
    cases += [{"name": "qwen2", "spec": _spec(folder, "2", "qwen2")}]
    return run_cases(forked, folder, cases)


def _losses_of_one_process(folder: Path, quantization: QuantizationSpec, family: str = "llama") -> list[float]:
    """With `transformers`, `peft` and torch's own AdamW, on both ranks' rows at once."""
    arguments = quantization_arguments(quantization, torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder / family, dtype=torch.float32, **arguments)
    return adapter_losses(model, LORA)


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, list[float]]:
    nf4 = QuantizationSpec()
    return {
        "nf4": _losses_of_one_process(folder, nf4),
        "fp4": _losses_of_one_process(folder, QuantizationSpec(**PLAIN_SCALES)),
        "qwen2": _losses_of_one_process(folder, nf4, "qwen2"),
    }


@pytest.mark.parametrize("case", [*WAYS, "recomputed", "fp4", "qwen2"])
def test_every_stage_agrees_with_one_process(trained: dict[str, Any], plain: dict[str, list[float]], case: str) -> None:
    expected = plain.get(case, plain["nf4"])
    assert trained[case]["losses"] == pytest.approx(expected, rel=3e-3 if case.endswith("bf16") else 1e-5)
    assert expected[3] < expected[0] - 0.02
    assert all(".lora_A." in name or ".lora_B." in name for name in trained[case]["trained"])


def test_both_kinds_of_4_bits_are_other_weights_than_the_file(plain: dict[str, list[float]]) -> None:
    assert abs(plain["nf4"][0] - plain["fp4"][0]) > 1e-4


@pytest.mark.parametrize("quantization", [QuantizationSpec(), QuantizationSpec(**PLAIN_SCALES)], ids=["nf4", "fp4"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_planned_bytes_are_those_of_real_weights(folder: Path, family: str, quantization: QuantizationSpec) -> None:
    arguments = quantization_arguments(quantization, torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(folder / family, dtype=torch.bfloat16, **arguments)
    tensors = [t for layer in quantized_layers(model) for t in (layer.weight, *scale_tensors(layer.weight))]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    facts = find_model(str(folder / family), None, None).facts
    assert facts is not None
    planned = count_quantized(facts.parameters(), facts, quantization)
    assert planned.bytes == sum(storages.values())
    assert planned.largest == max(layer.weight.quant_state.shape.numel() for layer in quantized_layers(model))


def test_of_a_model_with_experts_the_attention_alone_is_quantized(folder: Path) -> None:
    """What the gate MD047 says."""
    arguments = quantization_arguments(QuantizationSpec(), torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder / "mixtral", dtype=torch.float32, **arguments)
    names = {name for name, parameter in model.named_parameters() if parameter.dtype == torch.uint8}
    assert names
    assert all(".self_attn." in name for name in names)


def test_without_bitsandbytes_the_ranks_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError) as refused:
        quantization_arguments(QuantizationSpec(), torch.float32)
    (finding,) = refused.value.findings
    assert (finding.gate, finding.key) == ("MD162", "model.quantization")
    assert "qlora" in finding.fix.title


@pytest.fixture(scope="module")
def resumed(folder: Path, forked: ForkedRanks) -> dict[str, tuple[Path, Path]]:
    """Runs of 4 steps, saved at 2, and runs that go on from there."""
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    runs: dict[str, tuple[Path, Path]] = {}
    jobs: list[dict[str, str | None]] = []
    for way in ("0", "2-bf16"):
        spec = _spec(folder, way) | {
            "data": {"train": str(folder / "text.txt"), "max_length": 32},
            "train": {"max_steps": 4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1},
            "optimizer": {"learning_rate": 1e-2},
            "checkpoint": {"save_steps": 2},
        }
        config = dict(render_ds_config(resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=2)).config)
        straight, second = (write_run(folder / f"{kind}-{way}", spec, config) for kind in ("straight", "resumed"))
        runs[way] = straight, second
        jobs.append({"run": str(straight), "resume": None})
        jobs.append({"run": str(second), "resume": str(straight / "checkpoints" / "step-00000002")})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOBS / "train_many.py", str(folder / "jobs.json"))
    return runs


@pytest.mark.parametrize("way", ["0", "2-bf16"])
def test_a_resumed_run_ends_with_the_same_weights(resumed: dict[str, tuple[Path, Path]], way: str) -> None:
    straight, second = (load_file(run / "weights.safetensors") for run in resumed[way])
    assert any(name.endswith("base_layer.weight") and t.dtype == torch.uint8 for name, t in straight.items())
    facts = find_model(str(resumed[way][0].parent / "llama"), None, None).facts
    assert facts is not None
    header = json.loads((resumed[way][0] / "metrics.jsonl").read_text().splitlines()[0])
    assert header["parameters"] == facts.num_parameters + header["trainable_parameters"]
    assert set(straight) == set(second)
    for name, tensor in straight.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize("way", ["0", "2-bf16"])
def test_peft_loads_the_exported_adapters_over_the_same_4_bits(
    resumed: dict[str, tuple[Path, Path]], way: str, tmp_path: Path
) -> None:
    """The base that a user loads has the bits that were trained over, and the adapters are those of the last step."""
    run = resumed[way][0]
    checkpoint, trained = run / "checkpoints" / "step-00000004", load_file(run / "weights.safetensors")
    exported = export_checkpoint(checkpoint, tmp_path / "adapters", "float32", lora="adapter")
    assert "model.safetensors" not in {path.name for path in exported.iterdir()}
    dtype = torch.bfloat16 if way.endswith("bf16") else torch.float32
    arguments = quantization_arguments(QuantizationSpec(), dtype)
    base = AutoModelForCausalLM.from_pretrained(run.parent / "llama", dtype=dtype, **arguments)
    model = peft.PeftModel.from_pretrained(base, exported, autocast_adapter_dtype=False)
    loaded = {name.replace(".default.", "."): tensor for name, tensor in model.base_model.model.named_parameters()}
    compared = {name.replace(".default.", "."): tensor for name, tensor in trained.items() if name.endswith("weight")}
    assert sum(".lora_" in name for name in compared) == 2 * len(list(quantized_layers(base)))
    for name, tensor in compared.items():
        assert torch.equal(loaded[name].data.to(tensor.dtype), tensor), name


def test_4_bit_weights_and_adapters_have_no_merged_export(
    resumed: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        export_checkpoint(resumed["0"][0] / "checkpoints" / "step-00000004", tmp_path / "out", lora="merge")
    assert refused.value.findings[0].gate == "CK127"
    assert not list(tmp_path.iterdir())
