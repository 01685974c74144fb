# SPDX-License-Identifier: Apache-2.0
"""Dense model families, parameter by parameter: by a function, or as `model_families.json` tells them.

`tests/training/facts/test_model_families.py` compares every one of them with the real modules on the meta device. No
weights and no torch here. Families with experts: `harness.facts.moe_model_families`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.facts.model_parts import (
    TWO_NORMS,
    ConfigFields,
    Parameter,
    Parameters,
    Parts,
    attention,
    decoder,
    gated_mlp,
    layer_norm,
    linear,
    norms,
    qk_norms,
    repeat_layer,
    untied_head,
)


def llama(
    fields: ConfigFields,
    *,
    qkv_bias: bool | str = "attention_bias",
    out_bias: bool | str = "attention_bias",
    mlp_bias: bool | str = False,
    head_norms: Mapping[str, Any] | None = None,
    norm_names: Sequence[str] = TWO_NORMS,
) -> Parts:
    """Attention, a gated MLP and RMS norms in every layer. Of a bias the field that chooses it, or whether it is there;
    of `head_norms` those arguments of `qk_norms`, and the field that chooses them, if any, as `chosen_by`.
    """
    hidden, norms_of_heads = fields.count("hidden_size"), dict(head_norms or {})
    qkv, out, mlp = (fields.flag(b) if isinstance(b, str) else b for b in (qkv_bias, out_bias, mlp_bias))
    chosen_by = norms_of_heads.pop("chosen_by", None)
    has_norms = head_norms is not None and (chosen_by is None or fields.flag(chosen_by))
    layer = (
        *attention(fields, qkv, out),
        *(qk_norms(fields, **norms_of_heads) if has_norms else ()),
        *gated_mlp(hidden, fields.count("intermediate_size"), mlp),
        *norms(hidden, *norm_names),
    )
    return decoder(fields, repeat_layer(fields, layer))


def build_written(
    fields: ConfigFields, layer: str, before: str = "", after: str = "model.norm H", head: str = ""
) -> Parts:
    """Parameters as the text of a family names them, in their order, with layers that are all alike. A text has a name
    and its sizes each, with its bias behind: `+`, by the field that chooses it `?FIELD`, or `^` of a weight that is
    stored input first. `FIELD?NAME`: only with this field; `=NAME`: not the weight of a module. `head`: its bias, which
    a tied one has too.
    """
    first = _read(fields, before or "model.embed_tokens V H")
    heads = _read(fields, f"lm_head V H {head}")[fields.flag("tie_word_embeddings") :] if head else untied_head(fields)
    return first, repeat_layer(fields, _read(fields, layer)), (*_read(fields, after), *heads)


def _read(fields: ConfigFields, text: str) -> Parameters:
    found: list[Parameter] = []
    for name, *sizes in (each.split() for each in text.split(", ") if each):
        flag, _, path = name.rpartition("?")
        if flag and not fields.flag(flag):
            continue
        mark = sizes.pop() if sizes[-1][0] in "+^?" else ""
        shape = tuple(sum(_size(fields, word) for word in size.split("+")) for size in sizes)
        if path.startswith("="):
            found.append(Parameter(path[1:], shape))
            continue
        found.append(Parameter(f"{path}.weight", shape))
        if mark and (mark[0] != "?" or fields.flag(mark[1:])):
            found.append(Parameter(f"{path}.bias", (shape[-1 if mark == "^" else 0],)))
    return tuple(found)


_FIELDS = {
    "H": "hidden_size",
    "V": "vocab_size",
    "I": "intermediate_size",
    "A": "num_attention_heads",
    "E": "num_local_experts",
}


def _size(fields: ConfigFields, word: str) -> int:
    """`4H`, `2`, `n_positions`: letters stand for fields, Q and K for all heads of queries and of keys, D for one."""
    times, name = re.fullmatch(r"(\d*)(\w*)", word).groups()  # type: ignore[union-attr]
    factor = int(times or 1)
    if not name:
        return factor
    if name == "N":  # of GPT-2
        return factor * fields.count("n_inner", 4 * fields.count("hidden_size"))
    heads = {"Q": fields.count("num_attention_heads"), "K": fields.kv_heads, "D": 1} if name in "QKD" else {}
    return factor * (heads[name] * fields.head_dim if heads else fields.count(_FIELDS.get(name, name)))


def falcon(fields: ConfigFields) -> Parts:
    """Falcon 1B to 180B: a fused projection of three layouts, one or two layer norms."""
    hidden, vocab, bias = fields.count("hidden_size"), fields.count("vocab_size"), fields.flag("bias")
    intermediate = fields.count("ffn_hidden_size", 4 * hidden)
    layer = (
        *linear("self_attention.query_key_value", _falcon_qkv(fields), hidden, bias),
        *linear("self_attention.dense", hidden, hidden, bias),
        *linear("mlp.dense_h_to_4h", intermediate, hidden, bias),
        *linear("mlp.dense_4h_to_h", hidden, intermediate, bias),
        *(parameter for name in _falcon_norms(fields) for parameter in layer_norm(hidden, name)),
    )
    after = (*layer_norm(hidden, "transformer.ln_f"), *untied_head(fields))
    return linear("transformer.word_embeddings", vocab, hidden), repeat_layer(fields, layer), after


def _falcon_qkv(fields: ConfigFields) -> int:
    """Rows of the fused projection: grouped keys (40B), one key head (7B), or as many as there are queries (1B)."""
    if fields.flag("new_decoder_architecture"):
        return (2 * fields.kv_heads + fields.count("num_attention_heads")) * fields.head_dim
    return (
        fields.count("hidden_size") + 2 * fields.head_dim
        if fields.flag("multi_query")
        else 3 * fields.count("hidden_size")
    )


def _falcon_norms(fields: ConfigFields) -> tuple[str, ...]:
    is_new = fields.flag("new_decoder_architecture")
    has_two = fields.count("num_ln_in_parallel_attn", 2 if is_new else 1) == 2
    after = () if fields.flag("parallel_attn") else ("post_attention_layernorm",)
    return (*after, *(("ln_attn", "ln_mlp") if has_two else ("input_layernorm",)))
