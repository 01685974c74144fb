"""Devices chosen in the environment of the ranks.

## What it checks
`launch.env` does not set CUDA_VISIBLE_DEVICES.

## Why it fails
DeepSpeed's launcher writes CUDA_VISIBLE_DEVICES for each rank from the slots, over whatever is there, and drops it
where `--num_gpus` is given (run on 0.19.8): the ranks train on other devices than were named. The variable counts
where it is set in the shell that launches.

## Example
```yaml
launch:
  num_gpus: 2
  env:
    CUDA_VISIBLE_DEVICES: "2,3"
```

## Use instead
```yaml
launch:
  num_gpus: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_NAME = "CUDA_VISIBLE_DEVICES"


@gate(
    "HO011",
    "devices-chosen-in-launch-env",
    upstream="silent",
    cites=(Cite("launcher/runner.py", "CUDA_VISIBLE_DEVICES"),),
    when=lambda ctx: _NAME in ctx.run.spec.launch.env,
    unseen="needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The slots decide."""
    key = f"launch.env.{_NAME}"
    yield ctx.finding(
        f"the launcher chooses devices by slots, {ctx.key(key)} `{ctx.run.spec.launch.env[_NAME][:40]}` is lost",
        key,
        label="has no effect",
        notes=["the ranks would train on other devices than these"],
        fix=Fix(
            f"remove it here, and export {_NAME} in the shell that launches", {key: None}, safe=True, effect="as now"
        ),
        severity="warning",
    )
