# SPDX-License-Identifier: Apache-2.0
"""LoRA: the same numbers at every stage as in one plain process with `peft`, exact resume, and weights that merge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import UserError
from harness.findings import Fix
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.model_behavior import build_small_copy, draw_ids, logits_of
from harness.runtime.models.lora import adapter_config, adapter_files, add_adapters, shorten_names
from harness.runtime.models.lora_merge import find_weight_sources, is_adapted, merge_lora, to_adapter_names
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec
from harness.spec.sections.model_spec import LoraSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.model_helpers import JOBS, adapter_losses, make_model, run_cases, zero
from tests.support.training.runtime_helpers import write_run

peft = pytest.importorskip("peft")

LORA = {"r": 4, "lora_alpha": 16.0, "target_modules": ["q_proj", "v_proj", "down_proj"], "modules_to_save": ["norm"]}
WIDE = {"r": 4, "target_modules": "all-linear", "use_rslora": True, "rank_pattern": {"k_proj": 2}, "bias": "lora_only"}
WAYS: dict[str, tuple[int, tuple[str, ...], bool]] = {
    "0": (0, (), False),
    "1": (1, (), False),
    "2": (2, (), False),
    "3": (3, (), False),
    "2-cpu": (2, ("optimizer",), False),
    "3-cpu": (3, ("optimizer", "param"), False),
    "2-bf16": (2, (), True),
    "3-bf16": (3, (), True),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lora")
    for family in ("llama", "qwen2", "gpt2"):
        byte_tokenizer().save_pretrained(make_model(family, root / family))
    return root


def _spec(folder: Path, family: str, lora: dict[str, Any], way: str) -> dict[str, Any]:
    stage, offloaded, bf16 = WAYS[way]
    return {
        "model": {"name_or_path": str(folder / family), "lora": lora},
        "precision": {"bf16": bf16},
        "zero": zero(stage, *offloaded),
    }


@pytest.fixture(scope="module")
def trained(folder: Path, forked: ForkedRanks) -> dict[str, Any]:
    cases = [{"name": way, "spec": _spec(folder, "llama", LORA, way), "file": str(folder / way)} for way in WAYS]
    cases += [
        {"name": f"{family}-wide", "spec": _spec(folder, family, WIDE, "3"), "file": str(folder / f"{family}-wide")}
        for family in ("qwen2", "gpt2")
    ]
    nowhere = _spec(folder, "llama", {"target_modules": ["qproj"]}, "0")
    return run_cases(forked, folder, [*cases, {"name": "nowhere", "spec": nowhere}])


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[float]:
    """The losses of one process with `peft` and torch's own AdamW, on both ranks' rows at once."""
    model = AutoModelForCausalLM.from_pretrained(folder / "llama", dtype=torch.float32)
    return adapter_losses(model, LORA)


@pytest.mark.parametrize("way", WAYS)
def test_every_stage_agrees_with_plain_peft(trained: dict[str, Any], plain: list[float], way: str) -> None:
    bound = 3e-3 if way.endswith("bf16") else 1e-5
    assert trained[way]["losses"] == pytest.approx(plain, rel=bound)
    assert plain[3] < plain[0] - 0.02


@pytest.mark.parametrize("way", WAYS)
def test_only_adapters_are_trained_and_have_states(trained: dict[str, Any], folder: Path, way: str) -> None:
    names = trained[way]["trained"]
    assert all(".lora_A." in n or ".lora_B." in n or ".modules_to_save." in n for n in names)
    assert trained[way]["class"] == "LlamaForCausalLM"
    # Two of AdamW's states for each trained number, over all ranks: once when sharded, else on each; some padding.
    count, states = sum(names.values()), trained[way]["states"]
    copies = 2 if WAYS[way][0] == 0 else 1
    assert 2 * count * copies <= sum(states) < 2 * count * copies + 1000
    stored = load_file(folder / "llama" / "model.safetensors")
    for name, tensor in load_file(folder / way).items():
        if name not in names and ".original_module." not in name:
            before = stored[name.replace(".base_layer.", ".")]
            assert torch.equal(tensor, before.to(tensor.dtype)), name
        elif ".lora_B." in name:
            assert tensor.abs().sum() > 0


@pytest.mark.parametrize(("family", "lora"), [("llama", LORA), ("qwen2", WIDE), ("gpt2", WIDE)])
def test_merged_weights_and_adapter_files_compute_the_same(
    trained: dict[str, Any], folder: Path, tmp_path: Path, family: str, lora: dict[str, Any]
) -> None:
    tensors = load_file(folder / ("3" if family == "llama" else f"{family}-wide"))
    base = AutoModelForCausalLM.from_pretrained(folder / family, dtype=torch.float32).eval()
    ids = torch.arange(40).view(2, 20)
    untrained = base(ids).logits
    config = _adapter_config(folder / family, lora)
    assert is_adapted(tensors)
    merged = {
        name: tensors[s.base]
        if s.lora_a is None or s.lora_b is None
        else merge_lora(tensors[s.base], tensors[s.lora_a], tensors[s.lora_b], s)
        for name, s in find_weight_sources(tensors, config).items()
    }
    plain = AutoModelForCausalLM.from_pretrained(folder / family, dtype=torch.float32).eval()
    assert not plain.load_state_dict(merged, strict=False).unexpected_keys
    plain.tie_weights()
    save_file(
        {file_name: tensors[name].contiguous() for name, file_name in to_adapter_names(tensors, config).items()},
        tmp_path / "adapter_model.safetensors",
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    adapted = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    ours, theirs = plain(ids).logits, adapted(ids).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(ours, untrained, atol=1e-3)


def _adapter_config(model: Path, lora: dict[str, Any]) -> dict[str, Any]:
    """What `peft` itself writes for these settings."""
    made = AutoModelForCausalLM.from_pretrained(model)
    config = peft.LoraConfig(task_type="CAUSAL_LM", **lora)
    peft.inject_adapter_in_model(config, made)
    config.save_pretrained(model / "adapter")
    return dict(json.loads((model / "adapter" / "adapter_config.json").read_text()))


def test_targets_that_are_not_there_are_refused(trained: dict[str, Any]) -> None:
    ((gate, _, note),) = trained["nowhere"]["refused"]
    assert gate == "MD155"
    assert "qproj" in note


@pytest.fixture(scope="module")
def resumed(folder: Path, forked: ForkedRanks) -> dict[str, tuple[Path, Path]]:
    """Runs of 4 steps, saved at 2, and runs that go on from there."""
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    runs: dict[str, tuple[Path, Path]] = {}
    jobs: list[dict[str, str | None]] = []
    for way in ("2", "3-cpu", "3-bf16"):
        spec = _spec(folder, "llama", LORA, way) | {
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


@pytest.mark.parametrize("way", ["2", "3-cpu", "3-bf16"])
def test_a_resumed_run_ends_with_the_same_weights(resumed: dict[str, tuple[Path, Path]], way: str) -> None:
    straight, second = (load_file(run / "weights.safetensors") for run in resumed[way])
    assert set(straight) == set(second)
    for name, tensor in straight.items():
        assert torch.equal(tensor, second[name]), name


def test_a_run_writes_its_trainable_parameters_and_predicted_tokens(resumed: dict[str, tuple[Path, Path]]) -> None:
    for run in resumed["3-cpu"]:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        header = next(line for line in lines if line["type"] == "run")
        step = [line for line in lines if line["type"] == "step"][-1]
        trained = {n: t.numel() for n, t in load_file(run / "weights.safetensors").items() if is_adapted([n])}
        assert header["trainable_parameters"] == sum(trained.values())
        assert header["trainable_parameters"] < header["parameters"]
        assert (step["step"], step["tokens"], step["predicted_tokens"]) == (4, 4 * 4 * 32, 4 * 4 * 31)


def test_a_checkpoint_says_how_its_adapters_are_merged(resumed: dict[str, tuple[Path, Path]]) -> None:
    checkpoint = resumed["3-cpu"][0] / "checkpoints" / "step-00000004"
    config = json.loads((checkpoint / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["modules_to_save"]) == (4, 16.0, ["norm"])
    assert set(config["target_modules"]) == {"q_proj", "v_proj", "down_proj"}
    assert config["inference_mode"] is True  # as `PeftModel.save_pretrained` writes it


def test_an_adapter_of_all_linear_modules_names_them_briefly_and_loads(tmp_path: Path) -> None:
    """`peft` lists fewer than 20 expanded modules by their full names, which fit no model of other depth."""
    base = make_model("llama", tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    add_adapters(model, LoraSpec(r=2, target_modules="all-linear"), seed=3)
    assert len(adapter_config(model).target_modules) > 7
    (content,) = adapter_files(model).values()
    body = json.loads(content)
    assert body["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(content)
    tensors = {name: torch.randn_like(p) for name, p in model.named_parameters() if p.requires_grad}
    save_file({to_adapter_names(tensors, body)[n]: t for n, t in tensors.items()}, folder / "adapter_model.safetensors")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(plain, folder)
    weights = dict(loaded.named_parameters())
    assert not any(p.requires_grad for p in weights.values())
    for name, tensor in tensors.items():
        assert torch.equal(weights[f"base_model.model.{name}"], tensor), name


def test_linear_layers_beside_fused_experts_have_adapters_that_merge_and_load(tmp_path: Path) -> None:
    """`peft` would adapt the experts instead of the dense layers of DeepSeek V3, which no export can merge."""
    base = build_small_copy(AutoConfig.for_model("deepseek_v3"), max_parameters=100_000_000)
    model, plain = (AutoModelForCausalLM.from_config(base.config, dtype=torch.float32).eval() for _ in range(2))
    for each in (model, plain):
        each.load_state_dict(base.state_dict())
    add_adapters(model, LoraSpec(r=2, lora_alpha=16, lora_dropout=0.1, target_modules="all-linear"), seed=3)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    expected = logits_of(model.eval(), draw_ids())
    assert float((logits_of(plain, draw_ids()) - expected).abs().max()) > 1
    (content,), tensors = adapter_files(model).values(), model.state_dict()
    body = json.loads(content)
    assert body["target_parameters"] == ["down_proj.weight", "gate_proj.weight", "up_proj.weight"]
    sources = find_weight_sources(tensors, body)
    assert set(sources) == set(base.state_dict())
    pairs = {n: (s, tensors[s.lora_a], tensors[s.lora_b]) for n, s in sources.items() if s.lora_a and s.lora_b}
    merged = {n: tensors[s.base] for n, s in sources.items()}
    base.load_state_dict(merged | {n: merge_lora(merged[n], a, b, s) for n, (s, a, b) in pairs.items()})
    (tmp_path / "adapter_config.json").write_bytes(content)
    stored = {file_name: tensors[name] for name, file_name in to_adapter_names(tensors, body).items()}
    save_file(stored, tmp_path / "adapter_model.safetensors")
    for other in (base, peft.PeftModel.from_pretrained(plain, tmp_path).eval()):
        torch.testing.assert_close(logits_of(other, draw_ids()), expected, atol=1e-4, rtol=0)


def test_names_are_shortened_to_ends_that_fit_no_other_module() -> None:
    names = ["a.mlp.up", "a.mlp.down", "b.mlp.up", "b.mlp.down", "head.up"]
    assert shorten_names(["a.mlp.up", "b.mlp.up"], names) == ["mlp.up"]
    assert shorten_names(["a.mlp.down"], names) == ["a.mlp.down"]
    assert shorten_names(["up"], ["up", "x.up"]) == ["up"]


@pytest.mark.parametrize(("name", "fix"), [("v_poj", "write `v_proj`"), ("w1", "remove `w1` from the list")])
def test_a_target_that_fits_nothing_beside_one_that_fits_is_refused(name: str, fix: str) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=32, **sizes))
    with pytest.raises(UserError) as refused:
        add_adapters(model, LoraSpec(target_modules=("q_proj", name)), seed=1)
    (finding,) = refused.value.findings
    assert (finding.gate, finding.key) == ("MD152", "model.lora.target_modules")
    assert finding.message == f"`{name}` in `model.lora.target_modules` matches no module of the model"
    assert finding.fix == Fix(fix)
