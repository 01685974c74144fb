"""Options of an export that does not take place.

## What it checks
`export.dtype`, `export.sample_prompt` and `export.sample_tokens` without `export.at_end: true`; `sample_tokens`
without `sample_prompt`.

## Why it fails
They are for the export at the end of training. The command `harness export` has options of its own.

## Example
```yaml
export:
  sample_prompt: "def main"
```

## Use instead
```yaml
export:
  at_end: true
  sample_prompt: "def main"
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD013", "export-options-without-export", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """For the export at the end."""
    export = ctx.run.spec.export
    names = () if export.at_end else ("dtype", "max_shard_size", "lora", "verify", "sample_prompt")
    if not export.at_end or export.sample_prompt is None:
        names = (*names, "sample_tokens")
    for name in names:
        key = f"export.{name}"
        if name in export.model_fields_set:
            needed = "export.at_end" if not export.at_end else "export.sample_prompt"
            yield ctx.finding(
                f"{ctx.key(key)} is read only with {ctx.key(needed)}",
                key,
                severity="warning",
                label="has no effect",
                fix=Fix(f"set {ctx.key(needed)}, or remove it", {key: None}, safe=True),
            )
