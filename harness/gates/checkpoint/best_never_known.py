"""The best checkpoint is to be kept, and no saved step is ever evaluated.

## What it checks
`checkpoint.keep_best` where evaluations and saves never fall on the same step before the last.

## Why it fails
Which checkpoint is best is known from the held-out loss of its own step. An evaluation at the end of the run comes
after the last removal, and one between two saves is of weights that nobody kept.

## Example
```yaml
checkpoint:
  save_steps: 5
  save_total_limit: 1
  keep_best: true
```

## Use instead
```yaml
checkpoint:
  save_steps: 5
  save_total_limit: 1
  keep_best: true
eval:
  eval_steps: 5
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("CK013", "best-that-is-never-known", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """The first step that is both saved and evaluated must come before the last."""
    spec = ctx.run.spec
    save, evaluate, last = spec.checkpoint.save_steps, spec.eval.eval_steps, spec.train.max_steps
    if not spec.checkpoint.keep_best or save is None:
        return
    first = math.lcm(save, evaluate) if evaluate else None
    if first is not None and (last is None or first < last):
        return
    key = "checkpoint.keep_best"
    never = f"steps {save} and {evaluate} meet at step {first}" if first else "`eval.eval_steps` is not set"
    yield ctx.finding(
        f"{ctx.key(key)} never learns which checkpoint is best: {never}",
        key,
        severity="warning",
        label="has no effect",
        fix=Fix(f"set `eval.eval_steps: {save}`", {"eval.eval_steps": save}, effect="an evaluation at each save"),
    )
