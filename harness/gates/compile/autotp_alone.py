"""The AutoTP pass beside other passes.

## What it checks
`compile.passes` has `autotp` and something else.

## Why it fails
The passes are not made to be composed yet: `engine.compile()` raises NotImplementedError (run on 0.19.8 with `autotp`
and `z1`).

## Example
```yaml
zero:
  stage: 1
parallel:
  tensor_parallel_size: 2
deepspeed:
  compile:
    passes: [autotp, z1]
```

## Use instead
```yaml
zero:
  stage: 1
parallel:
  tensor_parallel_size: 2
deepspeed:
  compile:
    passes: [autotp]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CC005",
    "autotp-pass-with-others",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "The AutoTP compile pass cannot yet be combined with AutoSP or the ZeRO "),),
    since="0.19.7",
    when=lambda ctx: ctx.has_key("compile"),
    unseen="refused by engine.compile(), which needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Alone or not at all."""
    passes = ctx.ds("compile.passes")
    if not isinstance(passes, list) or "autotp" not in passes or len(set(map(str, passes))) == 1:
        return
    key = ctx.spec_key("compile.passes")
    others = ", ".join(f"`{name}`" for name in passes if name != "autotp")
    yield ctx.finding(
        f"the pass `autotp` cannot run together with {others}",
        key,
        notes=["`engine.compile()` refuses it, after the engine has been built"],
        fix=Fix(f"set {ctx.key(key)} to autotp alone", {key: ["autotp"]}, effect="the other passes do not run"),
    )
