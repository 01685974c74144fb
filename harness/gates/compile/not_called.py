"""DeepCompile asked of a run that does not compile.

## What it checks
On `harness launch`: `compile.deepcompile` or `compile.autoep_non_moe` is true only with `train.torch_compile: true`.

## Why it fails
The keys only prepare what `engine.compile()` does; a script that never calls it trains as if they were not there (run
on 0.19.8 with stages 0, 1 and 3). The harness calls it for `train.torch_compile: true`.

## Example
```yaml
zero:
  stage: 3
deepspeed:
  compile:
    deepcompile: true
```

## Use instead
```yaml
zero:
  stage: 3
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CC001",
    "compile-that-nobody-calls",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "def compile(self,"),),
    needs=("a run spec", "a launch"),
    since="0.16.6",
    unseen="the loop of the harness is what is judged",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Nothing is compiled unless the script says so."""
    if ctx.run.spec.train.torch_compile:
        return
    for name in ("deepcompile", "autoep_non_moe"):
        key = ctx.spec_key(f"compile.{name}")
        if ctx.ds(f"compile.{name}") is True:
            yield ctx.finding(
                f"{ctx.key(key)} has no effect without `train.torch_compile: true`",
                key,
                label="has no effect",
                fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True),
            )
