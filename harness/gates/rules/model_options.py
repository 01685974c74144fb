# SPDX-License-Identifier: Apache-2.0
"""Options of the model: length, adapters and frozen parameters."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from harness.gates.registry import Context, Findings, Fix, gate, spec_gate

_POSITION_TABLES = ("wpe.weight", "embed_positions.weight", "position_embeddings.weight")


@gate(
    "MD014 sequences-beyond-the-positions",
    upstream="crashes",
    severity=("error", "warning"),
    needs=("a run spec", "model facts"),
)
def sequences_beyond_positions(ctx: Context) -> Findings:
    """Sequences longer than the model's positions.

    `data.max_length` against the rows of a table of learned positions (an error), and against `max_position_embeddings`
    of `model.config` or of the model's `config.json` (a warning), multiplied by the factor of its `rope_scaling`.

    Why: A model with learned positions, such as GPT-2 or OPT, has one row for each: beyond the table the look-up fails,
    on a GPU as a device-side assertion. Rotary positions can be computed beyond that length, but the model was not
    trained on them.

    Example:
        model.config.model_type: llama
        model.config.vocab_size: 64
        model.config.hidden_size: 32
        model.config.intermediate_size: 64
        model.config.num_hidden_layers: 1
        model.config.num_attention_heads: 4
        model.config.max_position_embeddings: 512
        data.max_length: 1024

    Use instead:
        model.config.model_type: llama
        model.config.vocab_size: 64
        model.config.hidden_size: 32
        model.config.intermediate_size: 64
        model.config.num_hidden_layers: 1
        model.config.num_attention_heads: 4
        model.config.max_position_embeddings: 1024
        data.max_length: 1024
    """
    length = ctx.run.spec.data.max_length
    facts = ctx.model
    tables = [p.shape[0] for p in facts.before if p.name.endswith(_POSITION_TABLES)] if facts else []
    offset = 2 if facts and facts.family == "opt" else 0  # OPT's table has two more rows than it has positions
    rows = tables[0] - offset if tables else None
    positions = rows or _rotary_positions(ctx.model_config)
    if isinstance(positions, int) and length > positions:
        verb = "has" if rows else "was made for"
        key = "data.max_length"
        yield ctx.finding(
            f"{ctx.key(key)} is {length:,}, the model {verb} {positions:,} positions",
            key,
            severity="error" if rows else "warning",
            related=[("model.config.max_position_embeddings", "the model's positions")],
            fix=Fix(f"set `data.max_length` to {positions}", {key: positions}, effect="shorter sequences"),
        )


def _rotary_positions(config: Mapping[str, Any]) -> int | None:
    """The length that rotary positions were made for; those that are scaled reach further."""
    inner = config.get("text_config")
    config = inner if isinstance(inner, Mapping) else config
    positions = config.get("max_position_embeddings")
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(positions, int) or not isinstance(scaling, Mapping):
        return positions if isinstance(positions, int) else None
    original, factor = scaling.get("original_max_position_embeddings", positions), scaling.get("factor")
    if not isinstance(original, int) or not isinstance(factor, int | float):
        return positions
    return max(positions, int(original * factor))


@spec_gate("MD032 adapters-on-random-weights", severity="warning")
def adapters_on_random_weights(ctx: Context) -> Findings:
    """Adapters on frozen random weights.

    `model.lora` comes with pretrained weights: `model.name_or_path`, without `model.random_init`.

    Why: The weights under the adapters are frozen as they are. A model of frozen random weights learns next to
    nothing.

    Example:
        model.config: {model_type: llama, vocab_size: 1000}
        model.tokenizer: bytes
        model.lora: {r: 8}

    Use instead:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        model.lora: {r: 8}
    """
    model = ctx.run.spec.model
    if model.lora is not None and (model.random_init or (model.name_or_path is None and model.config is not None)):
        key = "model.lora"
        yield ctx.finding(
            "`model.lora` freezes weights that start random, so they never learn anything",
            key,
            label="adapts random weights",
            fix=Fix("remove `model.lora`, or start from pretrained weights", {key: None}, effect="trains all weights"),
        )


@spec_gate("MD030 two-ways-to-freeze")
def two_ways_to_freeze(ctx: Context) -> Findings:
    """Two lists that say which parameters are trained.

    `model.freeze` and `model.train_only` are not both given, nor `model.train_only` with `model.lora`.

    Why: Each of the two lists is complete: it names what is frozen, or what is trained. Adapters freeze everything else
    by themselves, so a list of parameters to train would have to name them.

    Example:
        model.freeze: ["*embed_tokens*"]
        model.train_only: ["model.layers.*"]
    """
    model = ctx.run.spec.model
    other = "model.freeze" if model.freeze else "model.lora" if model.lora else None
    if model.train_only and other:
        key = "model.train_only"
        yield ctx.finding(
            f"{ctx.key(key)} and `{other}` both say which parameters are trained",
            key,
            related=[(other, "the other")],
            fix=ctx.fix_to_remove(key, effect="changes what is trained"),
        )


_WHOLE_MODEL_KEYS = {
    "parallel.tensor_parallel_size": ("model.lora", "train.offload_activations", "plugins.file"),
    "parallel.pipeline_parallel_size": ("plugins.file",),
    "parallel.sequence_parallel_size": ("plugins.file",),
}


@gate("MD033 not-with-model-parallelism", needs=("a run spec", "a launch"))
def conflicts_with_model_parallelism(ctx: Context) -> Findings:
    """Options for a whole model with a sharded one.

    On `harness launch`: `model.lora` and `train.offload_activations` are not given with `parallel.tensor_parallel_size`
    above 1, and `plugins.file` with none of the degrees of `parallel`.

    Why: Adapters under AutoTP were not run by this project: DeepSpeed shards layers by their names, which adapters
    change. The harness does not split a model of a plugin into stages or shards, and the plugin's metrics would get a
    part of the logits.

    Example:
        parallel.tensor_parallel_size: 2
        model.lora: {r: 8}
    """
    spec = ctx.run.spec
    degree = next((key for key in _WHOLE_MODEL_KEYS if attrgetter(key)(spec) != 1), None)
    if degree is None:
        return
    for key in _WHOLE_MODEL_KEYS[degree]:
        if attrgetter(key)(spec):
            yield ctx.finding(
                f"`{key}` does not work with `{degree}` above 1",
                key,
                related=[(degree, "cuts the model")],
                fix=Fix(f"set `{degree}: 1`", {degree: 1}, effect="uses ranks for data"),
            )
