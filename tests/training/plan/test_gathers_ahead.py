# SPDX-License-Identifier: Apache-2.0
"""ZeRO-3 gathers a layer while the one before it computes: counted on 2 ranks with every recipe's settings, scaled.

What is gathered when a module already needs it is what a GPU waits for. A CPU overlaps nothing, but who asks for a
gather, and when, is decided in Python and is the same on both. Half a minute.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.facts.deepspeed_version import resolve_target
from harness.facts.model_facts import ModelFacts
from harness.facts.model_lookup import facts_from_config, find_model
from harness.plan.memory.gathered_items import gathered_items
from harness.plan.memory.zero_partitions import partition_model
from harness.plan.planner import make_plan
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.spec_loader import load_spec
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "gathers_ahead.py"
ROOT = Path(__file__).parents[3]
WAITED = 0.10
"""Of all elements that a step gathers."""
WIDTH, WIDTH_ON_DISK = 64, 576
"""Of hidden states: DeepSpeed writes a shard of 1 MiB and more to the disk, a rank's half of a matrix of the MLP."""
LAYERS, LAYERS_ON_DISK = 8, 2
_SIZES = ("stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance")
_DEFAULTS = {"stage3_prefetch_bucket_size": 50_000_000, "stage3_param_persistence_threshold": 100_000}


def run_of(recipe: str, *more: str) -> tuple[ResolvedRun, ModelFacts]:
    """With its choices, and more keys set. A folder that another recipe writes has that recipe's model."""
    loaded = load_spec(str(ROOT / "ds_configs" / f"{recipe}.yaml"), more, resolve_target())
    assert loaded.spec is not None
    run = with_tuned_defaults(resolve_run(loaded.spec, world_size=8), ROOT)
    model = find_model(loaded.spec.model.name_or_path, loaded.spec.model.config, ROOT).facts
    return run, run_of("pretrain-tiny")[1] if model is None else model


def at_stage_3() -> list[str]:
    names = (path.stem for path in sorted((ROOT / "ds_configs").glob("*.yaml")))
    return [name for name in names if run_of(name)[0].spec.zero.stage == 3]


_70B, _8B = "llama-3.1-70b-zero3-h200", "llama-3.1-8b-zero3"
CASES = {name: (name,) for name in at_stage_3()} | {
    "70B, nothing recomputed, no chunks": (_70B, "train.gradient_checkpointing=false", "train.loss_chunk_size=0"),
    "a small head": (_8B, "model.name_or_path=meta-llama/Llama-2-7b-hf"),
    "a small head, large layers": (_70B, "model.name_or_path=meta-llama/Llama-2-70b-hf"),
    "a tied head": (_8B, "model.name_or_path=meta-llama/Llama-3.2-1B"),
}
LORA = {
    "LoRA": (_70B, "model.lora.r=16"),
    "LoRA with DeepSpeed's defaults": (_70B, "model.lora.r=16", "tuned_defaults=false"),
}
AS_ONE = [
    name
    for name, case in CASES.items()
    if "leaf_module" in render_ds_config(run_of(*case)[0]).config["zero_optimization"]
]
LARGE = [name for name in AS_ONE if run_of(*CASES[name])[1].num_layers >= LAYERS]


def case_of(recipe: str, *more: str) -> dict[str, Any]:
    """A model as the recipe's, narrower and with fewer layers, and the rendered settings in the same shares of a layer."""
    run, model = run_of(recipe, *more)
    zero = dict(render_ds_config(run).config["zero_optimization"])
    on_disk = zero.get("offload_param", {}).get("device") == "nvme" and model.hidden > WIDTH_ON_DISK
    config = narrowed(model, *((WIDTH_ON_DISK, LAYERS_ON_DISK) if on_disk else (WIDTH, LAYERS)))
    small = facts_from_config(config).facts
    assert small is not None
    factor = small.largest_layer_parameters / model.largest_layer_parameters
    for key in _SIZES:
        zero[key] = max(1, int(zero.get(key, _DEFAULTS.get(key, 1_000_000_000)) * factor))
    limit = zero.get("stage3_param_persistence_threshold", _DEFAULTS["stage3_param_persistence_threshold"])
    pairs = zip(
        (*model.before, *model.largest_layer, *model.after),
        (*small.before, *small.largest_layer, *small.after),
        strict=True,
    )
    zero["stage3_param_persistence_threshold"] = max((s.numel for m, s in pairs if m.numel <= limit), default=0)
    zero["reduce_bucket_size"] = 1_000_000
    zero.pop("offload_optimizer", None)
    if "offload_param" in zero:
        zero["offload_param"] = {**zero["offload_param"], "nvme_path": "NVME", "max_in_cpu": 0}
        zero["offload_param"]["buffer_size"] = -(-max(p.numel for p in small.parameters()) // 2)
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "config": config,
        "zero": zero,
        "checkpointing": run.spec.train.gradient_checkpointing,
        "chunks": run.loss_chunk_size > 0,
        "lora": run.spec.model.lora is not None,
        "layer": small.largest_layer_parameters,
    }


def narrowed(model: ModelFacts, width: int, layers: int) -> dict[str, Any]:
    factor = min(1.0, width / model.hidden)
    heads = model.heads if factor == 1 else 8
    return {
        "model_type": model.family,
        "vocab_size": round(model.vocab * factor),
        "hidden_size": round(model.hidden * factor),
        "intermediate_size": round(model.intermediate * factor),
        "num_hidden_layers": min(layers, model.num_layers),
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads * model.kv_heads // model.heads),
        "tie_word_embeddings": model.tied,
        "max_position_embeddings": 64,
    }


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of every case, from one start of two ranks. Those with the same settings and model are counted once."""
    out = tmp_path_factory.mktemp("gathers") / "out.json"
    texts = {name: json.dumps(case_of(*case), sort_keys=True) for name, case in (CASES | LORA).items()}
    distinct = list(dict.fromkeys(texts.values()))
    forked.run(JOB, str(out), json.dumps([json.loads(text) for text in distinct]), timeout=600)
    found = dict(zip(distinct, json.loads(out.read_text()), strict=True))
    return {name: {**found[text], "layer": json.loads(text)["layer"]} for name, text in texts.items()}


@pytest.mark.parametrize("name", CASES)
def test_at_most_a_tenth_is_waited_for(name: str, results: dict[str, Any]) -> None:
    for what in ("step", "evaluation"):
        found = results[name][what]
        assert found["waited"] <= WAITED * (found["waited"] + found["ahead"]), what


@pytest.mark.parametrize("name", AS_ONE)
def test_layers_are_gathered_ahead(name: str, results: dict[str, Any]) -> None:
    assert results[name]["step"]["ahead"] > results[name]["layer"]


def test_adapters_wait_no_more_than_with_the_defaults(results: dict[str, Any]) -> None:
    """DeepSpeed releases a frozen weight after its recomputation and gathers it again for the backward pass."""
    chosen, default = (results[name]["step"] for name in LORA)
    assert 0 < chosen["waited"] <= default["waited"]


@pytest.mark.parametrize("name", LARGE)
def test_no_more_is_gathered_at_once_than_is_planned(name: str, results: dict[str, Any]) -> None:
    """In layers, of all moments."""
    run, model = run_of(*CASES[name])
    settings = make_plan(run, ROOT).settings
    assert settings is not None
    planned = max(row.bytes for row in gathered_items(model, settings, partition_model(model, settings), 0)) / 2
    assert results[name]["step"]["most"] / results[name]["layer"] <= planned / model.largest_layer_parameters
