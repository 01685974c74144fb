"""A variable that the launcher sets itself.

## What it checks
`launch.env` has none of `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_SIZE`, `CROSS_RANK`, `CROSS_SIZE`, `MASTER_ADDR`,
`MASTER_PORT`, nor `HARNESS_RUN_DIR`, `HARNESS_SUPERVISOR` and `HARNESS_LEADER`.

## Why it fails
The `deepspeed` launcher sets these for each rank from the hostfile and its own options, over whatever was there (read
in 0.19.8). The value would be lost; the port has a field, `launch.master_port`. By the last three `harness launch`
tells ranks which run they are of and when to end, so it does not pass on others.

## Example
```yaml
launch:
  env:
    MASTER_PORT: 29501
```

## Use instead
```yaml
launch:
  master_port: 29501
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_RESERVED = frozenset(
    """RANK LOCAL_RANK WORLD_SIZE LOCAL_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR MASTER_PORT
    HARNESS_RUN_DIR HARNESS_SUPERVISOR HARNESS_LEADER""".split()
)


@gate(
    "SE002",
    "environment-that-the-launcher-sets",
    upstream="silent",
    cites=(Cite("launcher/launch.py", 'current_env["MASTER_PORT"] = str(args.master_port)'),),
    needs=("a run spec",),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The launcher decides."""
    for name in ctx.run.spec.launch.env:
        if name not in _RESERVED:
            continue
        key = f"launch.env.{name}"
        instead = (
            "set `launch.master_port` instead" if name == "MASTER_PORT" else "it follows from the hosts and their slots"
        )
        yield ctx.finding(
            f"{ctx.key(key)} is set by the launcher for each rank, so this value is lost",
            key,
            severity="warning",
            label="has no effect",
            notes=[instead],
            fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True),
        )
