# SPDX-License-Identifier: Apache-2.0
"""The model families by `model_type`: their parameters in order, and the defaults of `transformers`.

`model_families.json` has them, with its date and the command that compares them with the real modules of the installed
`transformers`. A text names parameters with their sizes, as `build_text` reads it; `$NAME` is one of its `fragments`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
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


def find_sparse(
    fields: ConfigFields, *, first: str = "", last: str = "", every: str = "", dense: str = "", chosen: str = ""
) -> tuple[bool, ...]:
    """Which layers have experts? By fields of these names: the first and the last such layer, every which one, and the
    indices of those that have none or of those that alone have them.
    """
    start, step = fields.count(first, 0, minimum=0), fields.count(every) if every else 1
    end = fields.count(last, minimum=0) if fields.get(last) not in (None, -1) else fields.num_layers - 1
    alone, without = fields.numbers(chosen), fields.numbers(dense)
    return tuple(
        index in alone if alone else start <= index <= end and index not in without and (index + 1) % step == 0
        for index in range(fields.num_layers)
    )


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


def _read_families() -> Mapping[str, Family]:
    """The rows of the file, of which one may be `like` an earlier one but for what it has itself."""
    families: dict[str, Family] = {}
    for name, row in _DATA["families"].items():
        base = families.get(row.pop("like", ""), Family("", {}))
        kinds = {
            each: globals()[kind] if isinstance(kind, str) else partial(find_sparse, **kind)
            for each, kind in row.get("kinds", {}).items()
        }
        defaults = {**base.defaults, **row.get("defaults", {})}
        families[name] = base._replace(**{**row, "kinds": kinds or base.kinds, "defaults": defaults})
    return families


FAMILIES: Mapping[str, Family] = _read_families()
SAME_FAMILY: Mapping[str, str] = {"kimi_k2": "deepseek_v3", "gemma3": "gemma3_text", "llama4": "llama4_text"}
"""A `model_type` that names another family's modules, or a composite of which a run trains the text model."""
