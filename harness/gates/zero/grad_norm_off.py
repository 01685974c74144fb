"""The gradient norm is switched off where it is needed.

## What it checks
`compute_grad_norm: false` in `zero_optimization` together with anything that needs the norm: a stage other than 1 and
2, gradient clipping, ZenFlow, an offloaded optimizer, or stage 1 with bf16 and fp32 accumulation.

## Why it fails
DeepSpeed refuses stages 0 and 3 while it reads the configuration, and the others when the optimizer is built. Clipping
is on unless `0.0` is written: its default is 1.0 since DeepSpeed 0.19.3 (run on 0.19.8).

## Example
```yaml
zero:
  stage: 2
precision:
  bf16: true
train:
  max_grad_norm: 1.0
deepspeed:
  zero_optimization:
    compute_grad_norm: false
```

## Use instead
```yaml
zero:
  stage: 2
precision:
  bf16: true
train:
  max_grad_norm: 0.0
deepspeed:
  zero_optimization:
    compute_grad_norm: false
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


def _needed_by(ctx: Context) -> tuple[str, str] | None:
    """What cannot do without the norm, and the key that asks for it."""
    if ctx.stage not in (1, 2):
        return f"only stages 1 and 2 can do without the norm, this is stage {ctx.stage}", "zero.stage"
    if ctx.gradient_clipping > 0 and not ctx.is_auto("gradient_clipping"):
        return f"gradients are clipped at {ctx.gradient_clipping:g}", "train.max_grad_norm"
    if ctx.ds("zero_optimization.zenflow") is not None:
        return "ZenFlow needs the norm", ctx.spec_key("zero_optimization.zenflow")
    if ctx.offload_device("offload_optimizer") != "none":
        return "an offloaded optimizer needs the norm", "zero.offload_optimizer.device"
    accumulation = str(ctx.ds("data_types.grad_accum_dtype", "")).lower()
    if ctx.stage == 1 and ctx.is_enabled("bf16") and accumulation in ("fp32", "torch.float32"):
        return "the bf16 optimizer of stage 1 needs the norm", ctx.spec_key("data_types.grad_accum_dtype")
    return None


@gate(
    "ZR012",
    "gradient-norm-off-where-it-is-needed",
    upstream="raises",
    cites=(
        Cite("runtime/zero/config.py", "compute_grad_norm=false is supported only with ZeRO Stage 1 or 2"),
        Cite("runtime/zero/stage_1_and_2.py", "zero_optimization.compute_grad_norm=false requires gradient_clipping=0"),
    ),
    since="0.19.7",
    when=lambda ctx: ctx.ds("zero_optimization.compute_grad_norm") is False,
)
def check(ctx: Context) -> Iterator[Finding]:
    """What needs the norm."""
    reason = _needed_by(ctx)
    if reason is None:
        return
    what, where = reason
    key = ctx.spec_key("zero_optimization.compute_grad_norm")
    yield ctx.finding(
        f"{ctx.key(key)} is `false`, but {what}",
        key,
        related=[(where, "set here")],
        fix=Fix(
            f"remove {ctx.key(key)}",
            {key: None},
            safe=True,
            effect="the norm is computed in each step, as it is by default",
        ),
    )
