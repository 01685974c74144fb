# SPDX-License-Identifier: Apache-2.0
"""Does LoRA by `all-linear` reach every matrix of every layer, fused experts of three dimensions included?"""

from __future__ import annotations

from harness.errors import UserError
from harness.hostinfo.model_answers import Answer
from harness.runtime.model_questions.small_copy import SmallCopy, join_names, layer_matrices
from harness.runtime.models.lora import add_adapters
from harness.spec.sections.model_spec import LoraSpec


def ask(small: SmallCopy) -> Answer:
    """The names are those of matrices without an adapter."""
    matrices = [name for name, _ in layer_matrices(small.model)]
    model = small.duplicate()
    try:
        add_adapters(model, LoraSpec(target_modules="all-linear", r=2), 0)
    except UserError as error:
        return Answer(False, "; ".join((error.findings[0].message, *error.findings[0].notes)))
    adapted = {name.replace(".base_layer", "") for name, _ in model.named_parameters() if ".base_layer." in name}
    missed = join_names(name for name in matrices if name not in adapted)
    if not matrices:
        return Answer(None, "its layers were not found")
    if missed:
        return Answer(False, f"{len(adapted & set(matrices))} of {len(matrices)} matrices have an adapter", missed)
    return Answer(True, "every matrix of its layers has an adapter")
