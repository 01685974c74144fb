"""A variable that a shell would run or tear apart.

## What it checks
Names in `launch.env` are names of variables, and values hold no command substitution, backtick or line break.

## Why it fails
For other hosts DeepSpeed writes each variable into a remote command as `export NAME=VALUE;`, without quoting the
name, and the harness's file of them has one line each. A substitution is run by the remote shell; a line break
becomes a line of its own. On this machine alone nothing runs it, but then it is not what was meant either.

## Example
```yaml
launch:
  env:
    RUN_TAG: $(date +%F)
```

## Use instead
```yaml
launch:
  env:
    RUN_TAG: demo
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SE005",
    "shell-code-in-the-environment",
    upstream="wrong",
    cites=(Cite("launcher/multinode_runner.py", 'exports += "export {}={}; ".format(key, val)'),),
    needs=("a run spec",),
    policy="on one host the text would arrive as it is written",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Plain names and plain values."""
    for name, value in ctx.run.spec.launch.env.items():
        key = f"launch.env.{name}"
        bad = next((text for text in ("$(", "${", "`", "\n", "\r", "\0") if text in value), None)
        if not (name.isascii() and name.isidentifier()):
            message = f"`{name[:40]!a}` in `launch.env` is not the name of a variable"
        elif bad is not None:
            message = f"{ctx.key(key)} holds {bad!a}, which a remote shell would not leave alone"
        else:
            continue
        yield ctx.finding(
            message,
            key if "." not in name else "launch.env",
            notes=["nothing is expanded on this machine; on other hosts a shell reads it"],
            fix=Fix("write out what was meant", {key: None}, effect="the variable is not set"),
        )
