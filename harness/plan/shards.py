"""How DeepSpeed cuts a model's parameters over the ranks: padding, partitions, sub-groups, who owns which gradient.

Elements only; bytes are the business of `harness.plan.states`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.facts.models import ModelFacts, Parameter
from harness.plan.gathered import kept_embeddings, kept_layers
from harness.plan.settings import Settings

Groups = tuple[tuple[int, ...], ...]
_SWAPPED_BYTES = 1 << 20
"""What DeepSpeed writes to NVMe at least (swap_tensor/utils.py MIN_AIO_BYTES)."""
_LEAST_SWAPPED = _SWAPPED_BYTES // 4
"""The same in elements of fp32."""
_MOST_RANKS = 65536
"""Beyond so many a partition lies inside the largest parameter; nobody counts them one by one."""


@dataclass(frozen=True, slots=True)
class Shards:
    """Element counts of one rank (the one with the most, unless said).

    `total`: all parameters of the (local) model. `flat`: with the padding of stages 1 and 2. `part`: this rank's share.
    `own`: whole parameters whose gradients this rank keeps at stages 1 and 2, by rank. `sub_group`: the largest
    sub-group's share; `sub_group_full`: the same sub-group, not divided. `persistent`: kept gathered at stage 3.
    `secondary`: ZeRO++'s second shard. `swapped`: elements of this rank's gradients that are large enough for NVMe.
    `parameters_on_disk`: elements of its parameter shards that are. `kept`: what stays gathered from the forward to the
    backward pass beside the largest module.
    """

    total: int
    flat: int
    part: int
    own: tuple[int, ...]
    sub_groups: tuple[int, ...]
    sub_group_full: int
    persistent: int
    largest: int
    largest_module: int
    largest_in_layer: int
    kept: int
    secondary: int = 0
    swapped: int = 0
    parameters_on_disk: int = 0

    @property
    def sub_group(self) -> int:
        """The largest sub-group's share."""
        return max(self.sub_groups, default=0)

    @property
    def on_disk(self) -> tuple[int, ...]:
        """Shares of the sub-groups that an optimizer on NVMe swaps; the others are too small and stay in memory."""
        return tuple(share for share in self.sub_groups if share >= _LEAST_SWAPPED)


def local_parameters(model: ModelFacts, settings: Settings) -> list[Parameter]:
    """The parameters that one rank would hold without ZeRO: all, or an estimate under tensor or pipeline parallel.

    Tensor parallel divides matrices of the layers and the head; the first pipeline stage has its layers and the
    embedding.
    """
    if settings.tensor == settings.pipeline == 1:
        return list(model.parameters())
    count, degree = -(-model.num_layers // settings.pipeline), settings.tensor
    heaviest = sorted(model.layers, key=lambda layer: -sum(p.numel for p in layer))[:count]
    inside = [Parameter(p.name, _divided(p.shape, degree)) for layer in heaviest for p in layer]
    after = [Parameter(p.name, _divided(p.shape, degree)) for p in model.after] if settings.pipeline == 1 else []
    return [*model.before, *inside, *after]


def local_size(model: ModelFacts, settings: Settings) -> int:
    """Elements of `local_parameters`."""
    if settings.tensor == settings.pipeline == 1:
        return model.num_parameters
    return sum(p.numel for p in local_parameters(model, settings))


def head_words(model: ModelFacts, settings: Settings) -> int:
    """Words whose logits a rank computes: those of its part of the head where AutoTP cuts it. Presets and layouts of
    one's own leave it whole, as a rule.
    """
    whole = settings.whole_head or (settings.whole_tied_head and model.tied)
    return model.vocab if whole else -(-model.vocab // settings.tensor)


def _divided(shape: tuple[int, ...], degree: int) -> tuple[int, ...]:
    return shape if len(shape) == 1 else (-(-shape[0] // degree), *shape[1:])


def _divided_numel(p: Parameter, degree: int) -> int:
    return Parameter(p.name, _divided(p.shape, degree)).numel


def shard(model: ModelFacts, settings: Settings) -> Shards:
    """Cut the model as DeepSpeed would with these settings."""
    parameters = local_parameters(model, settings)
    groups = parameter_groups(parameters, settings.decay_groups)
    ranks = settings.shards
    sizes = [p.numel for p in parameters]
    flat = [_padded(sum(group), 2 * ranks) for group in groups]
    shares = [[-(-numel // ranks) for numel in group] for group in groups]
    subs = [
        sub
        for group, share in zip(groups, shares, strict=True)
        for sub in _sub_groups(group, share, settings.sub_group)
    ]
    stage3 = settings.stage == 3
    return Shards(
        total=sum(sizes),
        flat=sum(flat),
        part=sum(map(sum, shares)) if stage3 else sum(flat) // ranks,
        own=_owned(groups, ranks) if settings.stage in (1, 2) else (),
        sub_groups=tuple(share for share, _ in subs),
        sub_group_full=max(full for _, full in subs),
        persistent=sum(_padded(numel, ranks) for numel in sizes if numel <= settings.persistence),
        largest=max(sizes),
        largest_module=max(
            -(-model.largest_module // (settings.tensor if model.experts else 1)),
            model.per_layer if settings.whole_layers else 0,
        ),
        largest_in_layer=max(_divided_numel(p, settings.tensor) for p in model.layer),
        kept=_kept(model, settings),
        secondary=_secondary(sizes, settings),
        swapped=sum(_swapped(numel) for share in shares for numel in share) if stage3 else 0,
        parameters_on_disk=sum(n for share in shares for n in share if n * settings.param_bytes >= _SWAPPED_BYTES),
    )


def _kept(model: ModelFacts, s: Settings) -> int:
    """Half the reuse distance; of layers gathered as one what DeepSpeed keeps, but for a tied head that is counted as
    the largest module.
    """
    if not s.whole_layers:
        return s.reuse // 2
    embeddings = kept_embeddings(model, s.reuse)
    if model.tied and model.largest_module > model.per_layer:
        embeddings = max(0, embeddings - model.largest_module)
    return kept_layers(model, s.reuse) * model.per_layer + embeddings


def _secondary(sizes: Sequence[int], s: Settings) -> int:
    """A rank's second shard: everything that does not stay gathered, over `zero_hpz_partition_size` ranks."""
    if s.secondary == 1:
        return 0
    return sum(-(-numel // s.shards) * s.shards // s.secondary for numel in sizes if numel > s.persistence)


def _swapped(numel: int) -> int:
    """Elements of a gradient shard that are written to NVMe: 1 MiB of fp32 and more, in whole blocks of 1024 bytes
    (swap_tensor/utils.py MIN_AIO_BYTES; the rest stays in memory).
    """
    return numel // 256 * 256 if numel >= _LEAST_SWAPPED else 0


def parameter_groups(parameters: Sequence[Parameter], decay: bool) -> Groups:
    """Sizes by optimizer group: matrices decay, norms and biases do not; one group when there is no decay at all."""
    if not decay:
        return (tuple(p.numel for p in parameters),)
    matrices = tuple(p.numel for p in parameters if len(p.shape) > 1)
    vectors = tuple(p.numel for p in parameters if len(p.shape) == 1)
    return tuple(group for group in (matrices, vectors) if group)


def _padded(numel: int, multiple: int) -> int:
    return -(-numel // multiple) * multiple


def _sub_groups(group: Sequence[int], shares: Sequence[int], limit: int) -> list[tuple[int, int]]:
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


def _owned(groups: Groups, ranks: int) -> tuple[int, ...]:
    """Elements of gradients that each rank keeps at stages 1 and 2: every parameter that touches its partition, whole,
    and the padding at the end. stage_1_and_2.py `get_first_param_index`, `get_flat_partition`.
    """
    if ranks > _MOST_RANKS:
        return (max(map(max, groups)),)
    owned = [0] * ranks
    for group in groups:
        flat = _padded(sum(group), 2 * ranks)
        part, start = flat // ranks, 0
        for numel in group:
            end = start + numel
            for rank in range(start // part, (end - 1) // part + 1):
                owned[rank] += numel
            start = end
        owned[-1] += min(flat - start, part)
    return tuple(owned)
