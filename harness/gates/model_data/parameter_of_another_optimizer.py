"""A parameter that this optimizer does not have.

## What it checks
`optimizer.momentum` with `adamw` and `adam`; `optimizer.betas` and `optimizer.eps` with `sgd`.

## Why it fails
The harness hands DeepSpeed only what the optimizer takes, since DeepSpeed would refuse the rest. A parameter of
another optimizer is left out.

## Example
```yaml
optimizer:
  type: adamw
  momentum: 0.9
```

## Use instead
```yaml
optimizer:
  type: sgd
  momentum: 0.9
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD009", "parameter-of-another-optimizer", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Each has its own."""
    kind = ctx.run.spec.optimizer.type
    for name in ("betas", "eps") if kind == "sgd" else ("momentum",):
        key = f"optimizer.{name}"
        if name not in ctx.run.spec.optimizer.model_fields_set or "optimizer" in ctx.run.spec.deepspeed:
            continue
        yield ctx.finding(
            f"{ctx.key(key)} is no parameter of {kind}",
            key,
            severity="warning",
            label="has no effect",
            related=[("optimizer.type", "the optimizer is chosen here")],
            fix=Fix(f"remove {ctx.key(key)}, or change the type", {key: None}, safe=True),
        )
