# SPDX-License-Identifier: Apache-2.0
"""Does LoRA by `all-linear` reach every matrix of every layer, fused experts of three dimensions included? Does a 4-bit
base (QLoRA) load, reach all of them, and train?
"""

from __future__ import annotations

from typing import Any

import torch

from harness.errors import UserError
from harness.hostinfo.model_answers import Answer
from harness.runtime.model_questions.rank_pair import ask_ranks
from harness.runtime.model_questions.small_copy import SmallCopy, join_names, layer_matrices, loss_and_gradients
from harness.runtime.models.lora import add_adapters
from harness.runtime.models.pretrained import load_pretrained
from harness.runtime.models.quantized_base import quantized_layers
from harness.spec.sections.model_spec import LoraSpec, ModelSpec


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


def ask_in_4_bits(small: SmallCopy) -> Answer:
    """The names are those of matrices that stay in 16 or 32 bits."""
    folder = small.saved
    matrices = [name for name, _ in layer_matrices(small.model)]

    def load(_: int) -> dict[str, Any]:
        spec = ModelSpec.model_validate({"name_or_path": str(folder), "quantization": {"load_in_4bit": True}})
        model = load_pretrained(spec, small.model.built_from, {}, {})
        quantized = {id(layer.weight) for layer in quantized_layers(model)}
        names = {name for name, parameter in model.named_parameters() if id(parameter) in quantized}
        add_adapters(model, LoraSpec(target_modules="all-linear", r=2), 0)
        loss, gradients = loss_and_gradients(model)
        is_finite = all(bool(g.isfinite().all()) for g in gradients.values())
        trains = bool(gradients) and is_finite and bool(torch.tensor(loss).isfinite())
        return {"whole": [name for name in matrices if name not in names], "trains": trains}

    (answer,) = ask_ranks(load, 1, small.folder / "quantized")
    if not answer["trains"]:
        return Answer(False, "its adapters have no finite gradients")
    if not matrices:
        return Answer(None, "its layers were not found")
    whole = join_names(answer["whole"])
    return Answer(not whole, "stays in 16 bits in part" if whole else "every matrix of its layers is in 4 bits", whole)
