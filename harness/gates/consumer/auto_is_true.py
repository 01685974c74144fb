"""An "auto" that counts as true.

## What it checks
"auto" for a switch that DeepSpeed reads without looking at its type, such as `prescale_gradients`,
`torch_autocast.enabled` or `checkpoint.load_universal`.

## Why it fails
Any text that is not empty is true there, so the switch is on: with `torch_autocast.enabled: "auto"` the forward pass
runs under autocast (run on 0.19.8). Neither the Trainer nor accelerate fills in any of these.

## Example
```yaml
deepspeed:
  prescale_gradients: auto
```

## Use instead
```yaml
deepspeed:
  prescale_gradients: false
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.consumer.autos import left_to_deepspeed, read_by_deepspeed
from harness.gates.registry import Cite, Context, gate


@gate(
    "HF002",
    "auto-that-counts-as-true",
    upstream="silent",
    cites=(Cite("runtime/config_utils.py", "return param_dict.get(param_name, param_default_value)"),),
    when=read_by_deepspeed,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Switches that are read by truth."""
    for name in left_to_deepspeed(ctx, "true"):
        key = ctx.spec_key(name)
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which DeepSpeed takes for true as it does any text',
            key,
            notes=["nobody fills in this one"],
            fix=Fix("write `true` or `false`", {key: False}, effect="it is off"),
        )
