"""Autocast without a number format.

## What it checks
`torch_autocast.enabled` without `torch_autocast.dtype`.

## Why it fails
DeepSpeed hands `None` to `torch.autocast`, which takes the device's own default: bf16 on a CPU (run on 0.19.8), fp16 on
CUDA (read in torch). DeepSpeed sets up loss scaling only where it was told fp16, so that on CUDA this trains in fp16
without it and small gradients vanish.

## Example
```yaml
deepspeed:
  torch_autocast:
    enabled: true
```

## Use instead
```yaml
deepspeed:
  torch_autocast:
    enabled: true
    dtype: bfloat16
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR008",
    "autocast-without-format",
    upstream="silent",
    since="0.17.2",
    cites=(Cite("runtime/engine.py", "self.torch_autocast_dtype() == torch.float16"),),
    when=lambda ctx: ctx.is_enabled("torch_autocast"),
    unseen="needs CUDA, where torch's default is fp16",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Say which format."""
    if ctx.ds("torch_autocast.dtype") is not None:
        return
    cpu = ctx.accelerator == "cpu"
    place = "deepspeed.torch_autocast.dtype"
    yield ctx.finding(
        f"{ctx.key('deepspeed.torch_autocast')} names no `dtype`: "
        + ("torch takes bf16 on a CPU" if cpu else "on CUDA that is fp16 without loss scaling"),
        "deepspeed.torch_autocast.enabled",
        label="in which format?",
        fix=Fix(f"set {ctx.key(place)} to `bfloat16`", {place: "bfloat16"}, safe=cpu, effect="computes in bf16"),
        severity="warning" if cpu else "error",
    )
