# SPDX-License-Identifier: Apache-2.0
"""The facts of a model from its configuration: parameters in order, layers, heads, vocabulary.

Loads no weights and asks no network: a Hub name is known when the catalogue or the local Hugging Face cache has it.
Builds no module, except on request for a family without a formula.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness import input_limits
from harness.facts.model_catalogue import catalogue_config, closest_names, describe_origin
from harness.facts.model_facts import LatentAttention, ModelFacts
from harness.facts.model_families import FAMILIES, SAME_FAMILY, Family
from harness.facts.model_parts import BadConfig, ConfigFields, Parameter, split_layers
from harness.facts.model_table import read_table
from harness.file_io import read_regular
from harness.hostinfo.hub_access import hub_cache
from harness.hostinfo.path_probe import answer_in_time

BY_NAME = "its name alone"
"""Begins the source of a model that is not known here."""
_MAX_REF_BYTES = 4096
"""Bytes; the largest configurations that people publish have some hundred thousand."""
_CODE_CONFIGS = ("config.json", "tokenizer_config.json")
"""Files whose `auto_map` names classes that `transformers` imports."""

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
        return ModelLookup(
            _facts_of_family(kind, family, ConfigFields(fields, family.defaults, family.aliases)), source
        )
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
        return ModelLookup(
            None, why_not=f"{_unknown_family(kind)}; {why_not_built}; no estimate is possible either: {error}"
        )
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
    return LatentAttention(
        fields.count("q_lora_rank") if fields.get("q_lora_rank") is not None else 0,
        fields.count("kv_lora_rank"),
        fields.count("qk_nope_head_dim"),
        fields.count("qk_rope_head_dim"),
        fields.count("v_head_dim"),
    )


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
    if config is not None:
        facts = facts_from_config(config, "`model.config`", build=build, estimate=estimate)
        return facts._replace(config=config)
    if not name_or_path:
        return ModelLookup(None, why_not="neither `model.name_or_path` nor `model.config` is given")
    stored = _find_stored_config(name_or_path, base_dir, revision)
    if stored is not None:
        if isinstance(stored.config, str):
            return ModelLookup(None, why_not=stored.config)
        facts = facts_from_config(stored.config, f"`{stored.file}`", build=build, estimate=estimate)
        return facts._replace(config=stored.config)
    catalogue_entry = catalogue_config(name_or_path)
    if catalogue_entry is not None:
        source = f"the catalogue{describe_origin(name_or_path, catalogue_entry)}"
        facts = facts_from_config(catalogue_entry, source, build=build, estimate=estimate)
        return facts._replace(config=catalogue_entry)
    named = _find_by_name(name_or_path) if by_name else None
    similar = " or ".join(f"`{name}`" for name in closest_names(name_or_path))
    hint = f"; did you mean {similar}?" if similar else ""
    places = "is not a folder, not in the local Hugging Face cache and not in the catalogue"
    return named or ModelLookup(None, why_not=f"`{name_or_path}` {places}{hint}")


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
    if config is not None or not name_or_path:
        return None if config is None else dict(config)
    stored = _find_stored_config(name_or_path, base_dir, revision)
    if stored is None:
        catalogue_entry = catalogue_config(name_or_path)
        return None if catalogue_entry is None else dict(catalogue_entry)
    return stored.config if isinstance(stored.config, dict) else None


def find_model_folder(name: str, revision: str | None = None) -> Path | None:
    """The folder of a model or a tokenizer: the one of this name, else that in the local Hugging Face cache."""
    stored = _find_stored_config(name, None, revision)
    return None if stored is None else stored.file.parent


def find_own_code(name: str, base_dir: Path | None = None) -> tuple[str, ...] | None:
    """The Python files of a model's folder, and the classes of other repositories that its `auto_map` names; None where
    the name is no folder here, or does not answer.
    """

    def read() -> tuple[str, ...] | None:
        folder = _find_folder(name, base_dir)
        if folder is None:
            return None
        files = [path.name for path in sorted(folder.glob("*.py"))]
        return (*files, *(each for file in _CODE_CONFIGS for each in _foreign_classes(folder / file)))

    try:
        return answer_in_time((base_dir or Path()) / name, read)
    except (OSError, ValueError):
        return None


def _foreign_classes(file: Path) -> list[str]:
    """The classes of an `auto_map` that are in another repository: `owner/name--module.Class`."""
    config = _read_config(file) if file.is_file() else {}
    classes = config.get("auto_map") if isinstance(config, dict) else None
    names = [*classes.values()] if isinstance(classes, dict) else []
    flat = [each for name in names for each in (name if isinstance(name, list) else [name])]
    return [each for each in flat if isinstance(each, str) and "--" in each]


class _StoredConfig(NamedTuple):
    """A `config.json` of this machine and its content, or the reason why it cannot be read."""

    file: Path
    config: dict[str, Any] | str


def _find_stored_config(name: str, base_dir: Path | None, revision: str | None) -> _StoredConfig | None:
    """The configuration of a folder or of the local Hugging Face cache; None where there is neither."""

    def read() -> _StoredConfig | None:
        folder = _find_folder(name, base_dir)
        file = folder / "config.json" if folder is not None else _cached_config(name, revision or "main")
        return None if file is None else _StoredConfig(file, _read_config(file))

    path = (base_dir or Path()) / name
    try:
        return answer_in_time(path, read)
    except TimeoutError as error:
        return _StoredConfig(path, f"`{name}` {error}")


def _find_folder(name: str, base_dir: Path | None) -> Path | None:
    try:
        folder = (base_dir or Path()) / Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # a name that no file system takes, or `~nobody`
        return None


def _read_config(path: Path) -> dict[str, Any] | str:
    """The object in a `config.json`, which may be a link into the cache's blobs; or why it cannot be used."""
    try:
        config = json.loads(read_regular(path, input_limits.MODEL_CONFIG).decode())
    except OSError as error:
        return f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}"
    except RecursionError:
        return f"`{path}` is nested too deeply"
    except ValueError:
        return f"`{path}` is not JSON"
    return config if isinstance(config, dict) else f"`{path}` is not a JSON object"


def is_repository_cached(name: str, revision: str | None) -> bool:
    """Is a snapshot of this Hub repository with more than its configuration in the local cache? A plan fetches that
    file alone.
    """
    config = _cached_config(name, revision or "main")
    return config is not None and any(path.name != config.name for path in config.parent.iterdir())


def _cached_config(name: str, revision: str) -> Path | None:
    """`config.json` of a Hub repository in the local cache, laid out as by `huggingface_hub`: refs name snapshots."""
    repository = hub_cache(os.environ) / ("models--" + name.replace("/", "--"))
    try:
        commit = read_regular(repository / "refs" / revision, _MAX_REF_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        commit = revision
    path = repository / "snapshots" / commit / "config.json"
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):  # a name that no file system takes
        return None


_DROPOUT_KEYS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")


def has_attention_dropout(config: Mapping[str, Any]) -> bool:
    """Does a model of this configuration drop attention weights in training?"""
    inner = config.get("text_config")
    merged = {**config, **inner} if isinstance(inner, Mapping) else config
    written = [merged[key] for key in _DROPOUT_KEYS if key in merged]
    if written:
        return any(isinstance(value, int | float) and value > 0 for value in written)
    return merged.get("model_type") in read_table().cells["dropout"]


_POSITIONS = [
    line.split()[:2]
    for line in Path(__file__).with_name("model_positions.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def find_positions(name: str | None, config: Mapping[str, Any] | None) -> int | None:
    """Positions of a spec's own configuration, else of a model of this name; None where neither says them."""
    own = (config or {}).get("max_position_embeddings") or (config or {}).get("n_positions")
    if isinstance(own, int):
        return own
    if not name:
        return None
    plain = name.lower().rpartition("/")[2].removeprefix("meta-")
    return next((int(positions) for positions, pattern in _POSITIONS if re.match(pattern, plain)), None)
