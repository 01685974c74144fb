"""bf16 on a GPU that does not compute in it.

## What it checks
`precision.bf16` with a `cluster.gpu` older than Ampere: V100, T4, P100, RTX 20.

## Why it fails
These have no bf16 units. torch says that bf16 is supported, since it emulates it, DeepSpeed believes it, and training
is slower than in fp32. fp16 has the tensor cores there (read in torch 2.13).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 2
cluster:
  gpu: V100-32GB
```

## Use instead
```yaml
precision:
  fp16: true
zero:
  stage: 2
cluster:
  gpu: V100-32GB
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_OLD = ("v100", "t4", "p100", "rtx 20", "rtx20", "titan")


@gate(
    "PR014",
    "bf16-on-an-old-gpu",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "Type bf16 is not supported on your device."),),
    when=lambda ctx: ctx.is_enabled("bf16") and ctx.run.spec.cluster.gpu is not None,
    unseen="needs a GPU older than Ampere",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Emulated, and slow."""
    name = str(ctx.run.spec.cluster.gpu)
    if not name.lower().startswith(_OLD):
        return
    yield ctx.finding(
        f"a {name[:30]} has no bf16 arithmetic: torch emulates it, slower than fp32",
        "precision.bf16",
        related=[("cluster.gpu", "older than Ampere")],
        fix=Fix(
            f"set {ctx.key('precision.bf16')} to false and {ctx.key('precision.fp16')} to true",
            {"precision.bf16": False, "precision.fp16": True},
            effect="trains in fp16, with loss scaling",
        ),
        severity="warning",
    )
