# SPDX-License-Identifier: Apache-2.0
"""Parameters that ZeRO-3 keeps gathered from the forward to the backward pass where it gathers a layer as one.

DeepSpeed releases a module unless its next use is within `stage3_max_reuse_distance` elements of modules that run in
between (`partitioned_param_coordinator.py` `__params_to_release`). What it counts in between depends on the module that
it would release. Counted on two ranks: `tests/training/plan/test_gathers_ahead.py`.
"""

from __future__ import annotations

from harness.facts.model_lookup import ModelFacts


def num_layers_kept_gathered(model: ModelFacts, max_reuse_distance: int) -> int:
    """The last layers: those from which fewer than `max_reuse_distance` elements run to the end of the forward pass.

    From a leaf module DeepSpeed counts everything below a module, and the first module of the backward pass is the
    whole model.
    """
    distance_in_layers = max_reuse_distance - _head_numel(model)
    return min(model.num_layers, max(0, -(-distance_in_layers // model.largest_layer_parameters)))


def embedding_numel_kept_gathered(model: ModelFacts, max_reuse_distance: int) -> int:
    """Elements of the embeddings that stay gathered: all if the head, forward and backward, is within
    `max_reuse_distance`.

    From any other module, DeepSpeed counts only parameters that a module owns directly, and a leaf module owns none. An
    embedding that is the head too is used again after nothing but layers.
    """
    embedding_numel = sum(parameter.numel for parameter in model.before)
    if 2 * _head_numel(model) < max_reuse_distance:
        return embedding_numel
    return _head_numel(model) if model.tied and max_reuse_distance else 0


def _head_numel(model: ModelFacts) -> int:
    return model.vocab * model.hidden
