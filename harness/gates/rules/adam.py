# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW: decay, AMSGrad and kernels."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate

_TYPE = "deepspeed.optimizer.type"
_TORCH_ADAM = "deepspeed.optimizer.params.torch_adam"


@gate(
    "OP007 adam-decays-like-adamw",
    severity="warning",
    cites=Cite("runtime/engine.py", "Optimizer name of Adam forces AdamW logic unless adam_w_mode is explicitly set"),
    when=lambda ctx: ctx.optimizer.name == "adam" and (ctx.run.kind == "deepspeed-json" or ctx.has_key("optimizer")),
)
def adam_with_adamw_decay(ctx: Context) -> Findings:
    """Adam that decays weights like AdamW.

    `optimizer.type: Adam` in a DeepSpeed configuration with a `weight_decay` above 0 and without `adam_w_mode`.

    Why: DeepSpeed's Adam is AdamW unless `adam_w_mode: false` is written: the decay is applied to the weights, apart
    from the gradient, not added to the gradient (run on 0.19.8: the losses of AdamW). The `optimizer` section of a run
    spec says `adam` and means it; the harness writes the flag.

    Example:
        zero.stage: 1
        deepspeed.optimizer.type: Adam
        deepspeed.optimizer.params.lr: 1.0e-5
        deepspeed.optimizer.params.weight_decay: 0.1
    """
    optimizer = ctx.optimizer
    if (ctx.run.kind == "spec" and optimizer.key == "optimizer") or ctx.has_key("optimizer.params.adam_w_mode"):
        return
    decay = optimizer.params.get("weight_decay")
    if isinstance(decay, bool) or not isinstance(decay, (int, float)) or decay <= 0:
        return
    yield ctx.finding(
        f"DeepSpeed's `Adam` is AdamW here: the weight decay of {decay:g} is decoupled",
        f"{optimizer.key}.type",
        related=[(f"{optimizer.key}.params.weight_decay", "decays the weights, not the gradient")],
        notes=["`adam_w_mode: false` gives Adam with the decay added to the gradient"],
        fix=Fix(
            "write `AdamW`, which is what is trained",
            {_TYPE: "AdamW"},
            effect="the same steps, under their name",
        ),
    )


@gate(
    "OP008 adamw-ignores-adam-w-mode",
    severity="warning",
    unread="`AdamW` does not read it",
    cites=Cite("runtime/engine.py", "self.optimizer_name() == ADAMW_OPTIMIZER or adam_w_mode"),
)
def unread_adam_w_mode(ctx: Context) -> Findings:
    """AdamW with `adam_w_mode: false`.

    `optimizer.type: AdamW` with `adam_w_mode: false`.

    Why: Only `Adam` reads the flag. For `AdamW` DeepSpeed drops it, and the decay is decoupled all the same (run on
    0.19.8).

    Example:
        zero.stage: 1
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.lr: 1.0e-5
        deepspeed.optimizer.params.weight_decay: 0.1
        deepspeed.optimizer.params.adam_w_mode: false

    Use instead:
        zero.stage: 1
        deepspeed.optimizer.type: Adam
        deepspeed.optimizer.params.lr: 1.0e-5
        deepspeed.optimizer.params.weight_decay: 0.1
        deepspeed.optimizer.params.adam_w_mode: false
    """
    if ctx.optimizer.name == "adamw" and ctx.optimizer.params.get("adam_w_mode") is False:
        key = "deepspeed.optimizer.params.adam_w_mode"
        yield ctx.unread(
            f"{ctx.key(key)} has no effect on `AdamW`, only on `Adam`",
            key,
            related=[(_TYPE, "stays AdamW")],
            fix=ctx.fix_to_remove(key, "or write `Adam`", safe=True),
        )


def _is_torch_adamw(ctx: Context) -> bool:
    """Does DeepSpeed take torch's AdamW? (torch's Adam does not decay by default.)"""
    optimizer = ctx.optimizer
    if optimizer.params.get("torch_adam") is not True:
        return False
    return optimizer.name == "adamw" or (optimizer.name == "adam" and optimizer.params.get("adam_w_mode") is not False)


@gate(
    "OP009 torch-adam-decays-by-default",
    severity="warning",
    cites=(
        Cite("runtime/engine.py", "torch.optim.AdamW if adam_w_mode else torch.optim.Adam", since="0.19.6"),
        Cite("runtime/engine.py", "torch.optim.AdamW(model_parameters", until="0.19.5"),
    ),
)
def torch_adam_default_decay(ctx: Context) -> Findings:
    """Weight decay by torch's default.

    `torch_adam: true` without `weight_decay`, where DeepSpeed takes torch's AdamW.

    Why: FusedAdam and DeepSpeedCPUAdam have no weight decay by default; torch's AdamW has 0.01. Another implementation
    thus means another regularisation (run on 0.19.8: other losses).

    Example:
        zero.stage: 1
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.lr: 1.0e-5
        deepspeed.optimizer.params.torch_adam: true
    """
    if _is_torch_adamw(ctx) and not ctx.has_key("optimizer.params.weight_decay"):
        decay_key = "deepspeed.optimizer.params.weight_decay"
        yield ctx.finding(
            "torch's AdamW has a weight decay of 0.01 when no `weight_decay` is given",
            _TORCH_ADAM,
            notes=["DeepSpeed's own Adam has no weight decay by default"],
            fix=ctx.fix_to_set(decay_key, 0.01, "or to what is meant", effect="decays as now"),
        )


@gate(
    "OP016 amsgrad-not-implemented",
    upstream="raises",
    cites=(
        Cite("ops/adam/fused_adam.py", "FusedAdam does not support the AMSGrad variant."),
        Cite("ops/adam/cpu_adam.py", "DeepSpeedCPUAdam does not support the AMSGrad variant.", since="0.19.8"),
        Cite("ops/adam/cpu_adam.py", "amsgrad=False", until="0.19.7"),
    ),
)
def amsgrad_without_implementation(ctx: Context) -> Findings:
    """AMSGrad with an optimizer of DeepSpeed's that lacks it.

    `amsgrad: true` with DeepSpeed's own Adam, AdamW or Lamb.

    Why: `RuntimeError: FusedAdam does not support the AMSGrad variant` when the engine is built, and the same of
    DeepSpeedCPUAdam (run on 0.19.8), which up to 0.19.7 takes the key and silently trains without AMSGrad (read).
    torch's classes do support it.

    Example:
        zero.stage: 1
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.lr: 1.0e-5
        deepspeed.optimizer.params.weight_decay: 0.0
        deepspeed.optimizer.params.amsgrad: true
    """
    optimizer = ctx.optimizer
    if optimizer.name not in ("adam", "adamw", "lamb"):
        return
    if not optimizer.params.get("amsgrad") or optimizer.params.get("torch_adam"):
        return
    key = "deepspeed.optimizer.params.amsgrad"
    is_ignored = optimizer.name != "lamb" and ctx.is_optimizer_offloaded and ctx.target.version < (0, 19, 8)
    if optimizer.name == "lamb":
        fix = ctx.fix_to_remove(key, effect="trains without AMSGrad")
    else:
        fix = ctx.fix_to_set(_TORCH_ADAM, True, effect="torch's AdamW, slower")
    yield ctx.finding(
        f"DeepSpeed's {optimizer.type} has no AMSGrad variant",
        key,
        notes=[
            "DeepSpeedCPUAdam takes the key and silently trains without it"
            if is_ignored
            else "DeepSpeed refuses it when it builds the engine"
        ],
        fix=fix,
    )


@gate(
    "OP017 legacy-fusion-left-on",
    severity=("error", "warning"),
    unread="read at stage 0 in 16 bit alone",
    cites=Cite("runtime/engine.py", "fused_adam_legacy=self.optimizer_legacy_fusion(),"),
    when=lambda ctx: ctx.ds("optimizer.legacy_fusion") is True,
)
def leftover_legacy_fusion(ctx: Context) -> Findings:
    """A switch for an old FusedAdam.

    `optimizer.legacy_fusion: true`.

    Why: It makes the 16-bit optimizer of stage 0 call FusedAdam with the arguments of an old Apex: `RuntimeError:
    FusedAdam has been updated` at the first step. Everywhere else it is not read (run on 0.19.8).

    Example:
        precision.bf16: true
        zero.stage: 1
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.legacy_fusion: true
        deepspeed.optimizer.params.lr: 1.0e-5
    """
    optimizer = ctx.optimizer
    is_own_adam = optimizer.name in ("adam", "adamw") and not optimizer.params.get("torch_adam")
    is_fused = is_own_adam and not ctx.is_optimizer_offloaded
    is_fatal = is_fused and ctx.stage == 0 and (ctx.is_enabled("fp16") or ctx.is_enabled("bf16"))
    key = "deepspeed.optimizer.legacy_fusion"
    yield ctx.finding(
        f"{ctx.key(key)} {'makes the first step fail' if is_fatal else 'is read at stage 0 in 16-bit only'}",
        key,
        severity="error" if is_fatal else "warning",
        label="" if is_fatal else "has no effect",
        fix=ctx.fix_to_remove(key, safe=True),
    )


@gate(
    "OF021 torch-adam-offloaded",
    severity="warning",
    cites=Cite("runtime/engine.py", "torch_adam = optimizer_parameters.pop(TORCH_ADAM_PARAM, False)"),
    when=lambda ctx: ctx.stage > 0 and ctx.is_optimizer_offloaded,
)
def offloaded_torch_adam(ctx: Context) -> Findings:
    """Torch's Adam on the CPU.

    `torch_adam: true` in the optimizer's parameters with `zero.offload_optimizer`.

    Why: DeepSpeed then builds torch's AdamW and steps it on the CPU: correct, and several times slower than
    DeepSpeedCPUAdam (run on 0.19.8 at stages 2 and 3). Its default `weight_decay` is 0.01, DeepSpeed's is 0.

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: cpu
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.lr: 0.0001
        deepspeed.optimizer.params.weight_decay: 0.0
        deepspeed.optimizer.params.torch_adam: true
    """
    optimizer = ctx.optimizer
    if optimizer.name not in ("adam", "adamw") or optimizer.params.get("torch_adam") is not True:
        return
    if ctx.ds("zero_optimization.offload_optimizer.ratio", 1.0) < 1:
        return  # refused: OF013
    key = f"{optimizer.key}.params.torch_adam"
    yield ctx.finding(
        f"{ctx.key(key)} steps on the CPU in torch code, several times slower than DeepSpeedCPUAdam",
        key,
        related=[("zero.offload_optimizer.device", "offloaded here")],
        fix=Fix("remove it", {key: None}, effect="DeepSpeedCPUAdam: the same update, with other rounding"),
    )
