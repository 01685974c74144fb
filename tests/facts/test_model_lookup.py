# SPDX-License-Identifier: Apache-2.0
"""Model facts from configurations, folders, the local cache and the catalogue. Needs nothing; milliseconds."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.facts.model_catalogue import CATALOGUE, closest_names, size_in_name
from harness.facts.model_families import FAMILIES, SAME_FAMILY
from harness.facts.model_lookup import ModelFacts, facts_from_config, find_model

PUBLISHED = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "llama-7b": 6_738_415_616,
    "llama-33b": 32_528_943_616,
    "huggyllama/llama-65b": 65_285_660_672,
    "qwen1.5-7b": 7_721_324_544,
    "qwen1.5-14b-chat": 14_167_290_880,
    "Qwen/Qwen1.5-72B": 72_287_920_128,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft/phi-4": 14_659_507_200,
    "openai-community/gpt2": 124_439_808,
    "openai-community/gpt2-xl": 1_557_611_200,
    "EleutherAI/gpt-neox-20b": 20_554_567_680,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "mistralai/Mistral-Nemo-Base-2407": 12_247_782_400,
    "mistralai/Mistral-Small-24B-Base-2501": 23_572_403_200,
    "mistralai/Mistral-Large-Instruct-2407": 122_610_069_504,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-3-1b-pt": 999_885_952,
    "google/gemma-3-4b-pt": 3_880_263_168,
    "google/gemma-3-12b-pt": 11_766_034_176,
    "google/gemma-3-27b-pt": 27_009_346_304,
    "microsoft/phi-2": 2_779_683_840,
    "microsoft/Phi-3-medium-4k-instruct": 13_960_238_080,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
    "openai-community/gpt2-medium": 354_823_168,
    "openai-community/gpt2-large": 774_030_080,
    "EleutherAI/pythia-160m": 162_322_944,
    "EleutherAI/pythia-410m": 405_334_016,
    "EleutherAI/pythia-1b": 1_011_781_632,
    "EleutherAI/pythia-1.4b": 1_414_647_808,
    "EleutherAI/pythia-2.8b": 2_775_208_960,
    "EleutherAI/pythia-6.9b": 6_857_302_016,
    "EleutherAI/pythia-12b": 11_846_072_320,
    "tiiuae/falcon-7b": 6_921_720_704,
    "tiiuae/falcon-40b": 41_303_293_952,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "deepseek-ai/DeepSeek-V2": 235_741_434_880,
    "deepseek-ai/DeepSeek-V3": 671_026_404_352,
    "mistralai/Ministral-8B-Instruct-2410": 8_019_808_256,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "baidu/ERNIE-4.5-0.3B-PT": 360_748_032,
    "allenai/OLMo-2-1124-7B": 7_298_617_344,
    "allenai/OLMo-2-1124-13B": 13_716_198_400,
    "allenai/OLMo-2-0325-32B": 32_234_279_936,
    "allenai/Olmo-3-1025-7B": 7_298_011_136,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "ByteDance-Seed/Seed-OSS-36B-Base": 36_151_104_512,
    "ibm-granite/granite-3.3-8b-base": 8_170_864_640,
    "CohereLabs/c4ai-command-r-v01": 34_980_831_232,
    "CohereLabs/c4ai-command-r-08-2024": 32_296_476_672,
    "CohereLabs/c4ai-command-r-plus": 103_810_674_688,
    "CohereLabs/c4ai-command-r7b-12-2024": 8_028_033_024,
    "CohereLabs/c4ai-command-a-03-2025": 111_057_580_032,
    "facebook/opt-1.3b": 1_315_758_080,
    "facebook/opt-6.7b": 6_658_473_984,
    "facebook/opt-13b": 12_853_473_280,
    "bigscience/bloom-560m": 559_214_592,
    "bigscience/bloom-7b1": 7_069_016_064,
    "bigscience/bloom": 176_247_271_424,
    "mosaicml/mpt-7b": 6_649_286_656,
}
ROUNDED = {
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (107.77, 17.17),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (400.71, 17.18),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (79.67, 3.87),
    "zai-org/GLM-4.5": (352.80, 33.63),
    "zai-org/GLM-4.5-Air": (106.85, 13.42),
    "moonshotai/Kimi-K2-Instruct": (1026.41, 32.86),
    "moonshotai/Moonlight-16B-A3B": (15.96, 2.91),
    "MiniMaxAI/MiniMax-M2": (228.69, 11.03),
    "baidu/ERNIE-4.5-21B-A3B-PT": (21.83, 3.35),
    "openai/gpt3-175b": (174.60, 174.60),
}
"""Billions, all and active: of the language model alone, without layers that predict a second token."""
TINY = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 32}


def known(name: str) -> ModelFacts:
    facts = find_model(name).facts
    assert facts is not None
    return facts


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    hub = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    return hub


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_catalogue_agrees_with_published_counts(name: str, count: int) -> None:
    assert known(name).num_parameters == count


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_is_counted(name: str) -> None:
    """By a formula, or by the installed `transformers`: then `tests/training/facts` builds it."""
    lookup = find_model(name)
    kind = CATALOGUE[name]["model_type"]
    assert (lookup.facts is not None) == (kind in FAMILIES or kind in SAME_FAMILY), lookup.why_not
    assert lookup.facts is None or lookup.source.startswith("the catalogue")


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_mixtures_and_their_active_parameters(name: str, billions: tuple[float, float]) -> None:
    facts = known(name)
    found = (facts.num_parameters / 1e9, facts.active_parameters / 1e9)
    assert found == pytest.approx(billions, abs=0.006)


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("gemma-3-27b", "google/gemma-3-27b-pt"),
        ("gemma-2-27b-it", "google/gemma-2-27b"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("llama-2-13b-chat", "meta-llama/Llama-2-13b-hf"),
        ("Qwen3-8B-Base", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen/Qwen3-30B-A3B"),
        ("deepseek-v3-0324", "deepseek-ai/DeepSeek-V3"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("kimi-k2", "moonshotai/Kimi-K2-Instruct"),
        ("olmo-2-7b", "allenai/OLMo-2-1124-7B"),
        ("llama-4-scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct"),
        ("command-a", "CohereLabs/c4ai-command-a-03-2025"),
    ],
)
def test_names_without_the_words_for_stages_of_training(short: str, name: str) -> None:
    assert known(short) == known(name)


@pytest.mark.parametrize("name", ["mistral-7b", "someone/llama-3.1-8b", "someone/gemma-3-27b", "instruct", "-"])
def test_a_name_that_may_mean_two_models_or_another_owner_is_unknown(name: str) -> None:
    assert find_model(name).facts is None


def test_a_repository_with_images_says_that_its_language_model_is_counted() -> None:
    assert find_model("Qwen/Qwen2.5-VL-7B-Instruct").source == "the catalogue (the language model alone)"
    assert find_model("google/gemma-3-4b-it").source == "the catalogue"


def test_a_name_without_its_owner_in_any_case() -> None:
    assert find_model("llama-3.1-70b").facts == known("meta-llama/Llama-3.1-70B")


def test_parts_of_llama_3_1_70b() -> None:
    facts = known("meta-llama/Llama-3.1-70B")
    assert (facts.largest_layer_parameters, facts.largest_parameter) == (855_654_400, 1_050_673_152)
    assert facts.embedding_parameters == 2 * 1_050_673_152
    assert facts.matmul_parameters == facts.num_parameters - 1_050_673_152 - 161 * 8192


def test_experts_that_are_not_used_are_not_active() -> None:
    facts = known("mistralai/Mixtral-8x7B-v0.1")
    assert facts.active_parameters == 12_879_925_248
    assert facts.largest_parameter == 939_524_096
    assert facts.largest_module == 1_409_286_144


def test_layers_of_two_kinds() -> None:
    facts = known("deepseek-ai/DeepSeek-V3")
    assert sorted({sum(p.numel for p in layer) for layer in facts.layers}) == [583_483_392, 11_507_286_016]
    assert facts.largest_module == 11_274_289_152
    assert facts.active_parameters == pytest.approx(37.55e9, rel=0.01)


def test_a_misspelt_name_gets_the_right_one() -> None:
    assert "did you mean `llama-3.1-70b`" in find_model("lama-3.1-70b").why_not
    assert "did you mean `gemma-3-27b-" in find_model("gemma3-27b").why_not


def test_a_tied_embedding_is_multiplied_with_once() -> None:
    facts = known("meta-llama/Llama-3.2-1B")
    assert facts.matmul_parameters == facts.num_parameters - (2 * 16 + 1) * 2048


def test_all_parameters_add_up_and_have_full_names() -> None:
    facts = known("openai-community/gpt2")
    parameters = list(facts.parameters())
    assert sum(p.numel for p in parameters) == facts.num_parameters
    assert parameters[2].name == "transformer.h.0.ln_1.weight"


def test_a_folder_wins_over_the_catalogue_and_is_relative_to_the_spec(tmp_path: Path) -> None:
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    lookup = find_model("gpt2", base_dir=tmp_path)
    assert lookup.facts is not None
    assert lookup.facts.family == "llama"
    assert "config.json" in lookup.source


def test_the_local_cache_is_read_like_huggingface_hub_lays_it_out(no_cache: Path) -> None:
    repository = no_cache / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123", encoding="ascii")
    (repository / "snapshots" / "abc123").mkdir(parents=True)
    (repository / "snapshots" / "abc123" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    assert find_model("someone/tiny").facts is not None
    assert find_model("someone/tiny", revision="abc123").facts is not None
    assert find_model("someone/tiny", revision="other").facts is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"hidden_size": 3}', '{"model_type": 7}'])
def test_a_broken_config_file_is_a_reason_not_a_crash(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    lookup = find_model(str(tmp_path))
    assert lookup.facts is None
    assert "config.json" in lookup.why_not


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def _deep(path: Path) -> None:
    path.write_text('{"model_type": ' + "[" * 100_000 + "]" * 100_000 + "}", encoding="utf-8")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_pipe, "not a regular file"),
        (_device, "not a regular file"),
        (_large, "larger than"),
        (Path.mkdir, "not a regular file"),
        (_deep, "nested too deeply"),
    ],
)
def test_a_hostile_config_file_is_a_reason_not_a_hang(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path / "config.json")
    program = "import sys; from harness.facts.model_lookup import find_model; print(find_model(sys.argv[1], build=True).why_not)"
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (2**31, 2**31))  # /dev/zero has no end
    command = [sys.executable, "-P", "-c", program, str(tmp_path)]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=20, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert "config.json" in done.stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": "8"},
        {"hidden_size": 0},
        {"hidden_size": -8},
        {"num_attention_heads": None},
        {"num_attention_heads": 0},
        {"num_attention_heads": 999},
        {"vocab_size": 3.5},
        {"num_hidden_layers": True},
        {"num_hidden_layers": 10**9},
    ],
)
def test_a_value_that_no_model_can_have_is_named(changes: dict[str, Any]) -> None:
    lookup = facts_from_config({**TINY, **changes})
    assert lookup.facts is None
    assert lookup.why_not.count("`") >= 2


@pytest.mark.parametrize("name", [None, "", "nobody/nothing", "a" * 5000, "bad\0name", "~nobody-here/x", "../../.."])
def test_an_unknown_name_has_a_reason(name: str | None) -> None:
    lookup = find_model(name)
    assert lookup.facts is None
    assert lookup.why_not


def test_an_unknown_family_says_which_are_known() -> None:
    assert "llama, mistral" in facts_from_config({"model_type": "mamba"}).why_not


def test_without_torch_an_unknown_family_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.hostinfo.model_probe.package_version", lambda _: None)
    lookup = facts_from_config({"model_type": "mamba"}, build=True)
    assert lookup.facts is None
    assert "with torch and transformers installed it could be built and counted" in lookup.why_not


def test_built_parameters_are_cut_at_the_longest_list_of_layers() -> None:
    from harness.facts.model_parts import Parameter, split_layers

    names = {"emb": (7, 3), "tower.0.w": (2, 2), "m.layers.0.w": (9, 9), "m.layers.1.w": (9, 9), "norm": (3,)}
    path, (before, layers, after) = split_layers(Parameter(name, shape) for name, shape in names.items())
    assert (path, len(layers)) == ("m.layers", 2)
    assert layers[0] is layers[1]
    assert [p.name for p in (*before, *after)] == ["emb", "tower.0.w", "norm"]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("my-llama-7b", "llama-7b"),
        ("Qwen 32B", "qwen3-32b"),
        ("mistral", "mistral-7b-v0.1"),
        ("llama-33b", "llama-30b"),
        ("llama_65b", "llama-65b"),
        ("gemma 27b", "gemma-3-27b-pt"),
        ("vicuna-13b", "llama-2-13b-hf"),
        ("my-run", None),
        ("bert-base-uncased", None),
    ],
)
def test_the_nearest_names_are_of_the_family_and_the_size(name: str, first: str | None) -> None:
    names = closest_names(name)
    assert len(names) <= 3
    assert (first in names) if first else names == ()
    size = size_in_name(name)
    for known in names if size else ():
        its_size = size_in_name(known)
        assert its_size is not None
        assert abs(its_size - size) <= 0.25 * size


def test_a_name_of_zero_parameters_says_no_size() -> None:
    assert size_in_name("tiny-0b") is None
    assert find_model("tiny-0b").facts is None
