"""A secret written into the file.

## What it checks
`launch.env` has no variable that is named like a password, key or token, and none whose value looks like one.

## Why it fails
The file is copied into the run directory, the variable goes into `deepspeed.env`, and to other hosts it travels on a
command line that every user of the host can list.

## Example
```yaml
launch:
  env:
    HF_TOKEN: hf_xxxxxxxxxxxxxxxx
```

## Use instead
```yaml
launch:
  env:
    HF_HUB_OFFLINE: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate

_NAMES = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY", "CREDENTIALS")
_VALUES = ("hf_", "sk-", "ghp_", "github_pat_", "glpat-", "AKIA", "xoxb-")


@gate("SE003", "secret-in-the-file", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Secrets stay out of files."""
    for name, value in ctx.run.spec.launch.env.items():
        if not value or not (name.upper().endswith(_NAMES) or value.startswith(_VALUES)):
            continue
        key = f"launch.env.{name}"
        yield ctx.finding(
            f"{ctx.key(key)} puts a secret into the file, the run directory and a command line",
            key,
            severity="warning",
            of_key=True,
            notes=["log in on the hosts, or set it in their login environment"],
            fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="ranks take it from their own environment"),
        )
