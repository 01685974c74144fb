# SPDX-License-Identifier: Apache-2.0
"""`torch_autocast`: formats, clipping and loss scaling."""

from __future__ import annotations

from functools import partial

from harness.gates.dtypes import dtype_of
from harness.gates.registry import Cite, Context, Findings, Fix, gate
from harness.spec.suggestions import nearest_name

TORCH_NN_MODULES = frozenset(
    """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d
    AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss
    BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU CTCLoss ChannelShuffle CircularPad1d CircularPad2d
    CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d Container Conv1d Conv2d Conv3d ConvTranspose1d
    ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss CrossMapLRN2d DataParallel
    Dropout Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold
    FractionalMaxPool2d FractionalMaxPool3d GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid
    Hardswish Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d KLDivLoss
    L1Loss LPPool1d LPPool2d LPPool3d LSTM LSTMCell LayerNorm LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d
    LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d
    LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear LeakyReLU Linear LinearCrossEntropyLoss LocalResponseNorm
    LogSigmoid LogSoftmax MSELoss MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d
    MaxUnpool3d Mish Module ModuleDict ModuleList MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss
    MultiheadAttention NLLLoss NLLLoss2d PReLU PairwiseDistance ParameterDict ParameterList PixelShuffle
    PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNBase RNNCell RNNCellBase RReLU ReLU ReLU6 ReflectionPad1d
    ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU Sequential SiLU Sigmoid
    SmoothL1Loss SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink
    Threshold Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer
    TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold Upsample UpsamplingBilinear2d
    UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
    """.split()
)
"""The classes of modules that `torch.nn` has, as of torch 2.13: settings name them, and no gate may import torch."""


_BLOCK = "deepspeed.torch_autocast"
_ENABLED = "deepspeed.torch_autocast.enabled"
_DTYPE = "deepspeed.torch_autocast.dtype"
_STAGE = "zero.stage"


def _get_autocast_dtype(ctx: Context) -> str | None:
    """The format of `torch_autocast.dtype`; None where it is absent or no format at all."""
    return dtype_of(ctx.ds("torch_autocast.dtype"))


def _is_autocast_exclusive(ctx: Context) -> bool:
    """Does this release refuse autocast with fp16 or bf16 weights?"""
    return ctx.target.version < (0, 18, 3)


def _is_fp16_autocast_under_zero(ctx: Context) -> bool:
    """Is it fp16 autocast of fp32 weights, at ZeRO stages 1 to 3 outside a pipeline (which it ends, PP011)?"""
    return (
        ctx.is_enabled("torch_autocast")
        and ctx.stage > 0
        and ctx.pipeline_parallel_size == 1
        and _get_autocast_dtype(ctx) == "fp16"
        and not ctx.is_enabled("fp16")
        and not ctx.is_enabled("bf16")
    )


_autocast_gate = partial(gate, since="0.17.2")


@_autocast_gate(
    "PR008 autocast-without-format",
    severity=("error", "warning"),
    cites=(
        Cite("runtime/engine.py", "self.torch_autocast_dtype() == torch.float16", since="0.18.0"),
        Cite("runtime/engine.py", "torch_autocast_dtype()"),
    ),
    when=lambda ctx: ctx.is_enabled("torch_autocast"),
    unseen="needs CUDA, where torch's default is fp16",
)
def autocast_without_format(ctx: Context) -> Findings:
    """Autocast without a number format.

    `torch_autocast.enabled` without `torch_autocast.dtype`.

    Why: DeepSpeed hands `None` to `torch.autocast`, which takes the device's own default: bf16 on a CPU (run on
    0.19.8), fp16 on CUDA (read in torch). DeepSpeed sets up loss scaling only for an explicit fp16, so on CUDA this
    trains in fp16 without scaling and small gradients vanish.

    Example:
        deepspeed.torch_autocast.enabled: true
    """
    if ctx.ds("torch_autocast.dtype") is None:
        is_cpu = ctx.accelerator == "cpu"
        yield ctx.finding(
            f"{ctx.key(_BLOCK)} names no `dtype`: "
            + ("torch takes bf16 on a CPU" if is_cpu else "on CUDA that is fp16 without loss scaling"),
            _ENABLED,
            severity="warning" if is_cpu else "error",
            label="in which format?",
            fix=ctx.fix_to_set(_DTYPE, "bfloat16", effect="computes in bf16"),
        )


@_autocast_gate(
    "PR038 autocast-module-that-torch-lacks",
    upstream="raises",
    severity=("error", "warning"),
    cites=Cite("runtime/torch_autocast.py", "Failed to import lower precision safe module {module_name}"),
    when=lambda ctx: ctx.is_enabled("torch_autocast"),
)
def unknown_safe_module(ctx: Context) -> Findings:
    """A class for autocast that torch does not have.

    `torch_autocast.lower_precision_safe_modules` with a class that `torch.nn` does not have. A warning where no class
    of torch 2.13 has a near name: another torch may have it.

    Why: DeepSpeed imports each name when the engine is built: `ValueError: Failed to import lower precision safe module
    torch.nn.Linearr` (run on 0.19.8 at stages 0 and 2). Classes of other packages are not checked here.

    Example:
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: bfloat16
        deepspeed.torch_autocast.lower_precision_safe_modules: [torch.nn.Linearr]

    Use instead:
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: bfloat16
        deepspeed.torch_autocast.lower_precision_safe_modules: [torch.nn.Linear]
    """
    names = ctx.ds("torch_autocast.lower_precision_safe_modules")
    key = "deepspeed.torch_autocast.lower_precision_safe_modules"
    for name in names if isinstance(names, list) else ():
        if not isinstance(name, str):
            continue
        package, _, class_name = name.rpartition(".")
        if package != "torch.nn" or class_name in TORCH_NN_MODULES:
            continue
        similar = nearest_name(class_name, TORCH_NN_MODULES)
        yield ctx.finding(
            f"{ctx.key(key)} has `{name[:60]}`, which is no class of torch",
            key,
            severity="error" if similar else "warning",
            notes=["DeepSpeed imports it when the engine is built, and raises ValueError"],
            fix=Fix(
                f"write {f'`torch.nn.{similar}`' if similar else 'a class of `torch.nn`'}, or remove the key",
                {key: None},
                effect="without the key, `Linear`, `Conv1d`, `Conv2d` and `Conv3d` are communicated in 16 bits",
            ),
        )


@_autocast_gate(
    "PR009 autocast-to-full-precision",
    severity="warning",
    cites=(
        Cite("runtime/torch_autocast.py", "dtype=engine.torch_autocast_dtype()", since="0.17.6"),
        Cite("runtime/engine.py", "with torch.autocast(", until="0.17.5"),
    ),
)
def autocast_to_full_precision(ctx: Context) -> Findings:
    """Autocast to a format that torch does not autocast to.

    `torch_autocast.enabled` with a `dtype` of fp32 or int8.

    Why: DeepSpeed knows both names and passes them on. `torch.autocast` takes 16-bit formats only: it prints a warning,
    once, and switches itself off, and everything is computed in fp32 (run with torch 2.13 on a CPU).

    Example:
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: float32
    """
    if ctx.is_enabled("torch_autocast") and _get_autocast_dtype(ctx) in ("fp32", "int8"):
        yield ctx.finding(
            f"torch does not autocast to {ctx.ds('torch_autocast.dtype')}: everything is computed in fp32",
            _DTYPE,
            label="no effect",
            notes=["torch warns once and switches autocast off"],
            fix=ctx.fix_to_set(_DTYPE, "bfloat16", effect="computes in bf16"),
        )


@_autocast_gate(
    "PR010 autocast-with-fp16",
    severity=("error", "warning"),
    cites=(
        Cite("runtime/engine.py", "self.torch_autocast_z0_gradscaler.step(self.optimizer)", since="0.18.0"),
        Cite("runtime/torch_autocast.py", "Cannot enable both torch autocast and fp16", until="0.18.2"),
    ),
    when=lambda ctx: ctx.is_enabled("torch_autocast") and ctx.is_enabled("fp16"),
)
def autocast_with_fp16(ctx: Context) -> Findings:
    """Autocast and fp16 weights at once.

    `torch_autocast.enabled` together with `fp16.enabled`.

    Why: Each has its own loss scaling. With autocast in fp16 the first step at stage 0 fails with `AssertionError: No
    inf checks were recorded for this optimizer`. At stages 1 to 3 the loss is scaled once and the gradients are divided
    twice: SGD moves the weights by less than a hundredth of the correct step, and Adam is throttled by its epsilon,
    without a warning (run on 0.19.8 at stages 0, 1 and 3). Autocast in bf16 computes in bf16 and makes fp16's scaling
    pointless. Up to 0.18.2 DeepSpeed asserts "Cannot enable both torch autocast and fp16" (read).

    Example:
        optimizer.type: sgd
        optimizer.learning_rate: 0.1
        precision.fp16: true
        zero.stage: 1
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: float16
    """
    fp16_key = "precision.fp16"
    is_fp16_autocast = _get_autocast_dtype(ctx) == "fp16"
    fp16_effect = "the first step fails" if ctx.stage == 0 else "gradients are divided by the loss scale twice"
    is_refused = _is_autocast_exclusive(ctx)
    if is_refused:
        effect = f"DeepSpeed {ctx.target.text} refuses the pair"
    else:
        effect = fp16_effect if is_fp16_autocast else "it computes in bf16"
    yield ctx.finding(
        f"{ctx.key(_ENABLED)} and {ctx.key(fp16_key)} are both on: {effect}",
        _ENABLED,
        severity="error" if is_fp16_autocast or is_refused else "warning",
        related=[(fp16_key, "and here")],
        notes=["each has its own loss scaling" if is_fp16_autocast else "fp16's loss scaling is then pointless"],
        fix=ctx.fix_to_remove(_BLOCK, effect="trains in fp16 with DeepSpeed's own loss scaling"),
    )


@_autocast_gate(
    "PR011 autocast-with-bf16",
    severity=("error", "warning"),
    cites=(
        Cite("runtime/torch_autocast.py", "the engine will follow the settings in bf16/fp16 section", since="0.17.6"),
        Cite("runtime/torch_autocast.py", "Cannot enable both torch autocast and bfloat16", until="0.18.2"),
    ),
    when=lambda ctx: ctx.is_enabled("torch_autocast") and ctx.is_enabled("bf16") and not ctx.is_enabled("fp16"),
)
def autocast_with_bf16(ctx: Context) -> Findings:
    """Autocast and bf16 weights at once.

    `torch_autocast.enabled` together with `bf16.enabled`.

    Why: With bf16 weights there is nothing left to cast: autocast to bf16 changes no loss, and there are no fp32
    parameters, which autocast is meant to keep (run on 0.19.8). With autocast to fp16 a gradient scaler comes on top
    and multiplies the gradients by 65536, which clipping then sees. Up to 0.18.2 DeepSpeed asserts "Cannot enable both
    torch autocast and bfloat16" (read).

    Example:
        precision.bf16: true
        zero.stage: 2
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: bfloat16
    """
    bf16_key = "precision.bf16"
    is_scaled = _get_autocast_dtype(ctx) == "fp16"
    is_refused = _is_autocast_exclusive(ctx)
    if is_refused:
        effect, label = f"DeepSpeed {ctx.target.text} refuses the pair", "refused"
    elif is_scaled:
        effect, label = "bf16 gradients are scaled as if they were fp16", "wrong"
    else:
        effect, label = "the weights are bf16 already", "has no effect"
    yield ctx.finding(
        f"{ctx.key(_ENABLED)} together with {ctx.key(bf16_key)}: {effect}",
        _ENABLED,
        severity="error" if is_scaled or is_refused else "warning",
        label=label,
        related=[(bf16_key, "the weights are bf16")],
        fix=ctx.fix_to_remove(
            _BLOCK, effect=f"trains in bf16 without {'a gradient scaler' if is_scaled else 'autocast'}"
        ),
    )


@_autocast_gate(
    "PR012 fp16-autocast-clips-scaled-gradients",
    cites=Cite("runtime/zero/stage_1_and_2.py", "self.torch_autocast_gradscaler.step(self.optimizer)"),
)
def clipping_of_scaled_gradients(ctx: Context) -> Findings:
    """fp16 autocast with clipping under ZeRO.

    `torch_autocast` with an fp16 `dtype` at ZeRO stages 1 to 3 while gradients are clipped.

    Why: The gradient scaler multiplies the loss by 65536. ZeRO computes the norm and clips before the scaler divides
    again, so the gradients are clipped to the norm and then divided by 65536: SGD trains nothing, Adam is throttled by
    its epsilon, the reported norm is thousands of times too large. No error (run on 0.19.8 at stages 1, 2 and 3; stage
    0 is right).

    Example:
        train.max_grad_norm: 1.0
        zero.stage: 2
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: float16
    """
    if _is_fp16_autocast_under_zero(ctx) and ctx.gradient_clipping > 0:
        yield ctx.finding(
            f"fp16 autocast at ZeRO stage {ctx.stage} clips gradients that are still scaled by 65536",
            _DTYPE,
            label="trains next to nothing",
            related=[("train.max_grad_norm", "the norm they are clipped at"), (_STAGE, "the stage is set here")],
            notes=["ZeRO clips first and the gradient scaler divides afterwards"],
            fix=ctx.fix_to_set(_DTYPE, "bfloat16", effect="computes in bf16, without scaling"),
        )


@gate(
    "PR013 fp16-autocast-stuck-after-overflow",
    severity="warning",
    cites=Cite("runtime/zero/stage_1_and_2.py", "self.torch_autocast_gradscaler.update()"),
    since="0.19.8",
)
def fp16_autocast_stuck_after_overflow(ctx: Context) -> Findings:
    """fp16 autocast under ZeRO never recovers from an overflow.

    `torch_autocast` with an fp16 `dtype` at ZeRO stages 1 to 3 without clipping. (With clipping see
    `fp16-autocast-clips-scaled-gradients`.)

    Why: ZeRO detects the overflow and skips the step, but does not notify the gradient scaler. The scale stays at
    65536, the next step overflows as well, and every later step is skipped (8 of 8 in a run on 0.19.8; at stage 0 the
    scale came down).

    Example:
        train.max_grad_norm: 0.0
        zero.stage: 2
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: float16
    """
    if _is_fp16_autocast_under_zero(ctx) and ctx.gradient_clipping <= 0:
        yield ctx.finding(
            f"after one overflow, fp16 autocast at ZeRO stage {ctx.stage} skips every step",
            _DTYPE,
            related=[(_STAGE, "the stage is set here")],
            notes=["DeepSpeed skips the step without notifying the gradient scaler, whose scale stays at 65536"],
            fix=ctx.fix_to_set(_DTYPE, "bfloat16", effect="computes in bf16, without scaling"),
        )


@_autocast_gate(
    "PR015 autocast-modules-without-package",
    upstream="raises",
    cites=Cite("runtime/torch_autocast.py", "package_name, class_name = module_name.rsplit('.', 1)"),
    when=lambda ctx: ctx.is_enabled("torch_autocast"),
)
def autocast_modules_without_package(ctx: Context) -> Findings:
    """Modules of autocast without a full class path.

    `torch_autocast.lower_precision_safe_modules`: each entry is a package and a class, such as `torch.nn.Linear`.

    Why: DeepSpeed splits each entry at its last dot and imports the two parts. A bare class name has nothing to import
    it from: `ValueError: Failed to import lower precision safe module` when the engine is built.

    Example:
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: bfloat16
        deepspeed.torch_autocast.lower_precision_safe_modules: [Linear]
    """
    names = ctx.ds("torch_autocast.lower_precision_safe_modules")
    if not isinstance(names, (list, tuple)):
        return
    bare_names = [name for name in names if isinstance(name, str) and "." not in name.strip(".")]
    if bare_names:
        key = "deepspeed.torch_autocast.lower_precision_safe_modules"
        first_name = bare_names[0][:40]
        yield ctx.finding(
            f"`{first_name}` in {ctx.key(key)} is no full path of a class",
            key,
            notes=["DeepSpeed imports each entry by its package"],
            fix=Fix(
                f"write `torch.nn.{first_name}`, or the package that it is in",
                {key: [f"torch.nn.{name}" if name in bare_names else name for name in names]},
                effect="takes the class of that name in torch.nn",
            ),
        )


@_autocast_gate(
    "PR016 autocast-ignores-communication-format",
    severity=("warning", "error"),
    unread="autocast reduces in its own format",
    cites=(
        Cite("runtime/zero/stage_1_and_2.py", "comm_dtypes = get_all_comm_dtypes(", since="0.17.6"),
        Cite("runtime/torch_autocast.py", "Communication data type must be float32 for torch autocast", until="0.17.5"),
    ),
)
def ignored_communication_format(ctx: Context) -> Findings:
    """A communication format with autocast.

    `communication_data_type` with `torch_autocast.enabled` at ZeRO stages 1 to 3, except for Muon at stage 3, whose
    momentum has this format; up to 0.17.5 any but fp32 at every stage.

    Why: Under autocast ZeRO reduces gradients in the format of autocast for the modules that it casts, and in the
    parameter's own format for all others. `communication_data_type` is accepted and not read (read in 0.19.8). Up to
    0.17.5 DeepSpeed asserts that it is fp32 (read).

    Example:
        zero.stage: 2
        deepspeed.communication_data_type: fp32
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: bfloat16
    """
    name = ctx.ds("communication_data_type")
    if not ctx.is_enabled("torch_autocast") or name is None:
        return
    key = "deepspeed.communication_data_type"
    is_refused = ctx.target.version < (0, 17, 6) and dtype_of(name) != "fp32"
    is_momentum_format = ctx.stage == 3 and ctx.optimizer.name == "muon"
    if is_refused or (ctx.stage > 0 and not is_momentum_format):
        yield ctx.finding(
            f"{ctx.key(key)} {'must be fp32' if is_refused else 'has no effect'} with {ctx.key(_ENABLED)}",
            key,
            severity="error" if is_refused else "warning",
            label="refused" if is_refused else "not read",
            notes=["ZeRO reduces gradients in autocast's format for the modules that it casts"],
            fix=ctx.fix_to_remove(key, safe=True),
        )


@gate(
    "PP011 fp16-autocast-in-a-pipeline",
    upstream="crashes",
    cites=Cite("runtime/engine.py", "# grad scaler only for Z0 (no ZeRO) + fp16 + torch_autocast"),
    since="0.18.0",
)
def fp16_autocast_in_a_pipeline(ctx: Context) -> Findings:
    """fp16 autocast in a pipeline.

    `torch_autocast` with an fp16 `dtype` and pipeline stages, at ZeRO stages 0 and 1.

    Why: The engine steps through torch's gradient scaler. Only the last stage computes a loss for it to scale, so that
    the first step of the others ends in "Attempted step but _scale is None", or "Attempted unscale_ but ..." (run on
    0.19.8 at stages 0 and 1, with and without clipping).

    Example:
        train.gradient_accumulation_steps: 8
        train.max_grad_norm: 0.0
        parallel.pipeline_parallel_size: 2
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: float16
    """
    if (
        ctx.pipeline_parallel_size > 1
        and ctx.stage <= 1
        and ctx.is_enabled("torch_autocast")
        and str(ctx.ds("torch_autocast.dtype")).lower().removeprefix("torch.") in ("fp16", "float16", "half")
    ):
        yield ctx.finding(
            "fp16 autocast fails in the first step of a pipeline",
            _DTYPE,
            related=[("parallel.pipeline_parallel_size", "the pipeline is set here")],
            notes=["torch's gradient scaler gets a loss on the last stage alone"],
            fix=ctx.fix_to_set(_DTYPE, "bfloat16", effect="computes in bf16, without scaling"),
        )


@_autocast_gate(
    "PR066 bf16-autocast-clipped-by-a-loss-scale",
    upstream="wrong",
    severity="warning",
    cites=Cite("runtime/zero/stage_1_and_2.py", "self.torch_autocast_gradscaler = torch.amp.GradScaler("),
    until="0.17.5",
    when=lambda ctx: ctx.is_enabled("torch_autocast") and ctx.stage in (1, 2),
)
def bf16_autocast_with_loss_scale(ctx: Context) -> Findings:
    """bf16 autocast with a loss scale, at stages 1 and 2.

    `torch_autocast` in bf16 at ZeRO stages 1 and 2, on DeepSpeed 0.17.2 to 0.17.5.

    Why: DeepSpeed scales the loss by torch's `GradScaler` for each format, not for fp16 alone, and takes the norm of
    gradients that are 65536 times too large. With clipping they are first clipped to the limit and then divided by the
    scale: three steps with a limit of 0.5 cover 0.61 of the distance of plain torch; without clipping only the reported
    norm is wrong (run at stage 2 on 0.17.5; 0.17.2 to 0.17.4 were read, 0.17.6 is right).

    Example:
        deepspeed.torch_autocast: {enabled: true, dtype: bfloat16}
        zero.stage: 2
        precision.bf16: false
    """
    if _get_autocast_dtype(ctx) == "bf16" and not ctx.is_enabled("fp16") and not ctx.is_enabled("bf16"):
        yield ctx.finding(
            f"DeepSpeed {ctx.target.text} measures and clips the gradients of bf16 autocast 65536 times too large",
            _ENABLED,
            related=[(_STAGE, "the stage is set here")],
            notes=["clipped gradients are divided by the loss scale again, and almost nothing is left of them"],
            fix=ctx.fix_to_set(_STAGE, 3, effect="shards the weights as well"),
        )
