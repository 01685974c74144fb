"""Options of a named model where none is named.

## What it checks
`model.revision` and `model.random_init` without `model.name_or_path`.

## Why it fails
A model that is written out in `model.config` has no revision, and its weights are random in any case.

## Example
```yaml
model:
  config: {model_type: llama}
  revision: main
```

## Use instead
```yaml
model:
  config: {model_type: llama}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD017", "options-of-a-named-model", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Nothing to look up."""
    model = ctx.run.spec.model
    if model.name_or_path is not None or model.config is None:
        return
    for name in ("revision", "random_init"):
        key = f"model.{name}"
        if getattr(model, name):
            yield ctx.finding(
                f"{ctx.key(key)} is for a model that `model.name_or_path` names",
                key,
                severity="warning" if name == "revision" else "info",
                label="has no effect",
                fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True),
            )
