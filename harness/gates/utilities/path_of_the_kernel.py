"""A monitor that writes where nobody can.

## What it checks
`output_path` of an enabled `csv_monitor` or `tensorboard` is not below `/proc`, `/sys` or `/dev/null`.

## Why it fails
Rank 0 makes the folder when the engine is built: FileNotFoundError (run on 0.19.8), while the other ranks wait for
it. Whether another folder can be written to is not in the file.

## Example
```yaml
deepspeed:
  csv_monitor:
    enabled: true
    output_path: /proc/metrics
```

## Use instead
```yaml
deepspeed:
  csv_monitor:
    enabled: true
    output_path: /shared/metrics
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT017",
    "monitor-path-that-cannot-be-made",
    upstream="raises",
    cites=(Cite("monitor/csv_monitor.py", "os.makedirs(log_dir, exist_ok=True)"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Not the kernel's folders."""
    for name in ("csv_monitor", "tensorboard"):
        path = ctx.ds(f"{name}.output_path")
        if (
            not ctx.is_enabled(name)
            or not isinstance(path, str)
            or not f"{path}/".startswith(("/proc/", "/sys/", "/dev/null/"))
        ):
            continue
        key = ctx.spec_key(f"{name}.output_path")
        yield ctx.finding(
            f"{ctx.key(key)} is `{path[:60]}`, where no folder can be made",
            key,
            fix=Fix("name a folder that rank 0 can write to", {key: "/shared/metrics"}, effect="the files go there"),
        )
