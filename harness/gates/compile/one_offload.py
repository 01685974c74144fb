"""More than one offload target of DeepCompile.

## What it checks
`compile.offload_activation`, `compile.offload_parameters` and `compile.offload_opt_states`: at most one is true.

## Why it fails
Each plans the whole free memory for itself, so `engine.compile()` refuses two of them at stage 3 (run on 0.19.8).

## Example
```yaml
zero:
  stage: 3
deepspeed:
  compile:
    deepcompile: true
    offload_activation: true
    offload_parameters: true
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  compile:
    deepcompile: true
    offload_activation: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CC004",
    "several-offloads-of-deepcompile",
    upstream="raises",
    cites=(
        Cite("compile/init_z3.py", "compile.offload_activation cannot be combined with offload_parameters or "),
        Cite("compile/init_z3.py", "offload_parameters and offload_opt_states cannot be enabled together; "),
    ),
    since="0.19.7",
    when=lambda ctx: ctx.has_key("compile"),
    unseen="refused by engine.compile(), which needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Choose one."""
    if ctx.ds("compile.deepcompile") is not True or ctx.stage != 3:
        return
    names = [
        n for n in ("offload_activation", "offload_parameters", "offload_opt_states") if ctx.ds(f"compile.{n}") is True
    ]
    if len(names) < 2:
        return
    key = ctx.spec_key(f"compile.{names[1]}")
    yield ctx.finding(
        f"{' and '.join(f'`{name}`' for name in names)} of {ctx.key('deepspeed.compile')} exclude each other",
        key,
        related=[(ctx.spec_key(f"compile.{names[0]}"), "the other one")],
        notes=["each plans the whole free memory for itself"],
        fix=Fix(
            f"keep `{names[0]}` alone",
            {ctx.spec_key(f"compile.{n}"): None for n in names[1:]},
            effect="the others stay",
        ),
    )
