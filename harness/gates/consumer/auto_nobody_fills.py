"""An "auto" that the Trainer or accelerate does not fill in.

## What it checks
A JSON for the Hugging Face Trainer or for accelerate in which a key is "auto" that they do not know, such as
`zero_optimization.overlap_comm`, a loss scale, or an optimizer's betas under accelerate alone.

## Why it fails
accelerate walks over the whole file when the model is prepared, under the Trainer too, and ends with a ValueError for
each "auto" that is still there: "`zero_optimization.overlap_comm` not found in kwargs" (run with transformers 5.23 and
accelerate 1.15). That holds for keys whose "auto" is a word of DeepSpeed's own.

## Example
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 2, "overlap_comm": "auto"}
}
```

## Use instead
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 2, "overlap_comm": true}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "HF004",
    "auto-that-nobody-fills-in",
    upstream="raises",
    when=lambda ctx: ctx.consumer in ("hf", "accelerate"),
    unseen="needs the Hugging Face Trainer or accelerate",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Every "auto" must be one that the reader replaces."""
    from harness.spec.auto_values import (
        CONSUMER_NAMES,
        NATIVE_AUTO_KEYS,
        auto_in_deepspeed,
        find_auto_values,
        keys_filled_by,
    )
    from harness.spec.parse.source import join_key

    filled = keys_filled_by(ctx.consumer or "hf")
    for path in find_auto_values(ctx.source.data):
        if path in filled or auto_in_deepspeed(path, ctx.target.version) == "unknown":
            continue
        name = join_key(path)
        key = ctx.spec_key(name)
        notes = [f'accelerate ends with "`{name}` not found in kwargs" when the model is prepared']
        if path in NATIVE_AUTO_KEYS:
            notes.append('"auto" is a word of DeepSpeed\'s own here, but accelerate does not let it through')
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which {CONSUMER_NAMES[ctx.consumer or "hf"]} does not fill in',
            key,
            notes=notes,
            fix=Fix("write the value, or remove the key", {key: None}, effect="DeepSpeed's default"),
        )
