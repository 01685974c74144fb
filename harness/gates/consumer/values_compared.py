"""Values that the Trainer compares with its own.

## What it checks
A JSON for the Hugging Face Trainer that writes out a batch size, the clipping, a learning rate or another value that
TrainingArguments have, too.

## Why it fails
The Trainer refuses to start when one of them differs: "Please correct the following DeepSpeed config values that
mismatch TrainingArguments values" (run with transformers 5.23). Nothing is wrong while both say the same.

## Example
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": 4,
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 2}
}
```

## Use instead
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 2}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "HF008",
    "values-that-the-trainer-compares",
    upstream="raises",
    when=lambda ctx: ctx.consumer == "hf",
    unseen="needs the Hugging Face Trainer",
)
def check(ctx: Context) -> Iterator[Finding]:
    """One line about all of them."""
    from harness.spec.auto_values import FROM_TRAINING_ARGUMENTS
    from harness.spec.parse.source import join_key

    written = [
        path for path in FROM_TRAINING_ARGUMENTS if ctx.has_key(join_key(path)) and not ctx.is_auto(join_key(path))
    ]
    keys = sorted((ctx.spec_key(join_key(path)) for path in written), key=lambda key: _order(ctx, key))
    if not keys:
        return
    more = f" and {len(keys) - 1} more" if len(keys) > 2 else f" and {ctx.key(keys[1])}" if len(keys) == 2 else ""
    yield ctx.finding(
        f"{ctx.key(keys[0])}{more} must say the same as TrainingArguments, or the Trainer does not start",
        keys[0],
        related=[(key, "and this") for key in keys[1:]],
        fix=Fix('write "auto"', dict.fromkeys(keys, "auto"), effect="the values of TrainingArguments are used"),
        severity="info",
    )


def _order(ctx: Context, key: str) -> tuple[int, int]:
    place = ctx.source.place(key)
    return place.line, place.column
