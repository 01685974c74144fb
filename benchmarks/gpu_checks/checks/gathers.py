# SPDX-License-Identifier: Apache-2.0
"""ZeRO-3 gathers layers ahead: the share of elements that are gathered when a module already waits for them.

With the settings that the harness chooses for a 70B model, in the same shares of a layer, and 8 narrow layers.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.training import build_harness_engine, make_model, make_spec, render, resolve, train_on_rows

LARGE = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
SIZES = {
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
}
"""Settings in elements, with DeepSpeed's defaults."""
MOST_WAITED = 0.10


def measure(scene: Scene) -> Figures:
    """Elements that the third step gathers on demand and ahead."""
    from benchmarks.counting import gathers
    from harness.patches.zero3_leaf_params import cache_leaf_parameters

    narrow = LARGE | {"hidden_size": 64, "intermediate_size": 224, "num_hidden_layers": 8, "vocab_size": 1002}
    narrow |= {"num_attention_heads": 8, "num_key_value_heads": 1}
    run, settings = resolve(_spec(scene, narrow), scene.world_size), scaled_settings(scene, narrow)
    model = make_model(narrow)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    engine = build_harness_engine(scene, run, model, settings)
    cache_leaf_parameters()
    engine.train()
    train_on_rows(engine, 2, 16, 320, scene.rank)
    with gathers(engine.module.parameters()) as found:
        train_on_rows(engine, 1, 16, 320, scene.rank)
    every = found["waited"] + found["ahead"]
    return {**found, "waited_share": found["waited"] / max(1, every), "layers_as_one": "leaf_module" in settings}


def judge(figures: Figures, _rehearse: bool) -> list[str]:
    """Few are waited for."""
    if figures["ahead"] + figures["waited"] == 0:
        return ["nothing was gathered: ZeRO-3 does not gather on one rank"]
    if figures["waited_share"] > MOST_WAITED:
        return [f"{figures['waited_share']:.0%} of the elements are gathered when they are needed already"]
    return []


def scaled_settings(scene: Scene, narrow: dict[str, Any]) -> dict[str, Any]:
    """What the harness chooses for the large model on 8 ranks, with sizes in the same shares of a layer."""
    chosen = render(resolve(_spec(scene, LARGE), 8, tuned=True))["zero_optimization"]
    factor = count_layer(narrow) / count_layer(LARGE)
    settings = {key: max(1, int(chosen.get(key, default) * factor)) for key, default in SIZES.items()}
    kept = {key: chosen[key] for key in ("leaf_module", "overlap_comm") if key in chosen}
    return {**settings, "stage3_param_persistence_threshold": 0, **kept}


def count_layer(config: dict[str, Any]) -> int:
    """Parameters of a decoder layer of a Llama."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    keys = hidden * hidden // heads * config["num_key_value_heads"]
    return int(2 * hidden * hidden + 2 * keys + 3 * hidden * config["intermediate_size"] + 2 * hidden)


def _spec(scene: Scene, model: dict[str, Any]) -> dict[str, Any]:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    return make_spec(scene.folder, model, train={"gradient_checkpointing": True}, zero=zero)
