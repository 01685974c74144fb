# SPDX-License-Identifier: Apache-2.0
"""ZeRO++: hpZ, quantized weights and quantized gradients."""

from __future__ import annotations

from harness.gates.divisors import largest_divisor
from harness.gates.dtypes import model_dtype
from harness.gates.registry import Cite, Context, Findings, Fix, gate

_HPZ_SIZE = "deepspeed.zero_optimization.zero_hpz_partition_size"
_QUANTIZED_GRADIENTS = "deepspeed.zero_optimization.zero_quantized_gradients"


def _get_hpz_size(ctx: Context) -> int:
    """Ranks of an hpZ group; 1 is no hpZ."""
    size: int = ctx.ds("zero_optimization.zero_hpz_partition_size", 1)
    return size


def _has_quantized_gradients(ctx: Context) -> bool:
    """Is `zero_quantized_gradients` switched on, at whatever stage?"""
    return ctx.ds("zero_optimization.zero_quantized_gradients") is True


@gate(
    "ZR016 hpz-does-not-divide-the-ranks",
    upstream="asserts",
    cites=Cite("utils/groups.py", "_ensure_divisibility(world_size, zero_param_parallel_size_)"),
    needs=("world size",),
    when=lambda ctx: ctx.stage == 3 and _get_hpz_size(ctx) > 1,
)
def indivisible_hpz_groups(ctx: Context) -> Findings:
    """hpZ groups that do not divide the ranks.

    `zero_hpz_partition_size` at stage 3 that does not divide the number of ranks.

    Why: DeepSpeed divides all ranks into groups of that size and asserts that there is no remainder, when `zero.Init`
    or the engine is built (run on 0.19.8: "4 is not divisible by 3").

    Example:
        zero.stage: 3
        deepspeed.zero_optimization.zero_hpz_partition_size: 3
        launch.num_gpus: 4
    """
    size = _get_hpz_size(ctx)
    world = ctx.world_size
    if world is None or size > world or world % size == 0:
        return
    best = largest_divisor(size - 1, world)
    effect = "the same steps, with other traffic between the ranks"
    if best > 1:
        fix = ctx.fix_to_set(_HPZ_SIZE, best, effect=effect)
    else:
        fix = Fix("remove it", {_HPZ_SIZE: None}, effect=effect)
    yield ctx.finding(
        f"{ctx.key(_HPZ_SIZE)} is {size}, which does not divide {world} ranks",
        _HPZ_SIZE,
        label=f"{world} / {size} is not whole",
        notes=["it is made for the ranks of one node"],
        fix=fix,
    )


@gate(
    "ZR017 hpz-larger-than-the-world",
    severity="warning",
    cites=Cite("utils/groups.py", "zero_param_parallel_size_ = min(group_size, world_size)"),
    needs=("world size",),
    when=lambda ctx: ctx.stage == 3 and _get_hpz_size(ctx) > 1,
)
def hpz_larger_than_world(ctx: Context) -> Findings:
    """hpZ groups as large as the whole run.

    `zero_hpz_partition_size` at stage 3 that is at least the number of ranks.

    Why: DeepSpeed takes the smaller of the two: one group with all ranks. Each rank then keeps a second, identical
    shard of the 16-bit parameters, and gathers across the same ranks as before: wasted memory (run on 0.19.8 with 8 on
    two ranks).

    Example:
        zero.stage: 3
        deepspeed.zero_optimization.zero_hpz_partition_size: 8
        launch.num_gpus: 4
    """
    size = _get_hpz_size(ctx)
    world = ctx.world_size
    if world is not None and size >= world:
        yield ctx.finding(
            f"{ctx.key(_HPZ_SIZE)} is {size} on {world} ranks: a second shard of all parameters, without a gain",
            _HPZ_SIZE,
            label="one group of all ranks",
            notes=["it is meant for the ranks of one node among several"],
            fix=Fix("remove it", {_HPZ_SIZE: None}, effect="the same steps with less memory"),
        )


@gate(
    "ZR018 hpz-with-tensor-parallelism",
    upstream="wrong",
    cites=Cite("utils/groups.py", "zero_param_parallel_size_ = min(group_size, world_size)"),
    when=lambda ctx: ctx.stage == 3 and ctx.tensor_parallel_size > 1,
)
def hpz_with_tensor_parallelism(ctx: Context) -> Findings:
    """hpZ with tensor parallelism.

    `zero_hpz_partition_size` above 1 at stage 3 with a tensor-parallel degree above 1.

    Why: DeepSpeed cuts the whole world into hpZ groups and not the data-parallel ranks: ranks that hold different
    tensor shards exchange their parameters as if they were the same. On four ranks the losses differ from those without
    hpZ from the first step on (run on 0.19.8).

    Example:
        zero.stage: 3
        parallel.tensor_parallel_size: 2
        deepspeed.zero_optimization.zero_hpz_partition_size: 2
        launch.num_gpus: 4
    """
    if _get_hpz_size(ctx) > 1:
        yield ctx.finding(
            f"{ctx.key(_HPZ_SIZE)} groups ranks that hold different tensor shards",
            _HPZ_SIZE,
            label="cuts the whole world",
            related=[("parallel.tensor_parallel_size", f"{ctx.tensor_parallel_size} ranks share each layer")],
            notes=["DeepSpeed trains with wrong weights, without an error"],
            fix=Fix(
                "remove it",
                {_HPZ_SIZE: None},
                effect="the weights are right; parameters cross nodes more often",
            ),
        )


@gate(
    "ZR026 hpz-groups-across-hosts",
    severity="warning",
    cites=Cite("utils/groups.py", "for i in range(world_size // zero_param_parallel_size_):"),
    needs=("hosts",),
    when=lambda ctx: ctx.stage == 3 and _get_hpz_size(ctx) > 1,
    unseen="needs several hosts",
)
def hpz_across_hosts(ctx: Context) -> Findings:
    """hpZ groups that span hosts.

    `zero_hpz_partition_size` at stage 3 that does not divide the slots of every host.

    Why: hpZ keeps a second shard inside a small group, so that parameters are gathered there and not across the
    network. Groups consist of consecutive ranks; those that span two hosts gather across the network in every backward
    pass and need the memory all the same (read in 0.19.8).

    Example:
        zero.stage: 3
        deepspeed.zero_optimization.zero_hpz_partition_size: 8
    Hostfile:
        worker-0 slots=4
        worker-1 slots=4
        worker-2 slots=4
        worker-3 slots=4
    """
    size = _get_hpz_size(ctx)
    world = ctx.world_size
    slots = ctx.slots
    if slots is None or world is None or size >= world or world % size:
        return  # ZR016 and ZR017
    if all(count % size == 0 for count in slots):
        return
    fewest = min(slots)
    best = largest_divisor(fewest, *slots)
    effect = "the same steps, with other traffic between the ranks"
    if best > 1:
        fix = ctx.fix_to_set(_HPZ_SIZE, best, "which stays inside a host", effect=effect)
    else:
        fix = Fix("remove it", {_HPZ_SIZE: None}, effect=effect)
    yield ctx.finding(
        f"{ctx.key(_HPZ_SIZE)} is {size}, so groups span hosts with {fewest} ranks",
        _HPZ_SIZE,
        label="gathers across the network",
        fix=fix,
    )


_QUANTIZED_WEIGHTS = (
    "deepspeed.zero_optimization.zero_quantized_weights",
    "deepspeed.zero_optimization.zero_quantized_nontrainable_weights",
)


def _find_quantized_weights(ctx: Context) -> str | None:
    """The first of these keys that is `true`; None where none is."""
    return next((key for key in _QUANTIZED_WEIGHTS if ctx.ds(key.removeprefix("deepspeed.")) is True), None)


@gate(
    "ZR019 quantized-weights-off-cuda",
    upstream="raises",
    cites=Cite("runtime/zero/partition_parameters.py", "self.quantizer_module = CUDAQuantizer()"),
    needs=("the accelerator",),
    when=lambda ctx: ctx.stage == 3 and _find_quantized_weights(ctx) is not None,
)
def quantized_weights_off_cuda(ctx: Context) -> Findings:
    """Quantized weights without CUDA.

    `zero_quantized_weights` or `zero_quantized_nontrainable_weights` at stage 3 on the CPU accelerator.

    Why: The quantizer is a CUDA kernel: ValueError "This op had not been implemented on CPU backend." when `zero.Init`
    or the engine is built (run on 0.19.8).

    Example:
        precision.bf16: true
        zero.stage: 3
        deepspeed.zero_optimization.zero_quantized_weights: true
        cluster.gpu: cpu

    Use instead:
        precision.bf16: true
        zero.stage: 3
        deepspeed.zero_optimization.zero_quantized_weights: true
        cluster.gpu: H100-80GB
    """
    key = _find_quantized_weights(ctx)
    if key is not None and ctx.accelerator != "cuda":
        yield ctx.finding(
            f"{ctx.key(key)} needs CUDA, this run is on `{ctx.accelerator}`",
            key,
            label="a CUDA kernel",
            fix=Fix("remove it", dict.fromkeys(_QUANTIZED_WEIGHTS), effect="weights are gathered in full precision"),
        )


@gate(
    "ZR061 quantized-weights-in-bf16",
    upstream="raises",
    severity=("error", "warning"),
    cites=Cite("runtime/zero/partition_parameters.py", "def dequantize(self, quantized_param, scale):"),
    until="0.19.5",
    when=lambda ctx: ctx.stage == 3 and _find_quantized_weights(ctx) is not None,
    unseen="needs CUDA",
)
def quantized_weights_in_bf16(ctx: Context) -> Findings:
    """Quantized weights of a bf16 run.

    `zero_quantized_weights` or `zero_quantized_nontrainable_weights` at stage 3 with bf16, up to DeepSpeed 0.19.5.

    Why: The CUDA kernel reads its input as fp16 and returns fp16, so that bf16 weights are read bit by bit as other
    numbers and come back in another format: "expected mat1 and mat2 to have the same dtype" in the first linear layer
    (#4885; read in 0.14.5 to 0.19.5). 0.19.6 converts on the way in and out. `zero_quantized_nontrainable_weights`
    changes frozen weights alone, as those below an adapter: a warning.

    Example:
        precision.bf16: true
        zero.stage: 3
        deepspeed.zero_optimization.zero_quantized_weights: true
        cluster.gpu: H100-80GB
    """
    key = _find_quantized_weights(ctx)
    if key is None or model_dtype(ctx) != "bf16":
        return
    frozen = key.endswith("nontrainable_weights")
    yield ctx.finding(
        f"{ctx.key(key)} needs fp16 before DeepSpeed 0.19.6, this run is in bf16",
        key,
        severity="warning" if frozen else "error",
        label="frozen weights come back in fp16" if frozen else "weights come back in fp16",
        related=[("precision.bf16", "the format is set here")],
        notes=[
            "the kernel reads bf16 bits as fp16; a linear layer ends with `expected mat1 and mat2 to have the same"
            " dtype`"
        ],
        fix=Fix(
            "remove it, or install DeepSpeed 0.19.6 or newer",
            dict.fromkeys(_QUANTIZED_WEIGHTS),
            effect="weights are gathered in full precision",
        ),
    )


@gate(
    "ZR020 quantized-weights-of-odd-shards",
    upstream="asserts",
    cites=Cite(
        "runtime/zero/partition_parameters.py", "Qantized weight requires the number of weights be a multiple of 8"
    ),
    needs=("world size", "model facts"),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.zero_quantized_weights") is True,
    unseen="needs CUDA",
)
def quantized_weights_of_odd_shards(ctx: Context) -> Findings:
    """Quantized weights whose shards are no multiple of 8.

    `zero_quantized_weights: true` at stage 3 for a model with a parameter whose shard, its elements divided by the
    data-parallel ranks, is no multiple of 8. This happens, for example, with 6 or 12 ranks.

    Why: The quantizer works in groups of eight and asserts "Qantized weight requires the number of weights be a
    multiple of 8" when the parameter is gathered for the first time (read in 0.19.8).

    Example:
        model.config: llama-2-layers
        zero.stage: 3
        deepspeed.zero_optimization.zero_quantized_weights: true
        launch.num_gpus: 6

    Use instead:
        model.config: llama-2-layers
        zero.stage: 3
        deepspeed.zero_optimization.zero_quantized_weights: true
        launch.num_gpus: 8
    """
    model = ctx.model
    data_ranks = ctx.data_parallel_size
    if model is None or data_ranks is None or ctx.tensor_parallel_size > 1:
        return
    ranks = data_ranks * ctx.sequence_parallel_size
    parameter = next((p for p in model.parameters() if -(-p.numel // ranks) % 8), None)
    if parameter is not None:
        key = "deepspeed.zero_optimization.zero_quantized_weights"
        size = -(-parameter.numel // ranks)
        yield ctx.finding(
            f"{ctx.key(key)} needs shards of a multiple of 8, `{parameter.name}` has {size:,} on {ranks} ranks",
            key,
            label="cannot be quantized",
            fix=Fix(
                "remove it, or take a number of ranks that is a power of two",
                {key: None},
                effect="weights are gathered in full precision",
            ),
        )


@gate(
    "ZR021 quantized-gradients-on-one-node",
    severity="warning",
    cites=Cite("runtime/zero/stage3.py", "if self.all2all_process_group is not None and num_nodes > 1:"),
    needs=("hosts",),
    when=lambda ctx: ctx.stage == 3 and _has_quantized_gradients(ctx),
)
def quantized_gradients_on_one_node(ctx: Context) -> Findings:
    """Quantized gradients on one node.

    `zero_quantized_gradients: true` at stage 3 when all ranks are on one host.

    Why: DeepSpeed quantizes gradients for communication between nodes. On one node it uses the ordinary reduce-scatter
    (run on 0.19.8: the losses of the plain run).

    Example:
        zero.stage: 3
        deepspeed.zero_optimization.zero_quantized_gradients: true
    Hostfile:
        worker-0 slots=8
    """
    slots = ctx.slots
    if slots is None or len(slots) != 1:
        return
    if ctx.ds("zero_optimization.reduce_scatter", True) is True and ctx.optimizer.name != "muon":  # else ZR022
        yield ctx.finding(
            f"{ctx.key(_QUANTIZED_GRADIENTS)} has no effect on one host with {slots[0]} ranks",
            _QUANTIZED_GRADIENTS,
            label="for several nodes",
            fix=Fix("remove it", {_QUANTIZED_GRADIENTS: None}, effect="on several nodes, full precision"),
        )


@gate(
    "ZR022 quantized-gradients-refused",
    upstream="asserts",
    cites=(
        Cite("runtime/zero/stage3.py", "when enable all_to_all_reduce, reduce_scatter should also be enabled"),
        Cite("runtime/zero/stage3.py", "Muon and all2all process group cannot be used together", since="0.18.9"),
    ),
    when=lambda ctx: ctx.stage == 3 and _has_quantized_gradients(ctx),
)
def refused_quantized_gradients(ctx: Context) -> Findings:
    """Quantized gradients where DeepSpeed refuses them.

    `zero_quantized_gradients: true` at stage 3 with `zero.reduce_scatter: false`, or with the Muon optimizer.

    Why: The optimizer of stage 3 asserts that reduce-scatter is on, and raises for Muon, when it is built (run on
    0.19.8 with `reduce_scatter: false`; Muon was read, since 0.18.9).

    Example:
        zero.stage: 3
        zero.reduce_scatter: false
        deepspeed.zero_optimization.zero_quantized_gradients: true
    """
    if ctx.optimizer.name == "muon" and ctx.target.version >= (0, 18, 9):  # before, it takes no Muon at all: OP018
        conflict, conflict_key = "Muon", f"{ctx.optimizer.key}.type"
        fix = ctx.fix_to_remove(_QUANTIZED_GRADIENTS, effect="gradients cross the nodes in full precision")
    elif ctx.ds("zero_optimization.reduce_scatter", True) is False:
        conflict, conflict_key = "`reduce_scatter: false`", "zero.reduce_scatter"
        fix = Fix(
            f"set {ctx.key(conflict_key)} to `true`", {conflict_key: True}, effect="gradients are reduce-scattered"
        )
    else:
        return
    yield ctx.finding(
        f"{ctx.key(_QUANTIZED_GRADIENTS)} does not go with {conflict}",
        _QUANTIZED_GRADIENTS,
        related=[(conflict_key, "set here")],
        fix=fix,
    )


@gate(
    "ZR025 quantized-gradients-on-unequal-hosts",
    upstream="asserts",
    cites=Cite("utils/groups.py", "num_gpus not equal to device per node, cannot initialize All-To-All"),
    needs=("hosts",),
    when=lambda ctx: ctx.stage == 3 and _has_quantized_gradients(ctx),
    unseen="needs several hosts",
)
def quantized_gradients_on_unequal_hosts(ctx: Context) -> Findings:
    """Quantized gradients on hosts with different numbers of ranks.

    `zero_quantized_gradients: true` at stage 3 with a hostfile whose hosts have different slots.

    Why: Every rank divides the world by the number of devices of its own host. With 8 and 4 slots the first host gets
    one and a half nodes and asserts "num_gpus not equal to device per node", the second makes groups of four that the
    first never joins (read in 0.19.8).

    Example:
        zero.stage: 3
        deepspeed.zero_optimization.zero_quantized_gradients: true
        ignore.HO007: these are the hosts that we have
    Hostfile:
        worker-0 slots=8
        worker-1 slots=4

    Use instead:
        zero.stage: 3
        deepspeed.zero_optimization.zero_quantized_gradients: true
    Hostfile:
        worker-0 slots=8
        worker-1 slots=8
    """
    slots = ctx.slots
    if slots is not None and len(set(slots)) > 1:
        counts = ", ".join(map(str, slots[:8]))
        yield ctx.finding(
            f"{ctx.key(_QUANTIZED_GRADIENTS)} needs the same number of ranks on every host, the hostfile has {counts}",
            _QUANTIZED_GRADIENTS,
            label="groups do not fit",
            fix=Fix(
                "remove it, or give every host the same slots",
                {_QUANTIZED_GRADIENTS: None},
                effect="gradients cross the nodes in full precision",
            ),
        )
