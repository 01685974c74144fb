"""A monitor that writes where the script was started.

## What it checks
`tensorboard` and `csv_monitor` that are enabled without an `output_path`.

## Why it fails
Without a path the files go to a folder `DeepSpeedJobName`, or as `job_name` says, below the folder in which the ranks
were started: runs mix, and with several hosts it is on the first one's disk (read in 0.19.8).

## Example
```yaml
deepspeed:
  csv_monitor:
    enabled: true
    job_name: demo
```

## Use instead
```yaml
deepspeed:
  csv_monitor:
    enabled: true
    output_path: /shared/metrics
    job_name: demo
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT002",
    "monitor-without-output-path",
    upstream="silent",
    cites=(Cite("monitor/csv_monitor.py", "log_dir = os.path.join(self.output_path, self.job_name)"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Name the folder."""
    for name in ("tensorboard", "csv_monitor"):
        if not ctx.is_enabled(name) or ctx.ds(f"{name}.output_path"):
            continue
        key = ctx.spec_key(f"{name}.output_path")
        yield ctx.finding(
            f"{ctx.key(key)} is not given, so the files go to a folder of DeepSpeed's choice",
            ctx.spec_key(name),
            severity="warning",
            of_key=True,
            notes=["runs without a path of their own mix"],
            fix=Fix(f"set {ctx.key(key)} to an absolute path", {key: "/shared/metrics"}, effect="the files go there"),
        )
