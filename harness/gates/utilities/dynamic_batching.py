"""Dynamic batching without a size.

## What it checks
`data_efficiency.data_sampling.dynamic_batching.enabled: true` without `max_tokens`.

## Why it fails
Batches are filled up to `max_tokens`; DeepSpeed asserts that it is there while it reads the file, also where an outer
switch is off (run on 0.19.8).

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "data_efficiency": {
    "enabled": true,
    "data_sampling": {"enabled": true, "dynamic_batching": {"enabled": true}}
  }
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "data_efficiency": {
    "enabled": true,
    "data_sampling": {"enabled": true, "dynamic_batching": {"enabled": true, "max_tokens": 4096}}
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT009",
    "dynamic-batching-without-max-tokens",
    upstream="asserts",
    cites=(Cite("runtime/data_pipeline/config.py", "Dynamic batching is enabled, so "),),
    when=lambda ctx: ctx.has_key("data_efficiency.data_sampling.dynamic_batching"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A batch needs a size."""
    block = "data_efficiency.data_sampling.dynamic_batching"
    if not ctx.is_enabled(block) or ctx.has_key(f"{block}.max_tokens"):
        return
    key = ctx.spec_key(f"{block}.enabled")
    yield ctx.finding(
        f"{ctx.key(key)} is true and `max_tokens` is not given",
        key,
        notes=["batches are filled up to `max_tokens`"],
        fix=Fix("set `max_tokens`, or switch it off", {key: False}, effect="batches of a fixed number of samples"),
    )
