"""An "auto" that DeepSpeed drops for its default.

## What it checks
"auto" in a block that DeepSpeed reads with a model of types, such as `zero_optimization`, `bf16` or `comms_logger`,
where neither the Hugging Face Trainer nor accelerate reads the file first.

## Why it fails
DeepSpeed drops such values before it looks at the block, and says nothing: `stage` becomes 0, `bf16.enabled` false, an
offload device `none`, a bucket size its default (run on 0.19.8). Only the Trainer and accelerate fill "auto" in.

## Example
```yaml
deepspeed:
  comms_logger:
    enabled: true
    verbose: auto
```

## Use instead
```yaml
deepspeed:
  comms_logger:
    enabled: true
    verbose: false
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.consumer.autos import left_to_deepspeed, read_by_deepspeed
from harness.gates.registry import Cite, Context, gate


@gate(
    "HF001",
    "auto-dropped-for-the-default",
    upstream="silent",
    cites=(Cite("runtime/config_utils.py", 'if (v != "auto" or k == "replace_method")'),),
    when=read_by_deepspeed,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Typed blocks lose their "auto" values."""
    import json

    from harness.facts.deepspeed_keys import MISSING, block_keys

    for name in left_to_deepspeed(ctx, "default"):
        parent, _, last = name.rpartition(".")
        known = (block_keys(parent) or {}).get(last)
        default = known.default_at(ctx.target.version) if known is not None else MISSING
        shown = "" if default is MISSING or isinstance(default, (dict, list)) else f", `{json.dumps(default)}`"
        key, moves = ctx.spec_key(name), last in ("device", "nvme_path")
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which DeepSpeed drops in silence for its default{shown}',
            key,
            notes=["the Hugging Face Trainer and accelerate fill such values in, DeepSpeed does not"],
            fix=Fix(
                "write the value; to remove the key says the same as now",
                {key: None},
                safe=not moves,
                effect="nothing is offloaded, as now" if moves else "",
            ),
        )
