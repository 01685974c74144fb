"""Expert parallelism on a model without experts.

## What it checks
`expert_parallel.enabled` with a model that is known to be dense.

## Why it fails
AutoEP finds no layer to replace, writes "AutoEP: no MoE layers detected in model." and trains data parallel (run on
0.19.8).

## Example
```yaml
model:
  name_or_path: meta-llama/Llama-3.1-8B
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```

## Use instead
```yaml
model:
  name_or_path: mistralai/Mixtral-8x7B-v0.1
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import enabled
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX003",
    "expert-parallelism-of-a-dense-model",
    upstream="silent",
    cites=(Cite("module_inject/auto_ep.py", "no MoE layers detected in model"),),
    since="0.19.2",
    needs=("model facts",),
    when=enabled,
    unseen="its other half needs a transformers whose router AutoEP of 0.19.8 can replace",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Experts to deal out."""
    if ctx.model is None or ctx.model.built or ctx.model.experts:
        return
    key = "deepspeed.expert_parallel.enabled"
    yield ctx.finding(
        f"a `{ctx.model.family}` model has no experts to deal out",
        key,
        label="has no effect",
        related=[("model.name_or_path", "the model"), ("model.config", "the model")],
        notes=["DeepSpeed warns and trains data parallel"],
        fix=Fix(f"set {ctx.key(key)} to false", {key: False}, safe=True, effect="as DeepSpeed does anyway"),
    )
