# SPDX-License-Identifier: Apache-2.0
"""Partitions of a model's parameters over the ranks, as DeepSpeed makes them: padding, sub-groups, owned gradients.

Elements only; bytes are in `harness.plan.memory.model_states`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from harness.facts.model_facts import ModelFacts, once_a_model
from harness.facts.model_parts import Parameter
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.weights.pipeline_partition import heaviest_stage
from harness.plan.weights.quantized_weights import NONE_QUANTIZED, QuantizedWeights, count_quantized
from harness.plan.weights.tensor_shard import TensorShard, shard_model
from harness.plan.weights.trainable_split import split_parameters

GroupSizes = tuple[tuple[int, ...], ...]
_MATRIX = 2
"""Dimensions of a weight that is divided."""
_MIN_SWAPPED_BYTES = 1 << 20
"""The smallest block that DeepSpeed writes to NVMe (swap_tensor/utils.py MIN_AIO_BYTES)."""
_MIN_SWAPPED_NUMEL = _MIN_SWAPPED_BYTES // 4
"""The same in elements of fp32."""
_MAX_COUNTED_RANKS = 65536
"""With more ranks a partition lies inside the largest parameter, and no count is needed."""


@dataclass(frozen=True, slots=True)
class ZeroPartitions:
    """Element counts of one rank: the one with the most, unless stated."""

    total: int
    """All trainable parameters of the (local) model."""
    padded_total: int
    """With the padding of stages 1 and 2."""
    partition_size: int
    """This rank's share."""
    owned_gradients: tuple[int, ...]
    """Unsharded parameters whose gradients a rank keeps at stages 1 and 2, by rank."""
    sub_groups: tuple[int, ...]
    """This rank's share of each."""
    nvme_sub_groups: tuple[int, ...]
    """Those that an optimizer on NVMe swaps; the others are too small and stay in memory."""
    undivided_sub_group: int
    """The largest one, of all ranks."""
    persistent_parameters: int
    """Those that stay gathered at stage 3."""
    largest_parameter: int
    largest_module: int
    largest_gradient: int
    """The largest trainable parameter."""
    largest_layer_gradient: int
    """The largest trainable parameter of a layer."""
    head_gradient: int
    """The output layer, where it is trained."""
    leaf_layer: int = 0
    """The trained part of a layer that ZeRO-3 gathers and reduces as one; 0 where it does neither."""
    hpz_partition: int = 0
    """ZeRO++'s second shard."""
    nvme_gradients: int = 0
    """Elements of this rank's shards of gradients that are large enough for NVMe."""
    nvme_parameters: int = 0
    """Elements of this rank's shards of parameters that are large enough for NVMe."""
    frozen: int = 0
    """Parameters that are not trained."""
    frozen_shard: int = 0
    """This rank's share of them."""
    muon_partition: int = 0
    """This rank's share of the matrices that Muon steps."""
    quantized: QuantizedWeights = NONE_QUANTIZED
    """Frozen parameters that have 4 bits."""

    def owned_gradients_of(self, rank: int | None) -> int:
        """Those of a data-parallel rank, or of the rank with the most."""
        return max(self.owned_gradients) if rank is None else self.owned_gradients[rank % len(self.owned_gradients)]

    @property
    def whole(self) -> int:
        """All parameters, the frozen ones too."""
        return self.total + self.frozen

    @property
    def unquantized_frozen(self) -> int:
        """The frozen parameters in the training format."""
        return self.frozen - self.quantized.numel

    @property
    def largest_sub_group(self) -> int:
        """The largest sub-group's share."""
        return max(self.sub_groups, default=0)


def rounds_pinned_weights(settings: PlanSettings) -> bool:
    """Does torch pin the new weights of sub-groups that are stepped early, each in a power of two?"""
    return settings.pin_memory and not settings.pins_natively and settings.param_device == "none"


def tensor_parallel_shard(model: ModelFacts, settings: PlanSettings) -> TensorShard:
    """AutoTP's division of the model with these settings: roles of weights, the head, all-reduced widths."""
    return shard_model(model, settings.tensor_parallel_size, settings.tensor_plan)


def local_parameters(model: ModelFacts, settings: PlanSettings) -> list[Parameter]:
    """The parameters that one rank would hold without ZeRO: all, or those of tensor rank 0, which has the most.

    In a pipeline those of the stage with most of them, of which the harness divides every matrix over tensor ranks.
    AutoTP's part of layers of a family without a known plan is counted so, too.
    """
    if settings.tensor_parallel_size == settings.pipeline_parallel_size == 1:
        return list(model.parameters())
    shard = _known_shard(model, settings)
    if shard is not None:
        return list(shard.local_parameters())
    degree, stages = settings.tensor_parallel_size, settings.pipeline_parallel_size
    if stages > 1:
        return heaviest_stage(model, stages, degree, settings.pipeline_partition_method)
    inside = [_divide_matrix(parameter, degree) for layer in model.layers for parameter in layer]
    return [*model.before, *inside, *(_divide_matrix(parameter, degree) for parameter in model.after)]


def _known_shard(model: ModelFacts, settings: PlanSettings) -> TensorShard | None:
    """AutoTP's division; None in a pipeline, and for a family without a known plan."""
    shard = tensor_parallel_shard(model, settings)
    return shard if shard.is_known and settings.pipeline_parallel_size == 1 else None


def local_num_parameters(model: ModelFacts, settings: PlanSettings) -> int:
    """Elements of `local_parameters`."""
    if settings.tensor_parallel_size == settings.pipeline_parallel_size == 1:
        return model.num_parameters
    shard = _known_shard(model, settings)
    if shard is not None:
        return shard.num_local_parameters
    return sum(parameter.numel for parameter in local_parameters(model, settings))


def _count_trainable(model: ModelFacts, settings: PlanSettings) -> tuple[int, int]:
    """(trainable, all) elements of the whole model, adapters included."""
    if settings.trainable is None:
        return model.num_parameters, model.num_parameters
    split = split_parameters(model, settings.trainable)
    return split.num_trainable, split.num_parameters


count_trainable = once_a_model(_count_trainable, of=attrgetter("trainable"))


def _count_frozen_quantized(model: ModelFacts, settings: PlanSettings) -> QuantizedWeights:
    """The 4-bit weights of the whole model."""
    return count_quantized(split_parameters(model, settings.trainable).frozen, model, settings.quantization)


count_frozen_quantized = once_a_model(_count_frozen_quantized, of=attrgetter("trainable", "quantization"))


def count_frozen_bytes(model: ModelFacts, settings: PlanSettings) -> int:
    """Bytes of the frozen parameters of the whole model, of those in 4 bits with their scales."""
    if settings.trainable is None:
        return 0
    split = split_parameters(model, settings.trainable)
    quantized = count_frozen_quantized(model, settings)
    return settings.param_bytes * (split.num_parameters - split.num_trainable - quantized.numel) + quantized.bytes


def local_vocab_size(model: ModelFacts, settings: PlanSettings) -> int:
    """Words whose logits a rank computes: those of its part of the head where AutoTP or a pipeline divides it."""
    shard = tensor_parallel_shard(model, settings)
    is_whole = shard.is_known and shard.head == "whole" and settings.pipeline_parallel_size == 1
    return model.vocab if is_whole else -(-model.vocab // settings.tensor_parallel_size)


def _divide_matrix(parameter: Parameter, degree: int) -> Parameter:
    """A part of a matrix, along its first dimension; vectors and stacks of experts stay whole."""
    if len(parameter.shape) != _MATRIX:
        return parameter
    outputs, inputs = parameter.shape
    return parameter._replace(shape=(-(-outputs // degree), inputs))


_PARTITIONED_BY = attrgetter(
    *("stage", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size", "sequence_parallel_size"),
    *("tensor_plan", "pipeline_partition_method", "hpz_partition_size", "decay_groups", "steps_matrices_by_muon"),
    *("sub_group_size", "param_persistence_threshold", "leaf_decoder_layers", "param_bytes", "quantization"),
    "trainable",
)
"""All that the division of the parameters depends on: `tests/plan/test_zero_partitions.py`."""


def _partition_model(model: ModelFacts, settings: PlanSettings) -> ZeroPartitions:
    """Partition the model as DeepSpeed would with these settings."""
    parameters, frozen = split_local_parameters(model, settings)
    ranks = settings.zero_world_size
    muon = [p for p in parameters if settings.steps_matrices_by_muon and _is_hidden_matrix(p, model)]
    others = [p for p in parameters if p not in set(muon)] if muon else parameters
    muon_groups = weight_decay_group_sizes(muon, decay=False) if muon else ()
    groups = (*muon_groups, *weight_decay_group_sizes(others, settings.decay_groups))
    trainable_sizes = [parameter.numel for parameter in parameters]
    sizes = [*trainable_sizes, *(parameter.numel for parameter in frozen)]
    frozen_shards = [-(-parameter.numel // ranks) for parameter in frozen]
    padded = [_pad_to_multiple(sum(group), 2 * ranks) for group in groups]
    shares = [[-(-numel // ranks) for numel in group] for group in groups]
    sub_groups = [
        sub_group
        for group, share in zip(groups, shares, strict=True)
        for sub_group in _split_sub_groups(group, share, settings.sub_group_size)
    ]
    stage3 = settings.stage == 3
    leaf_layer = model.largest_layer_parameters if settings.leaf_decoder_layers else 0
    return ZeroPartitions(
        total=sum(trainable_sizes),
        padded_total=sum(padded),
        partition_size=sum(map(sum, shares)) if stage3 else sum(padded) // ranks,
        muon_partition=sum(map(sum, shares[: len(muon_groups)]))
        if stage3
        else sum(padded[: len(muon_groups)]) // ranks,
        owned_gradients=_owned_gradient_numel(groups, ranks) if settings.stage in (1, 2) else (),
        sub_groups=tuple(share for share, _ in sub_groups),
        nvme_sub_groups=tuple(share for share, _ in sub_groups if share >= _MIN_SWAPPED_NUMEL),
        undivided_sub_group=max(full for _, full in sub_groups),
        persistent_parameters=sum(
            _pad_to_multiple(numel, ranks) for numel in sizes if numel <= settings.param_persistence_threshold
        ),
        largest_parameter=max(sizes),
        largest_gradient=max(trainable_sizes),
        largest_module=max(_largest_module_numel(model, settings, max(sizes)), leaf_layer),
        leaf_layer=leaf_layer if settings.trainable is None else _trained_in_a_layer(model, parameters, leaf_layer),
        largest_layer_gradient=_largest_layer_gradient(model, parameters),
        head_gradient=_head_gradient(model, settings, parameters),
        hpz_partition=_hpz_partition_numel(sizes, settings),
        nvme_gradients=sum(_nvme_gradient_numel(numel) for share in shares for numel in share) if stage3 else 0,
        nvme_parameters=sum(
            numel
            for share in [*shares, frozen_shards]
            for numel in share
            if numel * settings.param_bytes >= _MIN_SWAPPED_BYTES
        ),
        frozen=sum(sizes) - sum(trainable_sizes),
        frozen_shard=sum(frozen_shards),
        quantized=count_quantized(frozen, model, settings.quantization),
    )


partition_model = once_a_model(_partition_model, of=_PARTITIONED_BY)


def _largest_module_numel(model: ModelFacts, settings: PlanSettings, largest_parameter: int) -> int:
    """Elements of the largest module with weights of its own on this rank; the experts of a layer are one."""
    if settings.tensor_parallel_size == 1:
        return model.largest_module
    experts = sum(p.numel for p in largest_local_layer(model, settings) if ".experts." in p.name)
    return max(largest_parameter, experts)


def largest_local_layer(model: ModelFacts, settings: PlanSettings) -> Sequence[Parameter]:
    """The parameters of the largest kind of layer on this rank."""
    if settings.tensor_parallel_size == 1:
        return model.largest_layer
    shard = _known_shard(model, settings)
    if shard is None:
        return [_divide_matrix(parameter, settings.tensor_parallel_size) for parameter in model.largest_layer]
    return shard.largest_local_layer


def _is_hidden_matrix(parameter: Parameter, model: ModelFacts) -> bool:
    """Is it stepped by Muon: a matrix that is no embedding and no head (`patches/muon_embeddings.py`)?"""
    outside = {p.name for p in (*model.before, *model.after)}
    return len(parameter.shape) > 1 and parameter.name not in outside and "embed" not in parameter.name


def _split_local_parameters(
    model: ModelFacts, settings: PlanSettings
) -> tuple[Sequence[Parameter], Sequence[Parameter]]:
    """(trainable, frozen). Of a part of a model that a pipeline cuts, all count as trainable."""
    is_whole = settings.tensor_parallel_size == settings.pipeline_parallel_size == 1
    if settings.trainable is None and not is_whole:
        return local_parameters(model, settings), ()
    split = split_parameters(model, settings.trainable)
    if is_whole and split.trainable:
        return split
    shard = _known_shard(model, settings)
    if shard is None or not split.trainable:
        return local_parameters(model, settings), ()
    local = [[p._replace(shape=shard.local_shape(p)) for p in parameters] for parameters in split]
    return local[0], local[1]


_DIVIDED_BY = attrgetter(
    "tensor_parallel_size", "pipeline_parallel_size", "tensor_plan", "pipeline_partition_method", "trainable"
)
split_local_parameters = once_a_model(_split_local_parameters, of=_DIVIDED_BY)


def _head_gradient(model: ModelFacts, settings: PlanSettings, trainable: Sequence[Parameter]) -> int:
    """The head's weight, which is the embedding's where they are tied."""
    names = {p.name for p in (model.before if model.tied else model.after) if len(p.shape) == _MATRIX}
    is_trained = any(parameter.name in names for parameter in trainable)
    return local_vocab_size(model, settings) * model.hidden if is_trained else 0


def _trained_in_a_layer(model: ModelFacts, trainable: Sequence[Parameter], most: int) -> int:
    """Elements of the layer that has most of them. Frozen ones, as experts beside adapters are, have no gradient."""
    counts: Counter[str] = Counter()
    for parameter in trainable:
        inside = parameter.name.removeprefix(f"{model.layer_path}.")
        counts[inside.partition(".")[0]] += parameter.numel if inside != parameter.name else 0
    return min(most, max(counts.values(), default=0))


def _largest_layer_gradient(model: ModelFacts, trainable: Sequence[Parameter]) -> int:
    outside = {parameter.name for parameter in (*model.before, *model.after)}
    return max((parameter.numel for parameter in trainable if parameter.name not in outside), default=0)


def _hpz_partition_numel(sizes: Sequence[int], settings: PlanSettings) -> int:
    """A rank's second shard: all parameters that do not stay gathered, over `zero_hpz_partition_size` ranks."""
    if settings.hpz_partition_size == 1:
        return 0
    return sum(
        -(-numel // settings.zero_world_size) * settings.zero_world_size // settings.hpz_partition_size
        for numel in sizes
        if numel > settings.param_persistence_threshold
    )


def _nvme_gradient_numel(numel: int) -> int:
    """Elements of a gradient shard that are written to NVMe: 1 MiB of fp32 and more, in whole blocks of 1024 bytes
    (swap_tensor/utils.py MIN_AIO_BYTES; the rest stays in memory).
    """
    return numel // 256 * 256 if numel >= _MIN_SWAPPED_NUMEL else 0


def weight_decay_group_sizes(parameters: Sequence[Parameter], decay: bool) -> GroupSizes:
    """Sizes by optimizer group: matrices decay, norms and biases do not; one group when there is no decay at all."""
    if not decay:
        return (tuple(parameter.numel for parameter in parameters),)
    matrices = tuple(parameter.numel for parameter in parameters if len(parameter.shape) > 1)
    vectors = tuple(parameter.numel for parameter in parameters if len(parameter.shape) == 1)
    return tuple(group for group in (matrices, vectors) if group)


def _pad_to_multiple(numel: int, multiple: int) -> int:
    return -(-numel // multiple) * multiple


def _split_sub_groups(group: Sequence[int], shares: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """(share, full) of each sub-group: closed when the shares reach the limit. stage3.py `_create_fp16_sub_groups`."""
    if limit >= sum(shares):
        return [(sum(shares), sum(group))]
    result, share, full = [], 0, 0
    for numel, part in zip(group, shares, strict=True):
        share, full = share + part, full + numel
        if share >= limit:
            result.append((share, full))
            share = full = 0
    return [*result, (share, full)] if full else result


def _owned_gradient_numel(groups: GroupSizes, ranks: int) -> tuple[int, ...]:
    """Elements of gradients that each rank keeps at stages 1 and 2: every parameter that touches its partition, whole,
    and the padding at the end. stage_1_and_2.py `get_first_param_index`, `get_flat_partition`.
    """
    if ranks > _MAX_COUNTED_RANKS:
        return (max(map(max, groups)),)
    owned = [0] * ranks
    for group in groups:
        padded = _pad_to_multiple(sum(group), 2 * ranks)
        part, start = padded // ranks, 0
        for numel in group:
            end = start + numel
            for rank in range(start // part, (end - 1) // part + 1):
                owned[rank] += numel
            start = end
        owned[-1] += min(padded - start, part)
    return tuple(owned)
