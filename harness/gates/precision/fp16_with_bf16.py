"""fp16 and bf16 at once.

## What it checks
`precision.fp16` and `precision.bf16` both true.

## Why it fails
Weights have one format. DeepSpeed asserts it while it reads the configuration; under `python -O` the assertion is
gone and it is accepted.

## Example
```yaml
precision:
  fp16: true
  bf16: true
zero:
  stage: 1
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR001",
    "fp16-with-bf16",
    upstream="asserts",
    cites=(Cite("runtime/config.py", "bfloat16 and fp16 modes cannot be simultaneously enabled"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One 16-bit format at most."""
    precision = ctx.run.spec.precision
    if not (precision.fp16 and precision.bf16):
        return
    yield ctx.finding(
        f"{ctx.key('precision.fp16')} and {ctx.key('precision.bf16')} are both on",
        "precision.fp16",
        related=[("precision.bf16", "and here")],
        notes=["DeepSpeed asserts this when it reads its configuration, on every rank"],
        fix=Fix(
            f"set {ctx.key('precision.fp16')} to false",
            {"precision.fp16": False},
            effect="trains in bf16, without loss scaling",
        ),
    )
