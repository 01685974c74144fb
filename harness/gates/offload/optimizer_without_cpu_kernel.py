"""An offloaded optimizer without a CPU kernel.

## What it checks
`zero.offload_optimizer` with an optimizer for which DeepSpeed has no CPU implementation: any but Adam, AdamW, Adagrad,
Lion and Muon.

## Why it fails
An optimizer of torch is stepped in torch code on the CPU: correct, and several times slower than DeepSpeed's own
kernels (run on 0.19.8 with SGD). LAMB is a CUDA kernel and cannot step tensors on the host at all (read).

## Example
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
optimizer:
  type: sgd
```

## Use instead
```yaml
zero:
  stage: 2
optimizer:
  type: sgd
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_WITH_KERNEL = ("", "adam", "adamw", "adagrad", "lion", "muon")


@gate(
    "OF020",
    "offloaded-optimizer-without-a-cpu-kernel",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "torch_optimizer = getattr(torch.optim, self.optimizer_name())"),),
    when=lambda ctx: ctx.stage > 0 and ctx.offload_device("offload_optimizer") != "none",
)
def check(ctx: Context) -> Iterator[Finding]:
    """DeepSpeed has CPU kernels for five."""
    optimizer = ctx.optimizer
    ours = ctx.run.kind == "spec" and optimizer.key == "optimizer"  # then the harness allows what ZeRO has not tested
    allowed = ours or bool(ctx.ds("zero_allow_untested_optimizer", False))
    if optimizer.name in _WITH_KERNEL or not allowed:
        return
    lamb = optimizer.name == "lamb"
    why = "is a CUDA kernel and cannot step on the CPU" if lamb else "has no CPU kernel and steps in torch code"
    yield ctx.finding(
        f"the optimizer is offloaded, and {optimizer.type} {why}",
        f"{optimizer.key}.type",
        label="no CPU kernel",
        related=[("zero.offload_optimizer.device", "offloaded here")],
        fix=Fix(
            f"remove {ctx.key('zero.offload_optimizer')}, or take AdamW, Adagrad or Lion",
            {"zero.offload_optimizer": None},
            effect="the same steps, with the optimizer on the device",
        ),
        severity="error" if lamb else "warning",
    )
