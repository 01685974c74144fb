# SPDX-License-Identifier: Apache-2.0
"""Is a model's forward a plain stack of layers, which stages may call one by one? Asked of a small copy.

Whatever else a forward does between the layers (scaled embeddings, capped logits) would silently be lost.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from deepspeed.pipe import LayerSpec
from transformers import PreTrainedConfig

from harness.hostinfo.model_answers import Answer
from harness.runtime.micro_batch import MicroBatch
from harness.runtime.model_behavior import (
    RANK_SECONDS,
    ask_copy,
    build_small_copy,
    draw_ids,
    first_line,
    limit_seconds,
    logits_of,
    packed_positions,
)
from harness.runtime.pipeline.layer_layouts import layout_of
from harness.runtime.pipeline.layers import SharedInputs, apply_tied_head, encode_positions
from harness.runtime.pipeline.parameter_names import pipeline_parts
from harness.runtime.pipeline.pipeline_module import build_layer_specs
from harness.runtime.user_errors import user_error

_NOISE = 1e-3
"""Of the logits, by their norm."""


def check_stack(config: PreTrainedConfig, *, trust_remote_code: bool) -> None:
    """Raises UserError (PP101) for a model that is no plain stack of layers, or of which no small copy can be asked."""
    try:
        with limit_seconds(RANK_SECONDS):
            model = build_small_copy(config, trust_remote_code=trust_remote_code)
            answer = compare_stack(model, apart=ask_copy(model).apart is True)
    except Exception as error:  # the code of a model may raise anything
        answer = Answer(None, first_line(error))
    if not answer.holds:
        verb = "is not known to be" if answer.holds is None else "is not"
        raise user_error(
            "PP101",
            f"this model of type `{config.model_type}` {verb} a plain stack of layers",
            key="parallel.pipeline_parallel_size",
            notes=(answer.reason, *answer.names),
            fix="set `parallel.pipeline_parallel_size: 1`, and `zero.stage: 3` for a model that is too large",
        )


def compare_stack(model: Any, *, apart: bool) -> Answer:
    """The logits of the layers of a pipeline, against those of the whole model: of rows, padded and, where the model
    keeps their documents `apart`, packed ones. Of a stack, the names are the classes of its decoder, norm, embedding
    and head.
    """
    fields = model.config.to_dict().items()
    dropout = next((name for name, value in fields if re.search(r"emb.*drop", name) and value), "")
    dropout = "" if layout_of(model.config).dropout else dropout
    masks = {*(getattr(model.config, "layer_types", None) or ())} - {"full_attention", "sliding_attention"}
    obstacles = (
        f"layers of the kind `{min(masks)}` have a mask that no stage makes" if masks else "",
        f"`{dropout}`: its forward drops elements of the embeddings, and no stage does" if dropout else "",
        "`output_router_logits` adds a loss of all layers, which no stage has"
        if getattr(model.config, "output_router_logits", False)
        else "",
    )
    if any(obstacles):
        return Answer(False, next(filter(None, obstacles)))
    shared = SharedInputs(model.config)
    try:
        specs = build_layer_specs(model, pipeline_parts(model.config), shared)
    except (AttributeError, IndexError, TypeError) as error:
        return Answer(False, f"it has no embedding, layers, norm and head by the usual names: {error}")
    used = {id(p) for spec in specs for p in spec.layer.parameters()}
    outside = {re.sub(r"\d+", "*", n) for n, p in model.named_parameters() if id(p) not in used}
    if outside:
        names = tuple(sorted(outside)[:4])
        return Answer(False, "it has weights outside of embedding, layers, norm and head", names)
    ids = draw_ids()
    mask = torch.ones_like(ids)
    mask[0, -5:] = 0
    plain = torch.arange(ids.shape[1]).expand(ids.shape)
    for positions, attended in [(None, None), (plain, mask), *([(packed_positions(), None)] if apart else [])]:
        arguments = {} if positions is None else {"position_ids": positions}
        expected = logits_of(model, ids, **arguments, **({} if attended is None else {"attention_mask": attended}))
        try:
            logits = _run_stack(specs, shared, MicroBatch(ids, ids, positions, attended))
        except Exception as error:  # a layer takes what the model's own forward hands to it
            reason = f"a layer needs more than a pipeline hands to it: {type(error).__name__}: {error}"
            return Answer(False, reason[:200])
        kept = torch.ones_like(ids).bool() if attended is None else attended.bool()
        differs = float((logits - expected)[kept].norm() / expected[kept].norm())
        if differs > _NOISE:
            return Answer(False, f"its forward does more than call its layers: logits differ by {differs:.0e}")
    inner = {type(spec.layer).__name__: spec.layer.module for spec in specs if hasattr(spec.layer, "module")}
    names = ("Decoder", "Norm", "Embedding", "Head")
    return Answer(True, "a plain stack of layers", tuple(type(inner[n]).__name__ for n in names if n in inner))


@torch.no_grad()
def _run_stack(specs: list[LayerSpec], shared: SharedInputs, batch: MicroBatch) -> torch.Tensor:
    shared.start_step([batch])
    value: Any = (batch.input_ids, encode_positions(batch))
    for index, spec in enumerate(specs):
        is_tied_head = index == len(specs) - 1 and spec.layer is specs[0].layer
        value = apply_tied_head(spec.layer, value) if is_tied_head else spec.layer(value)
    logits: torch.Tensor = value
    return logits
