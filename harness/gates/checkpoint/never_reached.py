"""An interval that the run never reaches.

## What it checks
`checkpoint.save_steps` and `eval.eval_steps` against `train.max_steps`.

## Why it fails
An interval longer than the run never comes up: what is left is the checkpoint or evaluation at the end, if there is
one.

## Example
```yaml
train:
  max_steps: 100
checkpoint:
  save_steps: 500
```

## Use instead
```yaml
train:
  max_steps: 100
checkpoint:
  save_steps: 50
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("CK011", "interval-longer-than-the-run", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Intervals within the run."""
    spec = ctx.run.spec
    steps = spec.train.max_steps
    if steps is None:
        return
    half = max(1, steps // 2)
    for key, value in (
        ("checkpoint.save_steps", spec.checkpoint.save_steps),
        ("eval.eval_steps", spec.eval.eval_steps),
    ):
        if value is not None and value > steps:
            yield ctx.finding(
                f"{ctx.key(key)} is {value} and the run ends after {steps} steps",
                key,
                severity="warning",
                label="never comes up",
                related=[("train.max_steps", "the run ends here")],
                fix=Fix(f"set {ctx.key(key)} to {half}", {key: half}, effect="it comes up twice"),
            )
