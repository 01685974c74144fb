"""Two lists that say which parameters are trained.

## What it checks
`model.freeze` and `model.train_only` are not both given, nor `model.train_only` beside `model.lora`.

## Why it fails
Each of the two lists says it all: what is frozen, or what is not. Adapters freeze everything else by themselves, so
that a list of the only parameters to train would have to name them.

## Example
```yaml
model:
  freeze: ["*embed_tokens*"]
  train_only: ["model.layers.*"]
```

## Use instead
```yaml
model:
  freeze: ["*embed_tokens*"]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD030", "two-ways-to-freeze", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """One way."""
    model = ctx.run.spec.model
    other = "freeze" if model.freeze else "lora" if model.lora else None
    if model.train_only and other:
        yield ctx.finding(
            f"`model.train_only` and `model.{other}` both say which parameters are trained",
            "model.train_only",
            related=[(f"model.{other}", "the other")],
            fix=Fix("remove `model.train_only`", {"model.train_only": None}, effect="changes what is trained"),
        )
