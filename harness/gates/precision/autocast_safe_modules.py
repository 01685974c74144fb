"""Modules of autocast that are no full class path.

## What it checks
`torch_autocast.lower_precision_safe_modules`: each entry is a package and a class, such as `torch.nn.Linear`.

## Why it fails
DeepSpeed splits each entry at its last dot and imports the two parts. A bare class name has nothing to import it from:
`ValueError: Failed to import lower precision safe module` when the engine is built.

## Example
```yaml
deepspeed:
  torch_autocast:
    enabled: true
    dtype: bfloat16
    lower_precision_safe_modules: [Linear]
```

## Use instead
```yaml
deepspeed:
  torch_autocast:
    enabled: true
    dtype: bfloat16
    lower_precision_safe_modules: [torch.nn.Linear]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR015",
    "autocast-modules-without-package",
    upstream="raises",
    since="0.17.2",
    cites=(Cite("runtime/torch_autocast.py", "package_name, class_name = module_name.rsplit('.', 1)"),),
    when=lambda ctx: ctx.is_enabled("torch_autocast"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A class needs its package."""
    place = "deepspeed.torch_autocast.lower_precision_safe_modules"
    names = ctx.ds("torch_autocast.lower_precision_safe_modules")
    if not isinstance(names, (list, tuple)):
        return
    bare = [name for name in names if isinstance(name, str) and "." not in name.strip(".")]
    if not bare:
        return
    mended = [f"torch.nn.{name}" if name in bare else name for name in names]
    yield ctx.finding(
        f"`{bare[0][:40]}` in {ctx.key(place)} is no full path of a class",
        place,
        notes=["DeepSpeed imports each entry by its package"],
        fix=Fix(
            f"write `torch.nn.{bare[0][:40]}`, or the package that it is in",
            {place: mended},
            effect="takes the class of that name in torch.nn",
        ),
    )
