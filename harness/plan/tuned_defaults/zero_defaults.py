# SPDX-License-Identifier: Apache-2.0
"""Tuned defaults of ZeRO: buckets, gathers of stage 3, and buffers of states on NVMe. One function a setting."""

from __future__ import annotations

from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.gathered_items import embedding_numel_kept_gathered, num_layers_kept_gathered
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.tuned_defaults.default_inputs import DefaultInputs
from harness.run.tuned_default import TunedDefault

_DEFAULT_REDUCE = 500_000_000
_MAX_REDUCE = 50_000_000
_MIN_REDUCE = 1_000_000


def choose_reduce_bucket(inputs: DefaultInputs) -> TunedDefault | None:
    """The size of a gradient bucket: that of a layer, not 500 million elements.

    DeepSpeed allocates a whole bucket on every rank whatever the model's size, twice with `overlap_comm` below stage
    3 (`stage3.py` `ipg_buckets`, `stage_1_and_2.py` `setup_buckets`). It reduces a larger parameter alone.
    """
    if (
        inputs.stage == 0
        or not inputs.has_whole_layers
        or inputs.model is None
        or not inputs.is_unset("reduce_bucket_size")
    ):
        return None
    value = min(_MAX_REDUCE, max(_MIN_REDUCE, inputs.model.largest_layer_parameters))
    reason = f"gradients are reduced layer by layer; no layer needs more than {value:,} elements"
    return TunedDefault("gradient bucket", "zero_optimization.reduce_bucket_size", value, _DEFAULT_REDUCE, reason)


_LAYER_CLASSES = {
    "falcon": "FalconDecoderLayer",
    "gemma": "GemmaDecoderLayer",
    "gemma2": "Gemma2DecoderLayer",
    "gemma3_text": "Gemma3DecoderLayer",
    "gpt2": "GPT2Block",
    "gpt_neox": "GPTNeoXLayer",
    "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "phi": "PhiDecoderLayer",
    "phi3": "Phi3DecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
}
"""Class of a decoder layer by `model_type`, as `transformers` 5 names it. Mixtures of experts have their own rule."""


def choose_leaf_modules(inputs: DefaultInputs) -> TunedDefault | None:
    """Stage 3: DeepSpeed gathers a decoder layer as one, with one set of hooks instead of one for each module in it.

    Dense layers only: a layer uses all its weights each time. On NVMe each gathered weight holds a buffer, and a
    whole layer at once needs more of them.
    """
    spec, model = inputs.run.spec, inputs.model
    if (
        inputs.stage != 3
        or model is None
        or not inputs.has_whole_layers
        or model.family not in _LAYER_CLASSES
        or model.experts
    ):
        return None
    if spec.model.lora is not None or spec.model.freeze or spec.model.train_only or spec.model.trust_remote_code:
        return None  # partly trained layers, or layers of another class: not tested
    offload = spec.zero.offload_param
    if spec.train.torch_compile or (offload is not None and offload.device == "nvme"):
        return None
    if not inputs.is_unset("leaf_module") or not inputs.is_unset("stage3_module_granularity_threshold"):
        return None
    reason = "each layer is gathered as one leaf module, with one set of Python hooks instead of one per module"
    key = "zero_optimization.leaf_module.classes"
    return TunedDefault("layers as one", key, [_LAYER_CLASSES[model.family]], "experts only", reason)


_PERSISTENCE_KEY = "stage3_param_persistence_threshold"
_DEFAULT_PERSISTENCE = 100_000


def choose_persistence(inputs: DefaultInputs) -> TunedDefault | None:
    """Stage 3 with layers gathered as one: no parameter stays whole on every rank, however small.

    DeepSpeed shards and gathers a persistent parameter after each step, by a collective of its own (`stage3.py`
    `_post_step`): two norms a layer. A parameter that is gathered with its layer costs no collective at all.
    """
    if choose_leaf_modules(inputs) is None or not inputs.is_unset(_PERSISTENCE_KEY):
        return None
    reason = "small parameters are gathered with their layer, not one by one after each step"
    return TunedDefault("persistence", f"zero_optimization.{_PERSISTENCE_KEY}", 0, _DEFAULT_PERSISTENCE, reason)


_DEFAULT_PREFETCH = 50_000_000
_MAX_PREFETCH = 250_000_000
_MIN_PREFETCH = 1_000_000


def choose_prefetch_bucket(inputs: DefaultInputs) -> TunedDefault | None:
    """Stage 3: the size of the prefetch, one layer.

    The next layer while this one computes: with a smaller bucket the computation waits, a larger one only takes
    memory. A layer that is gathered module by module needs no more than the largest modules.
    """
    key, offload = "stage3_prefetch_bucket_size", inputs.run.spec.zero.offload_param
    if inputs.stage != 3 or not inputs.has_whole_layers or inputs.model is None or not inputs.is_unset(key):
        return None
    if offload is not None and offload.device == "nvme":
        return None
    as_one = choose_leaf_modules(inputs) is not None
    value = max(
        _MIN_PREFETCH,
        inputs.model.largest_layer_parameters if as_one else min(_MAX_PREFETCH, inputs.model.largest_layer_parameters),
    )
    reason = "the next layer is gathered while this one computes"
    return TunedDefault("prefetch", f"zero_optimization.{key}", value, _DEFAULT_PREFETCH, reason)


def effective_prefetch(inputs: DefaultInputs) -> int:
    """The tuned value, else the spec's, else DeepSpeed's default."""
    default = choose_prefetch_bucket(inputs)
    if default is not None:
        return int(default.value)
    return _DEFAULT_PREFETCH if inputs.settings is None else inputs.settings.prefetch_bucket_size


_DEFAULT_REUSE = 1_000_000_000


def choose_reuse_distance(inputs: DefaultInputs) -> TunedDefault | None:
    """Stage 3 with gradient checkpointing: a recomputed layer stays gathered for its own backward pass.

    DeepSpeed would gather a layer of more than half the distance three times instead of twice (counted:
    `partitioned_param_coordinator.py` `__params_to_release`). Smaller layers need no more than the default.
    """
    key, model, spec = "stage3_max_reuse_distance", inputs.model, inputs.run.spec
    if inputs.stage != 3 or model is None or inputs.run.checkpointing is None or not inputs.is_unset(key):
        return None
    offload = spec.zero.offload_param
    if 2 * model.largest_layer_parameters <= _DEFAULT_REUSE or (offload is not None and offload.device == "nvme"):
        return None
    numel = model.largest_layer_parameters
    reason = f"a layer of {numel:,} elements stays gathered from its recomputation to its backward pass"
    return TunedDefault(
        "reuse distance", f"zero_optimization.{key}", 2 * model.largest_layer_parameters, _DEFAULT_REUSE, reason
    )


def effective_reuse_distance(inputs: DefaultInputs) -> int:
    """The tuned value, else the spec's, else DeepSpeed's default."""
    default = choose_reuse_distance(inputs)
    if default is not None:
        return int(default.value)
    return _DEFAULT_REUSE if inputs.settings is None else inputs.settings.max_reuse_distance


_LIVE_KEY = "stage3_max_live_parameters"
_DEFAULT_LIVE = 1_000_000_000


def choose_live_parameters(inputs: DefaultInputs) -> TunedDefault | None:
    """Stage 3 with layers gathered as one: room for the next layer next to the gathered ones.

    DeepSpeed prefetches until so many elements are gathered (`partitioned_param_coordinator.py`
    `max_params_to_prefetch`). Below two layers and the parameters that stay gathered from forward to backward, it
    gathers a part of each layer when the layer is needed, and the computation waits. Only larger values than the
    default are chosen: other models have enough.
    """
    model = inputs.model
    if (
        model is None
        or choose_leaf_modules(inputs) is None
        or not inputs.is_unset(_LIVE_KEY)
        or not effective_prefetch(inputs)
    ):
        return None
    reuse = effective_reuse_distance(inputs)
    value = (
        max(1, num_layers_kept_gathered(model, reuse)) + 1
    ) * model.largest_layer_parameters + embedding_numel_kept_gathered(model, reuse)
    if value <= _DEFAULT_LIVE:
        return None
    reason = "room to gather the next layer while this one computes"
    return TunedDefault("live parameters", f"zero_optimization.{_LIVE_KEY}", value, _DEFAULT_LIVE, reason)


_DEFAULT_SUB_GROUP = 1_000_000_000
_NVME_SUB_GROUP = 100_000_000


def choose_sub_group_size(inputs: DefaultInputs) -> TunedDefault | None:
    """Stage 3 with states on NVMe: small sub-groups, since a buffer is as large as the largest sub-group.

    Four swap buffers of a sub-group's share, and for parameters one of a whole sub-group on every rank
    (`swap_tensor/utils.py`, `stage3.py` `_create_fp16_partitions_with_defragmentation`). Elsewhere the default stays:
    checkpoints depend on it.
    """
    zero = inputs.run.spec.zero
    on_nvme = any(
        offload is not None and offload.device == "nvme" for offload in (zero.offload_optimizer, zero.offload_param)
    )
    if inputs.stage != 3 or not on_nvme or not inputs.is_unset("sub_group_size"):
        return None
    reason = "buffers in host memory are as large as a sub-group"
    return TunedDefault("sub-groups", "zero_optimization.sub_group_size", _NVME_SUB_GROUP, _DEFAULT_SUB_GROUP, reason)


_SWAP_SECTION = "offload_optimizer"
_SWAP_DEFAULTS = {"pipeline_read": False, "pipeline_write": False, "buffer_count": 4}
_SUB_GROUPS_IN_FLIGHT = 3
"""Sub-groups: one in the step, one read ahead, one still written (`pipelined_optimizer_swapper.py`; 11 buffers fail, 12
run).
"""


def choose_pipelined_swap(inputs: DefaultInputs) -> tuple[TunedDefault, ...]:
    """Stage 3 with the optimizer on NVMe: reads and writes of other sub-groups overlap with the step of one.

    All three keys or none. Not with large sub-groups of the user's: they would need threefold buffers.
    """
    zero, settings = inputs.run.spec.zero, inputs.settings
    on_nvme = zero.offload_optimizer is not None and zero.offload_optimizer.device == "nvme"
    if inputs.stage != 3 or not on_nvme or settings is None:
        return ()
    if not all(inputs.is_unset(f"{_SWAP_SECTION}.{key}") for key in _SWAP_DEFAULTS):
        return ()
    if not inputs.is_unset("sub_group_size") and settings.sub_group_size > _NVME_SUB_GROUP:
        return ()
    overlap = "reads of the next sub-group and writes of the last one overlap with compute"
    count = _SUB_GROUPS_IN_FLIGHT * settings.swap_buffers_per_sub_group
    values = {
        "pipeline_read": (True, overlap),
        "pipeline_write": (True, overlap),
        "buffer_count": (
            count,
            f"{settings.swap_buffers_per_sub_group} for each of the {_SUB_GROUPS_IN_FLIGHT} sub-groups in flight",
        ),
    }
    return tuple(
        TunedDefault(f"swapping, {key}", f"zero_optimization.{_SWAP_SECTION}.{key}", value, _SWAP_DEFAULTS[key], reason)
        for key, (value, reason) in values.items()
    )


_SWAP_BUFFER_SECTION = "offload_param"
_DEFAULT_COUNT, _DEFAULT_SIZE = 5, 100_000_000
_MIB = 1 << 20


def choose_swap_buffers(inputs: DefaultInputs) -> tuple[TunedDefault, ...]:
    """Stage 3 with parameters on NVMe: one swap buffer for each parameter in use, each of the largest shard's size.

    Both are page-locked host memory on every rank; too few or too small ones end the run
    (`partitioned_param_swapper.py`, the gates OF008 and OF009). `fast_init` reads whole sub-groups through them
    (OF012), and leaves their size alone.
    """
    zero, model, settings = inputs.run.spec.zero, inputs.model, inputs.settings
    parameters, optimizer = zero.offload_param, zero.offload_optimizer
    if inputs.stage != 3 or parameters is None or parameters.device != "nvme" or model is None or settings is None:
        return ()
    if settings.tensor_parallel_size > 1 or settings.pipeline_parallel_size > 1:
        return ()
    shares = [-(-parameter.numel // settings.zero_world_size) for parameter in model.parameters()]
    swapped_shares = [share for share in shares if share * settings.param_bytes >= _MIB]
    if not swapped_shares:
        return ()
    size = -(-max(swapped_shares) // _MIB) * _MIB
    count = (
        _DEFAULT_COUNT if sum(shares) <= settings.max_in_cpu else _buffers_in_use(model, settings, len(swapped_shares))
    )
    values = (
        ("buffer_size", size, _DEFAULT_SIZE, f"the largest shard has {max(swapped_shares):,} elements"),
        ("buffer_count", count, _DEFAULT_COUNT, "each gathered or prefetched parameter holds one"),
    )
    return tuple(
        TunedDefault(f"parameter swap {key}", f"zero_optimization.{_SWAP_BUFFER_SECTION}.{key}", value, default, reason)
        for key, value, default, reason in values
        if value != default and inputs.is_unset(f"{_SWAP_BUFFER_SECTION}.{key}")
        if key != "buffer_size" or optimizer is None or not optimizer.fast_init
    )


def _buffers_in_use(model: ModelFacts, settings: PlanSettings, num_swapped: int) -> int:
    """Parameters on disk that hold a buffer at once: all that fit into the reuse distance. Of a larger model a share by
    elements and one layer more, since that is an estimate.
    """
    total = model.num_parameters
    live = min(total, settings.max_reuse_distance // 2 + model.largest_module + settings.prefetch_bucket_size)
    estimate = -(-num_swapped * live // total)
    return estimate if live == total else min(num_swapped, estimate + len(model.largest_layer))
