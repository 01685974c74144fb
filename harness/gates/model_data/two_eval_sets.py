"""A held-out share beside evaluation data.

## What it checks
`data.eval` and `data.eval_fraction` are not both written.

## Why it fails
With evaluation data of its own nothing is held out of the training text, whatever the share says.

## Example
```yaml
data:
  eval: held_out/*.txt
  eval_fraction: 0.2
```

## Use instead
```yaml
data:
  eval: held_out/*.txt
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD012", "fraction-beside-evaluation-data", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """One of the two."""
    if ctx.run.spec.data.eval is None or "eval_fraction" not in ctx.run.spec.data.model_fields_set:
        return
    key = "data.eval_fraction"
    if ctx.run.spec.data.eval_fraction == 0:
        return  # says the same
    yield ctx.finding(
        f"{ctx.key(key)} is not read, since `data.eval` names the text to evaluate on",
        key,
        severity="warning",
        label="has no effect",
        related=[("data.eval", "this one decides")],
        fix=Fix("remove one of the two", {key: None}, safe=True),
    )
