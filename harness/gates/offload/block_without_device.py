"""An offload block without a device.

## What it checks
`offload_optimizer` or `offload_param` in `zero_optimization` with other keys, but without `device`.

## Why it fails
The default device is `none`: nothing is offloaded, whatever path, ratio or buffers the block names, and the optimizer
stays on the device (run on 0.19.8 for both blocks).

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {
      "pin_memory": true
    }
  }
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {
      "device": "cpu",
      "pin_memory": true
    }
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


def _given(ctx: Context, section: str) -> bool:
    """Is there a block with at least one key?"""
    if not ctx.has_key(f"zero_optimization.{section}"):
        return False  # `cpu_offload: false` is a block without a device, too, once it is translated
    ours, rest = getattr(ctx.run.spec.zero, section), ctx.ds(f"zero_optimization.{section}")
    return ours.device == "none" if ours is not None else isinstance(rest, dict) and bool(rest)


@gate(
    "OF006",
    "offload-block-without-a-device",
    upstream="silent",
    cites=(Cite("runtime/zero/offload_config.py", 'device: OffloadDeviceEnum = "none"'),),
    when=lambda ctx: ctx.stage > 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Nothing is offloaded without a device."""
    for section in ("offload_optimizer", "offload_param"):
        if not _given(ctx, section) or ctx.has_key(f"zero_optimization.{section}.device"):
            continue
        if section == "offload_param" and ctx.stage < 3:
            continue  # nothing would be offloaded in any case: OF001 once there is a device
        key = ctx.spec_key(f"zero_optimization.{section}.device")
        device = (
            "nvme" if section == "offload_param" and ctx.has_key(f"zero_optimization.{section}.nvme_path") else "cpu"
        )
        yield ctx.finding(
            f"{ctx.key(f'zero.{section}')} has no `device`, so nothing is offloaded",
            key,
            label="the default is `none`",
            fix=Fix(
                f"set {ctx.key(key)} to `{device}`",
                {key: device},
                effect="the optimizer moves to the host" if section == "offload_optimizer" else "parameters move",
            ),
        )
