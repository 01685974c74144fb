"""Ordinary checkpoints that DeepSpeed is told to load as universal ones.

## What it checks
`checkpoint.load_universal: true` in a run spec (an error), in a DeepSpeed JSON (worth knowing).

## Why it fails
With the flag DeepSpeed looks for a file `latest_universal` in the checkpoint folder and refuses every checkpoint that
was not converted by `ds_to_universal.py` (run on 0.19.8). The harness resumes from checkpoints as they were saved, so
each resume would end there, after all ranks have built their weights.

## Example
```yaml
deepspeed:
  checkpoint:
    load_universal: true
```

## Use instead
```yaml
checkpoint:
  save_steps: 5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CK004",
    "universal-flag-on-ordinary-checkpoints",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "Invalid for universal checkpoint"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The flag is for one resume after a conversion."""
    if ctx.ds("checkpoint.load_universal") is not True:
        return
    key = ctx.spec_key("checkpoint.load_universal")
    ours = ctx.run.kind == "spec"
    yield ctx.finding(
        f"{ctx.key(key)} refuses every checkpoint that was not converted to a universal one",
        key,
        severity="error" if ours else "info",
        notes=[
            "the harness resumes from checkpoints as they were saved" if ours else "`ds_to_universal.py` converts one"
        ],
        fix=Fix(
            f"remove {ctx.key(key)}",
            {key: None},
            safe=ours,
            effect="" if ours else "checkpoints are loaded as they were saved",
        ),
    )
