"""Options of DeepCompile while it is off.

## What it checks
`compile.free_activation`, `offload_activation`, `offload_opt_states`, `offload_parameters`, `symmetric_memory` and
`debug_log` without `compile.deepcompile: true`.

## Why it fails
They are read by DeepCompile's passes alone. With `deepcompile` false, which is the default, `engine.compile()` is the
plain torch compiler and nothing is offloaded (read in 0.19.8).

## Example
```yaml
zero:
  stage: 3
deepspeed:
  compile:
    offload_parameters: true
```

## Use instead
```yaml
zero:
  stage: 3
deepspeed:
  compile:
    deepcompile: true
    offload_parameters: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_OPTIONS = (
    "free_activation",
    "offload_activation",
    "offload_opt_states",
    "offload_parameters",
    "symmetric_memory",
    "debug_log",
)


@gate(
    "CC007",
    "deepcompile-options-while-it-is-off",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "compile_config = self._config.compile_config"),),
    since="0.16.6",
    when=lambda ctx: ctx.has_key("compile"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Options of something that is off."""
    if ctx.ds("compile.deepcompile") is True or ctx.ds("compile.passes"):
        return
    names = [name for name in _OPTIONS if ctx.ds(f"compile.{name}") is True]
    if not names:
        return
    key = ctx.spec_key(f"compile.{names[0]}")
    yield ctx.finding(
        f"{ctx.key(key)} is read only when `deepcompile` is true",
        key,
        severity="warning",
        label="has no effect",
        related=[(ctx.spec_key(f"compile.{name}"), "nor has this") for name in names[1:]],
        fix=Fix(
            "set `deepcompile` to true, or remove it", {ctx.spec_key(f"compile.{n}"): None for n in names}, safe=True
        ),
    )
