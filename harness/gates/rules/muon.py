# SPDX-License-Identifier: Apache-2.0
"""Muon: clipping, precision and reduce-scatter."""

from __future__ import annotations

from harness.gates.dtypes import grad_accum_dtype, model_dtype
from harness.gates.registry import Cite, Context, Findings, Fix, gate

_TYPE = "deepspeed.optimizer.type"


@gate(
    "OP018 muon-with-reduce-scatter",
    upstream="raises",
    cites=(
        Cite("runtime/zero/stage3.py", "Muon and reduce scatter cannot be used together", since="0.18.9"),
        Cite("runtime/engine.py", "Muon optimizer is not yet compatible with ZeRO Stage 3", until="0.18.8"),
    ),
    since="0.17.6",
    when=lambda ctx: ctx.optimizer.name == "muon" and ctx.stage == 3,
)
def muon_with_reduce_scatter(ctx: Context) -> Findings:
    """Muon at stage 3 with reduce-scatter.

    `optimizer.type: Muon` at ZeRO stage 3 with `reduce_scatter`, which is on by default.

    Why: Muon needs the whole gradient of a matrix. At stage 3 DeepSpeed refuses the pair when the engine is built:
    `Muon and reduce scatter cannot be used together` (run on 0.19.8). 0.17.6 to 0.18.8 refuse Muon at stage 3 in any
    case.

    Example:
        train.max_grad_norm: 0.0
        zero.stage: 3
        deepspeed.optimizer.type: Muon
        deepspeed.optimizer.params.lr: 2.0e-2
    """
    switch = "zero.reduce_scatter"
    if ctx.target.version < (0, 18, 9):
        reason = "before DeepSpeed 0.18.9"
        fix = ctx.fix_to_set("zero.stage", 2, effect="parameters are replicated")
    elif ctx.ds("zero_optimization.reduce_scatter", True) is True:
        reason = "with reduce-scatter, which is on by default"
        fix = ctx.fix_to_set(switch, False, effect="gradients are all-reduced")
    else:
        return
    yield ctx.finding(
        f"`Muon` does not run at ZeRO stage 3 {reason}",
        _TYPE,
        related=[("zero.stage", "the stage is set here"), (switch, "switched on here")],
        notes=["DeepSpeed refuses it when it builds the engine"],
        fix=fix,
    )


def _is_in_bf16_optimizer(ctx: Context) -> bool:
    """Does DeepSpeed wrap the optimizer in BF16_Optimizer instead of a ZeRO optimizer?"""
    if ctx.stage != 1 or ctx.offload_device("offload_optimizer") == "cpu":
        return False
    return model_dtype(ctx) == "bf16" and grad_accum_dtype(ctx) == "fp32"


@gate(
    "OP121 muon-trained-by-sgd",
    cites=(
        Cite("runtime/zero/muon/muon_optimizer.py", "p.add_(p.grad.reshape(p.shape), alpha=-group[", until="0.18.9"),
        Cite("runtime/zero/stage_1_and_2.py", "from deepspeed.runtime.zero.muon.original_muon import muon_update"),
    ),
    since="0.17.6",
    until="0.19.7",
    when=lambda ctx: ctx.optimizer.name == "muon",
)
def muon_without_newton_schulz(ctx: Context) -> Findings:
    """Muon that takes the steps of plain SGD.

    `optimizer.type: Muon` at ZeRO stage 0 up to 0.19.6, and in bf16 with fp32 accumulation at stage 1 up to 0.19.7.
    At stage 3 up to 0.19.6, on a model that was built under `zero.Init`.

    Why: DeepSpeed orthogonalises the gradients inside its ZeRO optimizers alone, and `Muon` itself only subtracts what
    it is given: without such an optimizer Newton-Schulz never runs, and matrices are trained by SGD without momentum
    (#8441; the source of 0.17.6 to 0.19.7 was read). 0.19.7 runs Newton-Schulz at stage 0 too, and 0.19.8 in
    BF16_Optimizer. Under `zero.Init` every parameter looks one-dimensional, so that none is marked for Muon and AdamW
    trains all of them (#8438; run on 0.18.9: 0 of 2 matrices are marked, 2 without `zero.Init`).

    Example:
        train.max_grad_norm: 0.0
        precision.bf16: true
        zero.stage: 1
        deepspeed.data_types.grad_accum_dtype: fp32
        deepspeed.optimizer.type: Muon
        deepspeed.optimizer.params.lr: 2.0e-2
    """
    by_wrapper = _is_in_bf16_optimizer(ctx)
    if ctx.stage == 3 and (0, 18, 9) <= ctx.target.version < (0, 19, 7) and ctx.consumer != "deepspeed":
        yield ctx.finding(
            "`Muon` trains nothing at ZeRO stage 3: AdamW trains all parameters of a model built under `zero.Init`",
            _TYPE,
            related=[("zero.stage", "the stage is set here")],
            notes=["up to 0.19.6 DeepSpeed marks no partitioned parameter as a matrix"],
            fix=ctx.fix_to_set("zero.stage", 2, effect="matrices are trained by Muon"),
        )
    if not by_wrapper and (ctx.stage > 0 or ctx.target.version >= (0, 19, 7)):
        return
    last = "0.19.7" if by_wrapper else "0.19.6"
    where = "in bf16 with fp32 accumulation at ZeRO stage 1" if by_wrapper else "at ZeRO stage 0"
    stage = 2 if by_wrapper else 1
    yield ctx.finding(
        f"`Muon` trains with plain SGD {where}: Newton-Schulz does not run",
        _TYPE,
        related=[("zero.stage", "the stage is set here")],
        notes=[f"up to {last} only DeepSpeed's ZeRO optimizers orthogonalise the gradients"],
        fix=ctx.fix_to_set("zero.stage", stage, effect="matrices are trained by Muon"),
    )


@gate(
    "OP019 muon-clips-its-updates",
    severity="warning",
    cites=(
        Cite(
            "runtime/zero/stage_1_and_2.py",
            "Muon update runs before the norm and the clip covers the orthogonalized",
            since="0.19.8",
        ),
        Cite("runtime/zero/stage_1_and_2.py", "from deepspeed.runtime.zero.muon.original_muon import muon_update"),
    ),
    since="0.17.6",
    when=lambda ctx: ctx.optimizer.name == "muon" and ctx.stage > 0,
)
def clipped_muon_updates(ctx: Context) -> Findings:
    """Muon's updates clipped instead of its gradients.

    `optimizer.type: Muon` at ZeRO stages 1 to 3 while gradients are clipped.

    Why: Under ZeRO the gradient has become Muon's orthogonalised update before the norm is taken. Its norm grows with
    the number of matrices (12.4 for a model of 7 thousand parameters), so that clipping at 1.0 divides every step by
    it; the same file at stage 0 clips the gradient (run on 0.19.8: second loss 4.697 at stages 1 to 3, 4.577 at stage 0
    and without clipping).

    Example:
        train.max_grad_norm: 1.0
        zero.stage: 2
        deepspeed.optimizer.type: Muon
        deepspeed.optimizer.params.lr: 2.0e-2
    """
    max_norm = ctx.gradient_clipping
    if max_norm <= 0 or _is_in_bf16_optimizer(ctx):
        return
    norm_key = "train.max_grad_norm"
    yield ctx.finding(
        f"at ZeRO stage {ctx.stage} Muon's updates are clipped at {max_norm:g}, not its gradients",
        norm_key if ctx.source.has_key(norm_key) else _TYPE,
        related=[("zero.stage", "the stage is set here")],
        notes=["an orthogonalised update has a norm far above 1, so that every step is divided by it"],
        fix=Fix(f"set {ctx.key(norm_key)} to 0", {norm_key: 0.0}, effect="nothing is clipped"),
    )


@gate(
    "OP020 muon-in-another-wrapper",
    severity=("error", "warning"),
    cites=Cite("runtime/bf16_optimizer.py", "BF16 Muon currently requires FP32 accumulation, dense DP and eager"),
    since="0.19.8",
    when=lambda ctx: ctx.optimizer.name == "muon" and _is_in_bf16_optimizer(ctx),
)
def muon_in_bf16_optimizer(ctx: Context) -> Findings:
    """Muon with fp32 accumulation at stage 1.

    `optimizer.type: Muon` with bf16, `data_types.grad_accum_dtype: fp32` and ZeRO stage 1 without offload.

    Why: This one combination takes BF16_Optimizer instead of ZeRO's: it clips gradients where the others clip updates,
    gives other losses (run on 0.19.8), and refuses tensor parallelism and MoE: `BF16 Muon currently requires FP32
    accumulation, dense DP and eager execution`.

    Example:
        train.max_grad_norm: 0.0
        precision.bf16: true
        zero.stage: 1
        deepspeed.data_types.grad_accum_dtype: fp32
        deepspeed.optimizer.type: Muon
        deepspeed.optimizer.params.lr: 2.0e-2
    """
    is_refused = ctx.tensor_parallel_size > 1
    problem = "refuses tensor parallelism" if is_refused else "trains differently from all other stages"
    yield ctx.finding(
        f"`Muon` in bf16 with fp32 accumulation at ZeRO stage 1 {problem}",
        "deepspeed.data_types.grad_accum_dtype",
        severity="error" if is_refused else "warning",
        related=[("zero.stage", "the stage is set here"), (_TYPE, "the optimizer")],
        notes=["DeepSpeed wraps it in BF16_Optimizer instead of a ZeRO optimizer"],
        fix=ctx.fix_to_set("zero.stage", 2, effect="ZeRO's own Muon, gradients sharded"),
    )
