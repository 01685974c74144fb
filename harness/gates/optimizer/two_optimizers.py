"""Two optimizers, one of them unused.

## What it checks
The run spec's own `optimizer` section beside `deepspeed.optimizer`.

## Why it fails
DeepSpeed builds one optimizer. The harness renders `deepspeed.optimizer` when it is there, and the other section, its
learning rate too, is not read.

## Example
```yaml
zero:
  stage: 1
optimizer:
  learning_rate: 3.0e-4
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-3
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-3
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_OWN = ("type", "learning_rate", "weight_decay", "betas", "eps", "momentum")


@gate(
    "OP038",
    "two-optimizers",
    upstream="silent",
    cites=(Cite("runtime/config.py", "return param_dict[OPTIMIZER][OPTIMIZER_PARAMS]"),),
    needs=("a run spec",),
    when=lambda ctx: ctx.run.kind == "spec" and ctx.optimizer.key == "deepspeed.optimizer",
)
def check(ctx: Context) -> Iterator[Finding]:
    """One of the two."""
    written = [f"optimizer.{name}" for name in _OWN if ctx.source.has_key(f"optimizer.{name}")]
    if not written:
        return
    yield ctx.finding(
        f"{ctx.key(written[0])} is not used: {ctx.key('deepspeed.optimizer')} counts",
        written[0],
        label="not used",
        related=[("deepspeed.optimizer.type", "this one counts")],
        fix=Fix(f"remove {ctx.key('optimizer')}", {"optimizer": None}, safe=True),
        severity="warning",
    )
