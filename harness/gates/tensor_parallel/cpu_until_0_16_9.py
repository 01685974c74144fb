"""AutoTP on the CPU accelerator, up to 0.16.9.

## What it checks
A tensor degree with DeepSpeed 0.16.4 to 0.16.9 on the CPU accelerator.

## Why it fails
These releases ask torch for a device by a name that the CPU has not: "Invalid device string" at initialisation (run
on 0.16.9).

## Example
```yaml
parallel:
  tensor_parallel_size: 2
cluster:
  gpu: cpu
```

## Use instead
```yaml
zero:
  stage: 3
cluster:
  gpu: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "TP020",
    "autotp-on-cpu-before-0-17",
    upstream="crashes",
    since="0.16.4",
    until="0.16.9",
    needs=("the accelerator",),
    when=lambda ctx: ctx.tensor_parallel_size > 1,
    unseen="needs an older DeepSpeed",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A device name that the CPU has not."""
    if ctx.accelerator != "cpu":
        return
    key = "parallel.tensor_parallel_size"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} cannot train with AutoTP on the CPU accelerator",
        key,
        notes=["it fails at initialisation with `Invalid device string`"],
        fix=Fix(f"set {ctx.key(key)} to 1, or use a newer DeepSpeed", {key: 1}, effect="trains data parallel"),
    )
