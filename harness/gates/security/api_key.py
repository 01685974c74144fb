"""The key of a monitoring service in the file.

## What it checks
`comet.api_key` is not written.

## Why it fails
A DeepSpeed JSON is checked in, copied into run directories and printed into the log of each run. Comet takes the key
from `COMET_API_KEY` or from its own configuration file as well.

## Example
```yaml
deepspeed:
  comet:
    enabled: true
    api_key: abcdefgh
```

## Use instead
```yaml
deepspeed:
  comet:
    enabled: true
    project: demo
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SE004",
    "api-key-in-the-json",
    upstream="silent",
    cites=(
        Cite(
            "monitor/config.py",
            "Comet API key. Can be set through .comet.config file or environment variable COMET_API_KEY",
        ),
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Secrets stay out of files."""
    if not ctx.ds("comet.api_key"):
        return
    key = ctx.spec_key("comet.api_key")
    yield ctx.finding(
        f"{ctx.key(key)} puts a secret into the file and into the log of every run",
        key,
        severity="warning",
        of_key=True,
        fix=Fix(
            f"remove {ctx.key(key)} and set COMET_API_KEY", {key: None}, effect="the key comes from the environment"
        ),
    )
