# SPDX-License-Identifier: Apache-2.0
"""Do all layers take part in a sequence group? Two ranks with half of each row each, against whole rows."""

from __future__ import annotations

from typing import Any

import deepspeed.runtime.sequence_parallel.ulysses_sp  # noqa: F401 - once, not in each rank
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.hostinfo.model_answers import Answer
from harness.runtime.micro_batch import MicroBatch
from harness.runtime.model_behavior import draw_ids, logits_of, packed_positions
from harness.runtime.model_questions.rank_pair import ask_ranks
from harness.runtime.model_questions.small_copy import NOISE, SmallCopy, find_layers, join_names
from harness.runtime.parallel.sequence_parallel import install_ulysses_attention, is_packed, split_sequence


def ask(small: SmallCopy) -> Answer:
    """The logits of both halves by `UlyssesAttention`."""
    ids = draw_ids()
    plain = torch.arange(ids.shape[1]).expand(ids.shape)
    rows = [plain, packed_positions()] if small.apart else [plain]
    expected = [logits_of(small.model, ids, position_ids=positions) for positions in rows]

    def compare(rank: int) -> dict[str, Any]:
        attention = install_ulysses_attention(small.model, torch.distributed.group.WORLD)
        worst = 0.0
        for positions, whole in zip(rows, expected, strict=True):
            batch = MicroBatch(ids, ids, positions)
            part_ids, part_positions, _ = split_sequence(batch, 2, rank)
            attention.start_forward(part_positions, packed=is_packed(batch))
            logits = logits_of(small.model, part_ids, position_ids=part_positions)
            part = whole.chunk(2, dim=1)[rank]
            worst = max(worst, float((logits - part).norm() / part.norm()))
        return {"calls": attention.num_calls, "differs": worst}

    outside = _layers_without_attention(small.model)
    if outside:
        return Answer(False, "layers see only a part of each row, since they mix tokens by other means", outside)
    answers = ask_ranks(compare, 2, small.folder / "sequence")
    layers, calls = small.text_config.num_hidden_layers, answers[0]["calls"]
    if calls != layers:
        return Answer(False, f"{calls} calls of attention in {layers} layers")
    differs = max(answer["differs"] for answer in answers)
    if differs > NOISE:
        return Answer(False, f"the logits of a rank differ from those of whole rows, by {differs:.0e}")
    return Answer(True, "two ranks have the logits of whole rows")


def _layers_without_attention(model: Any) -> tuple[str, ...]:
    """The layers whose modules do not call the attention function, with their classes."""
    name = str(model.config.get_text_config(decoder=True)._attn_implementation)
    core, callers = ALL_ATTENTION_FUNCTIONS.get(name), set()
    if core is None:
        return ()

    def record(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        callers.add(module)
        return core(module, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS[name] = record
    try:
        logits_of(model, draw_ids())
    finally:
        ALL_ATTENTION_FUNCTIONS[name] = core
    outside = [(path, layer) for path, layer in find_layers(model) if not callers & set(layer.modules())]
    if not callers:
        return ()
    return join_names(f"{path}.{_mixer_of(layer)}" for path, layer in outside)


def _mixer_of(layer: Any) -> str:
    """The child that stands where attention does in other layers: the first with weights that is no norm."""
    children = [(n, m) for n, m in layer.named_children() if any(p.dim() > 1 for p in m.parameters())]
    return children[0][0] if children else type(layer).__name__
