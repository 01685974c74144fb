# SPDX-License-Identifier: Apache-2.0
"""Have checkpointed layers, and the loss in chunks of tokens, the loss and the gradients of the model itself?"""

from __future__ import annotations

from types import SimpleNamespace

from harness.hostinfo.model_answers import Answer
from harness.patches.chunked_loss import install_chunked_loss
from harness.runtime.chunked_cross_entropy import chunked_cross_entropy
from harness.runtime.model_behavior import draw_ids
from harness.runtime.model_questions.small_copy import SmallCopy, find_differences, join_names, loss_and_gradients
from harness.runtime.models.activation_checkpointing import enable_activation_checkpointing
from harness.spec.sections.training_spec import CheckpointingSpec, TrainSpec

_CHUNK = 7


def ask_recomputed(small: SmallCopy) -> Answer:
    """Loss and gradients in training mode with and without recomputation."""
    model = small.duplicate().train()
    expected = loss_and_gradients(model)
    enable_activation_checkpointing(model, CheckpointingSpec(), TrainSpec(), {})
    names = find_differences(expected, loss_and_gradients(model))
    if names:
        return Answer(False, "recomputed layers give other numbers", join_names(names))
    return Answer(True, "loss and gradients are the same")


def ask_in_chunks(small: SmallCopy) -> Answer:
    """False with the reason where it is not computed in chunks: training then takes the model's own loss."""
    expected, model = small.own_gradients, small.duplicate()
    engine = SimpleNamespace(module=model, torch_autocast_enabled=lambda: False, fp16_enabled=lambda: False)
    head = install_chunked_loss(engine, _CHUNK, chunked_cross_entropy)
    if isinstance(head, str):
        return Answer(False, f"the model's own loss is used: {head}")
    head.set_labels(draw_ids(), None)
    names = find_differences(expected, loss_and_gradients(model))
    if names:
        return Answer(False, "the loss in chunks is another one", join_names(names))
    return Answer(True, "the model's own loss and gradients")
