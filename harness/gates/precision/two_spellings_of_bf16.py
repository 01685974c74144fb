"""`bf16` and `bfloat16` at once.

## What it checks
Both blocks in one configuration.

## Why it fails
`bfloat16` is the old name of `bf16`. Where both are written, DeepSpeed takes `bf16` and drops the other one whole,
without a word (run on 0.19.8): with `bf16.enabled: false` and `bfloat16.enabled: true` the model is trained in fp32.

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "zero_optimization": {"stage": 1},
  "bf16": {"enabled": false},
  "bfloat16": {"enabled": true}
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "zero_optimization": {"stage": 1},
  "bf16": {"enabled": true}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR005",
    "two-spellings-of-bf16",
    upstream="silent",
    cites=(Cite("runtime/precision_config.py", "bf16_config_dict = param_dict.get(BFLOAT16_OLD, {})"),),
    when=lambda ctx: ctx.has_key("bf16") and ctx.has_key("bfloat16"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One of the two names."""
    asked = ctx.is_enabled("bfloat16")
    lost = asked and not ctx.is_enabled("bf16") and not ctx.is_auto("bf16.enabled")
    effect = "; it is off, so the model is trained in fp32" if lost else ""
    yield ctx.finding(
        f"{ctx.key('deepspeed.bfloat16')} is dropped because `bf16` is there too{effect}",
        "deepspeed.bfloat16",
        label="not read",
        related=[("precision.bf16", "this one counts")],
        of_key=True,
        fix=Fix(
            f"remove {ctx.key('deepspeed.bfloat16')}"
            + (f" and set {ctx.key('precision.bf16')} to true" if lost else ""),
            {"deepspeed.bfloat16": None} | ({"precision.bf16": True} if lost else {}),
            safe=not lost,
            effect="trains in bf16 instead of fp32" if lost else "",
        ),
        severity="error" if lost else "warning",
    )
