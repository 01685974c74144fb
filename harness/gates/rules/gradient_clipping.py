# SPDX-License-Identifier: Apache-2.0
"""Gradient clipping and the norm that it needs."""

from __future__ import annotations

from harness.gates.dtypes import model_dtype
from harness.gates.optimizer_facts import is_number
from harness.gates.registry import Cite, Context, Findings, Fix, gate

_SWITCH = "deepspeed.zero_optimization.compute_grad_norm"


def _is_norm_off(ctx: Context) -> bool:
    """Is `compute_grad_norm` false?"""
    return ctx.ds("zero_optimization.compute_grad_norm") is False


def _is_bf16_accumulated_in_fp32(ctx: Context) -> bool:
    """Is it stage 1 in bf16 with `data_types.grad_accum_dtype` fp32? (DeepSpeed takes BF16_Optimizer there.)"""
    accumulation = str(ctx.ds("data_types.grad_accum_dtype", "")).lower()
    return ctx.stage == 1 and ctx.is_enabled("bf16") and accumulation in ("fp32", "torch.float32")


def _find_need(ctx: Context) -> tuple[str, str] | None:
    """The reason that the norm is needed, and the key of its setting; None where it is not needed."""
    if ctx.stage not in (1, 2):
        return f"only stages 1 and 2 work without the norm, this is stage {ctx.stage}", "zero.stage"
    if ctx.gradient_clipping > 0 and not ctx.is_auto("gradient_clipping"):
        return f"gradients are clipped at {ctx.gradient_clipping:g}", "train.max_grad_norm"
    if ctx.ds("zero_optimization.zenflow") is not None:
        return "ZenFlow needs the norm", "deepspeed.zero_optimization.zenflow"
    if ctx.is_optimizer_offloaded:
        return "an offloaded optimizer needs the norm", "zero.offload_optimizer.device"
    if _is_bf16_accumulated_in_fp32(ctx):
        return "the bf16 optimizer of stage 1 needs the norm", "deepspeed.data_types.grad_accum_dtype"
    return None


@gate(
    "ZR012 gradient-norm-off-where-it-is-needed",
    upstream="raises",
    cites=(
        Cite("runtime/zero/config.py", "compute_grad_norm=false is supported only with ZeRO Stage 1 or 2"),
        Cite("runtime/zero/stage_1_and_2.py", "zero_optimization.compute_grad_norm=false requires gradient_clipping=0"),
    ),
    since="0.19.7",
    when=_is_norm_off,
)
def missing_norm(ctx: Context) -> Findings:
    """The gradient norm switched off where it is needed.

    `compute_grad_norm: false` in `zero_optimization` together with anything that needs the norm: a stage other than 1
    and 2, gradient clipping, ZenFlow, an offloaded optimizer, or stage 1 with bf16 and fp32 accumulation.

    Why: DeepSpeed refuses stages 0 and 3 while it reads the configuration, and the others when the optimizer is built.
    Clipping is on unless `0.0` is written: its default is 1.0 since DeepSpeed 0.19.3 (run on 0.19.8).

    Example:
        zero.stage: 2
        precision.bf16: true
        train.max_grad_norm: 1.0
        deepspeed.zero_optimization.compute_grad_norm: false

    Use instead:
        zero.stage: 2
        precision.bf16: true
        train.max_grad_norm: 0.0
        deepspeed.zero_optimization.compute_grad_norm: false
    """
    need = _find_need(ctx)
    if need is not None:
        reason, cause = need
        yield ctx.finding(
            f"{ctx.key(_SWITCH)} is `false`, but {reason}",
            _SWITCH,
            related=[(cause, "set here")],
            fix=ctx.fix_to_remove(_SWITCH, safe=True, effect="the norm is computed in each step, as it is by default"),
        )


@gate(
    "ZR013 gradient-norm-off-in-fp32",
    severity="warning",
    cites=Cite("runtime/zero/config.py", "Compute and retain the global gradient norm during ZeRO Stage 1/2"),
    since="0.19.7",
    when=lambda ctx: _is_norm_off(ctx) and ctx.stage in (1, 2),
)
def missing_norm_in_fp32(ctx: Context) -> Findings:
    """fp32 without the gradient norm, the only check for inf.

    `compute_grad_norm: false` in `zero_optimization` at stage 1 or 2 with neither bf16 nor fp16.

    Why: In fp32 the norm is the only thing that shows an inf or NaN gradient. Without it the step is taken and the
    weights become NaN, with no skipped step (run on 0.19.8). In bf16 and fp16 a separate check still skips the step.

    Example:
        zero.stage: 2
        train.max_grad_norm: 0.0
        deepspeed.zero_optimization.compute_grad_norm: false
    """
    is_16_bit_possible = any(ctx.is_enabled(block) or ctx.is_auto(f"{block}.enabled") for block in ("bf16", "fp16"))
    is_offloaded = ctx.is_optimizer_offloaded or ctx.ds("zero_optimization.zenflow") is not None
    if not (is_16_bit_possible or is_offloaded or ctx.gradient_clipping > 0):
        yield ctx.finding(
            f"{ctx.key(_SWITCH)} is `false` in fp32: an inf gradient makes the weights NaN and no step is skipped",
            _SWITCH,
            fix=Fix(
                "remove it",
                {_SWITCH: None},
                effect="the norm is computed in each step, and a step with an inf gradient is skipped",
            ),
        )


@gate(
    "OP004 clipping-in-the-optimizer",
    upstream="raises",
    cites=Cite("runtime/engine.py", "'max_grad_norm' is not supported as an optimizer parameter"),
)
def max_grad_norm_parameter(ctx: Context) -> Findings:
    """A clipping limit in the optimizer's parameters.

    `max_grad_norm` in `optimizer.params`.

    Why: `ValueError: 'max_grad_norm' is not supported as an optimizer parameter` when the engine is built (run on
    0.19.8); with an optimizer that the script makes, DeepSpeed only warns and does not clip at it. The key of the
    configuration is `gradient_clipping`.

    Example:
        zero.stage: 1
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.lr: 1.0e-5
        deepspeed.optimizer.params.max_grad_norm: 0.5
    """
    if not ctx.has_key("optimizer.params.max_grad_norm"):
        return
    key = "deepspeed.optimizer.params.max_grad_norm"
    own_key = "train.max_grad_norm"
    norm = ctx.ds("optimizer.params.max_grad_norm")
    is_movable = is_number(norm) and norm >= 0 and not ctx.has_key("gradient_clipping")
    yield ctx.finding(
        f"{ctx.key(key)} is no parameter of an optimizer",
        key,
        related=[(own_key, "gradients are clipped by this")],
        notes=["DeepSpeed refuses it when it builds the engine"],
        fix=Fix(f"write {ctx.key(own_key)} instead", {key: None, own_key: norm}, effect=f"clips at {norm:g}")
        if is_movable
        else ctx.fix_to_remove(key, effect=f"clips as {ctx.key(own_key)} says"),
    )


@gate(
    "PR033 clipping-left-to-the-release",
    severity="info",
    cites=(
        Cite("runtime/constants.py", "GRADIENT_CLIPPING_DEFAULT = 1.0", since="0.19.3"),
        Cite("runtime/constants.py", "GRADIENT_CLIPPING_DEFAULT = 0.", until="0.19.2"),
    ),
    when=lambda ctx: ctx.run.kind == "deepspeed-json" and ctx.consumer in (None, "deepspeed"),
)
def clipping_by_default(ctx: Context) -> Findings:
    """No `gradient_clipping` in a DeepSpeed JSON.

    A JSON that a plain DeepSpeed script reads, with an `optimizer` and without `gradient_clipping`.

    Why: The default changed: up to 0.19.2 nothing is clipped, from 0.19.3 on gradients are clipped at a norm of 1.0.
    The same file silently trains something else after an upgrade (run on both: second loss 3.566 and 3.152).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
      "zero_optimization": {"stage": 1}
    }
    """
    if not ctx.has_key("gradient_clipping") and ctx.optimizer.type is not None:
        norm = ctx.gradient_clipping
        default = f"clips at {norm:g}" if norm else "does not clip"
        yield ctx.finding(
            f"no `gradient_clipping`: DeepSpeed {ctx.target.text} {default}",
            ctx.optimizer.key,
            notes=["up to 0.19.2 nothing is clipped without this key, from 0.19.3 on the norm is clipped at 1.0"],
            fix=ctx.fix_to_set("train.max_grad_norm", norm, effect="on every release as on this one"),
            of_key=True,
        )


@gate(
    "TP021 norm-of-tensor-shards-without-zero",
    cites=(
        Cite("runtime/fp16/unfused_optimizer.py", "get_weight_norm(grads_for_norm, mpu=self.mpu)"),
        Cite("runtime/utils.py", "if (tensor_mp_rank > 0) and not is_model_parallel_parameter(p):"),
    ),
    since="0.16.4",
    when=lambda ctx: ctx.tensor_parallel_size > 1 and ctx.stage == 0,
)
def norm_of_tensor_shards(ctx: Context) -> Findings:
    """Clipping 16-bit gradients of tensor shards without ZeRO.

    A tensor degree above 1 at stage 0 with bf16 or fp16 weights, gradient clipping and an optimizer that is not
    DeepSpeed's own Adam or AdamW (`sgd`, `torch_adam: true` and so on).

    Why: Around any optimizer but its own Adam, DeepSpeed at stage 0 in 16 bit takes the norm of gradients that no
    longer say which weight they belong to, so that only those of the first tensor rank are counted: of each sharded
    matrix one shard instead of all. The norm comes out too small (1.564 instead of 1.894 for a small Llama with torch's
    AdamW on two ranks of 0.19.8), and large gradients are clipped too little. Its own Adam at stage 0, fp32 at stage 0,
    and all formats at stages 1 and 2 have the norm of one process (run).

    Example:
        optimizer.type: sgd
        precision.bf16: true
        zero.stage: 0
        parallel.tensor_parallel_size: 2
    """
    if ctx.optimizer.type is None or _is_own_adam(ctx):
        return
    dtype = model_dtype(ctx)
    if dtype in ("bf16", "fp16") and ctx.run.spec.train.max_grad_norm:
        yield ctx.finding(
            f"at stage 0 in {dtype} the gradient norm leaves out the shards of all tensor ranks but the first",
            "zero.stage",
            related=[("parallel.tensor_parallel_size", "the shards"), ("train.max_grad_norm", "clips by the norm")],
            notes=["DeepSpeed silently trains with it: large gradients are clipped too little"],
            fix=ctx.fix_to_set("zero.stage", 1, effect="ZeRO-1 counts every shard, and shards the optimizer states"),
        )


def _is_own_adam(ctx: Context) -> bool:
    """Is the optimizer DeepSpeed's own Adam or AdamW, on whatever device, and not torch's?"""
    return ctx.optimizer.name in ("adam", "adamw") and not ctx.optimizer.params.get("torch_adam")
