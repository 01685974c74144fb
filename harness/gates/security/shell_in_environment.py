"""A variable that a shell would run or tear apart.

## What it checks
Names in `launch.env` are names of variables, and values hold no command substitution, backtick or line break. Where
pdsh reaches other hosts, they hold no double quote, `$` or backslash either.

## Why it fails
For other hosts DeepSpeed writes each variable into a remote command as `export NAME="VALUE";`. It escapes nothing in
the value and does not quote the name, and the harness's file of them has one line each. A substitution is run by the
remote shell; a double quote ends the text, and what follows is run; a line break becomes a line of its own. On this
machine alone nothing runs a substitution, but then it is not what was meant either.

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

_NOWHERE = ("$(", "${", "`", "\n", "\r", "\0")
_IN_A_SHELL = ('"', "$", "\\")
"""Characters that a shell interprets between double quotes."""


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
    launch, cluster = ctx.run.spec.launch, ctx.run.cluster
    over_shell = cluster is not None and len(cluster.hosts) > 1 and launch.launcher == "pdsh"
    for name, value in launch.env.items():
        key = f"launch.env.{name}"
        own = value.replace("$PATH", "") if name == "PATH" else value  # the launch itself replaces that
        bad = next((text for text in (*_NOWHERE, *(_IN_A_SHELL if over_shell else ())) if text in own), None)
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
