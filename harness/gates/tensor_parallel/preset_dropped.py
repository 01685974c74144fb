r"""A preset that the partition plan beside it switches off.

## What it checks
`tensor_parallel.preset_model` together with a `partition_config` that says `use_default_specs: false`.

## Why it fails
With `use_default_specs: false` the plan replaces the preset instead of adding to it; the preset is dropped in
silence, and layers that only it names are not sharded (read in 0.19.8).

## Example
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    preset_model: llama
    partition_config:
      use_default_specs: false
      layer_specs:
        - patterns: ['.*\.mlp\.gate\.weight$']
          partition_type: skip
```

## Use instead
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    preset_model: llama
    partition_config:
      use_default_specs: true
      layer_specs:
        - patterns: ['.*\.mlp\.gate\.weight$']
          partition_type: skip
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate
from harness.gates.tensor_parallel.shapes import PRESETS


@gate(
    "TP016",
    "preset-without-default-specs",
    upstream="silent",
    cites=(Cite("runtime/tensor_parallel/config.py", "if config and custom_config.use_default_specs:"),),
    since="0.18.6",
    when=lambda ctx: (
        ctx.tensor_parallel_size > 1 and ctx.ds("tensor_parallel.partition_config.use_default_specs") is False
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """One or the other."""
    preset = ctx.ds("tensor_parallel.preset_model")
    if str(preset).lower() not in PRESETS:
        return
    key, flag = "deepspeed.tensor_parallel.preset_model", "deepspeed.tensor_parallel.partition_config.use_default_specs"
    yield ctx.finding(
        f"the preset `{preset}` is dropped: `partition_config` says `use_default_specs: false`",
        key,
        label="has no effect",
        related=[(flag, "switches the preset off")],
        notes=["layers that only the preset names are not sharded"],
        fix=Fix(f"set {ctx.key(flag)} to true", {flag: True}, effect="the preset's layers are sharded as well"),
        severity="warning",
    )
