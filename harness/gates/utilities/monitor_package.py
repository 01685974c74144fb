"""A monitor whose package is not installed.

## What it checks
On `harness launch`, on this machine: `tensorboard`, `wandb` and `comet` that are enabled can be imported.

## Why it fails
The monitor imports its package when the engine is built: ModuleNotFoundError, after every rank has built its weights
(run on 0.19.8).

## Example
```yaml
deepspeed:
  comet:
    enabled: true
    project: demo
```

## Use instead
```yaml
logging:
  logging_steps: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT013",
    "monitor-without-its-package",
    upstream="raises",
    cites=(Cite("monitor/comet.py", "import comet_ml"),),
    needs=("a run spec", "a launch"),
    unseen="depends on what is installed",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Imported when the engine is built."""
    import importlib.util

    for name, package in (("tensorboard", "tensorboard"), ("wandb", "wandb"), ("comet", "comet_ml")):
        if not ctx.is_enabled(name) or importlib.util.find_spec(package) is not None:
            continue
        key = ctx.spec_key(f"{name}.enabled")
        yield ctx.finding(
            f"{ctx.key(key)} needs the package `{package}`, which is not installed here",
            key,
            fix=Fix(
                f"install `{package}` on every host, or switch it off", {key: False}, effect="nothing is sent to it"
            ),
        )
