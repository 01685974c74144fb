"""A run spec that names no model, or two.

## What it checks
Exactly one of `model.name_or_path` and `model.config` is given.

## Why it fails
There is nothing to train, or it is not clear what. DeepSpeed is not asked: it gets a model that exists.

## Example
```yaml
model:
  name_or_path: null
```

## Use instead
```yaml
model:
  name_or_path: meta-llama/Llama-3.1-8B
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD001", "no-model-or-two", upstream="raises", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """One model."""
    model = ctx.run.spec.model
    if model.name_or_path and model.config:
        yield ctx.finding(
            "`model.name_or_path` and `model.config` both name a model",
            "model.config",
            related=[("model.name_or_path", "the other one")],
            fix=Fix(
                "keep one: `name_or_path` starts from its weights, `config` from random ones",
                {"model.config": None},
                effect="trains from the weights in `name_or_path`",
            ),
        )
    elif not model.name_or_path and not model.config:
        yield ctx.finding(
            "neither `model.name_or_path` nor `model.config` names a model",
            "model.name_or_path",
            fix=Fix(
                "set `model.name_or_path` to a folder or Hub name, or write out `model.config`",
                {"model.name_or_path": "meta-llama/Llama-3.1-8B"},
                effect="decides what is trained",
            ),
        )
    elif model.config is not None and "model_type" not in model.config:
        yield ctx.finding(
            "`model.config` has no `model_type`, so its architecture is unknown",
            "model.config",
            fix=Fix(
                "set `model.config.model_type`, such as `llama`",
                {"model.config.model_type": "llama"},
                effect="decides what is trained",
            ),
        )
