"""A path that a shell would run or tear apart.

## What it checks
`launch.output_dir` and `launch.hostfile` hold no shell metacharacter, quote, line break or control character.

## Why it fails
The run directory is an argument of the remote command, into which DeepSpeed writes it without quotes: `;` ends the
command and what follows is run on every host. Nothing expands `$NAME` in them on this machine.

## Example
```yaml
launch:
  output_dir: runs;reboot
```

## Use instead
```yaml
launch:
  output_dir: runs
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate

_BAD = frozenset(""";&|<>$`"'\\(){}[]*?!#""")


@gate(
    "SE006",
    "shell-code-in-a-path",
    upstream="wrong",
    needs=("a run spec",),
    policy="on one host the path would be taken as it is written",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Plain paths."""
    for name in ("output_dir", "hostfile"):
        value = getattr(ctx.run.spec.launch, name)
        bad = next((c for c in value or "" if c in _BAD or not c.isprintable()), None)
        if bad is None:
            continue
        key = f"launch.{name}"
        yield ctx.finding(
            f"{ctx.key(key)} holds {bad!a}, which a remote shell would not leave alone",
            key,
            notes=["DeepSpeed writes paths into the remote command without quoting them"],
            fix=Fix("use letters, digits and `@+=:,./-_`", {key: None}, effect="the default is used"),
        )
