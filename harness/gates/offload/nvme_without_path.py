"""NVMe offload that does not say where.

## What it checks
`device: nvme` in `zero.offload_optimizer` or `zero.offload_param` without `nvme_path`.

## Why it fails
DeepSpeed's configuration accepts it. The swapper then fails when the engine is built, after every rank has its
weights: with a TypeError about `NoneType` for the optimizer, with a bare AssertionError for the parameters (run on
0.19.8).

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF002",
    "nvme-offload-without-a-path",
    upstream="crashes",
    cites=(Cite("runtime/zero/offload_config.py", "nvme_path: Optional[Path] = None"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Both offload sections need a folder for `nvme`."""
    zero = ctx.run.spec.zero
    for section, offload in (("offload_optimizer", zero.offload_optimizer), ("offload_param", zero.offload_param)):
        if offload is None or offload.device != "nvme" or offload.nvme_path or zero.stage < 3:
            continue  # below stage 3 nothing is swapped, whatever the path: OF001 and OF003
        yield ctx.finding(
            f"{ctx.key(f'zero.{section}.device')} is `nvme` and {ctx.key(f'zero.{section}.nvme_path')} is not set",
            f"zero.{section}.device",
            label="where to?",
            notes=["DeepSpeed fails on this only when the engine is built, after every rank has its weights"],
            fix=Fix(
                f"set {ctx.key(f'zero.{section}.nvme_path')} to a folder on a local NVMe disk",
                {f"zero.{section}.nvme_path": "/local_nvme"},
                effect="the folder has to exist on every host",
            ),
        )
