"""An NVMe path that is relative or no disk.

## What it checks
`nvme_path` of an offload section with `device: nvme` at stage 3 that is relative, lies in a file system that lives in
memory (`/dev/shm`, `/run`), or in one that takes no folders (`/proc`, `/sys`, an error).

## Why it fails
DeepSpeed makes the folder wherever the path leads, on each host for itself. A relative one follows the working
directory of the ranks; one in memory spends the memory that the disk was to save, and swaps nothing out. Where no
folder can be made, the engine fails with FileNotFoundError (run on 0.19.8: tmpfs is taken, `/proc` is not).

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /dev/shm/offload
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
    "OF026",
    "nvme-path-that-is-no-disk",
    upstream="silent",
    cites=(
        Cite(
            "runtime/zero/stage3.py",
            "nvme_swap_folder = os.path.join(offload_optimizer_config.nvme_path, 'zero_stage_3')",
        ),
    ),
    when=lambda ctx: ctx.stage == 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The folder is made wherever the path leads."""
    for section in ("offload_optimizer", "offload_param"):
        path = ctx.ds(f"zero_optimization.{section}.nvme_path")
        if ctx.offload_device(section) != "nvme" or not isinstance(path, str) or not path:
            continue
        no_folder, in_memory = path.startswith(("/proc/", "/sys/")), path.startswith(("/dev/shm", "/run/"))  # noqa: S108
        if path.startswith("/") and not in_memory and not no_folder:
            continue
        key = f"zero.{section}.nvme_path"
        place = "where no folder can be made" if no_folder else "in memory, not on a disk"
        what = place if path.startswith("/") else "relative to where each rank runs"
        yield ctx.finding(
            f"{ctx.key(key)} is `{path}`, which is {what}",
            key,
            fix=Fix(
                f"set {ctx.key(key)} to a folder on a local NVMe disk, such as `/local_nvme`",
                {key: "/local_nvme"},
                effect="the folder has to exist on every host",
            ),
            severity="error" if no_folder else "warning",
        )
