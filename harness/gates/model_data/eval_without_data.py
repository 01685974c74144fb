"""Evaluation of nothing.

## What it checks
A key of the `eval` section while `data.eval` is not given and `data.eval_fraction` is 0.

## Why it fails
Nothing is held out, so that nothing is evaluated, at the end either.

## Example
```yaml
data:
  eval_fraction: 0.0
eval:
  eval_steps: 5
```

## Use instead
```yaml
data:
  eval_fraction: 0.1
eval:
  eval_steps: 5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD011", "evaluation-without-data", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Something must be held out."""
    data = ctx.run.spec.data
    if data.eval is not None or data.eval_fraction > 0:
        return
    for name in ("eval_steps", "per_device_eval_batch_size", "max_batches"):
        key = f"eval.{name}"
        if name in ctx.run.spec.eval.model_fields_set:
            yield ctx.finding(
                f"{ctx.key(key)} has nothing to evaluate on: `data.eval_fraction` is 0 and `data.eval` is not given",
                key,
                severity="warning",
                label="has no effect",
                related=[("data.eval_fraction", "nothing is held out")],
                fix=Fix("give `data.eval`, or hold something out", {key: None}, safe=True),
            )
