"""A choice of what is trained on that does not concern the format of the data.

## What it checks
`data.assistant_only_loss` is written only where `data.format` can be a chat, `data.completion_only_loss` only where it
can be prompts with completions.

## Why it fails
It would have no effect: other records are trained on by their own rule, and plain text on every token.

## Example
```yaml
data:
  format: text
  assistant_only_loss: true
```

## Use instead
```yaml
data:
  format: text
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate

_READ_BY = {
    "assistant_only_loss": ("messages", "sharegpt"),
    "completion_only_loss": ("prompt-completion", "alpaca"),
}


@gate("MD021", "loss-of-another-format", upstream="silent", needs=("a run spec",))
def check(ctx: Context) -> Iterator[Finding]:
    """Written where it is read."""
    data = ctx.run.spec.data
    formats = {source.format or data.format for source in (data.train or ())} or {data.format}
    for field, readers in _READ_BY.items():
        if field not in data.model_fields_set or formats & {"auto", *readers}:
            continue
        yield ctx.finding(
            f"`data.{field}` is not read: the format is {' and '.join(f'`{f}`' for f in sorted(formats))}",
            f"data.{field}",
            severity="warning",
            notes=[f"it is for {' and '.join(f'`{r}`' for r in readers)}"],
            fix=Fix("remove it", {f"data.{field}": None}, safe=True),
        )
