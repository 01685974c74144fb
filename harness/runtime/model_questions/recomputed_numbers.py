# SPDX-License-Identifier: Apache-2.0
"""Do checkpointed layers recompute the same numbers?"""

from __future__ import annotations

from harness.errors import UserError
from harness.hostinfo.model_answers import Answer
from harness.runtime.model_questions.small_copy import SmallCopy, find_differences, join_names, loss_and_gradients
from harness.runtime.models.activation_checkpointing import enable_activation_checkpointing
from harness.spec.sections.training_spec import CheckpointingSpec, TrainSpec


def ask(small: SmallCopy) -> Answer:
    """Loss and gradients in training mode with and without recomputation."""
    model = small.duplicate().train()
    expected = loss_and_gradients(model)
    try:
        enable_activation_checkpointing(model, CheckpointingSpec(), TrainSpec(), {})
    except UserError as error:
        return Answer(False, error.findings[0].message)
    names = find_differences(expected, loss_and_gradients(model))
    if names:
        return Answer(False, "recomputed layers give other numbers", join_names(names))
    return Answer(True, "loss and gradients are the same")
