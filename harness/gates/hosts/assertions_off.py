"""Assertions switched off for the ranks.

## What it checks
`launch.env` does not set PYTHONOPTIMIZE.

## Why it fails
Most of DeepSpeed's refusals are `assert` statements, which PYTHONOPTIMIZE removes. Run on 0.19.8 without them: a
batch that does not work out trains on another, a micro-batch of 0 trains on nothing and reports NaN, a pipeline at
stage 3 hangs, tensor ranks with different samples train on, untested optimizers pass. PYTHON variables are among
those that DeepSpeed sends to all hosts.

## Example
```yaml
launch:
  env:
    PYTHONOPTIMIZE: "1"
```

## Use instead
```yaml
launch:
  env:
    PYTHONOPTIMIZE: ""
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "HO010",
    "assertions-off-in-launch-env",
    upstream="silent",
    cites=(Cite("runtime/config.py", 'assert (train_batch > 0), f"Train batch size: {train_batch}'),),
    when=lambda ctx: "PYTHONOPTIMIZE" in ctx.run.spec.launch.env,
)
def check(ctx: Context) -> Iterator[Finding]:
    """DeepSpeed refuses by `assert`."""
    value, key = ctx.run.spec.launch.env["PYTHONOPTIMIZE"], "launch.env.PYTHONOPTIMIZE"
    if value.strip() in ("", "0"):
        return
    yield ctx.finding(
        f"PYTHONOPTIMIZE is `{value[:20]}`: the ranks run without DeepSpeed's assertions",
        key,
        label="removes most refusals",
        notes=["what DeepSpeed would refuse trains something else, or hangs"],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="assertions are checked, nothing is slower"),
    )
