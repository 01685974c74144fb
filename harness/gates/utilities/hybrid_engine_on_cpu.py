"""The hybrid engine without a GPU.

## What it checks
`hybrid_engine.enabled: true` on the CPU accelerator (`cluster.gpu: cpu`, or what a launch finds).

## Why it fails
The hybrid engine brings DeepSpeed's inference kernels for generation between training steps, and there are none for the
CPU: "This op had not been implemented on CPU backend." when the engine is built, after every rank has its weights (run
on 0.19.8).

## Example
```yaml
cluster:
  gpu: cpu
deepspeed:
  hybrid_engine:
    enabled: true
```

## Use instead
```yaml
cluster:
  gpu: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT018",
    "hybrid-engine-on-the-cpu",
    upstream="raises",
    cites=(Cite("ops/op_builder/cpu/no_impl.py", "This op had not been implemented on CPU backend."),),
    needs=("the accelerator",),
    when=lambda ctx: ctx.is_enabled("hybrid_engine"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Its kernels are for GPUs."""
    if ctx.accelerator != "cpu":
        return
    key = ctx.spec_key("hybrid_engine.enabled")
    yield ctx.finding(
        f"{ctx.key(key)} needs kernels that DeepSpeed does not have for the CPU",
        key,
        label="fails when the engine is built",
        fix=Fix("remove the block", {"deepspeed.hybrid_engine": None}, safe=True, effect="training itself is the same"),
    )
