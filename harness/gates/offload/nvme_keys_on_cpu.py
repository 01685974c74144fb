"""Settings for NVMe with `device: cpu`.

## What it checks
Keys of an offload section that only NVMe reads (`nvme_path`, `buffer_count`, `buffer_size`, `max_in_cpu`,
`pipeline_read`, `pipeline_write`, `fast_init`) with `device: cpu`.

## Why it fails
Nothing is swapped to a disk, so nothing reads them (read in 0.19.8). Either the device was meant to be `nvme`, or they
are left over.

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
    nvme_path: /local_nvme
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_NVME = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write", "fast_init")


def _asked(ctx: Context, key: str) -> bool:
    return ctx.has_key(key) and ctx.ds(key) not in (None, False, "none", "")


@gate(
    "OF027",
    "nvme-settings-with-cpu",
    upstream="silent",
    cites=(
        Cite(
            "runtime/zero/stage3.py", "self.swap_optimizer = offload_optimizer_config.device == OffloadDeviceEnum.nvme"
        ),
    ),
    when=lambda ctx: ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Nothing is swapped to a disk."""
    for section in ("offload_optimizer", "offload_param"):
        if ctx.offload_device(section) != "cpu" or (section == "offload_param" and ctx.stage < 3):
            continue
        names = [name for name in _NVME if _asked(ctx, f"zero_optimization.{section}.{name}")]
        if not names:
            continue
        key, more = f"zero.{section}.{names[0]}", len(names) - 1
        what = ctx.key(key) + (f" and {more} other key{'s' if more > 1 else ''}" if more else "")
        yield ctx.finding(
            f"{what} {'are' if more else 'is'} read with `device: nvme` alone, this is `cpu`",
            key,
            label="has no effect",
            related=[(f"zero.{section}.device", "the device is set here")],
            notes=[f"not read: {', '.join(f'`{name}`' for name in names)}"] if more else [],
            fix=Fix(
                f"remove {'them' if more else 'it'}",
                {f"zero.{section}.{name}": None for name in names},
                safe="nvme_path" not in names,
                effect="the path is gone for a later run on NVMe" if "nvme_path" in names else "",
            ),
            severity="info",
            of_key=True,
        )
