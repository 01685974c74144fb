# SPDX-License-Identifier: Apache-2.0
"""The facts of a model from its configuration: parameters in order, layers, heads, vocabulary.

Loads no weights and asks no network: a Hub name is known when the catalogue or the local Hugging Face cache has it.
Builds no module, except on request for a family without a formula.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.facts.data_rows import read_rows
from harness.facts.model_catalogue import catalogue_config, closest_names, describe_origin
from harness.facts.model_facts import LatentAttention, ModelFacts
from harness.facts.model_families import FAMILIES, SAME_FAMILY, Family
from harness.facts.model_parts import BadConfig, ConfigFields, Parameter, split_layers
from harness.facts.model_table import read_table
from harness.hostinfo.stored_models import find_stored_config

BY_NAME = "its name alone"
"""Begins the source of a model that is not known here."""
__all__ = ["ModelFacts", "Parameter"]  # and what is defined here


class ModelLookup(NamedTuple):
    """The outcome of a search: facts and where they come from, or `facts` None and the reason why in `why_not`;
    `config` is the configuration, where there is one.
    """

    facts: ModelFacts | None
    source: str = ""
    why_not: str = ""
    config: Mapping[str, Any] | None = None


def facts_from_config(
    config: Mapping[str, Any], source: str = "its configuration", *, build: bool = False, estimate: bool = False
) -> ModelLookup:
    """Facts from a `transformers` configuration; missing fields have the defaults of `transformers`.

    `build`: let `transformers`, where it is installed, build a family without a formula here, on the meta device and in
    a process of its own (seconds); where that fails, estimate its size from the usual fields. `estimate`: at once.
    """
    lookup = _find_facts(config, source, build=build, estimate=estimate)
    if lookup.facts is None:
        return lookup
    return lookup._replace(facts=lookup.facts._replace(attention_dropout=has_attention_dropout(config)))


def _find_facts(config: Mapping[str, Any], source: str, *, build: bool, estimate: bool) -> ModelLookup:
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return ModelLookup(None, why_not=f"{source} has no `model_type`")
    fields = _text_fields(config)
    kind = SAME_FAMILY.get(str(fields["model_type"]), str(fields["model_type"]))
    family = FAMILIES.get(kind)
    if family is None:
        if build:
            return _build_with_transformers(config, kind, source)
        if estimate:
            return _estimate(config, kind, source, "it was not built")
        return ModelLookup(None, why_not=_unknown_family(kind))
    try:
        facts = _facts_of_family(kind, family, ConfigFields(fields, family.defaults, family.aliases))
        return ModelLookup(facts, source)
    except BadConfig as error:
        return ModelLookup(None, why_not=f"{source}: {error}")


def _text_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the text model, which a run trains of a model with towers for images or sound."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    fields = {**config, **text}
    if "tie_word_embeddings" in config:
        fields["tie_word_embeddings"] = config["tie_word_embeddings"]
    return fields


def _unknown_family(kind: str) -> str:
    return f"`model_type: {kind}` is not among the families that are counted: {', '.join(FAMILIES)}"


def _build_with_transformers(config: Mapping[str, Any], kind: str, source: str) -> ModelLookup:
    from harness.hostinfo.model_probe import probe_model

    probe = probe_model(config)
    if isinstance(probe, str):
        return _estimate(config, kind, source, probe)
    layer_path, (before, layers, after) = split_layers(Parameter(name, shape) for name, shape in probe.parameters)
    facts = ModelFacts(
        family=kind, **probe.sizes, layer_path=layer_path, before=before, layers=layers, after=after, built=True
    )
    return ModelLookup(facts, f"{source}, built by transformers on the meta device")


def _estimate(config: Mapping[str, Any], kind: str, source: str, why_not_built: str) -> ModelLookup:
    from harness.facts.estimated_model import estimate_fields

    try:
        family, fields = estimate_fields(config)
        facts = _facts_of_family(kind, family, fields)._replace(built=True, estimated=True)
    except BadConfig as error:
        reason = f"{_unknown_family(kind)}; {why_not_built}; no estimate is possible either: {error}"
        return ModelLookup(None, why_not=reason)
    return ModelLookup(facts, f"{source}, estimated from its sizes")


def _facts_of_family(kind: str, family: Family, fields: ConfigFields) -> ModelFacts:
    before, layers, after = family.build(fields)
    hidden = fields.count("hidden_size")
    experts = fields.count("num_local_experts") if "num_local_experts" in family.defaults else 0
    latent = _latent_attention(fields) if "kv_lora_rank" in family.defaults else None
    return ModelFacts(
        family=kind,
        hidden=hidden,
        heads=fields.count("num_attention_heads"),
        kv_heads=_num_kv_heads(fields),
        head_dim=(latent.plain + latent.rope + latent.value) // 2 if latent else fields.head_dim,
        intermediate=_intermediate_size(fields, hidden),
        vocab=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings"),
        experts=experts,
        experts_per_token=fields.count("num_experts_per_tok") if experts else 0,
        layer_path=family.layers,
        before=before,
        layers=layers,
        after=after,
        shared=_shared_expert_size(fields),
        latent=latent,
        counted_only=family.counted_only,
    )


def _intermediate_size(fields: ConfigFields, hidden: int) -> int:
    for key in ("moe_intermediate_size", "ffn_hidden_size", "n_inner"):
        if fields.get(key) is not None:
            return fields.count(key)
    return fields.count("intermediate_size", 4 * hidden)


def _num_kv_heads(fields: ConfigFields) -> int:
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1
    return fields.kv_heads


def _shared_expert_size(fields: ConfigFields) -> int:
    if fields.get("shared_expert_intermediate_size") is not None:
        return fields.count("shared_expert_intermediate_size")
    if fields.get("n_shared_experts") is None:
        return 0
    return fields.count("n_shared_experts", minimum=0) * fields.count("moe_intermediate_size")


def _latent_attention(fields: ConfigFields) -> LatentAttention:
    queries = fields.count("q_lora_rank") if fields.get("q_lora_rank") is not None else 0
    widths = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return LatentAttention(queries, *map(fields.count, widths))


def find_model(
    name_or_path: str | None,
    config: Mapping[str, Any] | None = None,
    base_dir: Path | None = None,
    revision: str | None = None,
    *,
    build: bool = False,
    estimate: bool = False,
    by_name: bool = False,
) -> ModelLookup:
    """Facts of the model of a run spec. In this order: the spec's own `config`, a folder (relative to `base_dir`), the
    local Hugging Face cache, the catalogue. `build` and `estimate` are those of `facts_from_config`; with `by_name` the
    name is enough, for a plan.
    """
    known, source = _find_config(name_or_path, config, base_dir, revision)
    if known is not None:
        return facts_from_config(known, source, build=build, estimate=estimate)._replace(config=known)
    if source or not name_or_path:
        return ModelLookup(None, why_not=source)
    named, close = _find_by_name(name_or_path) if by_name else None, closest_names(name_or_path)
    if named is not None:  # others of the nearest size are no help
        family = re.split(r"[^a-z]", name_or_path.lower().rpartition("/")[2])[0]
        close = tuple(name for name in close if family and family in name.lower())
    similar = " or ".join(f"`{name}`" for name in close)
    hint = f"; did you mean {similar}?" if similar else ""
    places = "is not a folder, not in the local Hugging Face cache and not in the catalogue"
    return named._replace(why_not=hint) if named else ModelLookup(None, why_not=f"`{name_or_path}` {places}{hint}")


def _find_by_name(name: str) -> ModelLookup | None:
    from harness.facts.estimated_model import config_of_name

    found = config_of_name(name)
    if found is None:
        return None
    lookup = facts_from_config(found[0], f"{BY_NAME}: {found[1]}", estimate=True)
    is_guess = found[0] is not catalogue_config(name.rstrip("/").rpartition("/")[2])
    facts = lookup.facts if lookup.facts is None else lookup.facts._replace(estimated=is_guess)
    return lookup._replace(config=found[0], facts=facts)


def find_configuration(
    name_or_path: str | None,
    config: Mapping[str, Any] | None = None,
    base_dir: Path | None = None,
    revision: str | None = None,
) -> dict[str, Any] | None:
    """The configuration itself, from the same places as `find_model`; None if there is none."""
    known, _ = _find_config(name_or_path, config, base_dir, revision)
    return None if known is None else dict(known)


def _find_config(
    name_or_path: str | None, config: Mapping[str, Any] | None, base_dir: Path | None, revision: str | None
) -> tuple[Mapping[str, Any] | None, str]:
    """A configuration and where it comes from; else None and the reason, which is empty for a name not known here."""
    if config is not None:
        return config, "`model.config`"
    if not name_or_path:
        return None, "neither `model.name_or_path` nor `model.config` is given"
    stored = find_stored_config(name_or_path, base_dir, revision)
    if stored is not None:
        return (None, stored.config) if isinstance(stored.config, str) else (stored.config, f"`{stored.file}`")
    known = catalogue_config(name_or_path)
    return known, "" if known is None else f"the catalogue{describe_origin(name_or_path, known)}"


_DROPOUT_KEYS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")


def has_attention_dropout(config: Mapping[str, Any]) -> bool:
    """Does a model of this configuration drop attention weights in training?"""
    merged = _text_fields(config)
    written = [merged[key] for key in _DROPOUT_KEYS if key in merged]
    if written:
        return any(isinstance(value, int | float) and value > 0 for value in written)
    return merged.get("model_type") in read_table().cells["dropout"]


_POSITIONS = [row.split()[:2] for _, row in read_rows("model_positions.txt")]


def find_positions(name: str | None, config: Mapping[str, Any] | None) -> int | None:
    """Positions of a spec's own configuration, else of a model of this name; None where neither says them."""
    own = (config or {}).get("max_position_embeddings") or (config or {}).get("n_positions")
    if isinstance(own, int):
        return own
    if not name:
        return None
    plain = name.lower().rpartition("/")[2].removeprefix("meta-")
    return next((int(positions) for positions, pattern in _POSITIONS if re.match(pattern, plain)), None)
