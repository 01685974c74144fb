# SPDX-License-Identifier: Apache-2.0
"""The model families by `model_type`: their parameters in order, and the defaults of `transformers`.

`model_families.json` has them, with its date and the command that compares them with the real modules of the installed
`transformers`. A text names parameters with their sizes, as `build_text` reads it; `$NAME` is one of its `fragments`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.facts.model_parts import ConfigFields, Parameter, Parameters, Parts

_DATA: Mapping[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_LETTERS = {
    "H": "hidden_size",
    "V": "vocab_size",
    "I": "intermediate_size",
    "A": "num_attention_heads",
    "E": "num_local_experts",
    "W": "moe_intermediate_size",
}
LayerKind = Callable[[ConfigFields], tuple[bool, ...]]
"""Says of each layer whether it is of a kind."""


class Family(NamedTuple):
    """The parts of a `model_type`: texts of parameters, the defaults of `transformers`, other names of keys.

    `kinds`: names by which a text tells layers apart, each with what says so of all layers. `head`: the bias of the
    head, which a tied one has too. `counted_only`: its parameters are those of `transformers`, and nothing of it was
    run here.
    """

    layer: str
    defaults: Mapping[str, Any]
    layers: str = "model.layers"
    aliases: Mapping[str, str] = {}
    counted_only: bool = False
    before: str = "model.embed_tokens V H"
    after: str = "model.norm H"
    head: str = "-"
    kinds: Mapping[str, LayerKind] = {}

    def build(self, fields: ConfigFields) -> Parts:
        """The parameters of a configuration. Equal layers are one object."""
        before = build_text(fields, self.before)
        each = [*zip(*(kind(fields) for kind in self.kinds.values()), strict=True)]
        made = {of: build_text(fields, self.layer, dict(zip(self.kinds, of, strict=True))) for of in {*each, ()} if of}
        layers = tuple(made[of] for of in each) or (build_text(fields, self.layer),) * fields.num_layers
        head = build_text(fields, f"lm_head V H {self.head}")[fields.flag("tie_word_embeddings") :]
        return before, layers, (*build_text(fields, self.after), *head)


def build_text(fields: ConfigFields, text: str, kind: Mapping[str, bool] | None = None) -> Parameters:
    """The parameters of a text: each a name and its sizes, with its bias behind. `+`: it has one; `?FIELD`: if that is
    set; `^`: with as many elements as the last size; `-`: none. `FIELD?NAME`: only where the field is set, or layers
    are of this kind; `!FIELD?NAME`: only where not; `=NAME`: not the weight of a module. What follows the name of a
    fragment takes the places of its `{0}`, `{1}`.
    """
    found: list[Parameter] = []
    for name, *sizes in (each.split() for each in text.split(", ") if each):
        *conditions, path = name.split("?")
        if not all(_holds(fields, condition, kind or {}) for condition in conditions):
            continue
        if path.startswith("$"):
            found += build_text(fields, _DATA["fragments"][path[1:]].format(*sizes), kind)
            continue
        mark = sizes.pop() if sizes[-1][0] in "+^?-" else "-"
        shape = tuple(_add_up(fields, size) for size in sizes)
        found.append(Parameter(path[1:] if path.startswith("=") else f"{path}.weight", shape))
        if mark in "+^" or fields.flag(mark[1:]):
            found.append(Parameter(f"{path}.bias", (shape[-1 if mark == "^" else 0],)))
    return tuple(found)


def _holds(fields: ConfigFields, condition: str, kind: Mapping[str, bool]) -> bool:
    name = condition.removeprefix("!")
    return (kind[name] if name in kind else fields.flag(name)) != condition.startswith("!")


def _add_up(fields: ConfigFields, size: str) -> int:
    """`Q+2K`, `A*v_head_dim`, `n_inner|4H`: letters stand for fields, Q and K for all heads of queries and of keys, D
    for one; what follows `|` is the meaning of no number.
    """
    total = 0
    for term in size.split("+"):
        product = 1
        for word in term.split("*"):
            times, name, default = re.fullmatch(r"(\d*)(\w*)(?:\|(\w+))?", word).groups()  # type: ignore[union-attr]
            product *= int(times or 1) * (_count(fields, name, default) if name else 1)
        total += product
    return total


def _count(fields: ConfigFields, name: str, default: str | None) -> int:
    if name in ("Q", "K", "D"):
        heads = {"Q": "num_attention_heads", "K": "num_key_value_heads"}.get(name)
        return fields.head_dim * (1 if heads is None else fields.kv_heads if name == "K" else fields.count(heads))
    return fields.count(_LETTERS.get(name, name), _add_up(fields, default) if default else None)


def is_sparse_layer(fields: ConfigFields) -> tuple[bool, ...]:
    """Does this layer of a Qwen mixture have experts?"""
    dense, every = fields.numbers("mlp_only_layers"), fields.count("decoder_sparse_step")
    return tuple(index not in dense and (index + 1) % every == 0 for index in range(fields.num_layers))


def follows_dense(fields: ConfigFields) -> tuple[bool, ...]:
    """Does this layer come after the `first_k_dense_replace` dense ones?"""
    first = fields.count("first_k_dense_replace", 0, minimum=0)
    return tuple(index >= first for index in range(fields.num_layers))


def is_ernie_sparse(fields: ConfigFields) -> tuple[bool, ...]:
    """Is this layer between the first and the last one with experts, which are so many apart?"""
    first, every = fields.count("moe_layer_start_index", 0, minimum=0), fields.count("moe_layer_interval")
    end = fields.get("moe_layer_end_index")
    last = fields.num_layers - 1 if end in (None, -1) else fields.count("moe_layer_end_index", minimum=0)
    return tuple(first <= index <= last and (index + 1) % every == 0 for index in range(fields.num_layers))


def is_llama4_sparse(fields: ConfigFields) -> tuple[bool, ...]:
    """Has this layer experts: in every layer (Scout) or in every other (Maverick)?"""
    every = fields.count("interleave_moe_layer_step")
    chosen = fields.numbers("moe_layers") or frozenset(range(every - 1, fields.num_layers, every))
    return tuple(index in chosen for index in range(fields.num_layers))


def is_linear_layer(fields: ConfigFields) -> tuple[bool, ...]:
    """Has this layer linear attention? By `layer_types`, else all but every fourth."""
    types = fields.get("layer_types")
    if isinstance(types, list | tuple) and len(types) == fields.num_layers:
        return tuple(kind == "linear_attention" for kind in types)
    every = fields.count("full_attention_interval", 4)
    return tuple((index + 1) % every != 0 for index in range(fields.num_layers))


def has_two_norms(fields: ConfigFields) -> tuple[bool, ...]:
    """Has this layer of Falcon a norm for attention and one for the MLP?"""
    usual = 2 if fields.flag("new_decoder_architecture") else 1
    return (fields.count("num_ln_in_parallel_attn", usual) == 2,) * fields.num_layers


def _read_family(row: dict[str, Any]) -> Family:
    return Family(**{**row, "kinds": {name: globals()[kind] for name, kind in row.get("kinds", {}).items()}})


FAMILIES: Mapping[str, Family] = {kind: _read_family(row) for kind, row in _DATA["families"].items()}
SAME_FAMILY: Mapping[str, str] = {"kimi_k2": "deepseek_v3", "gemma3": "gemma3_text", "llama4": "llama4_text"}
"""A `model_type` that names another family's modules, or a composite of which a run trains the text model."""
