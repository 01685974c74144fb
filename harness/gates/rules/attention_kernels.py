# SPDX-License-Identifier: Apache-2.0
"""Attention kernels, and what they cannot compute."""

from __future__ import annotations

from harness.facts import model_table
from harness.facts.model_lookup import has_attention_dropout
from harness.gates.registry import Context, Findings, Fix, spec_gate
from harness.plan.tuned_defaults.attention_kernel import choose_attention_kernel
from harness.plan.tuned_defaults.default_inputs import DefaultInputs
from harness.run.resolved_run import ATTN_IMPLEMENTATION

_FLASH = ("flash_attention_2", "flash_attention_3")
_MAX_HEAD_SIZE = 256
_TO_SDPA = Fix("set `model.attn_implementation` to `sdpa`", {ATTN_IMPLEMENTATION: "sdpa"}, effect="another kernel")


@spec_gate("MD024 borders-without-documents")
def borders_without_documents(ctx: Context) -> Findings:
    """`sdpa_varlen` for rows that it does not support.

    `model.attn_implementation: sdpa_varlen` with rows that are not packed, stages of a pipeline, a compiled model, or a
    model type that is not known to keep packed documents apart by their boundaries.

    Why: `sdpa_varlen` is causal attention inside the documents of packed rows, whose boundaries it gets from the data.
    Rows that are not packed have none, and `sdpa` uses the same kernels for them. Stages of a pipeline make masks; a
    compiled model would be compiled again for each new length. transformers makes no mask for this kernel, so layers
    that need more than boundaries (Llama-4's chunks, Gemma-2's soft cap) would compute something else: a run refuses
    these, and types of which the table of models (`docs/models.md`) does not say it.

    Example:
        model.attn_implementation: sdpa_varlen
        data.packing: false
    """
    spec, key = ctx.run.spec, ATTN_IMPLEMENTATION
    if spec.model.attn_implementation != "sdpa_varlen":
        return
    model_type = (spec.model.config or {}).get("model_type") or (ctx.model.family if ctx.model else None)
    message, notes = None, list[str]()
    if not spec.data.packing:
        message = "`sdpa_varlen` is for packed rows, and `data.packing` is false"
    elif ctx.pipeline_parallel_size > 1:
        message = "`sdpa_varlen` does not support pipeline stages, which make their own masks"
    elif spec.train.torch_compile:
        message = "`sdpa_varlen` with `train.torch_compile` would compile the model again for each new length"
    elif (
        model_type
        and not model_table.holds(model_type, "borders")
        and model_table.holds(model_type, "apart") is not False
    ):
        message = f"models of type `{model_type}` are not known to keep packed documents apart by `sdpa_varlen`"
        notes = [*filter(None, (model_table.release_note(),))]
    if message:
        yield ctx.finding(message, key, notes=notes, fix=_TO_SDPA)


@spec_gate("MD025 flash-attention-beyond-its-kernels", upstream="raises")
def beyond_flash_kernels(ctx: Context) -> Findings:
    """Flash attention in fp32, with heads above 256, or without the model's dropout.

    `model.attn_implementation: flash_attention_2` or `flash_attention_3` without bf16, fp16 or `torch_autocast`; with
    heads of more than 256 elements; and `flash_attention_3` for a model whose attention has dropout.

    Why: The kernels of both packages take 16-bit numbers and heads of up to 256 elements, and fail on the ranks.
    Version 3 has no dropout: transformers leaves it out with a warning, and the model trains without it (read in 5.24,
    not run on a GPU here).

    Example:
        model.attn_implementation: flash_attention_2
        precision.bf16: false
    """
    spec, key = ctx.run.spec, ATTN_IMPLEMENTATION
    kernel = spec.model.attn_implementation
    if kernel not in _FLASH:
        return
    message = None
    if not (spec.precision.bf16 or spec.precision.fp16 or ctx.is_enabled("torch_autocast")):
        message = f"`{kernel}` computes in bf16 or fp16, and this run trains in fp32"
    elif ctx.model is not None and ctx.model.head_dim > _MAX_HEAD_SIZE:
        message = f"`{kernel}` takes heads of up to {_MAX_HEAD_SIZE} elements, this model has {ctx.model.head_dim}"
    elif kernel == "flash_attention_3" and has_attention_dropout(ctx.model_config):
        message = f"`{kernel}` has no dropout, and the model's attention has"
    if message:
        yield ctx.finding(message, key, fix=_TO_SDPA)


@spec_gate("MD026 attention-chosen", severity="info")
def attention_chosen(ctx: Context) -> Findings:
    """The kernel that `model.attn_implementation: auto` selects.

    A line of information with the reason: the device of `cluster.gpu`, else of this machine, the number format, the
    size of heads, packing and its length, and the packages that can be imported here.

    Why: A launch chooses once, on the machine that it starts from, and every rank uses that kernel. The reason names
    missing packages and what they cost.

    Example:
        model.attn_implementation: auto
    """
    choice = choose_attention_kernel(DefaultInputs(ctx.run, ctx.model, None))
    if choice is not None:
        yield ctx.finding(
            f"{ctx.key(ATTN_IMPLEMENTATION)} is `{choice.value}` here",
            ATTN_IMPLEMENTATION,
            notes=[choice.reason],
            fix=ctx.fix_to_set(ATTN_IMPLEMENTATION, choice.value, effect="the same kernel, on every machine"),
        )
