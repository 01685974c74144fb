# SPDX-License-Identifier: Apache-2.0
"""Number formats: the blocks that switch one on, and those of parameters, of buffers and of communication."""

from __future__ import annotations

from harness.gates.dtypes import DTYPE_NAMES, dtype_of, model_dtype
from harness.gates.registry import Cite, Context, Findings, Fix, gate
from harness.spec.suggestions import nearest_name

_COMMUNICATION_FORMAT = "deepspeed.communication_data_type"
_PRECISION_BLOCKS = ("bf16", "bfloat16", "fp16", "torch_autocast")


@gate(
    "PR004 precision-block-not-enabled",
    cites=(
        Cite("runtime/precision_config.py", "enabled: bool = False", since="0.17.1"),
        Cite("runtime/constants.py", "FP16_ENABLED_DEFAULT = False"),
        Cite("runtime/constants.py", "TORCH_AUTOCAST_ENABLED_DEFAULT = False", since="0.17.2"),
    ),
    when=lambda ctx: any(ctx.has_key(block) for block in _PRECISION_BLOCKS),
)
def precision_block_without_enabled(ctx: Context) -> Findings:
    """A precision block that is not switched on.

    A `bf16`, `bfloat16`, `fp16` or `torch_autocast` block without the key `enabled`, where no other block sets a
    precision.

    Why: `enabled` is false unless it is written. The block is accepted, everything else in it is read, and the model is
    trained in fp32 with twice the memory and a fraction of the speed (run on 0.19.8).

    Example:
        deepspeed.torch_autocast.dtype: bfloat16
    """
    if any(ctx.is_enabled(block) or ctx.is_auto(f"{block}.enabled") for block in _PRECISION_BLOCKS):
        return
    for block in _PRECISION_BLOCKS:
        if not ctx.has_key(block) or ctx.has_key(f"{block}.enabled"):
            continue
        value = ctx.ds(block)
        if not isinstance(value, dict) or any(str(name).startswith("enable") for name in value):
            continue  # another kind of value, or a misspelt `enabled`, has a finding of the loader
        key = f"deepspeed.{block}"
        enabled_key = ctx.spec_key(f"{block}.enabled")
        yield ctx.finding(
            f"{ctx.key(key)} has no `enabled`, so the model is trained in fp32",
            key,
            label="off",
            notes=["DeepSpeed takes an absent `enabled` for false and reads the rest of the block all the same"],
            fix=ctx.fix_to_set(enabled_key, True, effect="trains in 16-bit instead of fp32"),
            of_key=True,
        )


_DTYPE_KEYS = {
    "torch_autocast.dtype": (0, 17, 2),
    "data_types.grad_accum_dtype": (0, 0, 0),
    "data_types.param_dtype": (0, 19, 2),
    "data_types.buffer_dtype": (0, 19, 2),
}
"""Each key that takes one of DeepSpeed's names, and the first release that reads it."""


@gate(
    "PR006 unknown-number-format",
    upstream="raises",
    cites=(
        Cite(
            "runtime/config.py",
            "return DtypeEnum(param_dict[TORCH_AUTOCAST][TORCH_AUTOCAST_DTYPE]).value",
            since="0.17.2",
        ),
        Cite("runtime/engine.py", "grad_accum_dtype = DtypeEnum(self._config.grad_accum_dtype).value"),
    ),
    when=lambda ctx: ctx.has_key("torch_autocast") or ctx.has_key("data_types"),
)
def unknown_number_format(ctx: Context) -> Findings:
    """A number format that DeepSpeed does not know.

    `torch_autocast.dtype`, `data_types.grad_accum_dtype`, `data_types.param_dtype` and `data_types.buffer_dtype`
    against DeepSpeed's names: `fp32`, `float32`, `float`, `fp16`, `float16`, `half`, `bf16`, `bfloat16`, `int8`, each
    also with `torch.` before its long form.

    Why: The name of the autocast format is looked up while the configuration is read, the others when the engine is
    built: `ValueError: 'bf_16' is not a valid DtypeEnum` on every rank (run on 0.19.8).

    Example:
        zero.stage: 2
        deepspeed.data_types.grad_accum_dtype: float8
    """
    for setting, since in _DTYPE_KEYS.items():
        name = ctx.ds(setting)
        if not isinstance(name, str) or dtype_of(name) or ctx.target.version < since:
            continue
        key = f"deepspeed.{setting}"
        suggestion = nearest_name(name, (n for names in DTYPE_NAMES.values() for n in names)) or "bf16"
        yield ctx.finding(
            f"{ctx.key(key)} is `{name[:30]}`, a number format that DeepSpeed does not know",
            key,
            notes=["it knows fp32, fp16, bf16 and int8, also written out as in `bfloat16`"],
            fix=ctx.fix_to_set(key, suggestion, effect=f"takes {suggestion} as the format"),
        )


_COMMUNICATION_DTYPES = ("fp32", "fp16", "bf16")


@gate(
    "PR007 communication-format-name",
    upstream="raises",
    cites=Cite("runtime/config.py", "Invalid communication_data_type. Supported data types:"),
)
def communication_format_name(ctx: Context) -> Findings:
    """A communication format that DeepSpeed does not know.

    `communication_data_type` and `seq_parallel_communication_data_type`: `fp32`, `fp16` or `bf16`, in any case.

    Why: These two keys have their own set of names: the long ones that other keys take, such as `float32` or
    `bfloat16`, are refused with `ValueError: Invalid communication_data_type` when the configuration is read (run on
    0.19.8).

    Example:
        deepspeed.communication_data_type: float32
    """
    for setting in ("communication_data_type", "seq_parallel_communication_data_type"):
        name = ctx.ds(setting)
        if not isinstance(name, str) or name.lower() in _COMMUNICATION_DTYPES:
            continue
        key = f"deepspeed.{setting}"
        dtype = dtype_of(name.lower())
        yield ctx.finding(
            f"{ctx.key(key)} is `{name[:30]}` where `fp32`, `fp16` or `bf16` belongs",
            key,
            notes=["DeepSpeed refuses any other name when it reads its configuration"],
            fix=ctx.fix_to_set(key, dtype, safe=True)
            if dtype in _COMMUNICATION_DTYPES
            else ctx.fix_to_set(key, "fp32", effect="gradients are reduced in fp32"),
        )


@gate(
    "PR027 parameter-format-mismatch",
    upstream="asserts",
    cites=Cite("runtime/engine.py", "conflicts with the"),
    since="0.19.2",
    when=lambda ctx: ctx.has_key("data_types.param_dtype"),
)
def parameter_format_mismatch(ctx: Context) -> Findings:
    """A parameter format that differs from the training precision.

    `data_types.param_dtype` against `bf16.enabled` and `fp16.enabled`.

    Why: The key does not switch a precision on; it only has to agree with the one that is on. DeepSpeed asserts it when
    it builds the engine (run on 0.19.8). Before 0.19.2 it was ignored.

    Example:
        precision.bf16: true
        zero.stage: 1
        deepspeed.data_types.param_dtype: fp16
    """
    dtype = model_dtype(ctx)
    param_dtype = dtype_of(ctx.ds("data_types.param_dtype"))
    if dtype and param_dtype and dtype != param_dtype:
        key = "deepspeed.data_types.param_dtype"
        yield ctx.finding(
            f"{ctx.key(key)} is {param_dtype}, and the model is trained in {dtype}",
            key,
            related=[(f"precision.{dtype}", "switched on here")],
            notes=["the key switches nothing on; DeepSpeed asserts that it agrees with `bf16` and `fp16`"],
            fix=ctx.fix_to_remove(key, effect=f"trains in {dtype}"),
        )


@gate(
    "PR028 unscaled-fp16-communication",
    severity="warning",
    cites=Cite("runtime/zero/stage_1_and_2.py", "tensor_to_allreduce = tensor.to(communication_data_type)"),
    when=lambda ctx: (
        ctx.has_key("communication_data_type")
        and not ctx.is_enabled("torch_autocast")
        and ctx.sequence_parallel_size == 1
    ),
)
def unscaled_fp16_communication(ctx: Context) -> Findings:
    """Gradients reduced in fp16 that are not fp16.

    `communication_data_type: fp16` while the model is not trained in fp16.

    Why: Gradients are cast for the reduction and cast back, without any loss scaling: values below 6e-8 become 0 and
    values above 65504 become inf. DeepSpeed accepts it (run on 0.19.8).

    Example:
        precision.bf16: true
        zero.stage: 2
        deepspeed.communication_data_type: fp16
    """
    dtype = model_dtype(ctx)
    if dtype not in (None, "fp16") and str(ctx.ds("communication_data_type")).lower() == "fp16":
        yield ctx.finding(
            f"gradients of a model in {dtype} are reduced in fp16, without loss scaling",
            _COMMUNICATION_FORMAT,
            label="small gradients become 0, large ones inf",
            fix=ctx.fix_to_set(_COMMUNICATION_FORMAT, dtype, effect=f"reduces gradients in {dtype}"),
        )


@gate(
    "PR029 communication-format-of-sequence-groups",
    severity="warning",
    cites=Cite("runtime/engine.py", "self.communication_data_type = self._config.seq_parallel_communication_data_type"),
    when=lambda ctx: ctx.sequence_parallel_size > 1 and not ctx.is_enabled("torch_autocast"),
)
def sequence_communication_format(ctx: Context) -> Findings:
    """The communication format under sequence parallelism.

    `communication_data_type` with a sequence-parallel degree above 1.

    Why: With sequence groups the engine replaces `communication_data_type` by `seq_parallel_communication_data_type`
    for all reductions of gradients; its default is fp32 (read in 0.19.8).

    Example:
        precision.bf16: true
        zero.stage: 2
        parallel.sequence_parallel_size: 2
        deepspeed.communication_data_type: bf16
    """
    has_old_name = ctx.target.version < (0, 16, 5)
    setting = "seq_parallel_comm_data_type" if has_old_name else "seq_parallel_communication_data_type"
    dtype = ctx.ds("communication_data_type")
    sequence_dtype = ctx.ds(setting, "fp32")
    if isinstance(dtype, str) and dtype.lower() != str(sequence_dtype).lower():
        sequence_key = f"deepspeed.{setting}"
        values: dict[str, str | None] = {_COMMUNICATION_FORMAT: None}
        if not ctx.has_key(setting):
            values[sequence_key] = dtype
        yield ctx.unread(
            f"{ctx.key(_COMMUNICATION_FORMAT)} is not read with sequence parallelism; {ctx.key(sequence_key)} is",
            _COMMUNICATION_FORMAT,
            related=[("parallel.sequence_parallel_size", "the degree"), (sequence_key, "this one counts")],
            notes=[f"gradients are reduced in {sequence_dtype}"],
            fix=Fix(
                f"write {ctx.key(sequence_key)} instead",
                values,
                effect=f"reduces gradients in {ctx.ds(setting, dtype)}",
            ),
        )


@gate(
    "PR031 fp32-modules-not-a-list",
    upstream="raises",
    cites=Cite("runtime/config.py", "data_types.{KEEP_IN_FP32_MODULES} must be"),
    since="0.19.8",
    when=lambda ctx: ctx.has_key("data_types.keep_in_fp32_modules"),
)
def fp32_modules_not_a_list(ctx: Context) -> Findings:
    """Buffers to keep in fp32 that are not a list.

    `data_types.keep_in_fp32_modules`: `auto`, or a list of name patterns.

    Why: A single name is refused when the configuration is read: `data_types.keep_in_fp32_modules must be "auto" or a
    list of name patterns` (run on 0.19.8).

    Example:
        precision.bf16: true
        zero.stage: 1
        deepspeed.data_types.keep_in_fp32_modules: rotary_emb
    """
    names = ctx.ds("data_types.keep_in_fp32_modules")
    is_pattern_list = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if names is not None and not is_pattern_list:
        key = "deepspeed.data_types.keep_in_fp32_modules"
        yield ctx.finding(
            f"{ctx.key(key)} must be a list of name patterns",
            key,
            notes=["DeepSpeed refuses anything else when it reads its configuration"],
            fix=Fix(f"write `[{names}]`", {key: [names]}, safe=True)
            if isinstance(names, str)
            else ctx.fix_to_remove(key, effect="takes what the model itself declares"),
        )
