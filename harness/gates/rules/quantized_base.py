# SPDX-License-Identifier: Apache-2.0
"""Frozen weights in 4 bits under adapters: `model.quantization`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.gates.registry import Context, Findings, Fix, gate, spec_gate
from harness.plan.weights.quantized_weights import bytes_with_experts, describe_fsdp
from harness.units import format_bytes

if TYPE_CHECKING:  # planning is imported where a run is planned
    from harness.plan.memory.memory_estimate import MemoryEstimate

_KEY = "model.quantization"
_CONVERTED_METHODS = ("fp8", "mxfp4")
"""Methods whose files `transformers` can convert to 16 bits."""


def _is_quantized(ctx: Context) -> bool:
    return ctx.run.spec.model.quantization is not None


@spec_gate("MD042 quantized-weights-without-adapters", upstream="raises", when=_is_quantized)
def without_adapters(ctx: Context) -> Findings:
    """4-bit weights with nothing over them that could be trained.

    `model.quantization` without `model.lora`.

    Why: A 4-bit weight has no gradient: it is a tensor of bytes. What is trained are adapters over it; `model.freeze`
    and `model.train_only` alone would leave embeddings, head and norms.

    Example:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        model.quantization: {load_in_4bit: true}

    Use instead:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        model.quantization: {load_in_4bit: true}
        model.lora: {r: 8}
    """
    if ctx.run.spec.model.lora is None:
        yield ctx.finding(
            f"`{_KEY}` needs `model.lora`: weights in 4 bits are not trained",
            _KEY,
            fix=Fix("set `model.lora: {r: 8}`", {"model.lora": {"r": 8}}, effect="trains adapters"),
        )


@spec_gate("MD043 quantized-weights-at-stage-3", when=_is_quantized)
def at_stage_3(ctx: Context) -> Findings:
    """4-bit weights under ZeRO stage 3.

    `model.quantization` with `zero.stage: 3`.

    Why: `transformers` does not load a quantized model under `zero.Init`, so that every rank holds all of it before
    DeepSpeed shards the packed bytes; their scales, and the tables of values, stay whole on every rank. Two CPU ranks
    trained so with the losses of stage 2 (run on 0.19.8, transformers 5.24, bitsandbytes 0.50). What a GPU must have
    room for is thus no smaller than at stage 2, and each pass gathers all weights. The harness builds neither the plan
    nor the checkpoints of it. Other trainers divide at stage 3 what `bnb_4bit_quant_storage` packs into the dtype of
    other weights (read in PEFT's documentation), of which `transformers` puts all on each GPU first (read in 5.24).

    Example:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        model.quantization: {load_in_4bit: true}
        model.lora: {r: 8}
        zero.stage: 3
    """
    if ctx.stage == 3:
        key = "zero.stage"
        yield ctx.finding(
            f"`{_KEY}` is not built for `zero.stage: 3`, where every rank still loads all 4-bit weights",
            key,
            related=[(_KEY, "4-bit weights")],
            notes=["at stages 0 to 2 every rank has all 4-bit weights, about half a byte a parameter"],
            fix=ctx.fix_to_set(key, 2, effect="shards gradients and states of the adapters alone"),
        )


@spec_gate("MD044 quantized-weights-with-other-models", when=_is_quantized)
def with_other_models(ctx: Context) -> Findings:
    """4-bit weights of a model that is divided, compiled, new, or built by a plug-in.

    `model.quantization` with stages or tensor ranks, `train.torch_compile`, `plugins.file`, or without weights to load.

    Why: bitsandbytes quantizes weights as `transformers` loads them, module by module. AutoTP and pipeline stages
    divide weights along their rows or columns, which a block of 64 packed weights does not have any more; new weights
    are not loaded, and a plug-in makes its own modules. A compiled model with 4-bit layers was not run.

    Example:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        model.quantization: {load_in_4bit: true}
        model.lora: {r: 8}
        train.torch_compile: true
    """
    spec = ctx.run.spec
    obstacles = {
        "parallel.tensor_parallel_size": ctx.tensor_parallel_size > 1,
        "parallel.pipeline_parallel_size": ctx.pipeline_parallel_size > 1,
        "train.torch_compile": spec.train.torch_compile,
        "plugins.file": spec.plugins.file is not None,
        "model.random_init": spec.model.random_init,
        "model.config": spec.model.name_or_path is None and spec.model.config is not None,
    }
    obstacle = next((key for key, is_on in obstacles.items() if is_on), None)
    if obstacle is not None:
        yield ctx.finding(
            f"`{_KEY}` is not built for `{obstacle}`",
            _KEY,
            related=[(obstacle, "set here")],
            fix=ctx.fix_to_remove(_KEY, effect="trains over weights of 16 bits, in four times the memory"),
        )


@spec_gate("MD045 quantized-weights-in-an-export", upstream="wrong", when=_is_quantized)
def in_an_export(ctx: Context) -> Findings:
    """Adapters merged into 4-bit weights.

    `export.at_end` with `model.quantization`, without `export.lora: adapter`, or with `export.verify`.

    Why: The checkpoint has the weights in 4 bits. Adapters added to them would have to be rounded to 4 bits again, or
    would make a 16-bit model of rounded weights. Exported alone, they are loaded by `peft` over the 16-bit base or over
    the base in 4 bits. `export.verify` would compare them with a checkpoint whose 4-bit weights it cannot load.

    Example:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        model.quantization: {load_in_4bit: true}
        model.lora: {r: 8}
        export.at_end: true
    """
    export = ctx.run.spec.export
    if not export.at_end:
        return
    if export.lora == "merge":
        key = "export.lora"
        yield ctx.finding(
            f"`{key}: merge` is not built for 4-bit weights: a sum of them and an adapter has more bits",
            key,
            related=[(_KEY, "4-bit weights")],
            fix=ctx.fix_to_set(key, "adapter", effect="exports the adapters alone, for `peft`"),
        )
    elif export.verify:
        key = "export.verify"
        yield ctx.finding(
            f"`{key}` is not built for a checkpoint with 4-bit weights",
            key,
            related=[(_KEY, "4-bit weights")],
            fix=ctx.fix_to_remove(key, effect="exports without a comparison of logits"),
        )


@spec_gate("MD046 weights-that-are-quantized-already")
def quantized_already(ctx: Context) -> Findings:
    """A base whose weights are quantized already.

    A `quantization_config` in the model's `config.json` or in `model.config`. Weights in `fp8` and `mxfp4` only with
    `model.quantization`.

    Why: `transformers` takes the quantization method of the files, whatever the spec requests (read in 5.24). Most
    methods have no gradient for adapters, or their own checkpoint format. New weights by a configuration that says
    `quantization_config` are not quantized, but an export would say so.

    Example:
        model.config: {model_type: llama, vocab_size: 1000, quantization_config: {quant_method: gptq, bits: 4}}
        model.tokenizer: bytes
    """
    method = ctx.model_config.get("quantization_config")
    kind = method.get("quant_method", "unknown") if isinstance(method, Mapping) else None
    if kind is None or (kind in _CONVERTED_METHODS and not _is_quantized(ctx)):
        return
    is_own_config = ctx.run.spec.model.config is not None
    key = "model.config.quantization_config" if is_own_config else "model.name_or_path"
    yield ctx.finding(
        f"the weights of this model are quantized already (`quant_method: {kind}`)",
        key,
        related=[(_KEY, "quantizes them as they are loaded")],
        fix=ctx.fix_to_remove(key, effect="trains new weights in the format of `precision`")
        if is_own_config
        else Fix("name the model with weights of 16 or 32 bits, such as the one that it was made from"),
    )


@gate("MD047 quantized-weights-of-experts", needs=("a run spec", "model facts"), when=_is_quantized)
def of_experts(ctx: Context) -> Findings:
    """4-bit weights of a mixture of experts.

    `model.quantization` with a model whose layers have experts.

    Why: `transformers` stores the experts of a layer as stacked parameters, which are no linear layers: bitsandbytes
    quantizes the attention alone, and nothing is said (run with Mixtral, transformers 5.24, bitsandbytes 0.50). The
    experts, which are nearly all of the model, stay in the training format.

    Example:
        model.name_or_path: mistralai/Mixtral-8x7B-v0.1
        model.quantization: {load_in_4bit: true}
        model.lora: {r: 8, target_modules: [q_proj, v_proj]}
    """
    quantization = ctx.run.spec.model.quantization
    if ctx.model is None or not ctx.model.experts or quantization is None:
        return
    message = f"`{_KEY}` would quantize the attention of this model alone: its experts stay in the training format"
    memory, capacity, fix = ctx.plan.memory, ctx.plan.capacity.gpu, None
    width = ctx.plan.settings.param_bytes if ctx.plan.settings else 2
    whole, weights = sum(item.bytes for item in memory.items_of("gpu") if item.kind == "frozen") if memory else 0, 0
    if memory and capacity and whole:
        weights = width * ctx.model.num_parameters
        message += f", so that a GPU holds {format_bytes(whole)} of weights, and has {format_bytes(capacity)}"
        in_4_bits = bytes_with_experts(ctx.model, quantization, width)
        message += _describe_other_programs(in_4_bits, memory, whole, capacity, ctx.world_size or 1)
    if weights > (ctx.world_size or 1) * (capacity or 0):
        least = -(-weights // (capacity or 1))
        fill = f"{format_bytes(weights)} alone fill {least} such GPUs"
        fix = Fix(f"train adapters over weights of 16 bits at ZeRO-3 on more or larger GPUs: {fill}")
    fix = fix or ctx.fix_to_remove(_KEY, effect="trains over weights of 16 bits, at any ZeRO stage")
    yield ctx.finding(message, _KEY, fix=fix)


def _describe_other_programs(weights: int, memory: MemoryEstimate, whole: int, capacity: int, gpus: int) -> str:
    """`weights` bytes where a program quantizes the experts too, as a copy on each GPU, and divided. The rest is that
    of a plan with `whole` bytes of weights, the allocator's slack in proportion.
    """
    used = memory.gpu_peak - sum(item.bytes for item in memory.items_of("gpu") if item.kind == "slack")
    copy, divided = ((each + used - whole) * memory.gpu_peak / used for each in (weights, weights / max(2, gpus)))
    fits = "fits" if copy <= capacity else "does not fit"
    return (
        f". A program that quantizes the experts, too, has {format_bytes(weights)} of weights: a copy on each GPU"
        f" {fits} ({format_bytes(copy)} with the rest of this plan); {describe_fsdp(weights, gpus)}"
        f" ({format_bytes(divided)} with the rest)"
    )
