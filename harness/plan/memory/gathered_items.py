# SPDX-License-Identifier: Apache-2.0
"""Memory items of the parameters that ZeRO-3 gathers, by moment of a micro-batch (`plan.memory.gather_trace`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.facts.model_lookup import ModelFacts
from harness.facts.model_parts import Parameter
from harness.plan.memory.gather_trace import GatheredPeaks, GatherSettings, LayerCounts, ModelModules, replay_gathers
from harness.plan.memory.memory_items import MemoryItem, Phase, at_moments
from harness.plan.memory.zero_partitions import ZeroPartitions, largest_local_layer, local_vocab_size
from harness.plan.settings.plan_settings import PlanSettings

_SOURCE = "zero/partitioned_param_coordinator.py _fetch_sub_module_impl"


def gathered_items(
    model: ModelFacts, settings: PlanSettings, partitions: ZeroPartitions, layer_activations: int
) -> Iterator[MemoryItem]:
    """One item a moment. `layer_activations`: bytes on the GPU that a layer keeps for the backward pass: where fewer
    layers have run, or more are done, a moment may have so much more parameters.
    """
    if settings.stage < 3:
        return
    peaks = _replay(model, settings)
    small = partitions.persistent_parameters
    everything = settings.param_bytes * partitions.whole

    def item(phase: Phase, numel: int, less: int, *moments: str) -> MemoryItem:
        size = max(0, min(everything, settings.param_bytes * (numel + small)) - less)
        formula = f"{settings.param_bytes} x {numel + small:,} of {partitions.whole:,} elements"
        row = MemoryItem("gpu", "gathered", "parameters gathered at once", size, formula, _SOURCE, (phase,))
        return at_moments(row, *moments)

    def fullest(counts: LayerCounts) -> tuple[int, int]:
        """Elements, and the bytes of activations that are not there at that moment."""
        lacking = ((numel, (model.num_layers - layers) * layer_activations) for layers, numel in counts)
        return max(lacking, key=lambda pair: settings.param_bytes * pair[0] - pair[1], default=(0, 0))

    yield item("forward", peaks.loss, 0, "loss")
    yield item("forward", *fullest(peaks.forward_layer), "forward layer")
    yield item("forward", *fullest(peaks.forward_copy), "forward copy")
    yield item("backward", peaks.loss_gradient, 0, "loss gradient")
    yield item("backward", *fullest(peaks.backward_layer), "backward layer", "layer gradients")
    yield item("backward", *fullest(peaks.backward_copy), "backward copy")


def _replay(model: ModelFacts, settings: PlanSettings) -> GatheredPeaks:
    """Without the parameters that stay gathered."""
    limit = settings.param_persistence_threshold

    def released(parameters: Iterable[Parameter]) -> tuple[int, ...]:
        return tuple(parameter.numel for parameter in parameters if parameter.numel > limit)

    by_module: dict[str, list[Parameter]] = {}
    for parameter in largest_local_layer(model, settings):
        module = parameter.name.rpartition(".")[0]
        if "." in module:
            by_module.setdefault(module.rpartition(".")[0], [])
        by_module.setdefault(module, []).append(parameter)
    modules = ModelModules(
        released(model.before),
        tuple(map(released, by_module.values())),
        model.num_layers,
        released(parameter for parameter in model.after if len(parameter.shape) == 1),
        local_vocab_size(model, settings) * model.hidden,
        model.tied,
    )
    chosen = GatherSettings(
        settings.max_reuse_distance,
        settings.prefetch_bucket_size,
        settings.max_live_parameters,
        settings.leaf_decoder_layers,
        settings.checkpointing,
    )
    return replay_gathers(modules, chosen)


# Parameters that ZeRO-3 keeps gathered from the forward to the backward pass where it gathers a layer as one.
#
# DeepSpeed releases a module unless its next use is within `stage3_max_reuse_distance` elements of modules that run
# in between (`partitioned_param_coordinator.py` `__params_to_release`). What it counts in between depends on the
# module that it would release. Counted on two ranks: `tests/training/plan/test_gathers_ahead.py`.


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
