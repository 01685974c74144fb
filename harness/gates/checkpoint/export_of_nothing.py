"""An export at the end of a run that saves nothing.

## What it checks
`export.at_end: true` with `checkpoint.save_at_end: false`, and no `checkpoint.save_steps` that is reached.

## Why it fails
The export reads the last checkpoint. A run that writes none trains to the end, and then there is nothing to export.

## Example
```yaml
export:
  at_end: true
checkpoint:
  save_at_end: false
```

## Use instead
```yaml
export:
  at_end: true
checkpoint:
  save_total_limit: 1
  save_steps: 5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("CK008", "export-without-a-checkpoint", upstream="wrong", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """What is exported must have been saved."""
    spec = ctx.run.spec
    save = spec.checkpoint.save_steps
    if not spec.export.at_end or spec.checkpoint.save_at_end:
        return
    if save is not None and save <= (spec.train.max_steps or save):
        return
    yield ctx.finding(
        f"{ctx.key('export.at_end')} finds no checkpoint, since {ctx.key('checkpoint.save_at_end')} is false",
        "export.at_end",
        related=[("checkpoint.save_at_end", "nothing is saved at the end")],
        notes=["the run would train to its end, and its weights would be gone"],
        fix=Fix(
            "set `checkpoint.save_at_end` to true", {"checkpoint.save_at_end": True}, effect="a checkpoint at the end"
        ),
    )
