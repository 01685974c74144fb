"""A spec that allows its own code.

## What it checks
`launch.env` does not set `HARNESS_ALLOWED_CODE`.

## Why it fails
The variable tells the ranks which file of yours they may run. A spec may come from somebody else: only whoever starts
the run can allow code, by `harness launch --allow-local-code`.

## Example
```yaml
plugins:
  file: my_code.py
launch:
  env:
    HARNESS_ALLOWED_CODE: 0f3c
```

## Use instead
```yaml
plugins:
  file: my_code.py
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate

_VARIABLE = "HARNESS_ALLOWED_CODE"


@gate("MD034", "spec-that-allows-its-own-code", upstream="silent", needs=("a run spec",), ignorable=False)
def check(ctx: Context) -> Iterator[Finding]:
    """Never from the spec."""
    if _VARIABLE in ctx.run.spec.launch.env:
        key = f"launch.env.{_VARIABLE}"
        yield ctx.finding(
            f"`{key}` would let the spec allow its own code",
            key,
            fix=Fix(f"remove `{key}` and start with `--allow-local-code`", {key: None}, safe=True),
        )
