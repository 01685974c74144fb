"""What a model is like, as numbers: parameters in order, layers, heads, vocabulary. From a configuration alone.

Loads no weights, builds no module and asks no network: a Hub name is known when it is in the catalogue or in the local
Hugging Face cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.facts.model_catalogue import catalogued
from harness.facts.model_families import FAMILIES, BadConfig, Family, Fields, Parameter, Parameters

_MOST_LAYERS = 10_000

__all__ = ["Found", "ModelFacts", "Parameter", "find", "from_config"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes of a causal language model. Counts in elements; `before`, `layer`, `after` in the model's own order."""

    family: str
    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    experts: int
    experts_per_token: int
    layer_path: str
    before: Parameters
    layer: Parameters
    after: Parameters

    @property
    def num_parameters(self) -> int:
        """All elements; a tied head counts once."""
        return self.per_layer * self.num_layers + sum(p.numel for p in (*self.before, *self.after))

    @property
    def per_layer(self) -> int:
        """Elements of one layer."""
        return sum(p.numel for p in self.layer)

    @property
    def embeddings(self) -> int:
        """Elements of token and position embeddings and of an untied head."""
        return sum(p.numel for p in (*self.before, *self.after) if len(p.shape) == 2)

    @property
    def largest_parameter(self) -> int:
        """Elements of the largest single weight; transformers 5 keeps all experts of a layer in one."""
        return max(p.numel for p in (*self.before, *self.layer, *self.after))

    @property
    def largest_module(self) -> int:
        """Elements of the largest module with weights of its own: what ZeRO-3 gathers at once. Experts are one."""
        return max(self.largest_parameter, sum(p.numel for p in self.layer if ".experts." in p.name))

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: `experts_per_token` of the `experts`, everything else in full."""
        if not self.experts:
            return self.num_parameters
        idle = sum(p.numel for p in self.layer if ".experts." in p.name) * (self.experts - self.experts_per_token)
        return self.num_parameters - self.num_layers * idle // self.experts

    @property
    def matmul_parameters(self) -> int:
        """Active parameters that are multiplied with: no vectors, no input embedding unless it is the head too."""
        vectors = sum(p.numel for p in (*self.before, *self.after) if len(p.shape) == 1)
        vectors += self.num_layers * sum(p.numel for p in self.layer if len(p.shape) == 1)
        looked_up = sum(p.numel for p in self.before if len(p.shape) == 2)
        if self.tied:
            looked_up -= self.vocab * self.hidden
        return self.active_parameters - vectors - looked_up

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter with its full name, in the order of `model.named_parameters()`."""
        yield from self.before
        for index in range(self.num_layers):
            for p in self.layer:
                yield Parameter(f"{self.layer_path}.{index}.{p.name}", p.shape)
        yield from self.after


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search: facts and where they come from, or `facts` None and the reason why in `why_not`."""

    facts: ModelFacts | None
    source: str = ""
    why_not: str = ""


def from_config(config: Mapping[str, Any], source: str = "its configuration") -> Found:
    """Facts from a `transformers` configuration; fields that it leaves out are those of `transformers`."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return Found(None, why_not=f"{source} has no `model_type`")
    family = FAMILIES.get(kind)
    if family is None:
        return Found(
            None, why_not=f"`model_type: {kind}` is not among the families that are counted: {', '.join(FAMILIES)}"
        )
    try:
        return Found(_build(kind, family, Fields(config, family.defaults, family.aliases)), source)
    except BadConfig as error:
        return Found(None, why_not=f"{source}: {error}")


def _build(kind: str, family: Family, fields: Fields) -> ModelFacts:
    before, layer, after = family.build(fields)
    if fields.count("num_hidden_layers") > _MOST_LAYERS:
        raise BadConfig(f"`num_hidden_layers` is over {_MOST_LAYERS:,}")
    hidden = fields.count("hidden_size")
    experts = fields.count("num_local_experts") if "num_local_experts" in family.defaults else 0
    wide = fields.get("moe_intermediate_size") or fields.get("intermediate_size") or fields.get("n_inner") or 4 * hidden
    return ModelFacts(
        family=kind,
        num_layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        heads=fields.count("num_attention_heads"),
        kv_heads=fields.kv_heads,
        head_dim=fields.head_dim,
        intermediate=wide,
        vocab=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings"),
        experts=experts,
        experts_per_token=fields.count("num_experts_per_tok") if experts else 0,
        layer_path=family.layers,
        before=before,
        layer=layer,
        after=after,
    )


def find(
    name_or_path: str | None,
    config: Mapping[str, Any] | None = None,
    base_dir: Path | None = None,
    revision: str | None = None,
) -> Found:
    """Facts of the model of a run spec. Looked at in this order: the written-out `config`, a folder (relative to
    `base_dir`), the local Hugging Face cache, the catalogue.
    """
    if config is not None:
        return from_config(config, "`model.config`")
    if not name_or_path:
        return Found(None, why_not="neither `model.name_or_path` nor `model.config` is given")
    folder = _folder(name_or_path, base_dir)
    if folder is not None:
        return _from_file(folder / "config.json")
    cached = _cached_config(name_or_path, revision or "main")
    if cached is not None:
        return _from_file(cached)
    known = catalogued(name_or_path)
    if known is not None:
        return from_config(known, "the catalogue")
    return Found(
        None, why_not=f"`{name_or_path}` is not a folder, not in the local Hugging Face cache and not in the catalogue"
    )


def _folder(name: str, base_dir: Path | None) -> Path | None:
    try:
        folder = (base_dir or Path()) / Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # a name that no file system takes, or `~nobody`
        return None


def _from_file(path: Path) -> Found:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return Found(None, why_not=f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}")
    except ValueError:
        return Found(None, why_not=f"`{path}` is not JSON")
    if not isinstance(config, dict):
        return Found(None, why_not=f"`{path}` is not a JSON object")
    return from_config(config, f"`{path}`")


def _cached_config(name: str, revision: str) -> Path | None:
    """`config.json` of a Hub repository in the local cache, laid out as by `huggingface_hub`: refs name snapshots."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    repository = hub / ("models--" + name.replace("/", "--"))
    try:
        commit = (repository / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = revision
    path = repository / "snapshots" / commit / "config.json"
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):  # a name that no file system takes
        return None
